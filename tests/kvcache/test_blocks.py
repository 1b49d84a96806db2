"""BlockManager: by hand, and in long random runs against a memory that is written as it says."""

from __future__ import annotations

import random

import pytest

from torch_foundry.kvcache.block_manager import BlockManager, OutOfBlocks


def filled(manager: BlockManager, name: str, tokens: list[int]) -> int:
    """A sequence of these tokens; how many of them were there already."""
    found = manager.add(name, tokens)
    assert manager.reserve(name, len(tokens) - found) == []
    manager.commit(name, tokens[found:])
    return found


def test_blocks_are_taken_as_they_are_needed() -> None:
    manager = BlockManager(10, 4)
    assert filled(manager, "a", list(range(9))) == 0
    assert len(manager.table("a")) == 3 and manager.used == 3 and manager.length("a") == 9
    assert manager.needs("a", 3) == 0 and manager.needs("a", 4) == 1
    with pytest.raises(OutOfBlocks, match="32 more tokens need 8 blocks, of 10 7 are free"):
        manager.reserve("a", 32)
    assert manager.used == 3
    assert manager.reserve("a", 31) == [] and manager.available == 0
    manager.crop("a", 9)
    assert manager.available == 7
    manager.free("a")
    assert manager.available == 10 and "a" not in manager and len(manager) == 0
    manager.check()


def test_prefixes_are_found() -> None:
    """Whole blocks of the same first tokens, but never all tokens; also of sequences that are over."""
    manager = BlockManager(10, 4)
    text = list(range(12))
    filled(manager, "a", text)
    assert filled(manager, "b", [*text[:8], 99, 98]) == 8
    assert manager.table("b")[:2] == manager.table("a")[:2] and manager.used == 4
    manager.free("a")
    assert manager.used == 3 and manager.available == 7
    assert filled(manager, "c", text) == 8 and filled(manager, "d", [*text, 1]) == 12
    assert filled(manager, "e", [1, *text[1:]]) == 0, "another first token: another chain"
    assert manager.add("f", text, salt=b"somebody else") == 0
    assert BlockManager(10, 4, salt=b"x").add("a", text) == 0
    manager.check()


def test_the_least_recently_used_goes_first() -> None:
    """And of a sequence its end before its beginning."""
    manager = BlockManager(6, 2)
    for name, tokens in (("old", [1, 2, 3, 4]), ("new", [5, 6, 7, 8])):
        filled(manager, name, tokens)
        manager.free(name)
    assert manager.available == 6
    manager.add("x", None)
    manager.reserve("x", 6)  # two blocks were never used, the third is the end of the old sequence
    assert filled(manager, "again", [1, 2, 3, 4, 0]) == 2, "its beginning is still there"
    manager.check()
    manager.free("again"), manager.forget()
    assert manager.add("y", [5, 6, 7, 8, 0]) == 0
    manager.check()


def test_a_shared_block_is_copied_before_it_is_written() -> None:
    manager = BlockManager(8, 4)
    filled(manager, "a", [1, 2, 3, 4, 5, 6])
    manager.fork("a", "b")
    assert manager.used == 2 and manager.table("a") == manager.table("b")
    assert manager.needs("b", 1) == 1
    ((old, new),) = manager.reserve("b", 1)
    assert old == manager.table("a")[1] and new == manager.table("b")[1] != old
    manager.commit("b", [7])
    assert manager.reserve("a", 2) == [], "the other one has it to itself now"
    manager.commit("a", [8, 9])
    manager.fork("a", "c")
    manager.crop("c", 3)
    (copy,) = manager.reserve("c", 1)
    assert copy[0] == manager.table("a")[0]
    manager.check()


def test_a_fork_shares_no_room_that_is_empty() -> None:
    """Both would write their next tokens there."""
    manager = BlockManager(8, 4)
    manager.add("a", [1, 2, 3, 4, 5])
    manager.reserve("a", 12)
    manager.commit("a", [1, 2, 3, 4, 5])
    manager.fork("a", "b")
    manager.check()
    assert manager.table("a")[:2] == manager.table("b") and len(manager.table("a")) == 3


def test_a_full_block_that_is_written_again_is_not_found_any_more() -> None:
    manager = BlockManager(4, 2)
    filled(manager, "a", [1, 2, 3, 4])
    manager.crop("a", 1)
    manager.reserve("a", 1)
    manager.commit("a", [9])
    assert manager.add("b", [1, 2, 3, 4]) == 0
    assert manager.add("c", [1, 9, 0]) == 2
    manager.check()


def test_mistakes() -> None:
    manager = BlockManager(4, 2)
    manager.add("a", [1])
    with pytest.raises(ValueError, match="there is a sequence 'a' already"):
        manager.add("a")
    with pytest.raises(ValueError, match="already"):
        manager.fork("a", "a")
    with pytest.raises(KeyError, match="there is no sequence 'b'"):
        manager.free("b")
    with pytest.raises(ValueError, match="no room for 1 tokens"):
        manager.commit("a", [1])
    manager.reserve("a", 2)
    with pytest.raises(ValueError, match="are known"):
        manager.commit("a", 2)
    with pytest.raises(ValueError, match="of which 1 can't be kept"):
        manager.crop("a", 1)
    for blocks, size in ((0, 4), (4, 0)):
        with pytest.raises(ValueError, match="at least one block"):
            BlockManager(blocks, size)


class Memory:
    """What a manager's blocks hold, and what its sequences ought to."""

    def __init__(self, blocks: int, size: int, seed: int) -> None:
        self.manager, self.size, self.random = BlockManager(blocks, size), size, random.Random(seed)
        self.held: list[list[int | None]] = [[None] * size for _ in range(blocks)]
        self.texts: dict[int, list[int]] = {}
        self.known: dict[int, bool] = {}
        self.names = self.refused = self.shared = 0

    def write(self, name: int, tokens: list[int]) -> None:
        try:
            copies = self.manager.reserve(name, len(tokens))
        except OutOfBlocks:
            self.refused += 1
            return
        for old, new in copies:
            self.held[new] = list(self.held[old])
        table, text = self.manager.table(name), self.texts[name]
        for token in tokens:
            self.held[table[len(text) // self.size]][len(text) % self.size] = token
            text.append(token)
        self.manager.commit(name, tokens if self.known[name] else len(tokens))

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(2) for _ in range(count)]  # few different ones: many prefixes are alike

    def step(self) -> None:
        action, name = self.random.random(), self.random.choice([*self.texts, None])
        if name is None or action < 0.15:
            self.names += 1
            text, known = self.tokens(self.random.randrange(1, 30)), self.random.random() < 0.8
            found = self.manager.add(self.names, text if known else None)
            self.shared += found
            assert found < len(text)
            self.texts[self.names], self.known[self.names] = text[:found], known
            self.write(self.names, text[found:])
        elif action < 0.6:
            self.write(name, self.tokens(self.random.randrange(0, 9)))
        elif action < 0.7:
            self.names += 1
            self.manager.fork(name, self.names)
            self.texts[self.names], self.known[self.names] = list(self.texts[name]), self.known[name]
        elif action < 0.8:
            keep = self.random.randrange(len(self.texts[name]) + 1)
            self.manager.crop(name, keep)
            del self.texts[name][keep:]
        elif action < 0.99:
            self.manager.free(name)
            del self.texts[name]
        else:
            self.manager.forget()

    def check(self) -> None:
        self.manager.check()
        for name, text in self.texts.items():
            assert self.manager.length(name) == len(text)
            table = self.manager.table(name)
            assert [self.held[table[i // self.size]][i % self.size] for i in range(len(text))] == text, name


@pytest.mark.parametrize("seed", range(12))
def test_every_sequence_reads_what_it_wrote(seed: int) -> None:
    """1500 random steps in a pool that is too small: no sequence sees another's tokens, and no block is lost."""
    memory = Memory(blocks=[12, 40, 7][seed % 3], size=[4, 2, 16][seed % 3], seed=seed)
    for _ in range(1500):
        memory.step()
        memory.check()
    for name in list(memory.texts):
        memory.manager.free(name)
    assert memory.manager.available == memory.manager.blocks
    memory.manager.forget()
    memory.manager.check()
    assert memory.refused and memory.names > 100 and (memory.shared or memory.size > 4)
