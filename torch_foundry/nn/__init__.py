"""Leaf modules that hold packed weights. They work on their own: a stock model around them needs no patch."""

from torch_foundry.nn.embedding import FoundryEmbedding
from torch_foundry.nn.experts import FoundryExperts
from torch_foundry.nn.linear import FoundryLinear

__all__ = ["FoundryEmbedding", "FoundryExperts", "FoundryLinear"]
