"""The scheduler against a model of what it promises, over many random requests; no tensors."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from torch_foundry.engine.scheduler import Scheduler
from torch_foundry.engine.sequence import Sequence
from torch_foundry.kvcache.block_manager import BlockManager


def answer(tokens: list[int]) -> int:
    """What the stub model says next: of all tokens before."""
    return (sum(tokens) * 31 + len(tokens)) % 1009


class World:
    """A scheduler, sequences, and a cache that remembers what was written to each place of each block."""

    def __init__(self, seed: int, blocks: int = 24, size: int = 4, running: int = 5, budget: int = 12) -> None:
        self.random = random.Random(seed)
        self.manager = BlockManager(blocks, size)
        self.scheduler = Scheduler(self.manager, running=running, budget=budget)
        self.memory = [[None] * size for _ in range(blocks)]
        self.sequences: dict[int, Sequence] = {}
        self.order: list[int] = []  # of admission of sequences that were never preempted
        self.blocks, self.size, self.ended, self.right = blocks, size, 0, 0

    def submit(self) -> Sequence:
        name = len(self.sequences)
        common = self.random.choice([[], [7] * 8, list(range(13))])
        prompt = common + [self.random.randrange(1009) for _ in range(self.random.randrange(1, 20))]
        limit = min(len(prompt) + self.random.randrange(1, 30), self.blocks * self.size)
        return self.add(Sequence(prompt, len(prompt), limit, salt=bytes([name % 2])))

    def add(self, sequence: Sequence) -> Sequence:
        self.scheduler.add(sequence)
        self.sequences[sequence.id] = sequence
        return sequence

    def step(self) -> int:
        """One step, with everything checked that is promised of it."""
        manager, scheduler = self.manager, self.scheduler
        before = list(scheduler.running)
        for sequence in before:
            sequence.drafting = SimpleNamespace(drafts=self.drafts(sequence) if sequence.pending == 1 else [])
        batch = scheduler.next()
        manager.check()
        assert len(scheduler.running) <= scheduler.max_running
        total = sum(len(each.ids) for each in batch)
        assert all(each.wanted == len(each.ids) for each in batch if each.drafts)
        assert total <= scheduler.budget and all(each.ids for each in batch)
        assert len({each.id for each in batch}) == len(batch)
        assert all(each.sequence in scheduler.running for each in batch)
        if scheduler.running or scheduler.waiting:
            assert total, "there is work, and none is done"
        kept = [sequence for sequence in before if sequence in scheduler.running]
        generating = [sequence for sequence in kept if sequence.pending == 1]
        assert all(any(each.sequence is sequence for each in batch) for sequence in generating), (
            "all that generate get a token"
        )
        writers: set[tuple[int, int]] = set()
        for each in batch:
            assert not each.copies
            sequence, table = each.sequence, manager.table(each.id)
            for at in range(sequence.computed):  # what is said to be stored is there
                assert self.memory[table[at // self.size]][at % self.size] == (
                    sequence.salt,
                    tuple(sequence.tokens[: at + 1]),
                )
            for at in range(sequence.computed, sequence.computed + len(each.ids)):
                place = table[at // self.size], at % self.size
                assert place not in writers
                writers.add(place)
        for each in batch:
            sequence, table = each.sequence, manager.table(each.id)
            text = (*sequence.tokens[: sequence.computed], *each.ids)
            for at in range(sequence.computed, sequence.computed + len(each.ids)):
                self.memory[table[at // self.size]][at % self.size] = (sequence.salt, text[: at + 1])
        new = {}
        for each in batch:
            text = list(each.sequence.tokens)
            while each.wanted and (
                len(text) == len(each.sequence.tokens) or text[-1] == each.drafts[each.num_accepted]
            ):
                each.num_accepted = len(text) - len(each.sequence.tokens)
                text.append(answer(text))
                if each.num_accepted == len(each.drafts):
                    break
            new[each.id] = text[len(each.sequence.tokens) :]
            self.right += each.num_accepted
        for each in batch:
            scheduler.commit(each, each.ids[: len(each.ids) - len(each.drafts) + each.num_accepted])
        manager.check()
        for each in batch:
            sequence = each.sequence
            if each.drafts:
                assert len(manager.table(sequence.id)) == -(-sequence.computed // self.size), (
                    "room of rejected draft tokens is given up"
                )
            for token in new[sequence.id]:
                sequence.tokens.append(token)
                if len(sequence.tokens) >= sequence.limit:
                    self.end(sequence)
                    break
            else:
                assert not new[sequence.id] or sequence.pending == 1
        return total

    def drafts(self, sequence: Sequence) -> list[int]:
        """Up to three, the first ones of which are right."""
        text = list(sequence.tokens)
        for _ in range(self.random.choice([0, 0, 1, 3])):
            text.append(answer(text) if self.random.random() < 0.7 else 5)
        return text[len(sequence.tokens) :]

    def end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self.manager.check()
        self.ended += 1

    def cancel(self) -> None:
        alive = [*self.scheduler.running, *self.scheduler.waiting]
        if alive:
            self.end(self.random.choice(alive))

    def check_answers(self) -> None:
        for sequence in self.sequences.values():
            tokens = sequence.tokens[: sequence.prompt]
            while len(tokens) < len(sequence.tokens):
                tokens.append(answer(tokens))
            assert sequence.tokens == tokens


@pytest.mark.parametrize("seed", range(20))
def test_random_requests(seed: int) -> None:
    """Five hundred each: of all lengths, many cancelled, with too few blocks for what runs."""
    world = World(seed)
    while len(world.sequences) < 500:
        for _ in range(world.random.choice([0, 0, 1, 3])):
            world.submit()
        if world.random.random() < 0.05:
            world.cancel()
        world.step()
    steps = 0
    while world.scheduler.running or world.scheduler.waiting:
        world.step()
        steps += 1
        assert steps < 100_000
    assert world.ended == len(world.sequences) and world.manager.used == 0
    world.check_answers()
    assert any(sequence.preempted for sequence in world.sequences.values()) and any(
        sequence.reused for sequence in world.sequences.values()
    )
    assert all(len(sequence.tokens) <= sequence.limit for sequence in world.sequences.values()) and world.right > 100


@pytest.mark.parametrize("at", range(25))
def test_cancelling_in_every_step(at: int) -> None:
    """Each of the sequences that there are after `at` steps; the others are none the worse."""
    for victim in range(6):
        world = World(3, blocks=14)
        sequences = [world.submit() for _ in range(6)]
        for _ in range(at):
            world.step()
        sequence = sequences[victim]
        if sequence in world.scheduler.running or sequence in world.scheduler.waiting:
            world.end(sequence)
        while world.scheduler.running or world.scheduler.waiting:
            world.step()
        world.check_answers()
        assert world.manager.used == 0 and world.ended == 6


def test_arrival_decides() -> None:
    """Nobody is admitted past one that waits; a long prompt takes turns with what others generate."""
    world = World(0, blocks=40, running=3, budget=8)
    world.drafts = lambda sequence: []  # type: ignore[method-assign]
    first, long, last = (world.add(Sequence(*given)) for given in (([1], 1, 40), ([2] * 50, 50, 60), ([3], 1, 40)))
    world.step()
    assert world.scheduler.running == [first, long]
    tokens = []
    for _ in range(7):
        world.step()
        tokens.append(len(first.tokens))
    assert tokens == list(range(3, 10)), "one token a step, whatever the long prompt takes"
    assert long.computed == 7 + 7 * 7 - 6
    assert last in world.scheduler.running


def test_the_youngest_gives_way() -> None:
    world = World(0, blocks=6, size=4, running=3, budget=12)
    sequences = [world.add(Sequence([i + 1] * 4, 4, 24)) for i in range(3)]
    while world.scheduler.running or world.scheduler.waiting:
        world.step()
    assert sequences[0].preempted == 0 < max(sequence.preempted for sequence in sequences[1:])
    world.check_answers()


def test_wrong_numbers() -> None:
    manager = BlockManager(4, 4)
    for running, budget in ((0, 4), (4, 3)):
        with pytest.raises(ValueError, match="budget >= running"):
            Scheduler(manager, running=running, budget=budget)
