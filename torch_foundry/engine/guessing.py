"""Guessing tokens of an engine's requests ahead: how many, and where guesses come from.

A guess counts if it is the token that the model chooses, with the random numbers that it would have had without
guesses. So guesses change how long an answer takes, never its tokens (see `torch_foundry.decode.speculation`).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_foundry.core.errors import Fallback
from torch_foundry.decode.drafts import LONGEST, PromptLookup
from torch_foundry.decode.pace import GAIN, NEWEST, PLAIN_EVERY, Guesses, Rates
from torch_foundry.decode.speculation import MOST
from torch_foundry.decode.state import power_of_two
from torch_foundry.engine.draft import Draft
from torch_foundry.engine.requests import Job, Params
from torch_foundry.engine.scheduler import Chunk
from torch_foundry.patch.calls import LONGEST_STEP

# rows of each request in a step: its newest token and guesses
LENGTHS = tuple(1 << i for i in range(LONGEST_STEP.bit_length()))


@dataclass
class Guessed:
    """What is known of a request's guesses."""

    most: int  # 0: none
    lookup: PromptLookup | None  # None: the draft model makes them
    figures: Guesses
    rates: Rates = field(default_factory=Rates)
    looked: int = 0  # tokens of the text that were looked back at
    kind: int = 0  # of the guesses at hand
    found: int = 0  # how many there are


class Guessing:
    """Guesses for the requests of one engine, and what came of them (`totals`).

    All requests have as many rows in a step as the one with the most guesses. The number is chosen from the measured
    time of steps with as many requests and rows. With many requests that soon is one row each, and then nothing is
    guessed.
    """

    def __init__(self, lookup: int | None, draft: Draft | None, budget: int) -> None:
        self._default, self._draft, self._budget = lookup or 0, draft, budget
        self.totals = Guesses()
        self._own: dict[int, Guessed] = {}
        # seconds of a step by (requests, rows of each), both powers of two; the first one met is not timed, as it may
        # have been recorded
        self._times: dict[tuple[int, int], float] = {}
        self._met: set[tuple[int, int]] = set()
        self._used: set[tuple[int, int]] = set()
        self._recorded = 0  # steps of the draft before this one that a tape was recorded of
        self._since = 0  # steps with guesses since one without was timed

    def begin(self, job: Job, params: Params, *, possible: bool) -> Guesses:
        """A request; possible: whether its next tokens can be known before those before are. Returns its figures."""
        asked = params.prompt_lookup_num_tokens
        lookup = self._default if asked is None else asked
        most, figures = min(lookup, MOST), Guesses()
        if not most and asked is None and self._draft is not None:
            most = min(self._draft.most, MOST)
        if possible and most:
            self._own[job.name] = Guessed(most, PromptLookup(LONGEST) if lookup else None, figures)
        return figures

    def leave(self, job: Job) -> None:
        """A request has lost its place."""
        job.guesses = []
        if self._draft is not None:
            self._draft.leave(job.name)

    def end(self, job: Job) -> None:
        """A request has ended, or is not guessed for any more."""
        self._own.pop(job.name, None)

    def reset(self, names: Container[int]) -> None:
        """Of all requests these are left, and none has a place; what was built up of texts may be torn."""
        self._own = {name: own for name, own in self._own.items() if name in names}
        for own in self._own.values():
            own.lookup = own.lookup and PromptLookup(LONGEST)
        if self._draft is not None:
            self._draft.reset()

    def guess(self, jobs: Sequence[Job], slots: Any, rows: Sequence[int]) -> None:
        """Give `jobs`, which generate, guesses for the next step. rows: theirs in `slots`, for draft models."""
        self._recorded = 0 if self._draft is None else self._draft.recorded
        for job in jobs:
            job.guesses = []
        texts = {job.name: self._look(job, self._own[job.name]) for job in jobs if job.name in self._own}
        length = self._length(jobs)
        if length == 1:
            return
        drafted = [
            (job, row)
            for job, row in zip(jobs, rows, strict=True)
            if job.name in self._own and self._own[job.name].lookup is None
        ]
        if drafted:
            assert self._draft is not None
            count = min(length - 1, max(self._own[job.name].found for job, _ in drafted))
            try:
                found = self._draft.propose([job for job, _ in drafted], slots, [row for _, row in drafted], count)
            except Fallback as fallback:  # it has changed; answers don't depend on it
                self.totals.stopped = f"switched off: {fallback}"
            else:
                texts.update(found)
        for job in jobs:
            if own := self._own.get(job.name):
                job.guesses = texts[job.name][: min(length - 1, own.found)]

    def note(self, chunk: Chunk, tokens: int) -> None:
        """A step has given a request `tokens` tokens."""
        own = self._own.get(chunk.job.name)
        if own is None:
            return
        made, right = len(chunk.guesses), max(0, chunk.right)
        own.rates.seen(own.kind, made, right)
        for figures in (own.figures, self.totals):
            figures.steps += 1
            figures.guessed += made
            figures.accepted += right
            figures.tokens += tokens
        if made:  # these were seen; the others are looked back at
            own.looked = len(chunk.job.tokens)

    def timed(self, requests: int, length: int, tokens: int, seconds: float) -> None:
        """A step of so many requests, of which none had more than `length` tokens, and which gave `tokens`."""
        key = power_of_two(requests), power_of_two(length)
        self._since += length > 1
        self._used.add(key)
        if key in self._met and (self._draft is None or self._draft.recorded == self._recorded):
            known = self._times.get(key, seconds)
            self._times[key] = known + NEWEST * (seconds - known)
            if self._own and (plain := self._times.get((key[0], 1))) is not None:
                self.totals.seconds += seconds
                self.totals.without += plain * tokens / requests
        self._met.add(key)

    def _look(self, job: Job, own: Guessed) -> list[int]:
        """The guesses that the text alone gives, of which `own` takes note; before, what earlier ones would have been
        worth where none were made."""
        text = job.tokens
        left = min(own.most, job.limit - len(text) - 1)
        if own.lookup is None:
            own.kind, own.found = 0, max(left, 0)
            return []
        for seen in own.lookup.look_back(text, max(own.looked, job.prompt), own.most):
            own.rates.seen(*seen)
        own.looked = len(text)
        own.kind, guesses = own.lookup.propose(text, max(left, 0))
        own.found = len(guesses)
        return guesses

    def _length(self, jobs: Sequence[Job]) -> int:
        """Rows of each of the jobs in the next step."""
        batch, found = power_of_two(len(jobs)), [self._own[job.name] for job in jobs if job.name in self._own]
        found = [own for own in found if own.found]
        if not found or (batch, 1) not in self._times:
            return 1
        if self._since >= PLAIN_EVERY:
            for key in self._times.keys() - self._used:  # one slow step must not be the last one
                del self._times[key]
            self._since, self._used = 0, {(batch, 1)}
            for own in found:
                if own.lookup is None:
                    own.rates.hope()
            return 1
        others = len(jobs) - len(found)

        def speed(length: int) -> float:
            tokens = sum(own.rates.tokens(own.kind, min(length - 1, own.found)) for own in found)
            tried = max(n for n in LENGTHS if n <= length and (batch, n) in self._times)
            return (others + tokens) / self._times[batch, tried]

        most = max(own.found for own in found) + 1
        lengths = [n for n in LENGTHS if n < 2 * most and n * len(jobs) <= self._budget]
        best = max(lengths, key=speed)
        pays = best > 1 and speed(best) >= GAIN * speed(1)
        self.totals.stopped = "" if pays else "switched off, as it did not pay"
        self._since += not pays  # a draft that is off has to be tried again some time
        return best if pays else 1
