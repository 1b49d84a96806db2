"""What is run: a kernel of a metallib, the same from source, and one launch of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
TYPES = {
    "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16, "bool_": np.uint8, "complex64": np.complex64,
    **{f"{u}int{bits}": getattr(np, f"{u}int{bits}") for u in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
MSL = {"float32": "float", "float16": "half", "bfloat16": "bfloat16_t", "bool_": "bool", "complex64": "complex64_t",
       **{f"{u}int{bits}": f"{u}int{bits}_t" for u in ("", "u") for bits in (8, 16, 32, 64)}}  # fmt: skip
SHORT = {"float": "float32", "float16_t": "float16", "bfloat16_t": "bfloat16"}  # in names of quantised kernels
EPS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # rounding's largest error, of a number
TINY = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}  # and of one close to 0
TYPE = "|".join(sorted(TYPES, key=len, reverse=True))


@dataclass(frozen=True)
class Buffer:
    """A buffer's contents before a launch. bfloat16 lies in uint16."""

    array: Array
    kind: str

    @staticmethod
    def of(value: float | int, kind: str) -> Buffer:
        return Buffer(np.array([value], TYPES[kind]), kind)

    @staticmethod
    def poisoned(kind: str, count: int) -> Buffer:
        """What a kernel writes: NaN, so that what it leaves out shows."""
        return Buffer(np.full(count * np.dtype(TYPES[kind]).itemsize, 0xFF, np.uint8).view(TYPES[kind]), kind)


@dataclass(frozen=True)
class Wanted:
    """What a kernel without a source has to leave in a buffer."""

    values: Array  # float64, or the buffer's own type: then each bit counts
    bound: Array | float = 0.0  # by how much each may differ, before it is rounded to the buffer's type


@dataclass(frozen=True)
class Case:
    """One launch. `buffers` makes the buffers by index."""

    name: str  # in the metallib
    source: str  # headers that its text includes, "unary_ops unary"; torch's with their whole paths
    instance: str  # "unary_v<float, float, Exp>"; "" where the headers have it
    buffers: Callable[[], Mapping[int, Buffer]]
    grid: tuple[int, ...]
    group: tuple[int, ...]
    threads: bool = True  # whether `grid` counts threads, or threadgroups
    constants: Mapping[int, int] = field(default_factory=dict)
    threadgroup: tuple[int, ...] = ()  # bytes of each threadgroup argument
    constant_types: Mapping[int, str] = field(default_factory=dict)
    divergent: bool = False  # MLX lets threads return before a barrier that others reach, or meet at two of them
    needs: str = ""  # text before the instances
    wanted: Callable[[Mapping[int, Buffer]], Mapping[int, Wanted]] | None = None  # by index, where there is no source
    project: str = "mlx"  # of projects.ALL
    recorded: Path | None = None  # where a launch of launches.py lies, which
    after: Callable[[bool], Mapping[int, Array]] | None = None  # leaves this, with subnormals kept or taken for zero

    @property
    def has_source(self) -> bool:
        """Whether what is wanted is what its source does."""
        return self.wanted is None and self.after is None

    @property
    def unit(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """What has to be equal for two cases to be compiled together."""
        return self.source, tuple(sorted(self.constants.items()))


def to_bfloat(x: Array) -> Array:
    """float32 rounded to bfloat16's bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(np.asarray(x, np.float32)), np.uint16(0x7FC0), rounded)


def from_bfloat(bits: Array) -> Array:
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def normal(kind: str, count: int, seed: int = 0, scale: float = 1.0) -> Buffer:
    """Numbers as layers have them; of integers, small ones."""
    random = np.random.default_rng([seed, count])
    if kind == "bool_" or "int" in kind:
        top = 2 if kind == "bool_" else min(200, int(np.iinfo(TYPES[kind]).max))
        return Buffer(random.integers(0, top, count).astype(TYPES[kind]), kind)
    x = random.standard_normal(count) * scale
    if kind == "bfloat16":
        return Buffer(to_bfloat(x.astype(np.float32)), kind)
    if kind == "complex64":
        return Buffer((x + 1j * random.standard_normal(count)).astype(np.complex64), kind)
    return Buffer(x.astype(TYPES[kind]), kind)


SPECIAL = (
    *(0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-40, -1e-40, 6e-8, 1e-5, 65504, 65520),
    *(3e38, -3e38, 1e-38, 127.5, 128, 255.5, 256, -129, 32768, 65536, 2147483648.0, -2147483904.0, 4294967296.0),
    *(9.3e18, 1e20, 88.8, -103.9, 89, 11.1, -17.4, 3.14159265, 1e4, 1e6),
)


def edges(kind: str, count: int, seed: int = 0) -> Buffer:
    """Values that are special, then random ones of all sizes. Divisors (seed > 0) are neither 0 nor -1."""
    random = np.random.default_rng([seed, count])
    if "int" in kind:
        limits = np.iinfo(TYPES[kind])
        first = np.array([0, 1, limits.max, limits.min, limits.max - 1, 2, 3, 7], TYPES[kind])
        wide = random.integers(limits.min, limits.max, count // 2, TYPES[kind], endpoint=True)
        x = np.concatenate([first, wide, random.integers(0, 20, count).astype(TYPES[kind])])[:count]
        if seed:
            x = np.where((x == 0) | (x == np.array(-1).astype(TYPES[kind])), np.array(3, TYPES[kind]), x)[
                random.permutation(count)
            ]
        return Buffer(x, kind)
    if kind == "bool_":
        return Buffer(random.integers(0, 2, count).astype(np.uint8), kind)
    wide = np.exp(random.uniform(-20, 20, count))
    x = np.concatenate([SPECIAL, random.standard_normal(count // 2) * 3, wide]).astype(np.float32)[:count]
    x = x[random.permutation(count)] if seed else x
    with np.errstate(over="ignore", invalid="ignore"):
        if kind == "bfloat16":
            return Buffer((x.view(np.uint32) >> 16).astype(np.uint16), kind)
        return Buffer((x + 1j * x[::-1]).astype(np.complex64) if kind == "complex64" else x.astype(TYPES[kind]), kind)
