"""Memory that code has from torch's allocator of the CPU, counted event by event."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def most_allocated(step: Callable[[], object]) -> int:
    """The most bytes that `step` has from torch's allocator at a time, beyond those before it. What libraries below
    torch take for themselves isn't among them.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = step()
    del result
    now = most = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most
