"""Which request has which row of the sampler's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch_foundry.engine.requests import Job
from torch_foundry.engine.stream import Stream
from torch_foundry.sampling import Slots


class Seats:
    """Rows of `slots` by job."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self.rows: list[Job | None] = [None] * slots.rows
        self._unsure: set[Job] = set()  # whose rows may not be as they should: new, or a step failed

    def __contains__(self, job: Job) -> bool:
        return job in self.rows

    def of(self, job: Job) -> int:
        """Its row."""
        return self.rows.index(job)

    def take(self, jobs: Iterable[Job], streams: Mapping[int, Stream]) -> None:
        """Each job gets a row, if it has none, which is filled if it may not be as it should."""
        jobs = list(jobs)
        for job in jobs:  # all have one before anything can fail
            if job not in self.rows:
                self.rows[self.rows.index(None)] = job
                self._unsure.add(job)
        for job in jobs:
            if job in self._unsure:
                stream = streams[job.name]
                self.slots.fill(self.of(job), stream.settings, job.tokens, seed=stream.seed, prompt=job.prompt)

    def doubt(self, jobs: Iterable[Job]) -> None:
        """A step begins, which writes to their rows; `trust` when it has ended well."""
        self._unsure.update(jobs)

    def trust(self, jobs: Iterable[Job]) -> None:
        """Their rows are as they should be."""
        self._unsure.difference_update(jobs)

    def leave(self, job: Job) -> None:
        """The row is nobody's."""
        row = self.of(job)
        self.rows[row] = None
        self._unsure.discard(job)
        self.slots.clear(row)

    def reset(self) -> None:
        """All rows are nobody's."""
        self._unsure.clear()
        self.rows = [None] * len(self.rows)
        for row in range(len(self.rows)):
            self.slots.clear(row)
