"""Reading models from untrusted files: containers, their tensors, and the models they describe."""

from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.folder import open_safetensors
from torch_foundry.loaders.gguf import Array, open_gguf
from torch_foundry.loaders.opening import open_container
from torch_foundry.loaders.tensors import Container, TensorInfo, Weight

__all__ = [
    "Array",
    "Container",
    "LoadError",
    "TensorInfo",
    "Weight",
    "open_container",
    "open_gguf",
    "open_safetensors",
]
