"""Norms, rotations, indices of extremes: kernels written in .metal files, which no wheel ships (`--sources`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.case import TYPE, Buffer, Case, normal

NORM = re.compile(r"(vjp_)?(rms|layer_norm)(_looped)?(float32|float16|bfloat16)")
ROPE = re.compile(r"rope_(single_)?(freqs_)?(large_)?(float32|float16|bfloat16)")
ARG = re.compile(rf"arg(min|max)_({TYPE})")
# Eight elements a thread, the last one has four: of a thread behind the end, MLX writes before its private array.
ROWS, LENGTH, LOOPED = 2, 1020, 4500
BATCH, HEADS, STEPS, WIDTH = 2, 3, 5, 16


def case(name: str) -> Case | None:
    if found := NORM.fullmatch(name):
        back, what, looped, kind = found.groups()
        length = LOOPED if looped else LENGTH
        buffers = partial(_norm, what, bool(back), kind, length)
        group = (1024,) if looped else (128,)
        file = "rms_norm.metal" if what == "rms" else "layer_norm.metal"
        return Case(name, file, "", buffers, (ROWS,), group, threads=False, constants={20: 1})
    if found := ROPE.fullmatch(name):
        return _rope(name, *found.groups())
    if found := ARG.fullmatch(name):
        return Case(name, "arg_reduce.metal", "", partial(_arg, found[2]), (128, ROWS, 1), (128, 1, 1))
    return None


def _norm(what: str, back: bool, kind: str, length: int) -> Mapping[int, Buffer]:
    x, w = normal(kind, ROWS * length, 1), normal(kind, length, 2)
    parts = [x, w]
    if back:
        parts += [normal(kind, ROWS * length, 3), *[Buffer.poisoned(kind, ROWS * length)] * 2]
    else:
        parts += [*([normal(kind, length, 4)] if what == "layer_norm" else []), Buffer.poisoned(kind, ROWS * length)]
    parts += [Buffer.of(1e-5, "float32"), Buffer.of(length, "uint32"), Buffer.of(1, "uint32")]
    if what == "layer_norm" and not back:
        parts.append(Buffer.of(1, "uint32"))
    return dict(enumerate(parts))


def _rope(name: str, single: str, freqs: str, _: str, kind: str) -> Case:
    grid = (WIDTH // 2, BATCH * HEADS, 1) if single else (WIDTH // 2, STEPS, BATCH * -(-HEADS // 4))
    buffers = partial(_rotated, bool(single), bool(freqs), kind)
    return Case(name, "rope.metal", "", buffers, grid, (WIDTH // 2, 1, 1), constants={1: 1, 2: 0, 3: 0})


def _rotated(single: bool, freqs: bool, kind: str) -> Mapping[int, Buffer]:
    steps = 1 if single else STEPS
    count = BATCH * HEADS * steps * WIDTH
    found = {0: normal(kind, count), 1: Buffer.poisoned(kind, count), 2: Buffer.of(7, "int32"),
             3: Buffer.of(1.0, "float32")}  # fmt: skip
    strides = np.array([STEPS * WIDTH, WIDTH, 1], np.int64)  # of heads, positions, elements
    if single:
        found[4] = Buffer.of(WIDTH, "int64")
    else:
        found |= {4: Buffer(strides, "int64"), 5: Buffer(strides, "int64")}
        found |= {6: Buffer.of(0, "int64"), 7: Buffer.of(HEADS, "int32")}
    if freqs:
        sizes = np.exp2(np.arange(WIDTH // 2) / 2).astype(np.float32)
        return found | {10: Buffer(sizes, "float32"), 11: Buffer.of(1, "int64")}
    return found | {10: Buffer.of(10.0, "float32")}


def _arg(kind: str) -> Mapping[int, Buffer]:
    size = 700
    shape, one = Buffer(np.array([ROWS], np.int32), "int32"), Buffer.of(1, "int64")
    return {
        0: normal(kind, ROWS * size),
        1: Buffer.poisoned("uint32", ROWS),
        2: shape,
        3: Buffer.of(size, "int64"),
        4: one,
        5: Buffer.of(1, "uint64"),
        6: one,
        7: Buffer.of(size, "uint64"),
    }
