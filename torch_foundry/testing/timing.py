"""Waiting for a device, and timing what runs on it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

import torch

from torch_foundry.core import devices


def synchronize(device: torch.device) -> None:
    """Wait until all that was launched on `device` is done."""
    devices.of(device).synchronize(device)


def seconds(
    device: torch.device,
    call: Callable[[], object],
    *,
    round_s: float = 0.02,
    rounds: int = 5,
    of_rounds: Callable[[Iterable[float]], float] = statistics.median,
) -> float:
    """Time of one `call` on an otherwise idle device, in seconds: the median of the rounds, or `of_rounds` of them.

    Calls are launched back to back for about `round_s` seconds, then waited for; so the time is that of the device
    where it is the slower one, and that of launching where Python is.
    """
    call()
    synchronize(device)
    once = _round(device, call, 1)
    calls = max(1, min(1000, int(round_s / max(once, 1e-9))))
    return of_rounds(_round(device, call, calls) for _ in range(rounds)) / calls


def _round(device: torch.device, call: Callable[[], object], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return time.perf_counter() - start
