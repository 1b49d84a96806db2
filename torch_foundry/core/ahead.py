"""Kernels that are compiled before they are needed: which ones calls would launch, found out without any data."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from torch_foundry.core import extension  # noqa: F401  (loads the extension)

_thread = threading.local()


class KernelList:
    """The kernels that `record` has seen, of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._list: Any = torch.classes.torch_foundry.KernelList(str(device))

    def __len__(self) -> int:
        return int(self._list.size())

    def names(self) -> list[tuple[str, str]]:
        """Shader file and instance of each, such as ("rms_norm.metal", "rms_norm<half, Llama, 8>"), sorted."""
        return sorted({(file, entry) for file, entry, *_ in (name.split("\n") for name in self._list.names())})

    def asked(self) -> list[tuple[str, str, int, int, int]]:
        """The shapes that a choice of kernels depended on, as the fields of a `tuning.Key`, sorted."""
        found: list[tuple[str, str, int, int, int]] = self._list.asked()
        return found

    def compile(self) -> None:
        """Compile all of them, side by side, that are not there yet. Raises nothing for one that doesn't compile: that
        is said where it is needed. On a terminal a bar shows how far this is, once it has taken a second.
        """
        self._list.compile()

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Inside, ops of this thread on meta tensors check their arguments as always, run nothing, and add the kernels
        that they would launch on the list's device."""
        self._list.start()
        _thread.device = self._device
        try:
            yield
        finally:
            _thread.device = None
            self._list.stop()


def recording_for() -> torch.device | None:
    """The device of the `KernelList` that records in this thread, if any."""
    return getattr(_thread, "device", None)
