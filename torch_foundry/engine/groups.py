"""What a forward pass over pages is about: sequences, and those of the same length side by side."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_foundry.kvcache.base import KVView, Rope
from torch_foundry.kvcache.blocks import BlockManager
from torch_foundry.kvcache.paged import PagedLayer

Sizes = tuple[tuple[int, int], ...]  # of each group: rows, and tokens of a row


@dataclass(frozen=True)
class Part:
    """A sequence in a step: `ids`, the first of which is token number `start`, and logits of the last `wanted` of them.

    name: in the cache's block manager, which has room for them.
    """

    name: Hashable
    start: int
    ids: list[int]
    wanted: int

    def cut(self, size: int) -> list[Part]:
        """The same in pieces of at most `size` tokens."""
        if len(self.ids) <= size:
            return [self]
        ends = range(0, len(self.ids), size)
        return [Part(self.name, self.start + at, self.ids[at : at + size], 0) for at in ends]


@dataclass
class Group:
    """Rows of the same number of tokens, side by side in a step: of different sequences, or pieces of one.

    first: of its tokens among all of the step. rows: int32 [B, 2], where the first one lies and how many there are.
    table: int32 [B, blocks]. positions: int32 [B, L].
    """

    first: int
    batch: int
    length: int
    rows: Tensor
    table: Tensor
    positions: Tensor

    @property
    def tokens(self) -> slice:
        """Its tokens among all of the step."""
        return slice(self.first, self.first + self.batch * self.length)


class GroupedView:
    """Keys and values of all groups of a step: a `KVStep` of tokens [1, T] whose groups are views of the same pages.

    join: concatenates what groups attend to.
    """

    def __init__(
        self, groups: Sequence[Group], views: Sequence[KVView], join: Callable[[list[Tensor]], Tensor]
    ) -> None:
        self._groups, self._views, self._join = groups, views, join

    def write(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, *, head_dim: int, **norms: Any) -> list[Tensor]:
        """See `KVStep`. All keys before any query: pieces of a sequence may be in several groups."""
        queries = []
        for group, view in zip(self._groups, self._views, strict=True):
            shape = group.batch, group.length
            own_q, own_k, own_v = (x[0, group.tokens].unflatten(0, shape) for x in (q, k, v))
            queries.append(view.write(own_q, own_k, own_v, rope, head_dim=head_dim, **norms))
        return queries

    def attend(
        self, q: list[Tensor], mask: Tensor | None = None, *, scale: float, window: int = 0, softcap: float = 0.0
    ) -> Tensor:
        """See `KVStep`."""
        options: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap}
        parts = [view.attend(own, **options).flatten(0, 1) for view, own in zip(self._views, q, strict=True)]
        return (parts[0] if len(parts) == 1 else self._join(parts))[None]


class Inputs:
    """What a step's ops read of its groups: one int32 tensor on the device, which one copy of the host's fills.

    width: blocks of a row's table; bound: tokens that it has room for. Rows that no part is given for, and ends that a
    part doesn't fill, have no tokens.
    """

    def __init__(self, sizes: Sizes, width: int, block_size: int, device: torch.device) -> None:
        rows, tokens = sum(batch for batch, _ in sizes), sum(batch * length for batch, length in sizes)
        parts = tokens, 2 * rows, tokens, rows * width  # ids, rows, positions, table
        self._host = array("i", bytes(4 * sum(parts)))
        self._staged = torch.frombuffer(self._host, dtype=torch.int32)
        with torch.inference_mode(False):
            self._control = torch.zeros(sum(parts), dtype=torch.int32, device=device)
        self.ids, starts, positions, table = self._control.split(parts)
        self._at = tokens, 2 * rows + tokens, 2 * rows + 2 * tokens  # where rows, positions and table begin
        self._known: list[list[int]] = [[] for _ in range(rows)]  # tables that the host's copy has
        self._places: dict[tuple[Hashable, int], int] = {}  # tokens of sequences, by number: which of the step's
        self.bound = width * block_size
        self._width, self.groups, row, first = width, list[Group](), 0, 0
        for batch, length in sizes:
            own, end = slice(row, row + batch), first + batch * length
            places = starts.view(rows, 2)[own], table.view(rows, width)[own], positions[first:end].view(batch, length)
            self.groups.append(Group(first, batch, length, *places))
            row, first = row + batch, end

    def fill(self, groups: Sequence[Sequence[Part]], manager: BlockManager) -> None:
        """Give each group its parts, at most as many as it has rows."""
        host, width, row = self._host, self._width, 0
        rows, positions, table = self._at
        host[rows:positions] = array("i", bytes(4 * (positions - rows)))
        self._places = {}
        for group, parts in zip(self.groups, groups, strict=True):
            for i, part in enumerate(parts, row):
                start, count, at = part.start, len(part.ids), group.first + (i - row) * group.length
                numbers = range(start, start + count)
                host[at : at + count] = array("i", part.ids)
                host[rows + 2 * i], host[rows + 2 * i + 1] = start, count
                host[positions + at : positions + at + count] = array("i", numbers)
                blocks = manager.table(part.name)
                if blocks != self._known[i]:
                    self._known[i] = blocks
                    own = table + i * width
                    host[own : own + len(blocks)] = array("i", blocks)
                self._places.update(((part.name, n), at + n - start) for n in numbers)
            row += group.batch
        # CUDA reads pageable memory before it returns, and need not wait for what is under way
        self._control.copy_(self._staged, non_blocking=self._control.is_cuda)

    def view(self, slot: PagedLayer, join: Callable[[list[Tensor]], Tensor]) -> GroupedView:
        """Where the step's keys and values lie in a layer of the cache."""
        k, v = (pool.data for pool in slot.pools)
        assert k is not None and v is not None
        views = [
            KVView(k, v, self.bound, positions=g.positions, rows=g.rows, block_table=g.table, formats=slot.formats)
            for g in self.groups
        ]
        return GroupedView(self.groups, views, join)

    def wanted(self, x: Tensor, parts: Sequence[Part]) -> Tensor:
        """Of x [T, ...], the tokens of which `parts` want logits, in their order."""
        ends = [(part, part.start + len(part.ids)) for part in parts]
        at = [self._places[part.name, n] for part, end in ends for n in range(end - part.wanted, end)]
        if at == list(range(len(at))):
            return x[: len(at)]
        return x[torch.tensor(at, dtype=torch.int32).to(x.device, non_blocking=True)]
