"""Who owns which block of a paged KV cache. Standard library only; knows tokens and block numbers, no tensors.

A block holds the keys and values of `block_size` neighbouring tokens in every layer. It is free, or owned by one or
more sequences, or kept: without owner, but still found by its content, until its memory is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from torch_foundry.core.errors import OutOfBlocks
from torch_foundry.kvcache.state_tables import NoStates, StateTables

Copy = tuple[int, int]  # from a block to a block


@dataclass
class _Owner:
    blocks: list[int] = field(default_factory=list)
    tokens: list[int] | None = None  # those that are stored; None: nobody said which, so nobody else can use them
    length: int = 0
    digests: list[bytes] = field(default_factory=list)  # of the first full blocks, each with all before it


class BlockManager:
    """Block tables of sequences, which share equal beginnings and copy a block before they write to it.

    `reserve` makes room at the end of a sequence; whoever writes there then calls `commit`. Full blocks of known tokens
    are found by a chain of SHA-256 over `salt` and all tokens up to their end; sequences with different salts share
    nothing. Not thread-safe.

    states: of the recurrent layers, if the model has any. A prefix is then found as far as a block at its end has a
    snapshot of the state there, which it gets if a `commit` ends with it (see `step`), and loses with its content.
    """

    def __init__(self, blocks: int, block_size: int, *, salt: bytes = b"", states: StateTables | None = None) -> None:
        if blocks < 1 or block_size < 1:
            raise ValueError(f"expected at least one block of one token, got {blocks} of {block_size}")
        self.blocks, self.block_size, self._salt = blocks, block_size, salt
        self.states: StateTables = NoStates() if states is None else states
        self.reset()

    def reset(self) -> None:
        """Forget all sequences, and all blocks that are kept; also after a change that did not come to its end."""
        blocks = self.blocks
        self._free = list(range(blocks - 1, -1, -1))  # taken from the end
        self._kept: dict[int, None] = {}  # in the order in which they are given up
        self._references = [0] * blocks
        self._digest: list[bytes | None] = [None] * blocks
        self._found: dict[bytes, int] = {}
        self._owners: dict[Hashable, _Owner] = {}
        self.states.reset()

    # ---------------------------------------------------------------------------------------------------- questions

    @property
    def available(self) -> int:
        """Blocks that a sequence could get."""
        return len(self._free) + len(self._kept)

    @property
    def used(self) -> int:
        """Blocks that sequences own."""
        return self.blocks - self.available

    def __contains__(self, name: Hashable) -> bool:
        return name in self._owners

    def __len__(self) -> int:
        return len(self._owners)

    def table(self, name: Hashable) -> list[int]:
        """Blocks of a sequence in their order; the last ones may be empty yet."""
        return list(self._owner(name).blocks)

    def length(self, name: Hashable) -> int:
        """Tokens of a sequence that are stored."""
        return self._owner(name).length

    def tokens(self, name: Hashable) -> list[int]:
        """Tokens of a sequence that are stored, if they are known; it must not be changed."""
        return self._owner(name).tokens or []

    def needs(self, name: Hashable, tokens: int) -> int:
        """Blocks that `reserve(name, tokens)` would take."""
        owner = self._owner(name)
        more = self._blocks_of(owner.length + tokens) - len(owner.blocks)
        return max(more, 0) + bool(self._shared(owner, tokens))

    # ------------------------------------------------------------------------------------------------------ sequences

    def add(self, name: Hashable, tokens: Sequence[int] | None = None, *, salt: bytes = b"", least: int = 0) -> int:
        """Begin a sequence. Returns how many of its first `tokens` are stored already, in blocks that were found:
        always less than len(tokens), so that there is something to compute the next token from, and at least `least`
        or none. None: the tokens are unknown, and only `fork` shares them.
        """
        if name in self._owners:
            raise ValueError(f"there is a sequence {name!r} already")
        owner = _Owner(tokens=None if tokens is None else [])
        if tokens is not None:
            digest = hashlib.sha256(self._salt + b"\0" + hashlib.sha256(salt).digest()).digest()
            owner.digests.append(digest)
            for first in range(0, len(tokens) - self.block_size, self.block_size):
                digest = _chain(digest, tokens[first : first + self.block_size])
                block = self._found.get(digest)
                if block is None:
                    break
                owner.blocks.append(block)
                owner.digests.append(digest)
            while owner.blocks and (owner.blocks[-1] not in self.states or len(owner.blocks) * self.block_size < least):
                owner.blocks.pop()
                owner.digests.pop()
            for block in owner.blocks:
                self._kept.pop(block, None)
                self._references[block] += 1
            owner.length = len(owner.blocks) * self.block_size
            owner.tokens = list(tokens[: owner.length])
        self.states.add(name, owner.blocks)
        self._owners[name] = owner
        return owner.length

    def step(self, name: Hashable, tokens: int) -> int:
        """How many of the next `tokens` of a sequence to compute in one step, so that the last block that they fill
        gets a snapshot of its state, and such blocks are no farther from each other than they may be."""
        return self.states.step(self._owner(name).length, tokens, self.block_size)

    def fork(self, name: Hashable, new: Hashable) -> None:
        """Begin the sequence `new` with all that `name` has stored, in the same blocks."""
        owner = self._owner(name)
        if new in self._owners:
            raise ValueError(f"there is a sequence {new!r} already")
        blocks = owner.blocks[: self._blocks_of(owner.length)]  # not what is empty yet
        for block in blocks:
            self._references[block] += 1
        tokens = None if owner.tokens is None else list(owner.tokens)
        self._owners[new] = _Owner(blocks, tokens, owner.length, list(owner.digests))
        self.states.fork(name, new)

    def reserve(self, name: Hashable, tokens: int) -> list[Copy]:
        """Room for `tokens` more behind a sequence, in blocks that nobody else sees.

        Returns what has to be copied before they are written. Raises OutOfBlocks, and then nothing has changed.
        """
        owner = self._owner(name)
        at = owner.length // self.block_size
        self.states.reserve(name, tokens)
        if 0 < tokens <= len(owner.blocks) * self.block_size - owner.length:  # the way of nearly all calls
            block = owner.blocks[at]
            if self._references[block] == 1 and self._digest[block] is None:
                return []
        needed = self.needs(name, tokens)
        if needed > self.available:
            raise OutOfBlocks(f"{tokens} more tokens need {needed} blocks, of {self.blocks} {self.available} are free")
        copies = []
        if self._shared(owner, tokens):
            old, new = owner.blocks[at], self._new()
            owner.blocks[at] = new
            copies.append((old, new))
            self._release(old)
        elif tokens and at < len(owner.blocks):
            self._forget(owner.blocks[at])  # it held more once (crop), and will hold something else
        while len(owner.blocks) < self._blocks_of(owner.length + tokens):
            owner.blocks.append(self._new())
        return copies

    def commit(self, name: Hashable, tokens: int | Sequence[int], *, turn: int = 0) -> None:
        """Count tokens that were written where `reserve` said: their ids, or how many of a sequence of unknown ones.
        turn: tokens up to the end of a turn, of which the last full block's snapshot stays."""
        owner = self._owner(name)
        count = tokens if isinstance(tokens, int) else len(tokens)
        if owner.length + count > len(owner.blocks) * self.block_size:
            raise ValueError(f"there is no room for {count} tokens behind {name!r}; reserve it first")
        if isinstance(tokens, int) != (owner.tokens is None):
            raise ValueError(f"the tokens of {name!r} are {'not ' if owner.tokens is None else ''}known")
        owner.length += count
        self.states.commit(name, count)
        if owner.tokens is None or isinstance(tokens, int):
            return
        owner.tokens += tokens
        for i in range(len(owner.digests) - 1, owner.length // self.block_size):
            part = owner.tokens[i * self.block_size : (i + 1) * self.block_size]
            digest = _chain(owner.digests[-1], part)
            owner.digests.append(digest)
            block = owner.blocks[i]
            if digest not in self._found and self._digest[block] is None:
                self._found[digest] = block
                self._digest[block] = digest
        if (behind := owner.length % self.block_size) < count and owner.digests[-1] in self._found:  # a block is full
            border, last = owner.length - behind, turn // self.block_size * self.block_size
            self.states.snapshot(name, self._found[owner.digests[-1]], border, behind, stays=border == last)

    def crop(self, name: Hashable, length: int) -> int:
        """Forget all but the first `length` tokens of a sequence, and the room behind them. Returns how many are left:
        none if the recurrent state behind so many is not there any more."""
        owner = self._owner(name)
        if not 0 <= length <= owner.length:
            raise ValueError(f"{name!r} has {owner.length} tokens, of which {length} can't be kept")
        if not self.states.crop(name, owner.length - length):
            length = 0
            self.states.free(name)
            self.states.add(name, ())
        owner.length = length
        if owner.tokens is not None:
            del owner.tokens[length:]
            del owner.digests[1 + length // self.block_size :]
        self._give_up(owner, self._blocks_of(length))
        return length

    def free(self, name: Hashable) -> None:
        """End a sequence. Its full blocks are kept until their memory is needed; the last ones go first."""
        self._give_up(self._owner(name), 0)
        del self._owners[name]
        self.states.free(name)

    def forget(self) -> None:
        """Give up all blocks that are kept for later."""
        while self._kept:
            self._evict()

    # ---------------------------------------------------------------------------------------------------------- blocks

    def _owner(self, name: Hashable) -> _Owner:
        try:
            return self._owners[name]
        except KeyError:
            raise KeyError(f"there is no sequence {name!r}") from None

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _shared(self, owner: _Owner, tokens: int) -> bool:
        """Whether the first of `tokens` more goes to a block that others see."""
        at = owner.length // self.block_size
        return bool(tokens) and at < len(owner.blocks) and self._references[owner.blocks[at]] > 1

    def _new(self) -> int:
        if not self._free:
            self._evict()
        block = self._free.pop()
        self._references[block] = 1
        return block

    def _release(self, block: int) -> None:
        self._references[block] -= 1
        if not self._references[block]:
            if self._digest[block] is None:
                self._free.append(block)
            else:
                self._kept[block] = None

    def _give_up(self, owner: _Owner, keep: int) -> None:
        for block in reversed(owner.blocks[keep:]):
            self._release(block)
        del owner.blocks[keep:]

    def _forget(self, block: int) -> None:
        digest = self._digest[block]
        if digest is not None:
            del self._found[digest]
            self._digest[block] = None
            self.states.forget(block)

    def _evict(self) -> None:
        block = next(iter(self._kept))
        del self._kept[block]
        self._forget(block)
        self._free.append(block)

    def check(self) -> None:
        """Every block is accounted for; AssertionError says what isn't. For tests."""
        owned = [0] * self.blocks
        for name, owner in self._owners.items():
            for block in owner.blocks:
                owned[block] += 1
            assert len(set(owner.blocks)) == len(owner.blocks), f"{name!r} has a block twice"
            assert owner.length <= len(owner.blocks) * self.block_size, f"{name!r} has more tokens than room"
            assert owner.tokens is None or len(owner.tokens) == owner.length
            full = owner.length // self.block_size
            assert len(owner.digests) == (0 if owner.tokens is None else full + 1), f"{name!r}: digests"
            writable: Iterable[int] = owner.blocks[self._blocks_of(owner.length) :]
            assert all(self._references[b] == 1 for b in writable), f"{name!r}: room that others see"
        assert owned == self._references, "references are not those of the tables"
        idle = [*self._free, *self._kept]
        assert len(set(idle)) == len(idle) and all(not owned[b] for b in idle), "a block is idle and in use, or twice"
        assert len(idle) + sum(map(bool, owned)) == self.blocks, "a block is lost"
        assert all(self._digest[b] is None for b in self._free) and all(self._digest[b] is not None for b in self._kept)
        assert {b: d for d, b in self._found.items()} == {b: d for b, d in enumerate(self._digest) if d is not None}


def _chain(before: bytes, tokens: Sequence[int]) -> bytes:
    text = b"".join(int(token).to_bytes(8, "little", signed=True) for token in tokens)
    return hashlib.sha256(before + text).digest()
