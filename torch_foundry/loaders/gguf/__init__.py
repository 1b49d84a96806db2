"""Reading GGUF files."""

from torch_foundry.loaders.gguf.split import open_gguf
from torch_foundry.loaders.gguf.values import Array

__all__ = ["Array", "open_gguf"]
