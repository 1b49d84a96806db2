"""How many tokens to guess ahead, and whether guessing pays."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch_foundry.decode.state import power_of_two

START = 0.7  # how likely a guess is thought to be right before one was tried
WEIGHT = 0.15  # of a guess in that
NEWEST = 0.3  # weight of the newest step in an average time
GAIN = 1.02  # what guessing has to be faster by
PLAIN_EVERY = 64  # steps with guesses, after which some without are timed again
TIMED = 4  # steps without guesses, at least, whose time says something: they are waited for together
LONGEST = 16  # steps without guesses that are handed over together
PAUSE = 256  # steps without guesses after which they are tried again, at most


@dataclass
class Guesses:
    """What came of guessing, over all generations of a model."""

    steps: int = 0  # of the model, with guesses and without
    guessed: int = 0  # tokens
    accepted: int = 0  # of these, the ones that the model chose as well
    tokens: int = 0  # generated in these steps
    seconds: float = 0.0  # in steps that were timed: not in those that recorded a tape
    without: float = 0.0  # seconds that the tokens of these steps would have taken without guesses
    times: dict[int, float] = field(default_factory=dict)  # seconds of a step by its number of rows; 1: no guesses
    stopped: str = ""  # why the newest generation ended without

    def __str__(self) -> str:
        share = self.accepted / self.guessed if self.guessed else 0.0
        text = f"{self.accepted} of {self.guessed} accepted ({share:.0%})"
        text += f", {self.tokens / self.steps if self.steps else 0:.2f} tokens a step"
        if self.seconds:
            text += f", {self.without / self.seconds:.2f} times as fast as without"
        return text + (f"; {self.stopped}" if self.stopped else "")


def rows_of(guesses: int) -> int:
    """Rows of a step with so many guesses: a power of two, as each number has a tape to be recorded."""
    return power_of_two(1 + guesses)


class Rates:
    """How often guesses of each kind are right, given that those before them in the same step were."""

    def __init__(self) -> None:
        self._right: dict[int, float] = {}

    def seen(self, kind: int, guessed: int, accepted: int) -> None:
        """Of `guessed` guesses the first `accepted` were right, or would have been."""
        p = self._right.get(kind, START)
        for right in [1.0] * accepted + [0.0] * (accepted < guessed):
            p += WEIGHT * (right - p)
        self._right[kind] = p

    def hope(self) -> None:
        """Nothing was tried for long: guesses may have become better."""
        self._right = {kind: max(p, START / 2) for kind, p in self._right.items()}

    def tokens(self, kind: int, guesses: int) -> float:
        """What a step with so many guesses gives on average (Leviathan et al., "Fast Inference from Transformers via
        Speculative Decoding", 2023)."""
        p = min(self._right.get(kind, START), 0.99)
        return (1 - p ** (guesses + 1)) / (1 - p)


class Pace(Rates):
    """Chooses the number of guesses, from the time that steps took and from how many guesses were right so far.

    Where guesses can't be made or don't pay, steps are taken without: 1, then 2, 4 ... of them.
    """

    def __init__(self, most: int, totals: Guesses, *, together: int = LONGEST, watched: bool = True) -> None:
        """together: steps without guesses that may be handed over together. watched: `seen` will be called for those
        steps as well; else guessing is tried again after them, later and later."""
        super().__init__()
        self.totals, self._together, self._watched = totals, min(together, LONGEST), watched
        self._times = totals.times = {rows: t for rows, t in totals.times.items() if rows == 1}
        # no number in between is better: its step takes as long as one with more guesses
        self._numbers = sorted({min(most, rows - 1) for rows in (2, 4, 8, 16) if rows <= rows_of(most)})
        self._since = 0  # steps with guesses since those without were timed
        self._used: set[int] = {1}  # numbers of rows that steps since then had
        self._rest, self._next = 0, 1  # steps to take without guesses, now and the next time

    def guesses(self, kind: int | None) -> int:
        """How many tokens of this kind to guess for the next step, None: no kind is at hand; 0: go on for `stretch`
        steps without."""
        if self._rest:
            return 0
        if kind is not None and self._since >= (PLAIN_EVERY if 1 in self._times else 2):
            self._since, self._rest = 0, TIMED
            for rows in self._times.keys() - self._used:  # one slow step must not be the last one
                del self._times[rows]
            self._used = {1}
            return 0
        if kind is None or not self.pays(kind):
            if kind is not None:
                self.totals.stopped = "switched off, as it did not pay"
            self._rest, self._next = self._next, min(2 * self._next, LONGEST if self._watched else PAUSE)
            return 0
        self.totals.stopped = ""
        return max(self._numbers, key=lambda k: self._speed(kind, k))

    def stretch(self) -> int:
        """How many steps to take without guesses, together."""
        return max(1, min(self._rest, self._together))

    def pays(self, kind: int) -> bool:
        """Whether guesses of this kind are expected to be faster than none; True while that is not known."""
        plain = self._times.get(1)
        return plain is None or max(self._speed(kind, k) for k in self._numbers) * plain >= GAIN

    def note(self, kind: int, guessed: int, accepted: int, tokens: int, seconds: float | None) -> None:
        """A step with `guessed` guesses gave `tokens`; seconds: None if it did something else as well."""
        self._since += 1
        self._used.add(rows_of(guessed))
        self.totals.guessed += guessed
        self.totals.accepted += accepted
        self.seen(kind, guessed, accepted)
        self._took(rows_of(guessed), 1, tokens, seconds)

    def note_plain(self, steps: int, tokens: int, seconds: float | None) -> None:
        """`steps` steps without guesses gave `tokens`."""
        self._rest = max(0, self._rest - steps)
        if not self._rest and not self._watched:
            self.hope()
        self._took(1, steps, tokens, seconds)

    def seen(self, kind: int, guessed: int, accepted: int) -> None:
        super().seen(kind, guessed, accepted)
        if accepted:
            self._next = 1

    def _took(self, rows: int, steps: int, tokens: int, seconds: float | None) -> None:
        totals = self.totals
        totals.steps += steps
        totals.tokens += tokens
        if seconds is None:
            return
        if (plain := self._times.get(1)) is not None:
            totals.seconds += seconds
            totals.without += plain * tokens
        if rows > 1 or steps >= min(TIMED, self._together):
            known = self._times.get(rows, seconds / steps)
            self._times[rows] = known + NEWEST * (seconds / steps - known)

    def _speed(self, kind: int, guesses: int) -> float:
        """Tokens a second to expect; a number that was not tried takes as long as the next smaller one that was."""
        rows = rows_of(guesses)
        tried = [r for r in self._times if r <= rows]
        seconds = self._times[max(tried)] if tried else 1.0
        return self.tokens(kind, guesses) / seconds
