"""Whether a GPU has room for what is about to be allocated: weights, caches, workspaces ask here before they are made.

A Mac's GPU takes its memory from the whole system: one that is given more than it should have makes everything swap,
and at worst the system restarts. So what doesn't fit is refused, before anything was allocated for it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_foundry.core import devices, environment


class DoesNotFit(torch.OutOfMemoryError):
    """Refused before it was allocated. The text says what was asked for, what is free, and what would fit."""


def free(device: torch.device) -> int | None:
    """Bytes that may be allocated on `device`; None: nothing is refused there.

    On Metal `recommendedMaxWorkingSetSize`, on CUDA all memory, or what TORCH_FOUNDRY_MEMORY_LIMIT says, less what is
    in use.
    """
    given = environment.MEMORY_LIMIT.value()
    if given == 0 or (known := devices.of(device).working_set(device)) is None:
        return None
    most, used = known
    return max((most if given is None else given << 20) - used, 0)


def check(device: torch.device, nbytes: int, what: str, fits: Callable[[int], str] | None = None) -> None:
    """DoesNotFit if `nbytes` bytes for `what` are more than is free on `device`.

    fits: what would fit into so many free bytes, as a sentence.
    """
    left = free(device)
    if left is not None and nbytes > left:
        refuse(device, nbytes, left, what, fits(left) if fits else "")


def refuse(device: torch.device, nbytes: int, left: int, what: str, advice: str = "") -> None:
    """DoesNotFit: for `what`, `nbytes` bytes are needed and `left` are free. advice: what would fit, as a sentence."""
    text = f"{what}: {size(nbytes)} are needed on {device} and {size(left)} are free"
    raise DoesNotFit(
        f"no room for {text}. {advice}{' ' if advice else ''}{environment.MEMORY_LIMIT.name} (MiB) sets another limit "
        "than the device's, 0 none."
    )


def size(nbytes: int) -> str:
    """A number of bytes for people."""
    return f"{nbytes / 2**30:,.2f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:,.1f} MiB"
