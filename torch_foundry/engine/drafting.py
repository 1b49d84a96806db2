"""Drafting tokens of an engine's requests ahead: how many, and where drafts come from.

A draft counts if it is the token that the model chooses, with the random numbers that it would have had without
drafts. So drafts change how long an answer takes, never its tokens (see `torch_foundry.generation.speculation`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch_foundry.core.errors import Fallback
from torch_foundry.core.limits import power_of_two
from torch_foundry.engine.draft import Draft
from torch_foundry.engine.request import SamplingParams
from torch_foundry.engine.sequence import ScheduledSequence, Sequence
from torch_foundry.generation.draft_length import (
    GAIN,
    MAX_DRAFT_TOKENS,
    PLAIN_EVERY,
    AcceptanceRates,
    SpeculationStats,
    StepTimes,
)
from torch_foundry.generation.drafting import LONGEST, PromptLookup
from torch_foundry.models.calls import LONGEST_STEP

# rows of each request in a step: its newest token and drafts
LENGTHS = tuple(1 << i for i in range(LONGEST_STEP.bit_length()))


@dataclass
class DraftState:
    """What is known of a request's drafts."""

    max_draft_tokens: int  # 0: none
    lookup: PromptLookup | None  # None: the draft model makes them
    figures: SpeculationStats
    rates: AcceptanceRates = field(default_factory=AcceptanceRates)
    looked: int = 0  # tokens of the text that were looked back at
    kind: int = 0  # of the drafts at hand
    found: int = 0  # how many there are


class Drafting:
    """Drafts for the requests of one engine, and what came of them (`totals`).

    All requests have as many rows in a step as the one with the most drafts. The number is chosen from the measured
    time of steps with as many requests and rows. With many requests that soon is one row each, and then nothing is
    drafted.
    """

    def __init__(self, lookup: int | None, draft: Draft | None, budget: int) -> None:
        self._default, self._draft, self._budget = lookup or 0, draft, budget
        self.totals = SpeculationStats()
        self._own: dict[int, DraftState] = {}
        # a step is not timed when it is first met, as it may have been captured
        self._times = StepTimes(self.totals.times)
        self._met: set[tuple[int, int]] = set()
        self._recorded = 0  # steps of the draft before this one that a graph was captured of

    def begin(self, sequence: Sequence, params: SamplingParams, *, possible: bool) -> SpeculationStats:
        """A request; possible: whether its next tokens can be known before those before are. Returns its figures."""
        asked = params.prompt_lookup_num_tokens
        lookup = self._default if asked is None else asked
        max_draft_tokens, figures = min(lookup, MAX_DRAFT_TOKENS), SpeculationStats()
        if not max_draft_tokens and asked is None and self._draft is not None:
            max_draft_tokens = min(self._draft.max_draft_tokens, MAX_DRAFT_TOKENS)
        if possible and max_draft_tokens:
            self._own[sequence.id] = DraftState(max_draft_tokens, PromptLookup(LONGEST) if lookup else None, figures)
        return figures

    def leave(self, sequence: Sequence) -> None:
        """A request has lost its place."""
        sequence.drafts = []
        if self._draft is not None:
            self._draft.leave(sequence.id)

    def end(self, sequence: Sequence) -> None:
        """A request has ended, or is not drafted for any more."""
        self._own.pop(sequence.id, None)

    def draft(self, sequences: list[Sequence], sampler: Any) -> None:
        """Give `sequences`, which generate, drafts for the next step. sampler: has their rows, for draft models."""
        self._recorded = 0 if self._draft is None else self._draft.captured
        for sequence in sequences:
            sequence.drafts = []
        owned = [(sequence, self._own[sequence.id]) for sequence in sequences if sequence.id in self._own]
        texts = {sequence.id: self._look(sequence, own) for sequence, own in owned}
        length = self._length(sequences)
        if length == 1:
            return
        drafted = [sequence for sequence, own in owned if own.lookup is None]
        if drafted:
            assert self._draft is not None
            count = min(length - 1, max(self._own[sequence.id].found for sequence in drafted))
            try:
                found = self._draft.propose(drafted, sampler, count)
            except Fallback as fallback:  # it has changed; answers don't depend on it
                self.totals.stopped = f"switched off: {fallback}"
            else:
                texts.update(found)
        for sequence in sequences:
            if own := self._own.get(sequence.id):
                sequence.drafts = texts[sequence.id][: min(length - 1, own.found)]

    def note(self, scheduled: ScheduledSequence, tokens: int) -> None:
        """A step has given a request `tokens` tokens."""
        own = self._own.get(scheduled.id)
        if own is None:
            return
        made, num_accepted = len(scheduled.drafts), max(0, scheduled.num_accepted)
        own.rates.update(own.kind, made, num_accepted)
        for figures in (own.figures, self.totals):
            figures.steps += 1
            figures.drafted += made
            figures.accepted += num_accepted
            figures.tokens += tokens
        if made:  # these were seen; the others are looked back at
            own.looked = len(scheduled.sequence.tokens)

    def timed(self, requests: int, length: int, tokens: int, seconds: float) -> None:
        """A step of so many requests, of which none had more than `length` tokens, and which gave `tokens`."""
        key = power_of_two(requests), power_of_two(length)
        self._times.since += length > 1
        self._times.use(*key)
        if key in self._met and (self._draft is None or self._draft.captured == self._recorded):
            self._times.took(*key, seconds)
            if self._own and (plain := self._times.seconds.get((key[0], 1))) is not None:
                self.totals.seconds += seconds
                self.totals.without += plain * tokens / requests
        self._met.add(key)

    def _look(self, sequence: Sequence, own: DraftState) -> list[int]:
        """The drafts that the text alone gives, of which `own` takes note; before, what earlier ones would have been
        worth where none were made."""
        text = sequence.tokens
        left = min(own.max_draft_tokens, sequence.limit - len(text) - 1)
        if own.lookup is None:
            own.kind, own.found = 0, max(left, 0)
            return []
        for seen in own.lookup.look_back(text, max(own.looked, sequence.prompt), own.max_draft_tokens):
            own.rates.update(*seen)
        own.looked = len(text)
        own.kind, drafts = own.lookup.propose(text, max(left, 0))
        own.found = len(drafts)
        return drafts

    def _length(self, sequences: list[Sequence]) -> int:
        """Rows of each sequence in the next step."""
        batch, known = power_of_two(len(sequences)), [self._own.get(sequence.id) for sequence in sequences]
        found = [own for own in known if own is not None and own.found]
        if not found or (batch, 1) not in self._times.seconds:
            return 1
        if self._times.since >= PLAIN_EVERY:
            self._times.start_over(batch)
            for own in found:
                if own.lookup is None:
                    own.rates.decay()
            return 1
        others = len(sequences) - len(found)

        def speed(length: int) -> float:
            tokens = sum(own.rates.tokens(own.kind, min(length - 1, own.found)) for own in found)
            return self._times.speed(batch, length, others + tokens)

        longest = max(own.found for own in found) + 1
        lengths = [n for n in LENGTHS if n < 2 * longest and n * len(sequences) <= self._budget]
        best = max(lengths, key=speed)
        pays = best > 1 and speed(best) >= GAIN * speed(1)
        self.totals.stopped = "" if pays else "switched off, as it did not pay"
        self._times.since += not pays  # a draft that is off has to be tried again some time
        return best if pays else 1
