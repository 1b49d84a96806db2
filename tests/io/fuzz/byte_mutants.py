"""What is done to the bytes of files of any kind."""

from __future__ import annotations

import random
from collections.abc import Callable

Change = Callable[[random.Random, bytes, bytes], bytes]  # of a file; the other is one to take pieces from
STRATEGIES: dict[str, Change] = {}


def change(function: Change) -> Change:
    STRATEGIES["bytes: " + function.__name__.strip("_").replace("_", " ")] = function
    return function


def _at(rng: random.Random, data: bytes) -> int:
    """Mostly near the beginning, where the header is."""
    return rng.randrange(min(len(data), rng.choice((32, 512, len(data) + 1))) + 1)


@change
def _cut(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


@change
def _flip_bit(rng: random.Random, data: bytes, other: bytes) -> bytes:
    at = min(_at(rng, data), len(data) - 1)
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :] if data else data


@change
def _overwrite(rng: random.Random, data: bytes, other: bytes) -> bytes:
    at, count = _at(rng, data), rng.randrange(1, 9)
    return data[:at] + rng.randbytes(count) + data[at + count :]


@change
def _insert(rng: random.Random, data: bytes, other: bytes) -> bytes:
    at = _at(rng, data)
    return data[:at] + rng.choice((b"\0", b"\xff" * 8, bytes(8), rng.randbytes(3))) + data[at:]


@change
def _drop(rng: random.Random, data: bytes, other: bytes) -> bytes:
    at = _at(rng, data)
    return data[:at] + data[at + rng.randrange(1, 17) :]


@change
def _zero(rng: random.Random, data: bytes, other: bytes) -> bytes:
    at = _at(rng, data)
    count = min(rng.randrange(1, 64), len(data) - at)
    return data[:at] + bytes(count) + data[at + count :]


@change
def _splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


@change
def _move(rng: random.Random, data: bytes, other: bytes) -> bytes:
    a, b = _at(rng, data), _at(rng, data)
    piece, rest = data[a : a + 8], data[:a] + data[a + 8 :]
    return rest[:b] + piece + rest[b:]


@change
def _append(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data + rng.choice((b"\0", other, bytes(32), b"PK\5\6" + bytes(18)))
