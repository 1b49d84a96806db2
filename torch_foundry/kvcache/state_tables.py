"""Which slot of a pool has which recurrent state. Standard library only: knows numbers, no tensors.

States are numbered and laid out as `kvcache.recurrent` says; a slot holds a state of all recurrent layers. A sequence
uses its slots in turn. A slot that somebody else sees as well is exchanged before it is written to, so a snapshot of a
state, and a sequence that starts from it, cost no copy.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from torch_foundry.core.errors import OutOfBlocks


@dataclass
class _Ring:
    slots: list[int]
    count: int = 0  # number of the newest state
    written: int = 0  # number of the newest state that was written, or may be now
    back: int = 0  # tokens that can be taken back: each one left a state that is there yet


class StateTables:
    """Slots of running sequences, and of the snapshots that blocks of a prefix have.

    slots: in all, of which each of up to `sequences` sequences takes `ring`; what is left is for snapshots, of which
    the one that was used longest ago makes room for a new one. Not thread-safe.
    """

    def __init__(self, sequences: int, ring: int, snapshots: int) -> None:
        self.ring, self.slots = ring, sequences * ring + snapshots
        self.reset()

    def reset(self) -> None:
        """Forget all states."""
        self._free = list(range(self.slots - 1, -1, -1))
        self._references = [0] * self.slots
        self._rings: dict[Hashable, _Ring] = {}
        self._snapshots: dict[int, int] = {}  # a slot for each block, in the order in which they are given up

    def __contains__(self, block: int) -> bool:
        """Whether there is a snapshot behind the block."""
        return block in self._snapshots

    def add(self, name: Hashable, block: int | None) -> None:
        """Begin a sequence behind `block`, which has a snapshot, or with nothing."""
        ring = self._rings[name] = _Ring([-1] * self.ring)
        if block is not None:
            slot = self._snapshots[block] = self._snapshots.pop(block)  # the newest now
            self._references[slot] += 1
            ring.count, ring.written, ring.slots[1 % self.ring] = 1, 1, slot

    def reserve(self, name: Hashable, tokens: int) -> None:
        """Slots of its own for the states that a step of `tokens` tokens leaves. Raises OutOfBlocks."""
        ring = self._rings[name]
        ring.written = ring.count + self._left(tokens)
        for number in range(ring.count + 1, ring.written + 1):
            slot = ring.slots[number % self.ring]
            if slot < 0 or self._references[slot] > 1:
                ring.slots[number % self.ring] = self._new()
                if slot >= 0:
                    self._release(slot)

    def commit(self, name: Hashable, tokens: int) -> None:
        """Count the tokens of a step, but for those behind a wrong draft."""
        ring, left = self._rings[name], self._left(tokens)
        ring.count += left
        ring.back = min(ring.back + tokens, self.ring - 1 - (ring.written - ring.count)) if left == tokens else 0

    def crop(self, name: Hashable, tokens: int) -> bool:
        """Take back the last `tokens`; False, and nothing has changed, if there is no state from before them."""
        ring = self._rings[name]
        if tokens > ring.back:
            return False
        ring.count, ring.back = ring.count - tokens, ring.back - tokens
        return True

    def free(self, name: Hashable) -> None:
        """End a sequence."""
        for slot in self._rings.pop(name).slots:
            if slot >= 0:
                self._release(slot)

    def snapshot(self, name: Hashable, block: int, behind: int) -> None:
        """Keep the state that a sequence had at the end of its `block`, before the last `behind` tokens, if it is there
        yet."""
        ring = self._rings[name]
        slot = ring.slots[(ring.count - behind) % self.ring]
        if block not in self._snapshots and behind <= ring.back:
            self._references[slot] += 1
            self._snapshots[block] = slot

    def forget(self, block: int) -> None:
        """Give up the snapshot behind a block, if there is one."""
        if (slot := self._snapshots.pop(block, None)) is not None:
            self._release(slot)

    def slot(self, name: Hashable, tokens: int) -> int:
        """Where the state behind a step of `tokens` tokens lies, for which slots are reserved."""
        ring = self._rings[name]
        return ring.slots[(ring.count + self._left(tokens)) % self.ring]

    def row(self, name: Hashable) -> list[int]:
        """What a step reads of a sequence: the number of its newest state, and its slots in turn; those that nobody
        reads or writes yet are 0."""
        ring = self._rings[name]
        return [ring.count, *(max(slot, 0) for slot in ring.slots)]

    def fork(self, name: Hashable, new: Hashable) -> None:
        """Begin the sequence `new` with the newest state of `name`."""
        ring = self._rings[name]
        slots = [slot if i == ring.count % self.ring and ring.count else -1 for i, slot in enumerate(ring.slots)]
        self._rings[new] = _Ring(slots, ring.count, ring.count)
        for slot in slots:
            if slot >= 0:
                self._references[slot] += 1

    def _left(self, tokens: int) -> int:
        """States that a step of so many tokens leaves."""
        return tokens if tokens < self.ring else 1

    def _new(self) -> int:
        while not self._free:
            if not self._snapshots:
                raise OutOfBlocks(f"all of {self.slots} recurrent states are in use")
            self.forget(next(iter(self._snapshots)))
        slot = self._free.pop()
        self._references[slot] = 1
        return slot

    def _release(self, slot: int) -> None:
        self._references[slot] -= 1
        if not self._references[slot]:
            self._free.append(slot)

    def check(self) -> None:
        """Every slot is accounted for; AssertionError says what isn't. For tests."""
        seen = [0] * self.slots
        for slot in (*(s for ring in self._rings.values() for s in ring.slots if s >= 0), *self._snapshots.values()):
            seen[slot] += 1
        assert seen == self._references, "references are not those of the tables"
        assert sorted(self._free) == [slot for slot in range(self.slots) if not seen[slot]], "a slot is lost"


class NoStates(StateTables):
    """Of a model without recurrent layers: any prefix can be gone on from, and any token taken back."""

    def __init__(self) -> None:
        self.ring, self.slots = 2**31, 0

    def reset(self) -> None:
        """Nothing is to be done, here and in what follows."""

    def __contains__(self, block: int) -> bool:
        return True

    def add(self, name: Hashable, block: int | None) -> None: ...
    def fork(self, name: Hashable, new: Hashable) -> None: ...
    def reserve(self, name: Hashable, tokens: int) -> None: ...
    def commit(self, name: Hashable, tokens: int) -> None: ...
    def free(self, name: Hashable) -> None: ...
    def snapshot(self, name: Hashable, block: int, behind: int) -> None: ...
    def forget(self, block: int) -> None: ...

    def crop(self, name: Hashable, tokens: int) -> bool:
        return True
