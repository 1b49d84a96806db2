"""Which place has which packed snapshot of a recurrent state. Standard library only: knows numbers, no tensors."""

from __future__ import annotations

from collections.abc import Hashable

from torch_foundry.kvcache.state_tables import EVERY, StateTables


class PackedStateTables(StateTables):
    """As `StateTables`, but snapshots are copies, packed as `format`, and have `places` of their own.

    moves: what is to be copied before the next step, in order: whether a state is packed, from where, and to where;
    slots are packed to places, and places unpacked to slots. Whoever does so takes it out.
    """

    def __init__(self, sequences: int, ring: int, snapshots: int, *, every: int = EVERY, format: str) -> None:
        self.places, self.format = snapshots, format
        super().__init__(sequences, ring, 0, every=every)

    def reset(self) -> None:
        """See `StateTables`."""
        super().reset()
        self._room = list(range(self.places - 1, -1, -1))
        self.moves: list[tuple[bool, int, int]] = []

    def free(self, name: Hashable) -> None:
        """See `StateTables`. A request that waits begins and ends at each step: it unpacks nothing."""
        slots = self._rings[name].slots
        self.moves = [move for move in self.moves if move[0] or move[2] not in slots]
        super().free(name)

    def _begin(self, kept: int) -> int:
        slot = self._new()
        self.moves.append((False, kept, slot))
        return slot

    def _keep(self, slot: int) -> int | None:
        if not self._room:
            self._give_up([*self._snapshots])
        if not self._room:
            return None
        place = self._room.pop()
        self.moves.append((True, slot, place))
        return place

    def _let_go(self, kept: int) -> None:
        self._room.append(kept)

    def _make_room(self) -> None:
        """No snapshot has a slot."""

    def _shared(self) -> list[int]:
        return []

    def check(self) -> None:
        """See `StateTables`."""
        super().check()
        kept = [entry.kept for entry in self._snapshots.values()]
        assert sorted([*kept, *self._room]) == list(range(self.places)), "a place is lost, or has two snapshots"
