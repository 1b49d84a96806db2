"""A matrix and a vector, plain and transposed, in every block shape; with bias, of batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.case import MSL, TYPE, Buffer, Case, normal

NAME = re.compile(
    rf"gemv_(t_)?({TYPE})_bm(\d+)_bn(\d+)_sm(\d+)_sn(\d+)_tm(\d+)_tn(\d+)_nc([01])_axpby([01])",
)
OUT, IN, BATCH = 70, 136, 2


def case(name: str) -> Case | None:
    if not (found := NAME.fullmatch(name)):
        return None
    turned, kind, *shape = found.groups()
    bm, bn, sm, sn, tm, tn, nc, axpby = map(int, shape)
    function = "gemv_t" if turned else "gemv"
    instance = f"{function}<{MSL[kind]}, {bm}, {bn}, {sm}, {sn}, {tm}, {tn}, {nc}, {axpby}>"
    outputs = bn * sn * tn if turned else bm * sm * tm  # of a threadgroup
    grid = (-(-OUT // outputs), 1, BATCH)
    return Case(name, "gemv", instance, partial(_buffers, kind, bool(turned)), grid, (32, bn, bm), threads=False,
                divergent=bn > 1)  # fmt: skip


def _buffers(kind: str, turned: bool) -> Mapping[int, Buffer]:
    one = Buffer(np.array([BATCH], np.int32), "int32")

    def stride(value: int) -> Buffer:
        return Buffer(np.array([value], np.int64), "int64")

    return {
        0: normal(kind, BATCH * OUT * IN, 1),
        1: normal(kind, BATCH * IN, 2),
        2: normal(kind, BATCH * OUT, 3),
        3: Buffer.poisoned(kind, BATCH * OUT),
        4: Buffer.of(IN, "int32"),
        5: Buffer.of(OUT, "int32"),
        6: Buffer.of(OUT if turned else IN, "int32"),
        7: Buffer.of(1.25, "float32"),
        8: Buffer.of(-0.5, "float32"),
        9: Buffer.of(1, "int32"),
        10: one,
        11: stride(IN),
        12: stride(OUT * IN),
        13: stride(OUT),
        14: Buffer.of(1, "int32"),
    }
