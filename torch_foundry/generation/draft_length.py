"""How many draft tokens a step verifies, from measured times and acceptance rates."""

from __future__ import annotations

from collections.abc import Sequence

from torch_foundry.core.limits import ROWS_TOGETHER, power_of_two
from torch_foundry.generation.drafting import Drafter, SequenceDrafts, SpeculationStats

ROWS = tuple(1 << i for i in range(1, ROWS_TOGETHER.bit_length()))  # of a sequence in a step with drafts
NEWEST = 0.3  # weight of the newest step in an average time
GAIN = 1.02  # what drafting has to be faster by
PLAIN_EVERY = 64  # steps that had drafts at hand, after which some without are timed again
TIMED = 4  # steps without drafts, at least, whose time says something: they are waited for together


def rows_of(drafts: int) -> int:
    """Rows of a step with so many draft tokens: a power of two, as each number has a graph to be captured."""
    return power_of_two(1 + drafts)


class DraftLengthController:
    """Chooses the number of draft tokens for the sequences of a step, from the time that steps took and from how many
    drafts of each sequence were right so far.

    Steps are timed by (sequences, rows of each), both powers of two; all sequences have as many rows as the one with
    the most drafts. With many of them that soon is one row each, and then nothing is drafted: sequences pause.

    totals: of all sequences. model: makes the drafts that no text is looked up for. budget: rows of a step, at most.
    """

    def __init__(self, totals: SpeculationStats, model: Drafter | None = None, *, budget: int = ROWS_TOGETHER) -> None:
        self.totals, self.model, self._budget = totals, model, budget
        # drafts may come from elsewhere than those before
        totals.times = {key: seconds for key, seconds in totals.times.items() if key[1] == 1}
        self._since = 0  # steps since those without drafts were timed
        self._used: set[tuple[int, int]] = set()  # what they were
        self._usual = True  # whether the draft model did nothing but what it does in each step

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
        times, size, rows = self.totals.times, power_of_two(batch), power_of_two(rows)
        self._used.add((size, rows))
        if seconds is None or not self._usual:
            return
        if (plain := times.get((size, 1))) is not None:
            self.totals.seconds += seconds
            self.totals.without += plain * tokens / batch
        known = times.get((size, rows), seconds / steps)
        times[size, rows] = known + NEWEST * (seconds / steps - known)

    def pays(self, sequences: Sequence[SequenceDrafts], batch: int, rows: int) -> bool:
        """Whether so many rows are expected to be faster than one each."""
        plain = batch / self.totals.times[power_of_two(batch), 1]
        return self._speed(sequences, batch, power_of_two(batch), rows) >= GAIN * plain

    def _length(self, sequences: Sequence[SequenceDrafts], batch: int, most: int) -> int:
        """Rows of each sequence in the next step."""
        found, times, size = [own for own in sequences if own.look(most)], self.totals.times, power_of_two(batch)
        if not found:
            return 1
        if again := self._since >= PLAIN_EVERY:
            # what was not used meanwhile is forgotten: one slow step must not be the last one
            for key in times.keys() - self._used - {(size, 1)}:
                del times[key]
            self._since, self._used = 0, set()
        if again or (size, 1) not in times:
            for own in found:
                own.pause(TIMED)
            return 1
        # no number in between is better: its step takes as long as one with more drafts
        longest = 1 + max(own.at_hand for own in found)
        lengths = [rows for rows in ROWS if rows < 2 * longest and rows * batch <= self._budget]
        best = max(lengths, key=lambda rows: self._speed(found, batch, size, rows), default=1)
        if best > 1 and self.pays(found, batch, best):
            self._since, self.totals.stopped = self._since + 1, ""
            return best
        self._since += max(own.pause() for own in found)
        self.totals.stopped = "switched off, as it did not pay"
        return 1

    def _speed(self, sequences: Sequence[SequenceDrafts], batch: int, size: int, rows: int) -> float:
        """Tokens a second to expect; of a step that was not tried, as if it took as long as the next smaller one that
        was."""
        times = self.totals.times
        tried = max(own for count, own in times if count == size and own <= rows)
        tokens = batch - len(sequences) + sum(own.tokens(rows - 1) for own in sequences)
        return tokens / times[size, tried]
