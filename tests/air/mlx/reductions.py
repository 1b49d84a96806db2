"""Sums, products, extremes: of everything, along rows, along columns; with their first values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.case import MSL, TYPE, Buffer, Case, normal

OPS = {"sum": "Sum", "prod": "Prod", "min": "Min", "max": "Max", "and": "And", "or": "Or"}
SOURCE = "atomic reduction/ops reduce"
NAME = re.compile(rf"(\w+?)_(sum|prod|min|max|and|or)({TYPE})")
KIND = re.compile(r"(row|col)_reduce_(small|looped|longcolumn|2pass)_(large_)?(\d)(?:_32_32)?_reduce")
ROWS, COLUMNS = 7, 70
BLOCKS = 32  # parts of a reduction that a second kernel joins


def case(name: str) -> Case | None:
    if not (found := NAME.fullmatch(name)):
        return None
    kind, op, given = found.groups()
    made = _result(op, given)
    types = f"{MSL[given]}, {MSL[made]}, {OPS[op]}<{MSL[made]}>"
    if kind == "init_reduce":
        made = given
        instance = f"init_reduce<{MSL[given]}, {OPS[op]}<{MSL[given]}>>"
        return Case(name, SOURCE, instance, lambda: {0: Buffer.poisoned(given, 8)}, (8,), (8,))
    if kind == "all_reduce":
        return Case(name, SOURCE, f"all_reduce<{types}>", partial(_all, given, made), (128, 2, 1), (128, 1, 1))
    if kind == "row_reduce_simple":
        buffers = partial(_simple, given, made)
        return Case(name, SOURCE, f"row_reduce_simple<{types}>", buffers, (1, 2, 1), (128, 1, 1), threads=False)
    if not (how := KIND.fullmatch(kind)):
        return None
    along, shape, large, axes = how.groups()
    index = "int64_t" if large else "int"
    tile = ", 32, 32" if shape in ("looped", "2pass") and along == "col" else ""
    instance = f"{along}_reduce_{shape}<{types}, {index}, {axes}{tile}>"
    outer = {"1": (2,), "2": (2, 3), "5": (2, 3, 2)}[axes]  # of a row's reduction; a column's has ROWS behind
    if along == "row":
        group = (128, 1, 1) if shape == "looped" else (32, 1, 1)
        grid = (1, ROWS, 1) if shape == "looped" else (ROWS, 1, 1)
        group = group if shape == "looped" else (ROWS, 1, 1)
        buffers = partial(_rows, outer, given, made)
        return Case(name, SOURCE, instance, buffers, grid, group, threads=shape == "small")
    columns, outer = (10 if shape == "longcolumn" else COLUMNS), outer[: int(axes) - 1][:2]
    tiles = -(-columns // 32)
    total = ROWS * int(np.prod(outer, initial=1))
    grid, group = {
        "small": ((1, 1, 1), (-(-columns // 4), min(8, total), 1)),
        "longcolumn": ((1, 1, BLOCKS), (columns, -(-total // BLOCKS), 1)),
        "looped": ((tiles, 1, 1), (256, 1, 1)),
        "2pass": ((tiles, BLOCKS, 1), (256, 1, 1)),
    }[shape]
    buffers = partial(_columns, shape, outer, columns, given, made)
    return Case(name, SOURCE, instance, buffers, grid, group, threads=False)


def _result(op: str, given: str) -> str:
    """The type that MLX reduces in."""
    if op in ("and", "or"):
        return "bool_"
    if op in ("sum", "prod"):
        return {"uint8": "int32", "uint16": "uint32", "int8": "int32", "int16": "int32"}.get(given, given)
    return given


def _all(given: str, made: str) -> Mapping[int, Buffer]:
    size, row = 2000, 1000
    return {
        0: normal(given, size),
        1: Buffer.poisoned(made, 2),
        2: Buffer.of(size, "uint64"),
        3: Buffer.of(row, "uint64"),
    }


def _simple(given: str, made: str) -> Mapping[int, Buffer]:
    size, rows = 600, 7
    return {0: normal(given, size * rows), 1: Buffer.poisoned(made, rows), 2: Buffer.of(size, "uint64"),
            3: Buffer.of(rows, "int64")}  # fmt: skip


def _axes(shape: tuple[int, ...], strides: tuple[int, ...], first: int) -> dict[int, Buffer]:
    """A shape, its strides and their number, at three indices from `first` on."""
    padded = (*shape, *[1] * (8 - len(shape))), (*strides, *[0] * (8 - len(strides)))
    return {
        first: Buffer(np.array(padded[0], np.int32), "int32"),
        first + 1: Buffer(np.array(padded[1], np.int64), "int64"),
        first + 2: Buffer.of(len(shape), "int32"),
    }


def _steps(shape: tuple[int, ...], last: int) -> tuple[int, ...]:
    """Strides of a dense array's axes; `last` is the last one's."""
    return tuple(last * int(np.prod(shape[axis + 1 :], initial=1)) for axis in range(len(shape)))


def _rows(outer: tuple[int, ...], given: str, made: str) -> Mapping[int, Buffer]:
    """Of an array of (*outer, ROWS, COLUMNS), all axes but ROWS."""
    inner, many = ROWS * COLUMNS, int(np.prod(outer))
    return {
        0: normal(given, many * inner),
        1: Buffer.poisoned(made, ROWS),
        2: Buffer.of(COLUMNS, "int64"),
        3: Buffer.of(many, "int64"),
        **_axes((ROWS,), (COLUMNS,), 4),
        **_axes(outer, _steps(outer, inner), 7),
    }


def _columns(shape: str, outer: tuple[int, ...], columns: int, given: str, made: str) -> Mapping[int, Buffer]:
    """Of an array of (*outer, ROWS, columns), all axes but the last."""
    many, reduced = int(np.prod(outer, initial=1)), (*outer, ROWS)
    parts = BLOCKS if shape in ("longcolumn", "2pass") else 1
    found = {
        0: normal(given, many * ROWS * columns),
        1: Buffer.poisoned(made, columns * parts),
        2: Buffer.of(ROWS, "uint64"),
        3: Buffer.of(columns, "int64"),
        **_axes((1,), (0,), 4),
        **_axes(reduced, _steps(reduced, columns), 7),
        10: Buffer.of(many, "uint64"),
    }
    outputs = {"longcolumn": columns, "2pass": 1}
    return found | ({11: Buffer.of(outputs[shape], "uint64")} if shape in outputs else {})
