"""Integers that mistakes are made at."""

from __future__ import annotations

import random

_POWERS = [1 << bits for bits in (16, 20, 24, 30, 31, 32, 33, 40, 48, 53, 60, 61, 62, 63, 64)]
EDGES = sorted(
    {0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 31, 32, 33, 63, 64, 65, 99, 127, 128, 255, 256, 257, 1000, 4096, 65535}
    | {power + step for power in _POWERS for step in (-32, -8, -1, 0, 1)}
)


def edge(rng: random.Random, value: int) -> int:
    return rng.choice(EDGES)


def near(rng: random.Random, value: int) -> int:
    return value + rng.choice((-32, -8, -2, -1, 1, 2, 8, 32))


def flip(rng: random.Random, value: int) -> int:
    return value ^ (1 << rng.randrange(64))


def scale(rng: random.Random, value: int) -> int:
    return rng.choice((value * 2, value // 2, value * 256, -value, value << 32))


OPERATIONS = {"edge": edge, "near": near, "flip": flip, "scale": scale}
