"""The contract of a cache: what a mixer keeps of a sequence, and the layers that keep it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_foundry.kvcache.formats import Formats


@dataclass(frozen=True, slots=True)
class KVSpec:
    """Keys and values of each token: what attention keeps of a sequence."""

    heads: int
    head_dim: int
    value_dim: int | None = None  # None: as wide as keys

    @property
    def head_dims(self) -> tuple[int, int]:
        """Of keys and of values."""
        return self.head_dim, self.head_dim if self.value_dim is None else self.value_dim


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


# A tuple: what each of several mixers side by side keeps; `CacheLayer.parts` of the layer are in the same order.
StateSpec = KVSpec | RecurrentSpec | tuple[KVSpec | RecurrentSpec, ...]


def specs_of(spec: StateSpec) -> tuple[KVSpec | RecurrentSpec, ...]:
    """Of each mixer."""
    return spec if isinstance(spec, tuple) else (spec,)


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
    tight = False  # there is little memory: a layer grows by no more than is needed
    in_flight: int | None = None  # tokens that may be written and not committed; None: as many as there is room for

    @property
    def parts(self) -> tuple[CacheLayer, ...]:
        """The layers that it consists of; captured steps see those alone."""
        return (self,)

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

    def growth(self, batch: int, spec: Any, tokens: int, dtype: torch.dtype) -> int:
        """Bytes that `reserve` would allocate; what they replace is there until the device has copied it. 0 for a
        spec of another kind, which `fits` refuses."""
        return 0

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
