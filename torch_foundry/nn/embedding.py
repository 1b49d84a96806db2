"""nn.Embedding over a packed weight."""

from __future__ import annotations

import torch
from torch import nn

from torch_foundry import ops, quant
from torch_foundry.nn.packing import KERNEL_DTYPES, give_back, take_over


class ScaledEmbedding(nn.Embedding):
    """Dense form of a FoundryEmbedding with a factor that was not made from a module of transformers."""

    embed_scale: torch.Tensor

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Rows `input` of the weight, multiplied."""
        return super().forward(input) * self.embed_scale.to(self.weight.dtype)


class FoundryEmbedding(nn.Embedding):
    """An embedding whose weight stays packed.

    Rows have the dtype of `anchor`, an empty buffer that `.to(dtype)` converts. `embed_scale` is Gemma's factor; it is
    rounded to that dtype first, as in the stock module. `embed_norm`, a module, is what Muse Glimmer's rows pass.
    """

    weight: torch.Tensor
    anchor: torch.Tensor
    embed_scale: torch.Tensor | None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        weight: torch.Tensor,
        fmt: str,
        dtype: torch.dtype,
        padding_idx: int | None = None,
        embed_scale: torch.Tensor | None = None,
        embed_norm: nn.Module | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.num_embeddings, self.embedding_dim, self.format = num_embeddings, embedding_dim, fmt
        self.padding_idx = padding_idx
        self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse = None, 2.0, False, False
        self.register_buffer("weight", weight)
        self.register_buffer("anchor", torch.empty(0, dtype=dtype, device=weight.device), persistent=False)
        self.register_buffer("embed_scale", embed_scale, persistent=False)
        if embed_norm is not None:
            self.embed_norm = embed_norm

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, fmt: str, packed: torch.Tensor | None = None) -> FoundryEmbedding:
        """`embedding` with its weight packed. packed: the packed weight, if it exists already (tied to the output
        layer).

        `embedding` loses its weight and is kept for `to_embedding`.
        """
        weight = embedding.weight
        result = cls(
            embedding.num_embeddings,
            embedding.embedding_dim,
            quant.quantize(weight, fmt) if packed is None else packed,
            fmt,
            weight.dtype,
            embedding.padding_idx,
            embedding._buffers.get("embed_scale"),
            embedding._modules.get("embed_norm"),
        )
        return take_over(result, embedding)

    def stock(self) -> nn.Module:
        """A dense embedding of this one's sizes, without memory."""
        cls = nn.Embedding if self.embed_scale is None else ScaledEmbedding
        embedding = cls(self.num_embeddings, self.embedding_dim, self.padding_idx, device="meta")
        if self.embed_scale is not None:
            embedding.register_buffer("embed_scale", self.embed_scale, persistent=False)
        return embedding

    def to_embedding(self, weight: torch.Tensor | None = None) -> nn.Module:
        """The dense embedding that this one was made from, with the dequantised weight (or `weight`, if tied)."""
        return give_back(self, self.dequantized(self.anchor.dtype) if weight is None else weight)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """The dense weight [num_embeddings, embedding_dim] that the packed one stands for."""
        return quant.dequantize(self.weight, self.format, self.embedding_dim, dtype)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Rows `input` of the weight."""
        dtype = self.anchor.dtype
        if dtype in KERNEL_DTYPES and input.numel() and not torch.compiler.is_compiling():
            rows = ops.embedding(input.contiguous(), self.weight, format=self.format, dtype=dtype)
        else:
            unique, index = torch.unique(input, return_inverse=True)
            rows = quant.dequantize(self.weight[unique], self.format, self.embedding_dim, dtype)[index]
        if "embed_norm" in self._modules:
            return self.embed_norm(rows)
        return rows if self.embed_scale is None else rows * self.embed_scale.to(dtype)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"{super().extra_repr()}, format={self.format}"
