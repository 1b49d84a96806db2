"""Memory of a device, of a threadgroup or of threads, which knows what lies in it and what may be done to it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tools.agx.registers import Fault, Integers

GAP = 256  # between buffers: what reads or writes past an end finds nothing there


class Memory:
    """Bytes from address `base` on, to which buffers are added; `kind` is its name in errors."""

    def __init__(self, kind: str, base: int = 0) -> None:
        self.kind, self.base = kind, base
        self._bytes = np.zeros(0, np.uint8)
        self._readable, self._writable = np.zeros(0, bool), np.zeros(0, bool)

    def add(self, content: NDArray[np.uint8], writable: bool = False) -> int:
        """The address of a new buffer that holds `content`."""
        return self._grow(content, readable=True, writable=writable)

    def reserve(self, size: int) -> int:
        """The address of `size` bytes that can be read when they have been written."""
        return self._grow(np.zeros(size, np.uint8), readable=False, writable=True)

    def content(self, address: int, size: int) -> NDArray[np.uint8]:
        """A copy of some bytes."""
        at = address - self.base
        return self._bytes[at : at + size].copy()

    def load(self, addresses: Integers, size: int) -> Integers:
        """The numbers of `size` bytes at `addresses`, zero-extended. Raises Fault."""
        places = self._places(addresses, size, self._readable, "read")
        return self._bytes[places].view(f"<u{size}").ravel().astype(np.int64)

    def store(self, addresses: Integers, size: int, values: Integers) -> None:
        """The low `size` bytes of each value to its address. Raises Fault."""
        places = self._places(addresses, size, self._writable, "written")
        self._bytes[places] = values.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :size]
        self._readable[places] = True

    def _grow(self, content: NDArray[np.uint8], readable: bool, writable: bool) -> int:
        room = -len(content) % GAP + GAP
        address = self.base + len(self._bytes)
        self._bytes = np.concatenate([self._bytes, content, np.zeros(room, np.uint8)])
        for name, value in (("_readable", readable), ("_writable", writable)):
            flags = np.zeros(len(self._bytes), bool)
            flags[: len(self._bytes) - len(content) - room] = getattr(self, name)
            flags[address - self.base : address - self.base + len(content)] = value
            setattr(self, name, flags)
        return address

    def _places(self, addresses: Integers, size: int, allowed: NDArray[np.bool_], what: str) -> NDArray[np.int64]:
        places = (addresses - self.base)[:, None] + np.arange(size)
        outside = (places < 0) | (places >= len(self._bytes))
        wrong = (outside | ~allowed[np.where(outside, 0, places)]).any(1) if len(allowed) else outside.any(1)
        if wrong.any():
            raise Fault(f"{size} bytes at {addresses[wrong][0]:#x} of {self.kind} memory can't be {what}")
        if (addresses % size).any():
            raise Fault(f"{size} bytes at {addresses[addresses % size != 0][0]:#x} of {self.kind} memory: not aligned")
        return places
