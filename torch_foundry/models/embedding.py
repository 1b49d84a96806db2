"""A decoder's embedding of ids: dense, packed, or split over processes; its norm; and that of positions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from torch_foundry import ops
from torch_foundry.core.errors import Fallback
from torch_foundry.models.family import Decoder
from torch_foundry.models.outputs import number
from torch_foundry.models.swap import is_swapped
from torch_foundry.models.tensor_parallel import ShardedRows, sharding_of
from torch_foundry.models.weights import Gemm, Norm, ones
from torch_foundry.nn import FoundryEmbedding


def dtype_of(embedding: Any) -> torch.dtype:
    """Of the rows that it gives."""
    dtype: torch.dtype = (embedding.anchor if isinstance(embedding, FoundryEmbedding) else embedding.weight).dtype
    return dtype


class TokenEmbedding:
    """Rows of a table, times a factor or behind a norm, plus those of learned positions. Raises Fallback for one that
    is not known.

    decoder: what is known of `owner`, whose embedding this is.
    """

    __slots__ = ("dtype", "module", "norm", "positions", "rows", "scale")

    def __init__(self, owner: Any, decoder: Decoder) -> None:
        module = self.module = getattr(owner, decoder.embedding)
        self.dtype = dtype_of(module)
        self.rows = ShardedRows(module) if sharding_of(module) is not None else None
        for name in decoder.absent:
            if getattr(owner, name) is not None:
                raise Fallback(f"the decoder has a {name}")
        self.positions = getattr(owner, decoder.positions) if decoder.positions else None
        for each in self.modules:
            if not (is_swapped(each) or isinstance(each, FoundryEmbedding)):
                raise Fallback(f"the embedding is a {type(each).__name__}")
        norm = module._modules.get("embed_norm")
        self.norm = None if norm is None else Norm(norm)
        if self.norm is not None:
            ones(module.embedding_dim, self.dtype, module.weight.device)  # not first while a step is captured
        # a buffer that stock code rounds to the model's dtype, or an exact number
        buffer = module._buffers.get("embed_scale")
        self.scale = decoder.factor(owner) if buffer is None else number(buffer, self.dtype)

    @property
    def modules(self) -> list[Any]:
        """What captured steps read, as it is."""
        found = [self.module if self.rows is None else None, self.module._modules.get("embed_norm"), self.positions]
        return [module for module in found if module is not None]

    @property
    def most_positions(self) -> int | None:
        """How many there are; None: as many as are asked for."""
        return None if self.positions is None else self.positions.num_embeddings - getattr(self.positions, "offset", 0)

    def changed(self) -> bool:
        """Whether this process has another part of it by now."""
        return self.rows is not None and self.rows.changed()

    def __call__(self, ids: torch.Tensor, gemm: Gemm, states: Sequence[Any] = ()) -> torch.Tensor:
        """Ids [B, L] to their embeddings, [B, L, hidden]. states: views that say where the tokens are."""
        module = self.module
        if self.rows is not None:
            x = torch.empty(*ids.shape, module.embedding_dim, dtype=self.dtype, device=ids.device)
            gemm.call(partial(self.rows, ids, x, self.scale))
        else:
            x = self._look_up(module, ids, scale=self.scale)
        if self.norm is not None:
            x = self.norm(x)
        if self.positions is None:
            return x
        return self._look_up(self.positions, states[0].positions.view(ids.shape), residual=x)

    def _look_up(self, module: Any, ids: torch.Tensor, **how: Any) -> torch.Tensor:
        fmt = module.format if isinstance(module, FoundryEmbedding) else None
        weight = module.weight[getattr(module, "offset", 0) :]
        return ops.embedding(ids, weight, format=fmt, dtype=self.dtype, **how)
