"""Weight formats, and packing weights into them. The table comes from the same headers that the kernels are made of."""

from torch_foundry.quant.formats import DENSE, DENSE_NAMES, FORMATS, PACKABLE, Format, get_format, listing
from torch_foundry.quant.packing import dequantize, quantize

__all__ = ["DENSE", "DENSE_NAMES", "FORMATS", "PACKABLE", "Format", "dequantize", "get_format", "listing", "quantize"]
