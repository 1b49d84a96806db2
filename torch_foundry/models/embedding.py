"""A decoder's embedding of ids: dense, packed, or split over processes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from torch_foundry import ops
from torch_foundry.core.errors import Fallback
from torch_foundry.models.family import Decoder
from torch_foundry.models.outputs import number
from torch_foundry.models.swap import is_swapped
from torch_foundry.models.tensor_parallel import ShardedRows, sharding_of
from torch_foundry.models.weights import Gemm
from torch_foundry.nn import FoundryEmbedding


def dtype_of(embedding: Any) -> torch.dtype:
    """Of the rows that it gives."""
    dtype: torch.dtype = (embedding.anchor if isinstance(embedding, FoundryEmbedding) else embedding.weight).dtype
    return dtype


class TokenEmbedding:
    """Rows of a table, times a factor. Raises Fallback for an embedding that is not known.

    decoder: what is known of `owner`, whose embedding this is.
    """

    __slots__ = ("dtype", "module", "rows", "scale")

    def __init__(self, owner: Any, decoder: Decoder) -> None:
        module = self.module = getattr(owner, decoder.embedding)
        self.dtype = dtype_of(module)
        self.rows = ShardedRows(module) if sharding_of(module) is not None else None
        if self.rows is None and not (is_swapped(module) or isinstance(module, FoundryEmbedding)):
            raise Fallback(f"the embedding is a {type(module).__name__}")
        # a buffer that stock code rounds to the model's dtype, or an exact number
        buffer = module._buffers.get("embed_scale")
        self.scale = decoder.factor(owner) if buffer is None else number(buffer, self.dtype)

    @property
    def modules(self) -> list[Any]:
        """What captured steps read, as it is."""
        return [] if self.rows is not None else [self.module]

    def changed(self) -> bool:
        """Whether this process has another part of it by now."""
        return self.rows is not None and self.rows.changed()

    def __call__(self, ids: torch.Tensor, gemm: Gemm) -> torch.Tensor:
        """Ids [B, L] to their embeddings, [B, L, hidden]."""
        module = self.module
        if self.rows is not None:
            x = torch.empty(*ids.shape, module.embedding_dim, dtype=self.dtype, device=ids.device)
            gemm.call(partial(self.rows, ids, x, self.scale))
            return x
        fmt = module.format if isinstance(module, FoundryEmbedding) else None
        return ops.embedding(ids, module.weight, format=fmt, dtype=self.dtype, scale=self.scale)
