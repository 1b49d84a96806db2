"""Reading models from files that are not believed: containers, their tensors, what they describe."""

from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.tensors import Container, TensorInfo, Weight

__all__ = ["Container", "LoadError", "TensorInfo", "Weight"]
