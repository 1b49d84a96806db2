"""Products of matrices, of weights in 4 and 8 bits, too: of small integers, so that each order of sums is exact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.aten.types import KINDS, NAMES, decoded, encoded, numbers, small
from tests.air.case import Buffer, Case, Wanted

DENSE = re.compile(rf"(matmul|addmm|naive_bmm|naive_baddbmm|naive_addbmm)_({NAMES})")
FOUR = re.compile(r"int4pack_mm_(\d+)_(float|half|bfloat)")
# Without large_m_int8pack_mm: one simdgroup copies what the others store, with no barrier between.
EIGHT = re.compile(r"int8pack_mv_(float|half|bfloat)")
M, K, N, BATCH, TILE = 37, 45, 50, 2, 16
PACKED_K, PACKED_N, PACKED_M = 256, 72, 3
ALPHA_BETA = 2.0, 3.0
WIDE = {"float16": "float32", "bfloat16": "float32", "int16": "int32", "int8": "int32", "uint8": "int32"}  # opmath_t


def case(name: str) -> Case | None:
    if found := DENSE.fullmatch(name):
        what, kind = found.groups()
        if kind == "float2":
            return None
        groups = (-(-N // TILE), -(-M // TILE), BATCH if what in ("naive_bmm", "naive_baddbmm") else 1)
        return _case(name, partial(_dense, what, KINDS[kind]), groups, (TILE, TILE, 1), partial(_product, what))
    if found := FOUR.fullmatch(name):
        group, kind = int(found[1]), KINDS[found[2]]
        grid = (PACKED_N // 4, 1, M)
        return _case(name, partial(_four, group, kind), grid, (32, 1, 1), partial(_of_four, group))
    if found := EIGHT.fullmatch(name):
        groups = (PACKED_N // 8, PACKED_M, 1)
        return _case(name, partial(_eight, KINDS[found[1]]), groups, (64, 1, 1), _of_eight, threadgroup=(2048,))
    return None


def _case(name: str, buffers: partial[Mapping[int, Buffer]], grid: tuple[int, ...], group: tuple[int, ...],
          wanted: object, threadgroup: tuple[int, ...] = ()) -> Case:  # fmt: skip
    return Case(name, "matrices", "", buffers, grid, group, threads=False, project="torch", wanted=wanted,
                threadgroup=threadgroup)  # fmt: skip


def _dense(what: str, kind: str) -> Mapping[int, Buffer]:
    """The second matrix lies turned around."""
    batch = BATCH if what.startswith("naive") else 1
    first, second = encoded(small(kind, batch * M * K, 1), kind), encoded(small(kind, batch * K * N, 2), kind)
    made = Buffer.poisoned(kind, (1 if what == "naive_addbmm" else batch) * M * N)
    sizes = numbers("uint32", M, K, N, BATCH)
    # of rows, columns; with batches of columns, rows, batches; of a bias that is the same for each row
    steps = [1, K, M * K, K, 1, K * N, 1, N, M * N] if batch > 1 else [K, 1, 1, K, N, 1]
    found = {0: first, 1: second, 2: made}
    if "add" not in what:
        return found | {3: numbers("int64", *steps), 4: sizes}
    bias, scales = encoded(small(kind, N, 3), kind), encoded(np.array(ALPHA_BETA), WIDE.get(kind, kind))
    steps += [1, 0, 0] if batch > 1 else [0, 1]
    return found | {3: bias, 4: scales, 5: numbers("int64", *steps), 6: sizes}


def _product(what: str, buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    first, second = decoded(buffers[0]).reshape(-1, M, K), decoded(buffers[1]).reshape(-1, N, K)
    result = first @ second.transpose(0, 2, 1)
    if "add" in what:
        result = ALPHA_BETA[0] * (result.sum(0) if what == "naive_addbmm" else result)
        result = result + ALPHA_BETA[1] * decoded(buffers[3])
    return {2: Wanted(encoded(result, buffers[2].kind).array)}


def _four(group: int, kind: str) -> Mapping[int, Buffer]:
    """Scales are powers of two, zeros multiples of them."""
    random = np.random.default_rng(group)
    packed = random.integers(0, 256, PACKED_N * PACKED_K // 2).astype(np.uint8)
    scales = np.exp2(random.integers(-2, 1, (PACKED_K // group, PACKED_N)))
    zeros = scales * random.integers(-4, 5, scales.shape)
    return {
        0: encoded(small(kind, M * PACKED_K, 1), kind),
        1: Buffer(packed, "uint8"),
        2: encoded(np.stack([scales, zeros], -1), kind),
        3: Buffer.poisoned(kind, M * PACKED_N),
        4: numbers("uint32", M, PACKED_K, PACKED_N, 0),
    }


def _of_four(group: int, buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    packed = buffers[1].array.reshape(PACKED_N, -1)
    weights = np.stack([packed & 15, packed >> 4], -1).reshape(PACKED_N, PACKED_K).astype(np.float64) - 8
    scales, zeros = np.moveaxis(decoded(buffers[2]).reshape(-1, PACKED_N, 2), -1, 0)
    weights = weights * scales.repeat(group, 0).T + zeros.repeat(group, 0).T
    return {3: Wanted(encoded(decoded(buffers[0]).reshape(M, -1) @ weights.T, buffers[3].kind).array)}


def _eight(kind: str) -> Mapping[int, Buffer]:
    random = np.random.default_rng(8)
    return {
        0: encoded(small(kind, PACKED_M * PACKED_K, 1), kind),
        1: Buffer(random.integers(-5, 6, PACKED_N * PACKED_K).astype(np.int8), "int8"),
        2: encoded(np.exp2(random.integers(-2, 1, PACKED_N)), kind),
        3: Buffer.poisoned(kind, PACKED_M * PACKED_N),
        4: numbers("uint32", PACKED_M, PACKED_K, PACKED_N, 0),
    }


def _of_eight(buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    weights = decoded(buffers[1]).reshape(PACKED_N, -1) * decoded(buffers[2])[:, None]
    return {3: Wanted(encoded(decoded(buffers[0]).reshape(-1, PACKED_K) @ weights.T, buffers[3].kind).array)}
