"""Kernels of a row for each threadgroup: softmax, logsumexp; sums along rows, from one end on (scans)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from tests.air.case import MSL, TYPE, Buffer, Case, normal

SOFTMAX = re.compile(r"(block|looped)_(softmax|softmax_precise|logsumexp)_(float32|float16|bfloat16)")
SCAN = re.compile(rf"(contig|strided)_scan_(reverse_)?(inclusive|exclusive)_(\w+?)_({TYPE})_({TYPE})")
SCANS = {"sum": "CumSum", "prod": "CumProd", "max": "CumMax", "min": "CumMin", "logaddexp": "CumLogaddexp"}
ROWS, LENGTH, LOOPED = 2, 1000, 4500
AXIS, STRIDE = 500, 48


def case(name: str) -> Case | None:
    if found := SOFTMAX.fullmatch(name):
        return _softmax(name, *found.groups())
    if found := SCAN.fullmatch(name):
        return _scan(name, *found.groups())
    return None


def _softmax(name: str, how: str, what: str, kind: str) -> Case:
    function = {"block_softmax": "softmax_single_row", "looped_softmax": "softmax_looped",
                "block_logsumexp": "logsumexp", "looped_logsumexp": "logsumexp_looped"}[f"{how}_{what[:9]}".rstrip("_")
                if what != "softmax_precise" else f"{how}_softmax"]  # fmt: skip
    arguments = [MSL[kind], *(["float"] if what == "softmax_precise" else [])]
    length = LENGTH if how == "block" else LOOPED
    source = "softmax" if "softmax" in what else "logsumexp"
    made = ROWS * length if source == "softmax" else ROWS

    def buffers() -> Mapping[int, Buffer]:
        return {0: normal(kind, ROWS * length), 1: Buffer.poisoned(kind, made), 2: Buffer.of(length, "int32")}

    group = (256,) if how == "block" else (1024,)
    return Case(name, source, f"{function}<{', '.join(arguments)}>", buffers, (ROWS,), group, threads=False)


def _scan(name: str, how: str, backwards: str, end: str, op: str, given: str, made: str) -> Case:
    reads = 2 if "64" in given else 4
    flags = f"{str(end == 'inclusive').lower()}, {str(bool(backwards)).lower()}"
    types = f"{MSL[given]}, {MSL[made]}, {SCANS[op]}<{MSL[made]}>"
    if how == "contig":
        instance = f"contiguous_scan<{types}, {reads}, {flags}>"
        return Case(name, "scan", instance, partial(_contiguous, given, made), (1, 3, 1), (128, 1, 1), threads=False)
    blocks = -(-STRIDE // 32)
    instance = f"strided_scan<{types}, {reads}, {flags}>"
    group = (32 // reads * 32, 1, 1)
    return Case(name, "scan", instance, partial(_strided, given, made, blocks), (blocks, 1, 1), group, threads=False)


def _contiguous(given: str, made: str) -> Mapping[int, Buffer]:
    return {0: normal(given, 3 * AXIS), 1: Buffer.poisoned(made, 3 * AXIS), 2: Buffer.of(AXIS, "uint64")}


def _strided(given: str, made: str, blocks: int) -> Mapping[int, Buffer]:
    axis = 40
    sizes = {2: Buffer.of(axis, "uint64"), 3: Buffer.of(STRIDE, "uint64"), 4: Buffer.of(blocks, "uint64")}
    return {0: normal(given, axis * STRIDE), 1: Buffer.poisoned(made, axis * STRIDE), **sizes}
