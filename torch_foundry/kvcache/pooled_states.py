"""The memory of recurrent states of an engine's sequences."""

from __future__ import annotations

from typing import Any

import torch

from torch_foundry.kvcache.base import CacheLayer, RecurrentSpec, StateSpec
from torch_foundry.kvcache.view import StateView


class PooledStates(CacheLayer):
    """Recurrent states of a `PagedCache`'s sequences. Whose they are, and which count, the block manager knows."""

    pools = ()  # of blocks

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._data: dict[str, torch.Tensor] = {}

    def allocate(self, spec: RecurrentSpec, dtype: torch.dtype, device: torch.device) -> None:
        """Have memory for all slots."""
        for name, shape, kind in spec.of(dtype):
            self._data[name] = torch.empty(self._slots, *shape, dtype=kind, device=device)

    def growth(self, batch: int, spec: RecurrentSpec, tokens: int, dtype: torch.dtype) -> int:
        """See `CacheLayer`: for all slots."""
        return 0 if self._data else self._slots * spec.nbytes(dtype)

    @property
    def memory(self) -> tuple[torch.Tensor, ...]:
        """See `CacheLayer`: [slots, ...]."""
        return tuple(self._data.values())

    def fits(self, batch: int, spec: StateSpec, dtype: torch.dtype, device: torch.device) -> bool:
        """See `CacheLayer`."""
        if not isinstance(spec, RecurrentSpec):
            return False
        wanted = {name: (shape, kind, device) for name, shape, kind in spec.of(dtype)}
        return wanted == {n: (d.shape[1:], d.dtype, d.device) for n, d in self._data.items()}

    def view(self, control: torch.Tensor, longest: int) -> StateView:
        """The view of a step. control: int32 [N, 4 + slots of a sequence], runs, tokens of prompts, and as of
        `StateTables.row`."""
        return StateView(self._data, control[:, :2], control[:, 4:], control[:, 3], longest, control[:, 2])

    def reserve(self, batch: int, spec: Any, tokens: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The block manager does that, and what follows."""
        raise TypeError("sequences of a pool of states are the block manager's")

    commit = checkpoint = rollback = reset = reserve  # type: ignore[assignment]
