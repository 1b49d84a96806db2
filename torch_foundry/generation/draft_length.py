"""How many draft tokens a step verifies, from measured times and acceptance rates."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_foundry.core.limits import ROWS_TOGETHER, power_of_two

MAX_DRAFT_TOKENS = ROWS_TOGETHER - 1  # draft tokens in a step, beside the newest token
START = 0.7  # acceptance rate before anything was tried
WEIGHT = 0.15  # of the newest draft token in that
NEWEST = 0.3  # weight of the newest step in an average time
GAIN = 1.02  # what drafting has to be faster by
PLAIN_EVERY = 64  # steps with drafts, after which some without are timed again
TIMED = 4  # steps without drafts, at least, whose time says something: they are waited for together
LONGEST = 16  # steps without drafts that are handed over together
PAUSE = 256  # steps without drafts after which they are tried again, at most


@dataclass
class SpeculationStats:
    """Cumulative statistics of speculative decoding."""

    steps: int = 0  # of the model, with drafts and without
    drafted: int = 0  # tokens
    accepted: int = 0  # of these, the ones that the model chose as well
    tokens: int = 0  # generated in these steps
    seconds: float = 0.0  # in steps that were timed: not in those that captured a graph
    without: float = 0.0  # seconds that the tokens of these steps would have taken without drafts
    times: dict[tuple[int, int], float] = field(default_factory=dict)  # of a step, as `StepTimes` has them
    stopped: str = ""  # why the newest generation ended without

    def __str__(self) -> str:
        share = self.accepted / self.drafted if self.drafted else 0.0
        text = f"{self.accepted} of {self.drafted} accepted ({share:.0%})"
        text += f", {self.tokens / self.steps if self.steps else 0:.2f} tokens a step"
        if self.seconds:
            text += f", {self.without / self.seconds:.2f} times as fast as without"
        return text + (f"; {self.stopped}" if self.stopped else "")


def rows_of(drafts: int) -> int:
    """Rows of a step with so many draft tokens: a power of two, as each number has a graph to be captured."""
    return power_of_two(1 + drafts)


class StepTimes:
    """Average seconds of a step by (sequences, tokens of each), both powers of two; one token: no drafts.

    seconds: what is known. since: steps with drafts since those without were timed.
    """

    def __init__(self, seconds: dict[tuple[int, int], float]) -> None:
        self.seconds, self.since = seconds, 0
        self._used: set[tuple[int, int]] = set()  # what steps since `start_over` were

    def use(self, batch: int, rows: int) -> None:
        """A step of this size was taken, timed or not."""
        self._used.add((batch, rows))

    def took(self, batch: int, rows: int, seconds: float) -> None:
        """A step took so long."""
        known = self.seconds.get((batch, rows), seconds)
        self.seconds[batch, rows] = known + NEWEST * (seconds - known)

    def start_over(self, batch: int) -> None:
        """Steps without drafts are timed next. What was not used since the last time is forgotten: one slow step must
        not be the last one."""
        for key in self.seconds.keys() - self._used:
            del self.seconds[key]
        self.since, self._used = 0, {(batch, 1)}

    def speed(self, batch: int, rows: int, tokens: float) -> float:
        """`tokens` a second, of a step that was not tried as if it took as long as the next smaller one that was."""
        tried = [r for b, r in self.seconds if b == batch and r <= rows]
        return tokens / (self.seconds[batch, max(tried)] if tried else 1.0)


class AcceptanceRates:
    """Acceptance rate of draft tokens by kind, given that those before them in the same step were accepted."""

    def __init__(self) -> None:
        self._rates: dict[int, float] = {}

    def update(self, kind: int, drafted: int, accepted: int) -> None:
        """Take note that the first `accepted` of `drafted` were accepted, or would have been."""
        p = self._rates.get(kind, START)
        for hit in [1.0] * accepted + [0.0] * (accepted < drafted):
            p += WEIGHT * (hit - p)
        self._rates[kind] = p

    def decay(self) -> None:
        """Forget low rates, when nothing was tried for long: drafts may have become better."""
        self._rates = {kind: max(p, START / 2) for kind, p in self._rates.items()}

    def tokens(self, kind: int, drafts: int) -> float:
        """What a step with so many draft tokens gives on average (Leviathan et al., "Fast Inference from Transformers
        via Speculative Decoding", 2023)."""
        p = min(self._rates.get(kind, START), 0.99)
        return (1 - p ** (drafts + 1)) / (1 - p)


class DraftLengthController(AcceptanceRates):
    """Chooses the number of draft tokens, from the time that steps took and from how many drafts were right so far.

    Where drafts can't be made or don't pay, steps are taken without: 1, then 2, 4 ... of them.
    """

    def __init__(
        self, max_draft_tokens: int, totals: SpeculationStats, *, together: int = LONGEST, watched: bool = True
    ) -> None:
        """together: steps without drafts that may be handed over together. watched: `update` will be called for those
        steps as well; else drafting is tried again after them, later and later."""
        super().__init__()
        self.totals, self._together, self._watched = totals, min(together, LONGEST), watched
        totals.times = {key: seconds for key, seconds in totals.times.items() if key == (1, 1)}
        self._times = StepTimes(totals.times)
        self._times.use(1, 1)
        # no number in between is better: its step takes as long as one with more drafts
        self._numbers = sorted(
            {min(max_draft_tokens, rows - 1) for rows in (2, 4, 8, 16) if rows <= rows_of(max_draft_tokens)}
        )
        self._rest, self._next = 0, 1  # steps to take without drafts, now and the next time

    def drafts(self, kind: int | None) -> int:
        """How many tokens of this kind to draft for the next step, None: no kind is at hand; 0: go on for `plain_steps`
        steps without."""
        if self._rest:
            return 0
        if kind is not None and self._times.since >= (PLAIN_EVERY if (1, 1) in self._times.seconds else 2):
            self._rest = TIMED
            self._times.start_over(1)
            return 0
        if kind is None or not self.pays(kind):
            if kind is not None:
                self.totals.stopped = "switched off, as it did not pay"
            self._rest, self._next = self._next, min(2 * self._next, LONGEST if self._watched else PAUSE)
            return 0
        self.totals.stopped = ""
        return max(self._numbers, key=lambda k: self._speed(kind, k))

    def plain_steps(self) -> int:
        """How many steps to take without drafts, together."""
        return max(1, min(self._rest, self._together))

    def pays(self, kind: int) -> bool:
        """Whether drafts of this kind are expected to be faster than none; True while that is not known."""
        plain = self._times.seconds.get((1, 1))
        return plain is None or max(self._speed(kind, k) for k in self._numbers) * plain >= GAIN

    def note(self, kind: int, drafted: int, accepted: int, tokens: int, seconds: float | None) -> None:
        """A step with `drafted` drafts gave `tokens`; seconds: None if it did something else as well."""
        self._times.since += 1
        self._times.use(1, rows_of(drafted))
        self.totals.drafted += drafted
        self.totals.accepted += accepted
        self.update(kind, drafted, accepted)
        self._took(rows_of(drafted), 1, tokens, seconds)

    def note_plain(self, steps: int, tokens: int, seconds: float | None) -> None:
        """`steps` steps without drafts gave `tokens`."""
        self._rest = max(0, self._rest - steps)
        if not self._rest and not self._watched:
            self.decay()
        self._took(1, steps, tokens, seconds)

    def update(self, kind: int, drafted: int, accepted: int) -> None:
        super().update(kind, drafted, accepted)
        if accepted:
            self._next = 1

    def _took(self, rows: int, steps: int, tokens: int, seconds: float | None) -> None:
        totals = self.totals
        totals.steps += steps
        totals.tokens += tokens
        if seconds is None:
            return
        if (plain := self._times.seconds.get((1, 1))) is not None:
            totals.seconds += seconds
            totals.without += plain * tokens
        if rows > 1 or steps >= min(TIMED, self._together):
            self._times.took(1, rows, seconds / steps)

    def _speed(self, kind: int, drafts: int) -> float:
        """Tokens a second to expect."""
        return self._times.speed(1, rows_of(drafts), self.tokens(kind, drafts))
