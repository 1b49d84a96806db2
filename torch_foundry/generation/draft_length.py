"""How many draft tokens a step verifies, from measured times and acceptance rates."""

from __future__ import annotations

from collections.abc import Sequence

from torch_foundry.core.limits import ROWS_TOGETHER, power_of_two
from torch_foundry.generation.draft_history import TRIES, TRYING, DraftHistory
from torch_foundry.generation.drafting import Drafter, SequenceDrafts, SpeculationStats

ROWS = tuple(1 << i for i in range(1, ROWS_TOGETHER.bit_length()))  # of a sequence in a step with drafts
GAIN = 1.02  # what drafting has to be faster by
TIMED = 4  # steps without drafts, at least, whose time says something: they are waited for together


def rows_of(drafts: int) -> int:
    """Rows of a step with so many draft tokens: a power of two, as each number has a graph to be captured."""
    return power_of_two(1 + drafts)


class DraftLengthController:
    """Chooses the number of draft tokens for the sequences of a step, from the time that steps took and from how many
    drafts of each sequence were right so far.

    Steps are timed by (sequences, rows of each), both powers of two; all sequences have as many rows as the one with
    the most drafts. With many of them that soon is one row each, and then nothing is drafted: sequences pause.

    Drafts that are not expected to pay are tried as long as all that such tries may lose, if no draft is right, was
    saved up before: a small share of the time. So what is not known is found out, and what has become better.

    totals: of all sequences. model: makes the drafts that no text is looked up for. history: of the source of drafts.
    budget: rows of a step, at most.
    """

    def __init__(
        self,
        totals: SpeculationStats,
        model: Drafter | None = None,
        history: DraftHistory | None = None,
        *,
        budget: int = ROWS_TOGETHER,
    ) -> None:
        self.totals, self.model, self._budget = totals, model, budget
        self.history = DraftHistory() if history is None else history
        totals.times = self.history.times
        self._usual = True  # whether the draft model did nothing but what it does in each step
        self._trying = False  # whether the step's drafts are not expected to pay

    def draft(self, sequences: Sequence[SequenceDrafts], batch: int, most: int = ROWS_TOGETHER) -> None:
        """Give those of the step's `batch` sequences that may have drafts as many as are expected to pay, `most` at
        most. Raises Fallback if the draft model can't be run."""
        drafts, self._usual = self._length(sequences, batch, most) - 1, True
        for own in sequences:
            own.drafts = own.drafts[: min(drafts, own.at_hand)]
        wanting = [own for own in sequences if own.lookup is None and own.at_hand]
        if drafts and wanting:
            assert self.model is not None
            self._usual = False  # if that fails
            self.model.propose(wanting, min(drafts, max(own.at_hand for own in wanting)))
            self._usual = self.model.usual

    def note(self, own: SequenceDrafts, drafted: int, accepted: int, tokens: int) -> None:
        """A step with `drafted` drafts of a sequence, of which `accepted` were, or steps without, gave `tokens`."""
        self.totals.count(drafted, accepted, tokens)
        if drafted:
            own.note(drafted, accepted)

    def timed(self, batch: int, rows: int, tokens: int, seconds: float | None, *, steps: int = 1) -> None:
        """`steps` steps of `batch` sequences of up to `rows` rows gave `tokens` in `seconds`; None: they did something
        else as well."""
        history, size, rows = self.history, power_of_two(batch), power_of_two(rows)
        if seconds is None or self._usual:
            history.note(size, rows, None if seconds is None else seconds / steps)
        if (plain := history.times.get((size, 1))) is None:
            return
        if seconds is not None and self._usual:
            self.totals.seconds += seconds
            self.totals.without += plain * tokens / batch
        saved = TRYING * tokens / batch
        if self._trying and rows > 1:
            spent = history.expected(size, rows)  # one slow step must not end all tries
            if not self._usual and seconds is not None and (size, rows) in history.times:
                spent = max(spent, seconds)  # to read what the draft model has missed is a part of the price
            saved += max(tokens / batch - spent / plain, -TRIES)
        history.tries = min(history.tries + saved, TRIES)

    def pays(self, sequences: Sequence[SequenceDrafts], batch: int, rows: int) -> bool:
        """Whether so many rows are expected to be faster than one each, or may be tried."""
        history, size = self.history, power_of_two(batch)
        plain = batch / history.expected(size, 1)
        self._trying = self._speed(sequences, batch, rows) < GAIN * plain
        return not self._trying or history.tries >= min(history.loss(size, rows), TRIES)

    def _length(self, sequences: Sequence[SequenceDrafts], batch: int, most: int) -> int:
        """Rows of each sequence in the next step."""
        found, history, size = [own for own in sequences if own.look(most)], self.history, power_of_two(batch)
        if not found:
            return 1
        if history.due(size):
            for own in found:
                own.pause(TIMED)
            return 1
        # no number in between is better: its step takes as long as one with more drafts
        longest = 1 + max(own.at_hand for own in found)
        lengths = [rows for rows in ROWS if rows < 2 * longest and rows * batch <= self._budget]
        lengths.sort(key=lambda rows: self._speed(found, batch, rows), reverse=True)
        best = next((rows for rows in lengths if self.pays(found, batch, rows)), 1)
        if best > 1:
            self.totals.stopped = ""
            return best
        least = min((history.loss(size, rows) for rows in lengths), default=TRIES)
        for own in found:
            own.pause(0 if own.lookup else max(1, 1 + int((min(least, TRIES) - history.tries) / TRYING)))
        self.totals.stopped = "switched off, as it did not pay"
        return 1

    def _speed(self, sequences: Sequence[SequenceDrafts], batch: int, rows: int) -> float:
        """Tokens a second to expect."""
        tokens = batch - len(sequences) + sum(own.tokens(rows - 1) for own in sequences)
        return tokens / self.history.expected(power_of_two(batch), rows)
