"""Names of types in torch's kernels, and small buffers."""

from __future__ import annotations

import zlib

import numpy as np

from tests.air.case import TYPES, Array, Buffer, from_bfloat, to_bfloat

KINDS = {"float": "float32", "half": "float16", "bfloat": "bfloat16", "bool": "bool_", "float2": "complex64",
         "long": "int64", "int": "int32", "short": "int16", "char": "int8",
         "ulong": "uint64", "uint": "uint32", "ushort": "uint16", "uchar": "uint8"}  # fmt: skip
# c10::ScalarType
SCALAR_TYPES = {"uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "complex64": 9,
                "bool_": 11, "bfloat16": 15, "uint16": 27, "uint32": 28, "uint64": 29}  # fmt: skip
NAMES = "|".join(sorted(KINDS, key=len, reverse=True))


def numbers(kind: str, *values: float) -> Buffer:
    """Several numbers in one buffer; a vector of three takes the room of four."""
    return Buffer(np.array(values, TYPES[kind]), kind)


def parity(name: str) -> int:
    """0 or 1, of half the kernels each: an option that a launch may have."""
    return zlib.crc32(name.encode()) & 1


def small(kind: str, count: int, seed: int = 0) -> Array:
    """Integers of at most 3, so that sums of some hundreds are exact in every type."""
    low = 0 if kind == "bool_" or kind.startswith("u") else -3
    return np.random.default_rng([count, seed]).integers(low, 2 if kind == "bool_" else 4, count).astype(np.float64)


def encoded(values: Array, kind: str) -> Buffer:
    """Numbers in a type, rounded to nearest; integers wrap around."""
    if kind == "bfloat16":
        return Buffer(to_bfloat(values.astype(np.float32)).ravel(), kind)
    if "float" in kind:
        return Buffer(values.astype(TYPES[kind]).ravel(), kind)
    return Buffer((values != 0 if kind == "bool_" else values.astype(np.int64)).astype(TYPES[kind]).ravel(), kind)


def decoded(buffer: Buffer) -> Array:
    """Numbers of a buffer as float64."""
    return (from_bfloat(buffer.array) if buffer.kind == "bfloat16" else buffer.array).astype(np.float64)
