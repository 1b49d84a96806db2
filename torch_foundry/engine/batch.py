"""The tensors of an engine's step: sequences, those with as many tokens side by side."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core import devices
from torch_foundry.engine.sequence import ScheduledSequence
from torch_foundry.generation.step_graph import Sizes
from torch_foundry.kvcache.block_manager import BlockManager
from torch_foundry.kvcache.paged import PagedLayer
from torch_foundry.kvcache.pooled_states import COUNT, PROMPT, TABLE, TOKENS, PooledStates
from torch_foundry.kvcache.view import Heads, KVStep, KVView, Rope, StateView


@dataclass
class Group:
    """Rows of the same number of tokens, side by side in a step: of different sequences, or parts of one.

    first: of its tokens among all of the step. rows: int32 [B, 2], where the first one lies and how many there are.
    table: int32 [B, blocks]. positions: int32 [B, L]. start: place of the first token of a row that is the only one and
    full, as it was filled last.
    """

    first: int
    batch: int
    length: int
    rows: Tensor
    table: Tensor
    positions: Tensor
    start: int | None = None

    @property
    def tokens(self) -> slice:
        """Its tokens among all of the step."""
        return slice(self.first, self.first + self.batch * self.length)


class GroupedView(KVStep):
    """Keys and values of all groups of a step: a `KVStep` of tokens [1, T] whose groups are views of the same pages.

    join: concatenates what groups attend to. positions: int32 [T], of all tokens.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        views: Sequence[KVView],
        join: Callable[[list[Tensor]], Tensor],
        positions: Tensor,
    ) -> None:
        self._groups, self._views, self._join, self._positions = groups, views, join, positions

    @property
    def positions(self) -> Tensor:
        """See `KVStep`."""
        return self._positions

    def write(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, *, head_dim: int, **norms: Any) -> list[Tensor]:
        """See `KVStep`. All keys before any query: parts of a sequence may be in several groups."""
        queries = []
        for group, view in zip(self._groups, self._views, strict=True):
            shape = group.batch, group.length
            own_q, own_k, own_v = (x[0, group.tokens].unflatten(0, shape) for x in (q, k, v))
            queries.append(view.write(own_q, own_k, own_v, rope, head_dim=head_dim, **norms))
        return queries

    def attend(
        self,
        q: list[Tensor],
        mask: Tensor | None = None,
        *,
        value_queries: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """See `KVStep`. No step of an engine has a mask."""
        parts = []
        for group, view, own in zip(self._groups, self._views, q, strict=True):
            if value_queries is not None:
                shape = group.batch, group.length
                options["value_queries"] = value_queries[0, group.tokens].unflatten(0, shape)
            parts.append(view.attend(own, **options).flatten(0, 1))
        return (parts[0] if len(parts) == 1 else self._join(parts))[None]

    def attend_new(
        self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, mask: Tensor | None = None, *, heads: Heads, **options: Any
    ) -> Tensor:
        """See `KVStep`. Rows of one token are of different sequences, so none attends to what another one writes."""
        if len(self._views) > 1:
            return super().attend_new(q, k, v, rope, mask, heads=heads, **options)
        shape, view = (self._groups[0].batch, self._groups[0].length), self._views[0]
        own_q, own_k, own_v = (x[0].unflatten(0, shape) for x in (q, k, v))
        return view.attend_new(own_q, own_k, own_v, rope, heads=heads, **options).flatten(0, 1)[None]

    def exchanged(self) -> GroupedView:
        """See `KVStep`."""
        return GroupedView(self._groups, [view.exchanged() for view in self._views], self._join, self._positions)


class Batch:
    """What a step's ops read of its groups: one int32 tensor on the device, which one copy of the host's fills.

    width: blocks of a row's table; bound: tokens that it has room for. Rows that no part is given for, and ends that a
    part doesn't fill, have no tokens.
    """

    def __init__(self, sizes: Sizes, width: int, manager: BlockManager, device: torch.device) -> None:
        rows, tokens = sum(batch for batch, _ in sizes), sum(batch * length for batch, length in sizes)
        self._manager = manager
        each = TABLE + manager.states.ring if manager.states.slots else 0
        parts = tokens, 2 * rows, tokens, rows * width, rows * each  # ids, rows, positions, table, states
        self._host = array("i", bytes(4 * sum(parts)))
        self._staged = torch.frombuffer(self._host, dtype=torch.int32)
        with torch.inference_mode(False):
            self._control = torch.zeros(sum(parts), dtype=torch.int32, device=device)
            self._there = torch.full_like(self._staged, -1)  # what the device has, but for ids
        self._step: tuple[int, Tensor, Tensor] | None = None  # requests; what `move_on` adds, here and on the device
        self.ids, starts, self._positions, table, states = self._control.split(parts)
        self.states = states.view(rows, each) if each else None  # of recurrent layers, as `PooledStates.view` has it
        self._at = list(itertools.accumulate(parts))[:-1]  # where rows, positions, table and states begin
        self._known: list[list[int]] = [[] for _ in range(rows)]  # tables that the host's copy has
        self._places: dict[tuple[int, int], int] = {}  # tokens of sequences, by number: which of the step's
        self.bound = width * manager.block_size
        self._width, self.groups, row, first = width, list[Group](), 0, 0
        for batch, length in sizes:
            own, end = slice(row, row + batch), first + batch * length
            places = starts.view(rows, 2)[own], table.view(rows, width)[own], self._positions[first:end]
            places = *places[:2], places[2].view(batch, length)
            self.groups.append(Group(first, batch, length, *places))
            row, first = row + batch, end

    def fill(self, groups: Sequence[Sequence[ScheduledSequence]], *, ids: bool = True) -> None:
        """Give each group its parts, at most as many as it has rows; those of one sequence one behind the other.

        ids: False if the caller writes those; then nothing is copied of a step that is the next of the one before.
        """
        host, width, row, manager = self._host, self._width, 0, self._manager
        rows, positions, table, states = self._at
        host[rows:positions] = array("i", bytes(4 * (positions - rows)))
        host[states:] = array("i", bytes(4 * (len(host) - states)))
        begun: dict[int, int] = {}  # where the states of a sequence are
        self._places = {}
        for group, parts in zip(self.groups, groups, strict=True):
            group.start = parts[0].start if group.batch == 1 and len(parts[0].ids) == group.length else None
            for i, part in enumerate(parts, row):
                start, count, at = part.start, len(part.ids), group.first + (i - row) * group.length
                numbers, shift = range(start, start + count), part.sequence.shift
                host[at : at + count] = array("i", part.ids)
                host[rows + 2 * i], host[rows + 2 * i + 1] = start, count
                host[positions + at : positions + at + count] = array("i", [n + shift for n in numbers])
                blocks = manager.table(part.id)
                if blocks != self._known[i]:
                    self._known[i] = blocks
                    own = table + i * width
                    host[own : own + len(blocks)] = array("i", blocks)
                self._places.update(((part.id, n), at + n - start) for n in numbers)
                if manager.states.slots:
                    if part.id not in begun:
                        newest, *slots = manager.states.row(part.id)
                        newest += start - manager.length(part.id)  # of steps that are not committed yet
                        begun[part.id] = own = states + i * (TABLE + len(slots))
                        host[own : own + TABLE + len(slots)] = array("i", [at, 0, 0, newest, *slots])
                    host[begun[part.id] + TOKENS] += count
                    host[begun[part.id] + PROMPT] += min(max(part.sequence.prompt - start, 0), count)
            row += group.batch
        count, wanted = len(groups[0]), self._staged[self._at[0] :]
        if ids or self._step is None or self._step[0] != count or not self._is_next(wanted):
            self._copy(self._control, self._staged)
            self._there.copy_(self._staged)

    def move_on(self, count: int) -> None:
        """Have the `count` requests of a step of single tokens one token later, but for ids: nothing is copied."""
        if self._step is None or self._step[0] != count:
            step, (rows, positions, _, states) = torch.zeros_like(self._there), self._at
            step[rows : rows + 2 * count : 2] = step[positions : positions + count] = 1
            if self.states is not None:
                step[states:].view_as(self.states)[:count, COUNT] = 1
            with torch.inference_mode(False):
                device_step = torch.empty_like(self._control)
            self._copy(device_step, step)
            self._step = count, step, device_step
        self._control.add_(self._step[2])
        self._there.add_(self._step[1])  # behind what may fail

    def _is_next(self, wanted: Tensor) -> bool:
        """Whether the device has `wanted`, or has it now, as it is the step behind the one that it had."""
        assert self._step is not None
        count, step, _ = self._step
        there, step = self._there[self._at[0] :], step[self._at[0] :]
        if torch.equal(there + step, wanted):
            self.move_on(count)
        return torch.equal(there, wanted)

    def _copy(self, to: Tensor, values: Tensor) -> None:
        to.copy_(values, non_blocking=devices.of(to.device).overlaps_copies)

    def view(
        self, layer: PagedLayer | PooledStates, join: Callable[[list[Tensor]], Tensor], *, exact: bool
    ) -> GroupedView | StateView:
        """Where the step's keys and values, or states, lie in a layer of the cache. exact: as it was filled last."""
        if isinstance(layer, PooledStates):
            assert self.states is not None
            return layer.view(self.states, max(group.length for group in self.groups))
        k, v = layer.memory
        views = [
            KVView(k, v, self.bound, positions=g.positions, rows=g.rows, block_table=g.table, formats=layer.formats)
            for g in self.groups
        ]
        if exact:
            views = [
                view if g.start is None else replace(view, kv_len=g.start + g.length, rows=None)
                for view, g in zip(views, self.groups, strict=True)
            ]
        return GroupedView(self.groups, views, join, self._positions)

    def tokens(self, parts: Sequence[ScheduledSequence], wanted: bool = False) -> Tensor | slice:
        """Which of the step's tokens are those of `parts`, in their order, or of these the wanted ones: an index."""
        ends = [(part, part.start + len(part.ids)) for part in parts]
        at = [self._places[p.id, n] for p, end in ends for n in range(end - p.wanted if wanted else p.start, end)]
        if at == list(range(len(at))):
            return slice(len(at))
        return torch.tensor(at, dtype=torch.int32).to(self.ids.device, non_blocking=True)
