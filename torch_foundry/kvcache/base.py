"""What a decoder layer knows of its cache: memory for one step, and the contract of a cache layer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
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

        q, k, v: [B, L, heads * head_dim]. norms: of heads, as in `ops.rope_kv`.
        """

    def attend(
        self,
        q: Any,
        mask: Tensor | None = None,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention of the queries from `write` to the keys so far: [B, L, heads * head_dim].

        mask: in place of causal attention; mask and sinks as in `ops.attention`.
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
        return ops.rope_kv(
            q, k, v, cos, sin, self.k, self.v, self.start, head_dim=head_dim, positions=self.positions, step=self.step,
            rows=self.rows, block_table=self.block_table, k_format=self.formats[0], v_format=self.formats[1], **norms,
        )  # fmt: skip

    def attend(
        self,
        q: Any,
        mask: Tensor | None = None,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `KVStep`."""
        k, v = self.k, self.v
        if self.first:
            k, v = k.narrow(2, self.first, self.kv_len), v.narrow(2, self.first, self.kv_len)
        seen = mask if self.padding is None else self.padding[:, None, None]
        return ops.attention(
            q, k, v, self.kv_len, scale=scale, mask=seen, causal=mask is None, window=window if mask is None else 0,
            softcap=softcap, step=self.step, rows=self.rows, block_table=self.block_table, sinks=sinks,
            k_format=self.formats[0], v_format=self.formats[1],
        )  # fmt: skip

    def is_dense(self, dtype: torch.dtype) -> bool:
        """Whether keys and values lie in one piece a row, in `dtype`, as `ops.norm_qkv` writes them."""
        return self.block_table is None and self.k.dtype == self.v.dtype == dtype


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Keys and values of another layer, [B, Hkv, tokens, D], for a layer that keeps none of its own."""

    k: Tensor
    v: Tensor

    def visible(self, tokens: int) -> int:
        """How many keys a step attends to."""
        return self.k.shape[2]

    def reserve(self, *_: Any) -> KVView:
        """The view of a step, whose queries are the last tokens."""
        return KVView(self.k, self.v, self.k.shape[2])


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Keys and values of each token: what attention keeps of a sequence."""

    heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """Tensors of a fixed size: what a recurrent mixer keeps of a sequence.

    tensors: name, shape for one sequence, and dtype; None: the model's.
    """

    tensors: tuple[tuple[str, tuple[int, ...], torch.dtype | None], ...]

    def of(self, dtype: torch.dtype) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
        """The tensors in a model of `dtype`."""
        return [(name, shape, kind or dtype) for name, shape, kind in self.tensors]

    def nbytes(self, dtype: torch.dtype) -> int:
        """Bytes of one state."""
        return sum(math.prod(shape) * kind.itemsize for _, shape, kind in self.of(dtype))


StateSpec = KVSpec | RecurrentSpec


@dataclass(frozen=True, slots=True)
class StateView:
    """Where one step's recurrent states lie. Its tokens are x [T, ...], those of a sequence side by side.

    A mixer reads state `count` of each sequence and writes the ones behind it. State number n of sequence i is
    `pools[name][table[i, n % slots]]`; state 0 is zeros and is not read. If a sequence has fewer tokens than slots,
    token t leaves state count + 1 + t; else the last token leaves state count + 1.
    The first dimensions of `runs`, `table` and `count` may have any stride. `longest` is known without the device: it
    decides how a mixer computes, not what.
    """

    pools: Mapping[str, Tensor]  # [slots of all sequences, ...]
    runs: Tensor  # int32 [N, 2]: the first of a sequence's tokens and their number, which may be 0
    table: Tensor  # int32 [N, slots]
    count: Tensor  # int32 [N]
    longest: int  # tokens of a sequence, about: many mean a prompt


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """Where a captured step finds on the device what changes from replay to replay.

    start: int32 [2], what `CacheLayer.place` returns. positions: int32 [B, L], rows of the rope tables. padding: bool
    [B, tokens]: False for tokens that no query sees; None: all are seen.
    """

    start: Tensor
    positions: Tensor
    padding: Tensor | None = None


class CacheLayer(ABC):
    """What one layer of a model keeps of a batch. Its mixer says what that is (`StateSpec`) and writes to it.

    `reserve` may move memory. Until `commit` nothing moves and nothing is counted, so a step that fails has not
    happened. `rollback` forgets what was committed since `checkpoint`, which holds no tensors.

    A layer that is `capturable` has memory that captured steps write to without asking; it stays where it is until the
    next `place` or `reserve`. A new kind of layer implements this class, and a cache hands it out (`hf_cache`).
    """

    capturable = False
    in_flight: int | None = None  # tokens that may be written and not committed; None: as many as there is room for

    @abstractmethod
    def fits(self, batch: int, spec: StateSpec, dtype: torch.dtype, device: torch.device) -> bool:
        """True if `reserve` may be called with these: what is stored has the same shape, dtype and device."""

    @abstractmethod
    def reserve(self, batch: int, spec: Any, tokens: int, dtype: torch.dtype, device: torch.device) -> Any:
        """Make room for `tokens` more a row; returns the view that the mixer takes. RuntimeError if there is none; then
        nothing has changed."""

    @abstractmethod
    def commit(self, tokens: int) -> None:
        """Make the first `tokens` that were written to reserved memory part of the cache."""

    @abstractmethod
    def checkpoint(self) -> Any:
        """Return what `rollback` needs to undo all commits from now on."""

    @abstractmethod
    def rollback(self, to: Any) -> None:
        """Return to what was stored at `checkpoint()`."""

    def reserve_hint(self, tokens: int) -> None:  # noqa: B027  (most kinds need not know)
        """So many tokens are likely to follow those that room is made for next: memory for them need not be moved."""

    @abstractmethod
    def reset(self) -> None:
        """Forget everything."""

    # ------------------------------------------------------------------------------------------------ captured steps

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """What captured steps read and write. The same tensors: the same addresses. Empty before the first use."""
        return ()

    @property
    def seen(self) -> int | None:
        """Number of tokens so far; None if the layer doesn't know."""
        return None

    @property
    def position(self) -> int:
        """A number that `commit` raises by the number of tokens after captured steps."""
        raise NotImplementedError

    def place(self, tokens: int) -> tuple[int, int]:
        """Make room for `tokens` more in captured steps; returns what `CapturedStep.start` has to hold. Not before the
        first use."""
        raise NotImplementedError

    @property
    def capacity(self) -> int:
        """Tokens of a row that `memory` has room for in all; 0: it doesn't depend on their number."""
        return 0

    def use_buffer(self, memory: tuple[Tensor, ...]) -> None:
        """Use `memory` of another such layer, which nobody else has a view of. Only while nothing is stored."""
        raise NotImplementedError

    def captured_view(self, batch: int, length: int, step: CapturedStep) -> Any:
        """The view of a captured step of `length` tokens a row. Before the capture: it may compute."""
        raise NotImplementedError


class KVLayer(CacheLayer):
    """A layer of keys and values; its views are `KVView`s."""

    @property
    @abstractmethod
    def formats(self) -> Formats:
        """Formats of packed keys and values, as ops name them."""

    @abstractmethod
    def visible(self, tokens: int) -> int:
        """Number of keys that a step of `tokens` queries attends to."""


class KVCache(ABC):
    """A transformers cache of a class of its own whose layers are `CacheLayer`s."""

    @abstractmethod
    def cache_layer(self, index: int) -> CacheLayer:
        """Layer `index`. RuntimeError if it was made for fewer layers."""
