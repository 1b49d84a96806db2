"""Which slot of a pool has which recurrent state. Standard library only: knows numbers, no tensors.

States are numbered and laid out as `kvcache.recurrent` says; a slot holds a state of all recurrent layers. A sequence
uses its slots in turn. A slot that somebody else sees as well is exchanged before it is written to, so a snapshot of a
state, and a sequence that starts from it, cost no copy. Snapshots that are packed have places of their own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch_foundry.core.errors import OutOfBlocks

EVERY = 256  # tokens between snapshots, at most


@dataclass(eq=False)
class _Ring:
    slots: list[int]
    count: int = 0  # number of the newest state
    written: int = 0  # number of the newest state that was written, or may be now
    back: int = 0  # tokens that can be taken back: each one left a state that is there yet
    used: int = 0  # when its prefix was used last; outlives the sequence
    stays: int = 0  # tokens before the newest snapshot that stays
    passing: tuple[int, int] | None = None  # block and tokens of a newer one, which the next one may replace


@dataclass(slots=True)
class _Entry:
    kept: int  # slot, or place, with the state
    tokens: int  # up to the end of its block
    user: _Ring  # of the sequence that was the last to make it or to begin behind it


class StateTables:
    """Slots of running sequences, and of the snapshots that blocks of a prefix have.

    slots: in all, of which each of up to `sequences` sequences takes `ring`; what is left is for snapshots. every:
    tokens between two of a sequence, at most; of those nearer to each other only the newest is kept, and those of
    turns' ends. When there is no room, those of the prefix that was used longest ago make it, its end before its
    beginning. Not thread-safe.
    """

    places = 0  # of snapshots that don't lie in slots, but packed
    format: str | None = None  # as what

    def __init__(self, sequences: int, ring: int, snapshots: int, *, every: int = EVERY) -> None:
        self.ring, self.slots, self.every = ring, sequences * ring + snapshots, every
        self.reset()

    def reset(self) -> None:
        """Forget all states."""
        self._free = list(range(self.slots - 1, -1, -1))
        self._references = [0] * self.slots
        self._rings: dict[Hashable, _Ring] = {}
        self._snapshots: dict[int, _Entry] = {}  # by block
        self._clock = 0

    @property
    def snapshots(self) -> int:
        """How many there are."""
        return len(self._snapshots)

    def __contains__(self, block: int) -> bool:
        """Whether there is a snapshot behind the block."""
        return block in self._snapshots

    def add(self, name: Hashable, blocks: Sequence[int]) -> None:
        """Begin a sequence behind the last of `blocks`, which has a snapshot, or with nothing."""
        ring = self._rings[name] = _Ring([-1] * self.ring)
        self._use(ring)
        for block in blocks:
            if (entry := self._snapshots.get(block)) is not None:
                entry.user = ring
                ring.stays, kept = entry.tokens, entry.kept
        if blocks:
            ring.count, ring.written, ring.slots[1 % self.ring] = 1, 1, self._begin(kept)

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

    def step(self, length: int, tokens: int, block: int) -> int:
        """How many of the `tokens` behind the first `length` of a sequence to compute in one step: up to the end of a
        block, for a snapshot, and no more than may be between two."""
        if tokens == 1:
            return 1
        tokens = min(tokens, max(self.every, block))
        border = (length + tokens) // block * block
        return border - length if border > length else tokens

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
        ring = self._rings.pop(name)
        self._use(ring)
        for slot in ring.slots:
            if slot >= 0:
                self._release(slot)

    def snapshot(self, name: Hashable, block: int, tokens: int, behind: int, *, stays: bool = False) -> None:
        """Keep the state that a sequence had at the end of its `block`, behind its first `tokens` and before its last
        `behind` tokens, if it is there yet. stays: even if there is another one nearby."""
        ring = self._rings[name]
        slot = ring.slots[(ring.count - behind) % self.ring]
        self._use(ring)
        if behind > ring.back:
            return
        if (entry := self._snapshots.get(block)) is None:
            if (kept := self._keep(slot)) is None:
                return
            entry = self._snapshots[block] = _Entry(kept, tokens, ring)
        mine, entry.user = entry.user is ring, ring
        if (passed := ring.passing) is not None and passed[0] != block:
            if tokens - ring.stays > self.every:
                ring.stays = passed[1]
            elif (old := self._snapshots.get(passed[0])) is not None and old.user is ring and old.tokens == passed[1]:
                self.forget(passed[0])
        ring.passing = None if stays or not mine else (block, tokens)
        if ring.passing is None:
            ring.stays = tokens

    def forget(self, block: int) -> None:
        """Give up the snapshot behind a block, if there is one."""
        if (entry := self._snapshots.pop(block, None)) is not None:
            self._let_go(entry.kept)

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

    def _use(self, ring: _Ring) -> None:
        self._clock += 1
        ring.used = self._clock

    def _left(self, tokens: int) -> int:
        """States that a step of so many tokens leaves."""
        return tokens if tokens < self.ring else 1

    def _begin(self, kept: int) -> int:
        """A slot with the state of a snapshot."""
        self._references[kept] += 1
        return kept

    def _keep(self, slot: int) -> int | None:
        """Where a snapshot of the state in `slot` is; None: there is no room for any."""
        self._references[slot] += 1
        return slot

    def _let_go(self, kept: int) -> None:
        """Nothing is kept there any more."""
        self._release(kept)

    def _make_room(self) -> None:
        """Give up a snapshot for a slot: not one whose slot a sequence has as well, which would leave no room."""
        self._give_up([block for block, entry in self._snapshots.items() if self._references[entry.kept] == 1])

    def _give_up(self, blocks: Sequence[int]) -> None:
        """One of these blocks' snapshots, if there are any."""
        known = self._snapshots
        if blocks:
            self.forget(min(blocks, key=lambda block: (known[block].user.used, -known[block].tokens, block)))

    def _new(self) -> int:
        if not self._free:
            self._make_room()
        if not self._free:
            raise OutOfBlocks(f"all of {self.slots} recurrent states are in use")
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
        for slot in (*(s for ring in self._rings.values() for s in ring.slots if s >= 0), *self._shared()):
            seen[slot] += 1
        assert seen == self._references, "references are not those of the tables"
        assert sorted(self._free) == [slot for slot in range(self.slots) if not seen[slot]], "a slot is lost"

    def _shared(self) -> list[int]:
        """Slots of snapshots."""
        return [entry.kept for entry in self._snapshots.values()]


class NoStates(StateTables):
    """Of a model without recurrent layers: any prefix can be gone on from, and any token taken back."""

    def __init__(self) -> None:
        self.ring, self.slots = 2**31, 0

    snapshots = 0

    def reset(self) -> None:
        """Nothing is to be done, here and in what follows."""

    def __contains__(self, block: int) -> bool:
        return True

    def add(self, name: Hashable, blocks: Sequence[int]) -> None: ...
    def fork(self, name: Hashable, new: Hashable) -> None: ...
    def reserve(self, name: Hashable, tokens: int) -> None: ...
    def commit(self, name: Hashable, tokens: int) -> None: ...
    def step(self, length: int, tokens: int, block: int) -> int:
        return tokens

    def free(self, name: Hashable) -> None: ...
    def snapshot(self, name: Hashable, block: int, tokens: int, behind: int, *, stays: bool = False) -> None: ...
    def forget(self, block: int) -> None: ...

    def crop(self, name: Hashable, tokens: int) -> bool:
        return True
