"""Times of calls: by the device's events where it has them, by the CPU's clock elsewhere."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torch_foundry.testing.timing import synchronize

Run = Callable[[], object]
ROUND_S = 2e-3  # length of a round at least: far beyond the resolution of the events
SWALLOWED = 0.5  # share of a run's time in one of its steps beyond which the steps' times mean nothing


@dataclass(frozen=True)
class Times:
    """Seconds of one call, one value a round."""

    rounds: tuple[float, ...]

    def quantile(self, q: float) -> float:
        """Between the rounds next to it, as numpy's default does."""
        ordered = sorted(self.rounds)
        at = q * (len(ordered) - 1)
        low = math.floor(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (at - low) * (ordered[high] - ordered[low])

    @property
    def median(self) -> float:
        """In seconds."""
        return self.quantile(0.5)

    def as_dict(self) -> dict[str, float | int]:
        """For a record; microseconds."""
        us = {
            "median": self.median,
            "p20": self.quantile(0.2),
            "p80": self.quantile(0.8),
            "min": min(self.rounds),
            "avg": statistics.fmean(self.rounds),
            "max": max(self.rounds),
        }
        return {**{name: round(1e6 * value, 3) for name, value in us.items()}, "rounds": len(self.rounds)}


def clock_name(device: torch.device) -> str:
    """What `elapsed` reads on `device`."""
    return "device events" if _events(device) else "perf_counter"


def elapsed(device: torch.device, run: Run) -> float:
    """Seconds from the start of `run` to the end of all that it launched."""
    events = _events(device)
    if events is None:
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        return time.perf_counter() - start
    first, last = events(enable_timing=True), events(enable_timing=True)
    synchronize(device)
    first.record()
    run()
    last.record()
    synchronize(device)
    return float(first.elapsed_time(last)) / 1e3


def measure(
    device: torch.device, run: Run, calls: int, *, rounds: int = 20, budget_s: float = 0.5, warm_up_s: float = 0.02
) -> Times:
    """Times of one of the `calls` calls that `run` makes, over buffers that no cache holds together.

    Warm-up first. There are `rounds` rounds of at least ROUND_S seconds each, fewer (but three) if they would
    take longer than `budget_s`.
    """
    once, spent = elapsed(device, run), 0.0
    while spent < warm_up_s:
        once = max(elapsed(device, run), 1e-7)
        spent += once
    repeats = max(1, math.ceil(ROUND_S / max(once, 1e-7)))

    def one_round() -> None:
        for _ in range(repeats):
            run()

    count = max(3, min(rounds, int(budget_s / max(once * repeats, 1e-9))))
    return Times(tuple(elapsed(device, one_round) / repeats / calls for _ in range(count)))


def wall(device: torch.device, run: Run) -> float:
    """Seconds by the CPU's clock until `run` is done on the device: what somebody who waits for it sees."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def swallowed(steps: Sequence[float], share: float = SWALLOWED) -> str | None:
    """Why the times of a run's steps are an artefact, or None.

    They are when one step takes more than `share` of the whole: the work of all steps was waited for in that one (work
    that is only queued until somebody waits), or something else happened in it (a compilation). Runs of fewer than
    four steps say nothing.
    """
    total = sum(steps)
    if len(steps) < 4 or total <= 0.0:
        return None
    worst = max(range(len(steps)), key=steps.__getitem__)
    part = steps[worst] / total
    return f"timing artefact: step {worst} of {len(steps)} took {part:.0%} of the time" if part > share else None


def _events(device: torch.device) -> type | None:
    if device.type == "cuda":
        return torch.cuda.Event
    if device.type == "mps" and torch.backends.mps.is_available():
        return torch.mps.Event
    return None
