"""What is known of a source of drafts: how long steps take, and how many of its drafts are right."""

from __future__ import annotations

from torch_foundry.core.limits import power_of_two

START, SEEN = 0.7, 2  # acceptance rate before anything was tried, which counts as much as so many draft tokens
WEIGHT = 0.05  # of the newest draft token in it, at least
SLOWER = 0.1  # weight of a step that took longer than those before; what disturbs a step never makes it faster
TRIES = 2.0  # plain steps that may be lost by tries at first, or when none was for long: 1.5 % of 128
TRYING = 0.005  # of plain steps, in the long run
PLAIN_EVERY = 128  # steps with drafts, after which some without are timed again: two of them cost 1 % of these


class AcceptanceRates:
    """How often a draft token is accepted if those before it are, by kind: how many tokens were looked up.

    source: of all sequences, by which one of them begins, and which its own drafts are added to.
    """

    def __init__(self, source: AcceptanceRates | None = None) -> None:
        self._source = source
        self._known: dict[int, tuple[float, int]] = {}  # rates, and how many draft tokens they are of

    def __getitem__(self, kind: int) -> float:
        return self._of(kind)[0]

    def update(self, kind: int, drafted: int, accepted: int) -> None:
        """The first `accepted` of `drafted` were accepted, or would have been."""
        rate, seen = self._of(kind)
        for hit in [1.0] * accepted + [0.0] * (accepted < drafted):
            seen += 1
            rate += max(WEIGHT, 1 / seen) * (hit - rate)
        self._known[kind] = rate, seen
        if self._source is not None:
            self._source.update(kind, drafted, accepted)

    def _of(self, kind: int) -> tuple[float, int]:
        if kind in self._known or self._source is None:
            return self._known.get(kind, (START, SEEN))
        return self._source._of(kind)


class DraftHistory:
    """What generations of a model, or requests of an engine, leave of a source of drafts for those that follow.

    times: seconds of steps by (sequences, rows of each), powers of two. rates: of all sequences. tries: plain steps
    that may be lost now by drafts that are not expected to pay, to find out whether they do.
    """

    def __init__(self) -> None:
        self.times: dict[tuple[int, int], float] = {}
        self.rates = AcceptanceRates()
        self.tries = TRIES
        self._warm: set[tuple[int, int]] = set()  # kinds of steps that have run since they were captured
        self._since = 0  # steps with drafts since some without were asked for
        self._used: set[tuple[int, int]] = set()  # what they were

    def note(self, size: int, rows: int, seconds: float | None) -> None:
        """A step took so long; None: it was captured meanwhile, and the next one's time means nothing either."""
        key = size, rows
        if seconds is None:
            self._warm.discard(key)
        elif key not in self._warm:
            self._warm.add(key)
        else:
            known = self.times.get(key, seconds)
            self.times[key] = min(seconds, known + SLOWER * (seconds - known))
        self._used.add(key)
        self._since += rows > 1

    def due(self, size: int) -> bool:
        """Whether steps without drafts have to be timed. From time to time they are timed again, and what was not used
        meanwhile is forgotten: one slow step must not be the last one."""
        if again := self._since >= PLAIN_EVERY:
            for key in self.times.keys() - self._used - {(size, 1)}:
                del self.times[key]
            self._since, self._used = 0, set()
        return again or (size, 1) not in self.times

    def expected(self, size: int, rows: int) -> float:
        """Seconds of a step: of one that was not timed, as if each doubling of its rows cost as much as the one before,
        and the first one as much as a step. One of a row each was timed."""
        before, known = 0.0, self.times[size, 1]
        for doublings in range(1, power_of_two(rows).bit_length()):
            untimed = known + max(known - before, 0.0)
            before, known = known, self.times.get((size, 1 << doublings), untimed)
        return known

    def loss(self, size: int, rows: int) -> float:
        """Plain steps that a step takes longer than one."""
        return self.expected(size, rows) / self.expected(size, 1) - 1
