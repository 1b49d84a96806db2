"""What a decoder layer knows of its cache: memory for one step, and the contract of a cache layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.kvcache.formats import PLAIN, Formats

Rope = tuple[Tensor | None, Tensor | None]  # cos, sin: of each token, or tables by position; None: no rotation


class KVStep(Protocol):
    """Keys and values of one step, of one layer."""

    def write(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, *, head_dim: int, **norms: Any) -> Any:
        """Norm and rotate heads, store keys and values; returns the queries, for `attend`.

        q, k, v: [B, L, heads * head_dim]. norms: of heads, as in `ops.rope_and_cache`.
        """

    def attend(
        self, q: Any, mask: Tensor | None = None, *, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """Attention of the queries from `write` to the keys so far: [B, L, heads * head_dim].

        mask: in place of causal attention, as in `ops.attention`.
        """


@dataclass(frozen=True, slots=True)
class KVView:
    """Where one step's keys and values lie, and which of them its queries see."""

    k: Tensor  # [B, Hkv, capacity, D], or pages [P, Hkv, page, D]; packed rows if there is a format
    v: Tensor
    kv_len: int  # keys that are attended to; a bound where `step` or `rows` says more
    start: int = 0  # place of the first new token
    first: int = 0  # place of the first key that is attended to
    positions: Tensor | None = None  # int32 [B, L]: the new tokens' rows of the rope tables; None: one row a token
    step: Tensor | None = None  # int32 [2] on the device: replaces `start`, and says how many tokens came before k
    rows: Tensor | None = None  # int32 [B, 2] on the device: place of the first new token, and number of new ones
    block_table: Tensor | None = None  # int32 [B, pages]
    padding: Tensor | None = None  # bool [B, tokens]: False for tokens that no query sees
    formats: Formats = PLAIN  # of packed keys and values

    def write(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, *, head_dim: int, **norms: Any) -> Any:
        """See `KVStep`."""
        cos, sin = rope
        return ops.rope_and_cache(
            q, k, v, cos, sin, self.k, self.v, self.start, head_dim=head_dim, positions=self.positions, step=self.step,
            rows=self.rows, block_table=self.block_table, k_format=self.formats[0], v_format=self.formats[1], **norms,
        )  # fmt: skip

    def attend(
        self, q: Any, mask: Tensor | None = None, *, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """See `KVStep`."""
        k, v = self.k, self.v
        if self.first:
            k, v = k.narrow(2, self.first, self.kv_len), v.narrow(2, self.first, self.kv_len)
        seen = mask if self.padding is None else self.padding[:, None, None]
        return ops.attention(
            q, k, v, self.kv_len, scale=scale, mask=seen, causal=mask is None, window=window if mask is None else 0,
            softcap=softcap, step=self.step, rows=self.rows, block_table=self.block_table,
            k_format=self.formats[0], v_format=self.formats[1],
        )  # fmt: skip

    def is_dense(self, dtype: torch.dtype) -> bool:
        """Whether keys and values lie in one piece a row, in `dtype`, as `ops.norm_qkv` writes them."""
        return self.block_table is None and self.k.dtype == self.v.dtype == dtype


class KVLayer(ABC):
    """One layer of a cache that decoder layers write to directly.

    `reserve` may move memory. Until `commit` nothing moves and nothing is counted, so a step that fails has not
    happened. `rollback` forgets what was committed since `checkpoint`, which holds no tensors.
    """

    @property
    @abstractmethod
    def formats(self) -> Formats:
        """Formats of packed keys and values, as ops name them."""

    @abstractmethod
    def fits(self, batch: int, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether `reserve` may be called with these: what is stored has the same shape, dtype and device."""

    @abstractmethod
    def visible(self, tokens: int) -> int:
        """Number of keys that a step of `tokens` queries attends to."""

    @abstractmethod
    def reserve(
        self, batch: int, heads: int, head_dim: int, tokens: int, dtype: torch.dtype, device: torch.device
    ) -> KVView:
        """Make room for `tokens` more a row. RuntimeError if there is none; then nothing has changed."""

    @abstractmethod
    def commit(self, tokens: int) -> None:
        """Make `tokens` that were written to reserved memory part of the cache."""

    @abstractmethod
    def checkpoint(self) -> Any:
        """What `rollback` needs to undo all commits from now on."""

    @abstractmethod
    def rollback(self, to: Any) -> None:
        """Return to what was stored at `checkpoint()`."""


class KVCache(ABC):
    """A transformers cache of another kind than `DynamicCache` whose layers are `KVLayer`s."""

    @abstractmethod
    def kv_layer(self, index: int) -> KVLayer:
        """Layer `index`. RuntimeError if it was made for fewer layers."""
