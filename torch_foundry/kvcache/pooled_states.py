"""The memory of recurrent states of an engine's sequences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_foundry.kvcache import packed_states
from torch_foundry.kvcache.base import CacheLayer, RecurrentSpec, StateSpec
from torch_foundry.kvcache.packed_state_tables import PackedStateTables
from torch_foundry.kvcache.state_tables import StateTables
from torch_foundry.kvcache.view import StateView

# What a step reads of a sequence: its first token among all of the step, their number, how many of these are a
# prompt's, the number of its newest state, and its slots (`StateTables.row`).
RUN, TOKENS, PROMPT, COUNT, TABLE = range(5)


class PooledStates(CacheLayer):
    """Recurrent states of a `PagedCache`'s sequences, in slots and places of `tables`, which know whose they are."""

    pools = ()  # of blocks

    def __init__(self, tables: StateTables) -> None:
        self._slots, self._places, self._format = tables.slots, tables.places, tables.format
        self._data: dict[str, torch.Tensor] = {}
        self._packed: dict[str, torch.Tensor] = {}

    def allocate(self, spec: RecurrentSpec, dtype: torch.dtype, device: torch.device) -> None:
        """Have memory for all slots."""
        for name, shape, kind in spec.of(dtype):
            self._data[name] = torch.empty(self._slots, *shape, dtype=kind, device=device)
            if self._format is not None:
                width, byte = packed_states.kept_as(shape, kind, self._format)
                self._packed[name] = torch.empty(self._places, *width, dtype=byte, device=device)

    def growth(self, batch: int, spec: RecurrentSpec, tokens: int, dtype: torch.dtype) -> int:
        """See `CacheLayer`: for all slots, and places."""
        if self._data:
            return 0
        return self._slots * spec.nbytes(dtype) + self._places * packed_states.nbytes(spec, dtype, self._format)

    @property
    def memory(self) -> tuple[torch.Tensor, ...]:
        """See `CacheLayer`: [slots, ...]."""
        return tuple(self._data.values())

    @property
    def nbytes(self) -> int:
        """Of states, and of packed snapshots."""
        return sum(tensor.nbytes for tensors in (self._data, self._packed) for tensor in tensors.values())

    def _move(self, pack: bool, source: int, target: int) -> None:
        """Pack the state in slot `source` to place `target`; or unpack place `source` to slot `target`."""
        assert self._format is not None
        for name, states in self._data.items():
            kept = self._packed[name]
            if pack:
                kept[target].copy_(packed_states.packed(states[source][None], self._format)[0])
            else:
                shape = (1, *states.shape[1:])
                states[target].copy_(packed_states.unpacked(kept[source][None], self._format, shape)[0])

    def fits(self, batch: int, spec: StateSpec, dtype: torch.dtype, device: torch.device) -> bool:
        """See `CacheLayer`."""
        if not isinstance(spec, RecurrentSpec):
            return False
        wanted = {name: (shape, kind, device) for name, shape, kind in spec.of(dtype)}
        return wanted == {n: (d.shape[1:], d.dtype, d.device) for n, d in self._data.items()}

    def view(self, control: torch.Tensor, longest: int) -> StateView:
        """The view of a step. control: int32 [N, TABLE + slots of a sequence], columns as they are named above."""
        runs, table = control[:, RUN : TOKENS + 1], control[:, TABLE:]
        return StateView(self._data, runs, table, control[:, COUNT], longest, control[:, PROMPT])

    def reserve(self, batch: int, spec: Any, tokens: int, dtype: torch.dtype, device: torch.device) -> Any:
        """The block manager does that, and what follows."""
        raise TypeError("sequences of a pool of states are the block manager's")

    commit = checkpoint = rollback = reset = reserve  # type: ignore[assignment]


def move_snapshots(tables: StateTables, layers: Iterable[CacheLayer]) -> None:
    """Pack and unpack, in all layers, what packed `tables` ask for; before a step writes to any slot."""
    if not isinstance(tables, PackedStateTables):
        return
    pooled = [layer for layer in layers if isinstance(layer, PooledStates)]
    while tables.moves:
        for layer in pooled:
            layer._move(*tables.moves[0])
        del tables.moves[0]
