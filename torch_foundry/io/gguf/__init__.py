"""Reading GGUF files."""

from torch_foundry.io.gguf.split import open_gguf
from torch_foundry.io.gguf.values import Array

__all__ = ["Array", "open_gguf"]
