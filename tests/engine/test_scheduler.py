"""The scheduler against a model of what it promises, over many random requests; no tensors."""

from __future__ import annotations

import random

import pytest

from torch_foundry.engine.requests import Job
from torch_foundry.engine.scheduler import Scheduler
from torch_foundry.kvcache.blocks import BlockManager


def answer(tokens: list[int]) -> int:
    """What the stub model says next: of all tokens before."""
    return (sum(tokens) * 31 + len(tokens)) % 1009


class World:
    """A scheduler, jobs, and a cache that remembers what was written to each place of each block."""

    def __init__(self, seed: int, blocks: int = 24, size: int = 4, running: int = 5, budget: int = 12) -> None:
        self.random = random.Random(seed)
        self.manager = BlockManager(blocks, size)
        self.scheduler = Scheduler(self.manager, running=running, budget=budget)
        self.memory = [[None] * size for _ in range(blocks)]
        self.jobs: dict[int, Job] = {}
        self.order: list[int] = []  # of admission of jobs that were never preempted
        self.blocks, self.size, self.ended, self.right = blocks, size, 0, 0

    def submit(self) -> Job:
        name = len(self.jobs)
        common = self.random.choice([[], [7] * 8, list(range(13))])
        prompt = common + [self.random.randrange(1009) for _ in range(self.random.randrange(1, 20))]
        limit = min(len(prompt) + self.random.randrange(1, 30), self.blocks * self.size)
        job = Job(name, prompt, len(prompt), limit, salt=bytes([name % 2]))
        self.jobs[name] = job
        self.scheduler.add(job)
        return job

    def step(self) -> int:
        """One step, with everything checked that is promised of it."""
        manager, scheduler = self.manager, self.scheduler
        before = list(scheduler.running)
        for job in before:
            job.guesses = self.guesses(job) if job.pending == 1 else []
        chunks = scheduler.next()
        manager.check()
        assert len(scheduler.running) <= scheduler.most
        total = sum(chunk.size for chunk in chunks)
        assert all(chunk.complete and chunk.count == 1 for chunk in chunks if chunk.guesses)
        assert total <= scheduler.budget and all(chunk.count > 0 for chunk in chunks)
        assert len({chunk.job.name for chunk in chunks}) == len(chunks)
        assert all(chunk.job in scheduler.running for chunk in chunks)
        if scheduler.running or scheduler.waiting:
            assert total, "there is work, and none is done"
        kept = [job for job in before if job in scheduler.running]
        generating = [job for job in kept if job.pending == 1]
        assert all(any(chunk.job is job for chunk in chunks) for job in generating), "all that generate get a token"
        writers: set[tuple[int, int]] = set()
        for chunk in chunks:
            assert not chunk.copies
            job, table = chunk.job, manager.table(chunk.job.name)
            for at in range(job.computed):  # what is said to be stored is there
                assert self.memory[table[at // self.size]][at % self.size] == (job.salt, tuple(job.tokens[: at + 1]))
            for at in range(job.computed, job.computed + chunk.size):
                place = table[at // self.size], at % self.size
                assert place not in writers
                writers.add(place)
        for chunk in chunks:
            job, table = chunk.job, manager.table(chunk.job.name)
            text = (*job.tokens[: job.computed], *chunk.ids)
            for at in range(job.computed, job.computed + chunk.size):
                self.memory[table[at // self.size]][at % self.size] = (job.salt, text[: at + 1])
        new = {}
        for chunk in chunks:
            text = list(chunk.job.tokens)
            while chunk.complete and (len(text) == len(chunk.job.tokens) or text[-1] == chunk.guesses[chunk.right]):
                chunk.right = len(text) - len(chunk.job.tokens)
                text.append(answer(text))
                if chunk.right == len(chunk.guesses):
                    break
            new[chunk.job.name] = text[len(chunk.job.tokens) :]
            self.right += chunk.right
        scheduler.done(chunks)
        manager.check()
        for chunk in chunks:
            job = chunk.job
            if chunk.guesses:
                assert len(manager.table(job.name)) == -(-job.computed // self.size), "room of guesses is given up"
            for token in new[job.name]:
                job.tokens.append(token)
                if len(job.tokens) >= job.limit:
                    self.end(job)
                    break
            else:
                assert not new[job.name] or job.pending == 1
        return total

    def guesses(self, job: Job) -> list[int]:
        """Up to three, the first ones of which are right."""
        text = list(job.tokens)
        for _ in range(self.random.choice([0, 0, 1, 3])):
            text.append(answer(text) if self.random.random() < 0.7 else 5)
        return text[len(job.tokens) :]

    def end(self, job: Job) -> None:
        self.scheduler.remove(job)
        self.manager.check()
        self.ended += 1

    def cancel(self) -> None:
        alive = [*self.scheduler.running, *self.scheduler.waiting]
        if alive:
            self.end(self.random.choice(alive))

    def check_answers(self) -> None:
        for job in self.jobs.values():
            tokens = job.tokens[: job.prompt]
            while len(tokens) < len(job.tokens):
                tokens.append(answer(tokens))
            assert job.tokens == tokens


@pytest.mark.parametrize("seed", range(20))
def test_random_requests(seed: int) -> None:
    """Five hundred each: of all lengths, many cancelled, with too few blocks for what runs."""
    world = World(seed)
    while len(world.jobs) < 500:
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
    assert world.ended == len(world.jobs) and world.manager.used == 0
    world.check_answers()
    assert any(job.preempted for job in world.jobs.values()) and any(job.reused for job in world.jobs.values())
    assert all(len(job.tokens) <= job.limit for job in world.jobs.values()) and world.right > 100


@pytest.mark.parametrize("at", range(25))
def test_cancelling_in_every_step(at: int) -> None:
    """Each of the jobs that there are after `at` steps; the others are none the worse."""
    for victim in range(6):
        world = World(3, blocks=14)
        jobs = [world.submit() for _ in range(6)]
        for _ in range(at):
            world.step()
        job = jobs[victim]
        if job in world.scheduler.running or job in world.scheduler.waiting:
            world.end(job)
        while world.scheduler.running or world.scheduler.waiting:
            world.step()
        world.check_answers()
        assert world.manager.used == 0 and world.ended == 6


def test_arrival_decides() -> None:
    """Nobody is admitted past one that waits; a long prompt takes turns with what others generate."""
    world = World(0, blocks=40, running=3, budget=8)
    world.guesses = lambda job: []  # type: ignore[method-assign]
    first, long, last = Job(0, [1], 1, 40), Job(1, [2] * 50, 50, 60), Job(2, [3], 1, 40)
    for job in (first, long, last):
        world.jobs[job.name] = job
        world.scheduler.add(job)
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
    jobs = [Job(i, [i + 1] * 4, 4, 24) for i in range(3)]
    for job in jobs:
        world.jobs[job.name] = job
        world.scheduler.add(job)
    while world.scheduler.running or world.scheduler.waiting:
        world.step()
    assert jobs[0].preempted == 0 < max(job.preempted for job in jobs[1:])
    world.check_answers()


def test_wrong_numbers() -> None:
    manager = BlockManager(4, 4)
    for running, budget in ((0, 4), (4, 3)):
        with pytest.raises(ValueError, match="budget >= running"):
            Scheduler(manager, running=running, budget=budget)
