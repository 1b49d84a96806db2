"""What a simdgroup's instructions read and write: 32 lanes of registers, and uniforms, which all lanes share.

Errors are what hardware would let pass: a register that no one has written, one whose value was discarded, and one that
a load still writes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tools.agx.decode import Instruction, Operand

LANES = 32
HALVES = 256  # registers of 16 bits
UNIFORMS = 512  # of 16 bits
Lanes = NDArray[np.bool_]
Integers = NDArray[np.int64]  # zero-extended, unless an operand is signed; of one lane where all have the same
Reals = NDArray[np.float64]
_SMALLEST = float(np.finfo(np.float32).smallest_normal)


class Fault(Exception):
    """The program did what has no defined result."""


def flushed(value: Reals) -> Reals:
    """Subnormal floats of 32 bits as zeros of their sign, which is how this GPU takes and leaves them."""
    return np.where(np.abs(value) < _SMALLEST, np.copysign(0.0, value), value)


def small_float(code: int) -> float:
    """An immediate of a float: a sign, three bits of exponent and four of mantissa."""
    exponent, fraction = code >> 4 & 7, code & 15
    size = fraction / 64 if exponent == 0 else (16 + fraction) * 2.0 ** (exponent - 7)
    return -size if code & 0x80 else size


class Words:
    """`count` halves, each `lanes` wide, as pairs that are one number of 32 bits, too."""

    def __init__(self, count: int, lanes: int) -> None:
        self.words = np.zeros((count // 2, lanes), np.uint32)
        self._halves = self.words.view(np.uint16).reshape(count // 2, lanes, 2)

    def half(self, index: int) -> NDArray[np.uint16]:
        """The lanes of one, to be read or written."""
        return self._halves[index >> 1, :, index & 1]

    def bits(self, index: int, size: int) -> Integers:
        """Those of 16, 32 or 64 bits from half `index` on."""
        if size == 16:
            return self.half(index).astype(np.int64)
        low = self.words[index >> 1].astype(np.int64)
        return low if size == 32 else low | self.words[(index >> 1) + 1].astype(np.int64) << 32

    def put(self, index: int, size: int, value: Integers, lanes: Lanes) -> None:
        """The low bits of `value` there, in some lanes."""
        if size == 16:
            np.copyto(self.half(index), value.astype(np.uint16), where=lanes)
        else:
            np.copyto(self.words[index >> 1], value.astype(np.uint32), where=lanes)
            if size == 64:
                np.copyto(self.words[(index >> 1) + 1], (value >> 32).astype(np.uint32), where=lanes)


class Registers:
    """Of one simdgroup. `on` is its execution mask."""

    def __init__(self, uniforms: Words) -> None:
        self.on = np.ones(LANES, bool)
        self._file, self._uniforms = Words(HALVES, LANES), uniforms
        self._blank = np.ones((HALVES, LANES), bool)  # lanes of halves that hold nothing
        self._partly = set(range(HALVES))  # halves that are blank in some lane
        self._loading: dict[int, int] = {}  # half, slot of the load

    def issue_load(self, index: int, count: int, slot: int) -> None:
        """`count` halves from `index` on may not be used before `wait` for the slot."""
        self._loading.update(dict.fromkeys(range(index, index + count), slot))

    def wait(self, slot: int) -> None:
        """Until all loads of a slot have come."""
        self._loading = {half: each for half, each in self._loading.items() if each != slot}

    def integers(self, operand: Operand, lanes: Lanes | None = None) -> Integers:
        """An operand's value, whose lanes `lanes` (those that are on) must have one. Raises Fault."""
        if operand.kind == "immediate":
            return np.array([operand.index])
        if operand.kind == "uniform":
            value = self._uniforms.bits(operand.index, operand.bits)
        else:
            self._check(_halves(operand), self.on if lanes is None else lanes)
            value = self._file.bits(operand.index, operand.bits)
        shift = 64 - operand.bits
        return value << shift >> shift if operand.signed else value

    def reals(self, operand: Operand) -> Reals:
        """An operand as a float, its modifiers applied."""
        if operand.kind == "immediate":
            value = np.array([small_float(operand.index)])
        else:
            value = as_reals(self.integers(operand), operand.bits)
        if operand.absolute:
            value = np.abs(value)
        return -value if operand.negate else value

    def write(self, operand: Operand, value: Integers, lanes: Lanes | None = None) -> None:
        """The low bits of `value` to the lanes that are on, or to `lanes`."""
        on = self.on if lanes is None else lanes
        self._file.put(operand.index, operand.bits, value, on)
        for half in _halves(operand):
            if half in self._loading:
                raise Fault(f"{name(half)} is written while a load writes it: no wait")
            if half in self._partly:
                self._blank[half] &= ~on
                if not self._blank[half].any():
                    self._partly.remove(half)

    def write_reals(self, operand: Operand, value: Reals) -> None:
        """`value` rounded to the operand's size."""
        self.write(operand, as_bits(value, operand.bits))

    def discard(self, i: Instruction) -> None:
        """Nothing may read a source any more that `i` had last, unless `i` has written it."""
        kept = _halves(i.target) if i.target else range(0)
        for operand in i.sources:
            for half in _halves(operand) if operand.discard else ():
                if half not in kept:
                    self._blank[half] |= self.on
                    self._partly.add(half)

    def _check(self, halves: range, lanes: Lanes) -> None:
        for half in halves:
            if half in self._loading:
                raise Fault(f"{name(half)} is read while a load writes it: no wait")
            if half in self._partly and (self._blank[half] & lanes).any():
                raise Fault(f"{name(half)} is read, but nothing wrote it, or its value was discarded")


def as_reals(bits: Integers, size: int) -> Reals:
    """Bits of floats of 16 bits, whose subnormals this GPU keeps, or of 32."""
    if size == 16:
        return bits.astype(np.uint16).view(np.float16).astype(np.float64)
    return flushed(bits.astype(np.uint32).view(np.float32).astype(np.float64))


def as_bits(value: Reals, size: int) -> Integers:
    """Bits of the nearest floats."""
    with np.errstate(over="ignore"):
        if size == 16:
            return value.astype(np.float16).view(np.uint16).astype(np.int64)
        return flushed(value.astype(np.float32).astype(np.float64)).astype(np.float32).view(np.uint32).astype(np.int64)


def _halves(operand: Operand) -> range:
    return range(operand.index, operand.index + operand.bits // 16)


def name(half: int) -> str:
    """A register's half as disassemblers write it."""
    return f"r{half >> 1}{'lh'[half & 1]}"
