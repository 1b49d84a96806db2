"""What G13's instructions compute, on arrays of lanes: integers in 64 bits, reals in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tools.agx.decode import Instruction
from tools.agx.registers import Fault, Integers, Lanes, Reals, as_bits, as_reals, flushed


def single(value: Reals) -> Reals:
    """Rounded to a float of 32 bits."""
    with np.errstate(over="ignore"):
        return flushed(value.astype(np.float32).astype(np.float64))


def fused(a: Reals, b: Reals, c: Reals) -> Reals:
    """a * b + c in float64, rounded to odd where that isn't exact, so that a second rounding is as the only one.

    Products are exact: of numbers of 24 bits at most.
    """
    with np.errstate(invalid="ignore"):
        product = a * b
        total = product + c
        part = total - product
        error = (product - (total - part)) + (c - part)  # Knuth's: exactly what the sum lost
        inexact = ((error > 0) | (error < 0)) & np.isfinite(total)
        even = total.view(np.int64) & 1 == 0
    towards = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact & even, (total.view(np.int64) + towards).view(np.float64), total)


def extended(value: Integers, bits: int, signed: bool) -> Integers:
    """The low `bits` of a value, by their sign or by zeros."""
    return value << 64 - bits >> 64 - bits if signed else value & (1 << bits) - 1


def whole(value: Reals, bits: int, signed: bool, nearest: bool) -> Integers:
    """As the nearest integer, or that towards zero, at most the largest; 0 for what is no number."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return np.nan_to_num(np.clip(np.rint(value) if nearest else np.trunc(value), low, high), nan=0.0).astype(np.int64)


def compare(condition: int, a: Integers, b: Integers) -> Lanes:
    """Of integers, which are extended as the condition says."""
    return (np.equal, np.less, np.greater)[condition & 3](a, b)


def compare_reals(condition: int, a: Reals, b: Reals) -> Lanes:
    """Of reals; conditions 3 and 7 are those of the lesser and the greater of two, of which no NaN is one."""
    found = (np.equal, np.less, np.greater, np.less, None, np.greater_equal, np.less_equal, np.greater)[condition]
    assert found is not None
    return found(a, b) | np.isnan(b) if condition in (3, 7) else found(a, b)


def _shifted(value: Integers, by: Integers) -> Integers:
    """To the left, or by less than 0 to the right, of 64 bits without a sign; zeros come in."""
    left = np.where((by >= 0) & (by < 64), value << np.clip(by, 0, 63), 0)
    right = np.where(by > -64, (value.view(np.uint64) >> np.clip(-by, 0, 63).astype(np.uint64)).view(np.int64), 0)
    return np.where(by >= 0, left, right)


def _mask(i: Instruction) -> int:
    return (1 << (i.fields["mask"] or 32)) - 1


def _sum(i: Instruction, a: Integers, b: Integers) -> Integers:
    b = b << i.fields["shift"]
    total = a - b if i.fields["negate"] else a + b
    if i.fields["saturate"]:
        assert i.target
        bits, signed = i.target.bits, any(source.signed for source in i.sources)
        total = np.clip(total, -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)
    return total


def _product(i: Instruction, a: Integers, b: Integers, c: Integers) -> Integers:
    if i.fields["saturate"]:
        raise Fault("a product that saturates, which no kernel has had")
    return _sum(i, a * b, c)


def _inserted(i: Instruction, a: Integers, b: Integers, c: Integers) -> Integers:
    mask, by = _mask(i), c & 127
    return a & ~_shifted(np.array([mask]), by) | _shifted(b & mask, by)


def _extracted(i: Instruction, a: Integers, b: Integers, c: Integers) -> Integers:
    mask = _mask(i)
    return a & ~mask | _shifted(b, -(c & 127)) & mask


def _extracted_of_pair(i: Instruction, a: Integers, b: Integers, c: Integers) -> Integers:
    return _shifted(b << 32 | a, -(c & 127)) & _mask(i)


def _shifted_by_sign(i: Instruction, a: Integers, b: Integers) -> Integers:
    return extended(a, i.sources[0].bits, True) >> np.minimum(b & 127, 63)


def _bits(i: Instruction, a: Integers, b: Integers) -> Integers:
    """By a table: bit 0 of it for neither, 1 for a alone, 2 for b alone, 3 for both."""
    cases = (~a & ~b, a & ~b, ~a & b, a & b)
    return sum((case for n, case in enumerate(cases) if i.fields["table"] >> n & 1), np.array([0]))


def _last(value: int) -> int:
    return value.bit_length() - 1


def _by_lane(function: Callable[[int], int]) -> Callable[[Instruction, Integers], Integers]:
    return lambda i, a: np.array([function(int(x)) for x in a])


INTEGERS: dict[str, Callable[..., Integers]] = {
    "mov_imm": lambda i: np.array([i.fields["immediate"]]),
    "iadd": _sum,
    "imad": _product,
    "bfi": _inserted,
    "bfeil": _extracted,
    "extr": _extracted_of_pair,
    "asr": _shifted_by_sign,
    "bitop": _bits,
    "bitrev": _by_lane(lambda x: int(f"{x:032b}"[::-1], 2)),
    "popcount": _by_lane(int.bit_count),
    "ffs": _by_lane(_last),  # the highest that is set; -1 of 0
}


def _quiet(function: Callable[[Reals], Reals]) -> Callable[[Reals], Reals]:
    def call(x: Reals) -> Reals:
        with np.errstate(all="ignore"):
            return function(x)

    return call


def _special_rsqrt(x: Reals) -> Reals:
    """Times x it is the root, of 0 and of infinity, too."""
    return np.where((x == 0) | (x == np.inf), np.where(x == 0, 0.0, 1.0), 1 / np.sqrt(x))


def _add(a: Reals, b: Reals) -> Reals:
    return fused(a, np.ones(1), b)


def _multiply(a: Reals, b: Reals) -> Reals:
    with np.errstate(invalid="ignore"):
        return a * b


def _sinc(x: Reals) -> Reals:
    return np.where(x == 0, np.pi / 2, np.sin(x * np.pi / 2) / np.where(x == 0, 1, x))


REALS: dict[str, Callable[..., Reals]] = {
    **{"fadd": _add, "hadd": _add, "fmul": _multiply, "hmul": _multiply, "ffma": fused, "hfma": fused},
    **{"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "roundeven": np.rint},
    "rcp": _quiet(lambda x: 1 / x),
    "rsqrt": _quiet(lambda x: 1 / np.sqrt(x)),
    "srsqrt": _quiet(_special_rsqrt),
    "exp2": _quiet(np.exp2),
    "log2": _quiet(np.log2),
    # Of quarters of a turn in [0, 4): first to [-1, 1], then what that is to be multiplied by to be a sine.
    "sin_pt_1": lambda x: np.where(x > 3, x - 4, np.where(x > 1, 2 - x, x)),
    "sin_pt_2": _sinc,
}

# By mode: bits of the integer, whether it has a sign, whether it becomes a float (or is made from one).
CONVERSIONS = {
    **{0: (8, False, True), 1: (8, True, True), 4: (16, False, False), 5: (16, True, False), 6: (16, False, True)},
    **{7: (16, True, True), 8: (32, False, False), 9: (32, True, False), 10: (32, False, True), 11: (32, True, True)},
}

ATOMICS: dict[int, Callable[[Integers, Integers], Integers]] = {
    0: np.add,
    1: np.subtract,
    2: lambda before, given: given,
    4: np.minimum,
    5: lambda a, b: np.minimum(extended(a, 32, True), extended(b, 32, True)),
    6: np.maximum,
    7: lambda a, b: np.maximum(extended(a, 32, True), extended(b, 32, True)),
    8: np.bitwise_and,
    9: np.bitwise_or,
    10: np.bitwise_xor,
}

_INTEGER_FOLDS: dict[int, tuple[Callable[[Integers, Integers], Integers], int]] = {  # and what changes nothing
    **{0: (np.bitwise_and, -1), 2: (np.bitwise_or, 0), 4: (np.bitwise_xor, 0), 0b10000: (np.add, 0)},
    **{0b10100: (np.minimum, 2**31 - 1), 0b10110: (np.maximum, -(2**31))},
    **{0b11100: (np.minimum, 2**32 - 1), 0b11110: (np.maximum, 0)},
}
_REAL_FOLDS: dict[int, tuple[Callable[[Reals, Reals], Reals], float]] = {
    **{1: (np.add, 0.0), 3: (np.multiply, 1.0), 5: (np.fmin, np.inf), 7: (np.fmax, -np.inf)},
}


def _folded(operation: int, bits: int) -> tuple[Callable[..., Integers], int]:
    """A step of a reduction, on and to bits, and the bits of what changes nothing."""
    if operation in _REAL_FOLDS:
        real, none = _REAL_FOLDS[operation]
        step = lambda a, b: as_bits(real(as_reals(a, bits), as_reals(b, bits)), bits)  # noqa: E731
        return step, int(as_bits(np.array([none]), bits)[0])
    whole_step, neutral = _INTEGER_FOLDS[operation]
    signed = operation in (0b10100, 0b10110)
    return lambda a, b: whole_step(extended(a, bits, signed), extended(b, bits, signed)), neutral


def reduce(operation: int, values: Integers, on: Lanes, bits: int) -> Integers:
    """Of all lanes that are on, in pairs."""
    step, neutral = _folded(operation, bits)
    values = np.where(on, values, neutral)
    while len(values) > 1:
        values = step(values[: len(values) // 2], values[len(values) // 2 :])
    return values


def prefix(operation: int, values: Integers, on: Lanes, bits: int) -> Integers:
    """Of the lanes below each that are on, one after the other."""
    step, neutral = _folded(operation, bits)
    values, before = np.where(on, values, neutral), np.array([neutral])
    found = []
    for value in values:
        found.append(int(before[0]))
        before = step(before, np.array([value]))
    return np.array(found)
