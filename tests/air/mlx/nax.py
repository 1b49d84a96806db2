"""Tiled products of matrices by an M5's matrix units, with ragged edges: of whole numbers, whose sums are exact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.case import TYPE, TYPES, Buffer, Case, Wanted, from_bfloat, to_bfloat

FUSED = re.compile(rf"steel_gemm_fused_nax_([nt])([nt])_({TYPE})_({TYPE})_bm(\d+)_bn(\d+)_bk(\d+)_wm(\d+)_wn(\d+)")
M, N = 70, 75  # of no tile


def case(name: str) -> Case | None:
    if not (found := FUSED.fullmatch(name)) or found[3] != found[4]:
        return None
    left, right, kind, _, *tile = found.groups()
    bm, bn, bk, wm, wn = map(int, tile)
    constants = {10: 0, 100: 0, 110: 0, 200: 0, 201: 0, 202: 1}  # neither M nor N ends with a tile
    turned = left == "t", right == "t"
    grid = (-(-N // bn), -(-M // bm), 1)
    # divergent: simdgroups at an edge take a loop of their own, with barriers of its own
    given, wanted = partial(_buffers, kind, turned, (bm, bn), bk), partial(_product, kind, turned, 2 * bk)
    return Case(name, "nax", "", given, grid, (32, wn, wm), threads=False, constants=constants, wanted=wanted,
                project="m5", divergent=True)  # fmt: skip


def _whole(kind: str, count: int, seed: int) -> Buffer:
    values = np.random.default_rng(seed).integers(-2, 3, count).astype(np.float32)
    return Buffer(to_bfloat(values) if kind == "bfloat16" else values.astype(TYPES[kind]), kind)


def _buffers(kind: str, turned: tuple[bool, bool], tile: tuple[int, int], bk: int) -> Mapping[int, Buffer]:
    depth = 2 * bk
    lda, ldb = M if turned[0] else depth, depth if turned[1] else N
    first = np.array([M, N, depth, lda, ldb, N, -(-N // tile[1]), -(-M // tile[0])], np.int32)
    last = np.array([0, depth // bk, 1, 0], np.int32)
    params = np.frombuffer(first.tobytes() + np.zeros(3, np.int64).tobytes() + last.tobytes(), np.uint8)
    return {0: _whole(kind, M * depth, 1), 1: _whole(kind, depth * N, 2), 3: Buffer.poisoned(kind, M * N),
            4: Buffer(params, "uint8")}  # fmt: skip


def _product(kind: str, turned: tuple[bool, bool], depth: int, buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    a, b = (from_bfloat(buffers[i].array) if kind == "bfloat16" else buffers[i].array for i in (0, 1))
    left = a.reshape(depth, M).T if turned[0] else a.reshape(M, depth)
    right = b.reshape(N, depth).T if turned[1] else b.reshape(depth, N)
    sums = (left.astype(np.float32) @ right.astype(np.float32)).ravel()
    return {3: Wanted(to_bfloat(sums) if kind == "bfloat16" else sums.astype(TYPES[kind]))}
