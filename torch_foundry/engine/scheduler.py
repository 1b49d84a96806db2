"""Which tokens are computed next. Standard library and the block manager only: no tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch_foundry.engine.requests import Job
from torch_foundry.kvcache.blocks import BlockManager, Copy, OutOfBlocks


@dataclass
class Chunk:
    """The next `count` tokens of a job, and guesses of those behind; if `complete` all that are known, so that a new
    one is chosen, and one behind each guess."""

    job: Job
    count: int
    copies: list[Copy] = field(default_factory=list)  # blocks to copy before
    guesses: list[int] = field(default_factory=list)
    right: int = 0  # of the guesses, the first ones that were chosen: they are in the cache; -1: nothing is

    @property
    def complete(self) -> bool:
        """Whether all tokens that are known will have been computed."""
        return self.count == self.job.pending

    @property
    def ids(self) -> list[int]:
        """The tokens to compute."""
        return self.job.tokens[self.job.computed : self.job.computed + self.count] + self.guesses

    @property
    def size(self) -> int:
        """How many there are."""
        return self.count + len(self.guesses)


class Scheduler:
    """Iteration-level scheduling (Yu et al., "Orca", 2022) of jobs over the blocks of one cache.

    A step has at most `budget` tokens. First each running job that generates gets its one; what is left goes to prompts
    in the order of arrival, in pieces, so a long one delays nobody by more than a step, and last to guesses. Jobs are
    admitted in the order of arrival, never past one that doesn't fit yet. When blocks run out, the job admitted last
    gives up its own and waits at the front of the queue; it computes its tokens again later (what is still in kept
    blocks excepted).
    """

    def __init__(self, manager: BlockManager, *, running: int, budget: int) -> None:
        if running < 1 or budget < running:
            raise ValueError(f"expected running >= 1 and budget >= running, got {running} and {budget}")
        self.manager, self.most, self.budget = manager, running, budget
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []  # in the order of admission

    def add(self, job: Job) -> None:
        """Queue a job."""
        self.waiting.append(job)

    def reset(self, jobs: Iterable[Job]) -> None:
        """Queue these, and no others, of which nothing is in the cache."""
        self.running, self.waiting = [], deque(jobs)
        for job in self.waiting:
            job.computed, job.guesses = 0, []

    def remove(self, job: Job) -> None:
        """Take a job out, wherever it is; between steps. Its full blocks are kept while nobody needs them."""
        if job in self.running:
            self.running.remove(job)
            self.manager.free(job.name)
        else:
            self.waiting.remove(job)

    def next(self) -> list[Chunk]:
        """The chunks of the next step, for which there are blocks. Empty if there is nothing to do."""
        chunks: dict[int, Chunk] = {}
        preempted = False
        generating = [job for job in self.running if job.pending == 1]
        reading = [job for job in self.running if job.pending > 1]
        for job in (*generating, *reading):
            left = self.budget - sum(chunk.size for chunk in chunks.values())
            count = min(job.pending, left)
            while count and job in self.running:
                try:
                    copies = self.manager.reserve(job.name, count)
                except OutOfBlocks:
                    preempted = True
                    victim = self.running[-1]
                    self._preempt(victim)
                    chunks.pop(victim.name, None)
                else:
                    chunks[job.name] = Chunk(job, count, copies)
                    break
        left = self.budget - sum(chunk.size for chunk in chunks.values())
        while self.waiting and len(self.running) < self.most and left and not preempted:
            chunk = self._admit(self.waiting[0], left)
            if chunk is None:
                break
            self.waiting.popleft()
            chunks[chunk.job.name] = chunk
            left -= chunk.count
        for job in generating:
            if job.name in chunks and (guesses := job.guesses[:left]):
                left -= self._add(chunks[job.name], guesses)
        return list(chunks.values())

    def room(self, chunks: Sequence[Chunk], tokens: int) -> bool:
        """Room for `tokens` tokens, in place of one, of each chunk of `next`; False if there is not enough for all."""
        if sum(self.manager.needs(chunk.job.name, tokens) for chunk in chunks) > self.manager.available:
            return False
        try:
            for chunk in chunks:
                chunk.copies += self.manager.reserve(chunk.job.name, tokens)
        except OutOfBlocks:
            return False
        return True

    def done(self, chunks: Iterable[Chunk]) -> None:
        """The chunks of `next` are in the cache, but for wrong guesses."""
        for chunk in chunks:
            job, ids = chunk.job, chunk.ids[: chunk.count + chunk.right]  # only single tokens have guesses
            self.manager.commit(job.name, ids)
            job.computed += len(ids)
            if chunk.guesses:  # their room
                self.manager.crop(job.name, job.computed)

    def _add(self, chunk: Chunk, guesses: list[int]) -> int:
        """Guesses to a chunk, if there are blocks for them; returns how many."""
        try:
            chunk.copies += self.manager.reserve(chunk.job.name, chunk.count + len(guesses))
        except OutOfBlocks:
            return 0
        chunk.guesses = guesses
        return len(guesses)

    def _admit(self, job: Job, left: int) -> Chunk | None:
        """Begin with a job, if there are blocks for all of its tokens."""
        manager = self.manager
        job.computed = job.reused = manager.add(job.name, job.tokens, salt=job.salt)
        # one block more for each running job, or this one would soon be the victim of their next tokens
        if manager.needs(job.name, job.pending) + len(self.running) > manager.available and self.running:
            manager.free(job.name)
            return None
        count = min(job.pending, left)
        try:
            copies = manager.reserve(job.name, count)
        except OutOfBlocks:
            manager.free(job.name)
            return None
        self.running.append(job)
        return Chunk(job, count, copies)

    def _preempt(self, job: Job) -> None:
        self.running.remove(job)
        self.manager.free(job.name)
        job.computed = 0
        job.preempted += 1
        self.waiting.appendleft(job)
