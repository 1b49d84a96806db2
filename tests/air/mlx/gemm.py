"""Tiled products of matrices, with ragged edges: fused, split along K."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.case import MSL, TYPE, Buffer, Case, normal

KERNELS = "steel/gemm/kernels/steel_gemm"
TILE = r"_bm(\d+)_bn(\d+)_bk(\d+)_wm(\d+)_wn(\d+)"
FUSED = re.compile(rf"steel_gemm_fused_([nt]{{2}})_({TYPE})_({TYPE}){TILE}")
SPLIT = re.compile(rf"steel_gemm_splitk_([nt]{{2}})_({TYPE})_({TYPE}){TILE}_MN_([nt]aligned)_K_([nt]aligned)")
M, N = 70, 75  # of no tile
PARTS = 2


def case(name: str) -> Case | None:
    if found := FUSED.fullmatch(name):
        turned, given, _, *tile = found.groups()
        return _fused(name, turned, given, tuple(map(int, tile)))
    if found := SPLIT.fullmatch(name):
        turned, given, made, *tile, even, whole = found.groups()
        return _split(name, turned, given, made, tuple(map(int, tile)), even == "taligned", whole == "taligned")
    return None


def _flags(*values: bool) -> str:
    return ", ".join(str(value).lower() for value in values)


def _fused(name: str, turned: str, kind: str, tile: tuple[int, ...]) -> Case:
    bm, bn, bk, wm, wn = tile
    instance = f"gemm<{MSL[kind]}, {bm}, {bn}, {bk}, {wm}, {wn}, {_flags(turned[0] == 't', turned[1] == 't')}, float>"
    constants = {10: 0, 100: 0, 110: 0, 200: 0, 201: 0, 202: 1}
    depth = 2 * bk
    grid = (-(-N // bn), -(-M // bm), 1)
    return Case(name, f"steel/gemm/gemm {KERNELS}_fused", instance, partial(_buffers, kind, turned, tile, depth), grid,
                (32, wn, wm), threads=False, constants=constants)  # fmt: skip


def _operands(kind: str, depth: int, m: int, n: int) -> dict[int, Buffer]:
    return {0: normal(kind, m * depth, 1), 1: normal(kind, depth * n, 2)}


def _buffers(kind: str, turned: str, tile: tuple[int, ...], depth: int) -> Mapping[int, Buffer]:
    bm, bn, bk, _, _ = tile
    lda, ldb = (M if turned[0] == "t" else depth), (depth if turned[1] == "t" else N)
    first = np.array([M, N, depth, lda, ldb, N, -(-N // bn), -(-M // bm)], np.int32)
    last = np.array([0, depth // bk, 1, 0], np.int32)
    params = np.frombuffer(first.tobytes() + np.zeros(3, np.int64).tobytes() + last.tobytes(), np.uint8)
    return _operands(kind, depth, M, N) | {3: Buffer.poisoned(kind, M * N), 4: Buffer(params, "uint8")}


def _split(name: str, turned: str, given: str, made: str, tile: tuple[int, ...], even: bool, whole: bool) -> Case:
    bm, bn, bk, wm, wn = tile
    m, n = (2 * bm, 2 * bn) if even else (2 * bm + 5, 2 * bn + 3)
    depth = 4 * bk + (0 if whole else 5)
    flags = _flags(turned[0] == "t", turned[1] == "t", even, whole)
    instance = f"gemm_splitk<{MSL[given]}, {MSL[made]}, {bm}, {bn}, {bk}, {wm}, {wn}, {flags}>"

    def buffers() -> Mapping[int, Buffer]:
        tiles = -(-n // bn), -(-m // bm)
        size = 2 * bk
        lda, ldb = (m if turned[0] == "t" else depth), (depth if turned[1] == "t" else n)
        numbers = [m, n, depth, lda, ldb, n, *tiles, PARTS, m * n, size, 0, size // bk]
        params = Buffer(np.array(numbers, np.int32), "int32")
        return _operands(given, depth, m, n) | {2: Buffer.poisoned(made, PARTS * m * n), 3: params}

    grid = (-(-n // bn), -(-m // bm), PARTS)
    return Case(name, f"steel/gemm/gemm {KERNELS}_splitk", instance, buffers, grid, (32, wn, wm), threads=False)
