"""Reading models from untrusted files: containers, their tensors, and the models they describe."""

from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.container import Container, TensorInfo
from torch_foundry.io.gguf import Array, open_gguf
from torch_foundry.io.load import open_container
from torch_foundry.io.safetensors import open_safetensors
from torch_foundry.io.weights import Weight

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
