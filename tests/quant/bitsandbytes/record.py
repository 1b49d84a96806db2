"""Writes values.safetensors beside it: what bitsandbytes packs weights as, and what its packed weights stand for.

Needs bitsandbytes, which the tests do without: `pip install bitsandbytes`, then run this file. It works on a CPU.
"""

from __future__ import annotations

from pathlib import Path

import torch
from bitsandbytes import functional  # type: ignore[import-not-found]
from safetensors.torch import save_file


def main() -> None:
    """nf4 and fp4, plain; `nested`: with scales that are packed themselves, as its files have them."""
    torch.manual_seed(0)
    arrays = {}
    for name in ("nf4", "fp4"):
        weight = torch.randn(2, 128)
        codes, state = functional.quantize_4bit(weight, quant_type=name, blocksize=64)
        values = functional.dequantize_4bit(codes, state)
        arrays |= {
            f"{name}.weight": weight,
            f"{name}.values": values,
            f"{name}.codes": codes,
            f"{name}.absmax": state.absmax,
        }
    weight = torch.randn(40, 512) * torch.rand(40, 1)  # more than one block of scales
    codes, state = functional.quantize_4bit(weight.half(), quant_type="nf4", blocksize=64, compress_statistics=True)
    arrays |= {"nested.weight": codes, "nested.values": functional.dequantize_4bit(codes, state)}
    arrays |= {f"nested.weight.{key}": value for key, value in state.as_dict(packed=True).items()}
    save_file(
        {key: value.contiguous() for key, value in arrays.items()}, Path(__file__).with_name("values.safetensors")
    )


if __name__ == "__main__":
    main()
