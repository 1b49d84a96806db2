"""Kernels that put numbers elsewhere, search or add them up, whose text the wheel hasn't: each bit as NumPy has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from tests.air.aten.types import KINDS, NAMES, decoded, encoded, parity, small
from tests.air.case import Array, Buffer, Case, Wanted, edges, normal

CAT = re.compile(rf"cat_(int32_t|int64_t)_({NAMES})_({NAMES})")
INDEXED = re.compile(rf"(gather|scatter_set|scatter_add)_dense_({NAMES})_(int|long)")
MASKED = re.compile(r"masked_fill_scalar_(dense|broadcast)_(8|16|32|64)bit")
SEARCHED = re.compile(rf"searchsorted_({NAMES})_(int|long)(_sorter)?")
SCANNED = re.compile(rf"(cumsum|cummax|cummin)_innermost_({NAMES})")
SHAPE, PICKED = (3, 7, 5), 4  # the axis in the middle is indexed; how many indices it has
ERRORS = 15364  # bytes of torch's messages of errors
DIMS = 16
ROWS, LENGTH, BOUNDS = 3, 300, 40


def case(name: str) -> Case | None:
    for pattern, made in (
        (CAT, _cat),
        (INDEXED, _indexed),
        (MASKED, _masked),
        (SEARCHED, _searched),
        (SCANNED, _scanned),
    ):
        if (found := pattern.fullmatch(name)) and "float2" not in name:
            return made(name, *found.groups())
    return None


def _case(name: str, buffers: Callable[[], Mapping[int, Buffer]], grid: tuple[int, ...], group: tuple[int, ...],
          wanted: Callable[[Mapping[int, Buffer]], Mapping[int, Wanted]], threads: bool = True) -> Case:  # fmt: skip
    return Case(name, "moves", "", buffers, grid, group, threads=threads, project="torch", wanted=wanted)


def _cat(name: str, index: str, given: str, made: str) -> Case:
    """A (3, 7, 5) array whose axes are turned around becomes columns 2 to 8 of a (3, 11, 5) one."""
    buffers = partial(_cat_buffers, np.int64 if index == "int64_t" else np.int32, KINDS[given], KINDS[made])
    return _case(name, buffers, (int(np.prod(SHAPE)),), (32,), _cat_wanted)


def _cat_buffers(index: type, given: str, made: str) -> Mapping[int, Buffer]:
    def padded(values: tuple[int, ...]) -> list[int]:
        return [*values, *[0] * (DIMS - len(values))]

    rows, length, columns = SHAPE
    lists = padded((11 * columns, columns, 1)) + padded((rows, 11, columns))
    shared = np.array([3, 1], np.int32).tobytes() + np.array(lists, index).tobytes()  # axes, and which grows
    of_input = np.array([2, 0, *padded((1, rows, rows * length)), *padded(SHAPE)], index).tobytes()
    records = [Buffer(np.frombuffer(data, np.uint8), "uint8") for data in (shared, of_input)]
    values = small(made if made.startswith("u") else given, int(np.prod(SHAPE)))  # a float below 0 has no such place
    return {0: encoded(values, given), 1: Buffer.poisoned(made, rows * 11 * columns),
            2: records[0], 3: records[1]}  # fmt: skip


def _cat_wanted(buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    out = buffers[1].array.copy().reshape(SHAPE[0], 11, SHAPE[2])
    x = encoded(decoded(buffers[0]).reshape(SHAPE[::-1]).transpose(2, 1, 0), buffers[1].kind).array
    out[:, 2 : 2 + SHAPE[1]] = x.reshape(SHAPE)
    return {1: Wanted(out.ravel())}


def _indexed(name: str, what: str, kind: str, index: str) -> Case:
    count = SHAPE[0] * PICKED * SHAPE[2]
    return _case(name, partial(_indices, what, KINDS[kind], KINDS[index]), (count,), (32,), partial(_placed, what))


def _indices(what: str, kind: str, index: str) -> Mapping[int, Buffer]:
    rows, length, columns = SHAPE
    random = np.random.default_rng(3)
    places = np.stack([random.permutation(length)[:PICKED] for _ in range(rows * columns)]).reshape(
        rows, columns, PICKED
    )
    whole, part = encoded(small(kind, rows * length * columns, 1), kind), encoded(small(kind, places.size, 2), kind)
    found = {0: Buffer.poisoned(kind, places.size), 1: whole} if what == "gather" else {0: whole, 1: part}
    sizes = (columns, PICKED, length)
    found |= {2: Buffer(places.transpose(0, 2, 1).ravel().astype(np.int64 if index == "int64" else np.int32), index)}
    found |= {3 + at: Buffer.of(size, "int64") for at, size in enumerate((*sizes, 0))}
    return found | {7: Buffer(np.zeros(ERRORS, np.uint8), "uint8")}


def _placed(what: str, buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    places = buffers[2].array.reshape(SHAPE[0], PICKED, SHAPE[2]).astype(np.int64)
    if what == "gather":
        return {0: Wanted(np.take_along_axis(buffers[1].array.reshape(SHAPE), places, 1).ravel())}
    kind = buffers[0].kind
    out, part = (decoded(buffers[at]).reshape(shape) for at, shape in ((0, SHAPE), (1, places.shape)))
    moved = part if what == "scatter_set" else np.take_along_axis(out, places, 1) + part
    np.put_along_axis(out, places, moved, 1)
    return {0: Wanted(encoded(out, kind).array)}


def _masked(name: str, form: str, bits: str) -> Case:
    return _case(name, partial(_masks, form, f"uint{bits}"), (LENGTH,), (32,), _filled)


def _masks(form: str, kind: str) -> Mapping[int, Buffer]:
    count = BOUNDS if form == "broadcast" else LENGTH
    found = {0: edges(kind, LENGTH), 1: normal("bool_", count), 2: Buffer.of(77, kind)}
    return found | ({3: Buffer.of(count, "uint32")} if form == "broadcast" else {})


def _filled(buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    x = buffers[0].array
    return {0: Wanted(np.where(np.resize(buffers[1].array, x.shape) != 0, buffers[2].array, x))}


def _searched(name: str, kind: str, index: str, sorter: str | None) -> Case:
    wanted = partial(_found, "right" if parity(name) else "left", bool(sorter))
    buffers = partial(_bounds, KINDS[kind], KINDS[index], parity(name), bool(sorter))
    return _case(name, buffers, (1, 1, 1), (64, 1, 1), wanted, threads=False)


def _bounds(kind: str, index: str, right: int, sorter: bool) -> Mapping[int, Buffer]:
    """Rows of sorted numbers, or of some with the order that sorts them."""
    bounds = normal(kind, ROWS * BOUNDS, 1)
    values = decoded(bounds).reshape(ROWS, BOUNDS)
    order = np.argsort(values, 1, kind="stable")
    found = {
        0: normal(kind, ROWS * LENGTH, 2),
        1: bounds if sorter else encoded(np.sort(values, 1), kind),
        2: Buffer.poisoned(index, ROWS * LENGTH),
    }
    sizes = (LENGTH, BOUNDS, ROWS * LENGTH, right, 0)
    found |= {3 + at: Buffer.of(size, "int64") for at, size in enumerate(sizes)}
    return found | ({8: Buffer(order.ravel().astype(np.int64), "int64")} if sorter else {})


def _found(side: str, sorter: bool, buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    x, bounds = decoded(buffers[0]).reshape(ROWS, -1), np.sort(decoded(buffers[1]).reshape(ROWS, -1), 1)
    places = np.stack(
        [np.searchsorted(bounds[row], x[row], "right" if side == "right" else "left") for row in range(ROWS)]
    )
    return {2: Wanted(places.ravel().astype(buffers[2].array.dtype))}


def _scanned(name: str, op: str, kind: str) -> Case:
    buffers = partial(_scans, op, KINDS[kind])
    return _case(name, buffers, (1, ROWS, 1), (64, 1, 1), partial(_running, op), threads=False)


def _scans(op: str, kind: str) -> Mapping[int, Buffer]:
    count = ROWS * LENGTH
    found = {0: encoded(small(kind, count), kind), 1: Buffer.poisoned(kind, count)}
    if op != "cumsum":
        found[2] = Buffer.poisoned("int64", count)
    found[len(found)] = Buffer.of(LENGTH, "uint64")
    return found


def _running(op: str, buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    x, kind = decoded(buffers[0]).reshape(ROWS, LENGTH), buffers[0].kind
    if op == "cumsum":
        return {1: Wanted(encoded(np.cumsum(x, 1), kind).array)}
    extremes: Array = (np.maximum if op == "cummax" else np.minimum).accumulate(x, 1)
    places = np.maximum.accumulate(np.where(x == extremes, np.arange(LENGTH), 0), 1)  # of equal ones, the last
    return {1: Wanted(encoded(extremes, kind).array), 2: Wanted(places.ravel().astype(np.int64))}
