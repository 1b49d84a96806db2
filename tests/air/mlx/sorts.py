"""Sorting within a threadgroup, values and indices; and where values would go in sorted ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.case import MSL, TYPE, Buffer, Case, normal

NAME = re.compile(rf"(n?c)(arg)?_block_sort_({TYPE})_({TYPE})_bn(\d+)_tn(\d+)")
SEARCH = re.compile(rf"searchsorted_({TYPE})_(left|right)")
SEGMENTS = 2


def case(name: str) -> Case | None:
    if found := SEARCH.fullmatch(name):
        kind, side = found.groups()
        instance = f"searchsorted<{MSL[kind]}, {str(side == 'right').lower()}>"
        return Case(name, "sort searchsorted", instance, partial(_search, kind), (20, 1, 1), (20, 1, 1))
    if not (found := NAME.fullmatch(name)):
        return None
    apart, indices, given, made, threads, each = found.groups()
    function = "block_sort_nc" if apart == "nc" else "block_sort"
    instance = f"{function}<{MSL[given]}, {MSL[made]}, {str(bool(indices)).lower()}, {threads}, {each}>"
    size = int(threads) * int(each) - 11
    buffers = partial(_sort, given, made, size, apart == "nc")
    return Case(name, "sort", instance, buffers, (1, SEGMENTS, 1), (int(threads), 1, 1), threads=False)


def _sort(given: str, made: str, size: int, apart: bool) -> Mapping[int, Buffer]:
    found = {0: normal(given, SEGMENTS * size), 1: Buffer.poisoned(made, SEGMENTS * size), 2: Buffer.of(size, "int32"),
             3: Buffer.of(1, "int32"), 4: Buffer.of(1, "int32")}  # fmt: skip
    if not apart:
        return found | {5: Buffer.of(size, "int32"), 6: Buffer.of(size, "int32")}
    stride = Buffer(np.array([size], np.int64), "int64")
    return found | {5: Buffer.of(1, "int32"), 6: Buffer(np.array([SEGMENTS], np.int32), "int32"), 7: stride, 8: stride}


def _search(kind: str) -> Mapping[int, Buffer]:
    sorted_values = normal(kind, 50)
    if kind == "complex64":
        order = np.lexsort((sorted_values.array.imag, sorted_values.array.real))
    elif kind == "bfloat16":
        order = np.argsort((sorted_values.array.astype(np.uint32) << 16).view(np.float32))
    else:
        order = np.argsort(sorted_values.array)
    return {0: Buffer(sorted_values.array[order], kind), 1: normal(kind, 20, 1), 2: Buffer.poisoned("uint32", 20),
            3: Buffer.of(50, "uint32"), 4: Buffer.of(1, "int64")}  # fmt: skip
