"""How many tokens to guess ahead, and whether guessing pays."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW = 16  # steps with guesses that are judged together
WEIGHT = 0.3  # of the newest step in an average
GAIN = 1.02  # what guessing has to be faster by
PLAIN_EVERY = 64  # steps, one of which is without guesses: to know how long that takes


@dataclass
class Guesses:
    """What came of guessing, over all generations of a model."""

    steps: int = 0  # of the model, with guesses and without
    guessed: int = 0  # tokens
    accepted: int = 0  # of these, the ones that the model chose as well
    tokens: int = 0  # generated in these steps
    seconds: float = 0.0  # in these steps, but for those that recorded a tape
    timed: int = 0  # tokens generated in `seconds`
    plain: float = 0.0  # seconds of a step without guesses; 0: not known
    stopped: str = ""  # why the newest generation went on without

    def __str__(self) -> str:
        share = self.accepted / self.guessed if self.guessed else 0.0
        text = f"{self.accepted} of {self.guessed} accepted ({share:.0%})"
        text += f", {self.tokens / self.steps if self.steps else 0:.2f} tokens a step"
        if self.plain and self.seconds:
            text += f", {self.plain * self.timed / self.seconds:.2f} times as fast as without"
        return text + (f"; {self.stopped}" if self.stopped else "")


class Pace:
    """Chooses the number of guesses by what steps took and how many guesses were accepted so far.

    If each guess is right with probability p where those before it were, a step with k guesses gives
    (1 - p^(k+1)) / (1 - p) tokens on average (Leviathan et al., "Fast Inference from Transformers via Speculative
    Decoding", 2023).
    """

    def __init__(self, most: int, totals: Guesses) -> None:
        self.most, self.totals = most, totals
        self._seconds: dict[int, float] = {}  # of a step with so many guesses, guessing included
        self._right = 0.7  # p, as far as it is known
        self._recent: deque[tuple[int, float]] = deque(maxlen=WINDOW)  # tokens and seconds of steps with guesses
        self._steps = 0

    def guesses(self) -> int:
        """How many tokens to guess for the next step."""
        plain_known = 0 in self._seconds
        self._steps += 1
        if (not plain_known and self._steps > 2) or self._steps % PLAIN_EVERY == 0:
            return 0
        return max(range(1, self.most + 1), key=self._speed)

    def note(self, guessed: int, accepted: int, tokens: int, seconds: float | None) -> None:
        """A step with `guessed` guesses gave `tokens`; seconds: None if it did something else as well."""
        totals = self.totals
        totals.steps += 1
        totals.guessed += guessed
        totals.accepted += accepted
        totals.tokens += tokens
        if guessed:
            tested = min(accepted + 1, guessed)
            for right in [1.0] * accepted + [0.0] * (tested - accepted):
                self._right += WEIGHT / 2 * (right - self._right)
        if seconds is None:
            return
        totals.seconds += seconds
        totals.timed += tokens
        known = self._seconds.get(guessed, seconds)
        self._seconds[guessed] = known + WEIGHT * (seconds - known)
        totals.plain = self._seconds.get(0, 0.0)
        if guessed:
            self._recent.append((tokens, seconds))

    def pays(self) -> bool:
        """Whether the newest steps with guesses were faster than steps without; True while that is not known."""
        plain = self._seconds.get(0)
        if plain is None or len(self._recent) < WINDOW:
            return True
        tokens, seconds = (sum(column) for column in zip(*self._recent, strict=True))
        return tokens * plain >= GAIN * seconds

    def _speed(self, guesses: int) -> float:
        """Tokens a second to expect; a number that was not tried takes as long as the next smaller one that was."""
        tried = [k for k in self._seconds if k <= guesses]
        seconds = self._seconds[max(tried)] if tried else 1.0
        p = min(self._right, 0.99)
        return (1 - p ** (guesses + 1)) / (1 - p) / seconds
