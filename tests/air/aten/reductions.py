"""Reductions along one axis, whose text the wheel hasn't: of small integers, so that each order of sums is exact.

A kernel reduces an axis of any array, the innermost of a matrix (inner), or the other one (outer).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.aten.types import KINDS, NAMES, decoded, encoded, numbers, small
from tests.air.case import Array, Buffer, Case, Wanted

NAME = re.compile(rf"(sum|nansum|count_nonzero|any|all|max|min|argmax|argmin)_reduction(?:_(inner|outer))?"
                  rf"_({NAMES})_({NAMES})")  # fmt: skip
NORM = re.compile(rf"norm(?:_l1_reduction_(inner))?_({NAMES})_({NAMES})")
ROWS, LENGTH = 64, 200  # results, and numbers that each is made of
DIMS = 16


def case(name: str) -> Case | None:
    if found := NORM.fullmatch(name):
        return _case(name, "norm", *found.groups())
    found = NAME.fullmatch(name)
    return _case(name, *found.groups()) if found else None


def _case(name: str, op: str, form: str | None, given: str, made: str) -> Case | None:
    if "float2" in (given, made):
        return None
    kinds = KINDS[given], KINDS[made]
    # With fewer than 1,024 threads, sums of 64-bit integers read lanes that have ended: on Apple's GPUs as 0.
    grid, group = {None: ((ROWS, 1, 1), (1024, 1, 1)), "inner": ((ROWS // 4, 1, 1), (128, 1, 1)),
                   "outer": ((ROWS // 32, 1, 1), (32, 32, 1))}[form]  # fmt: skip
    divides = op in ("sum", "nansum", "count_nonzero", "norm")
    return Case(name, "reductions", "", partial(_buffers, op, form, *kinds, divides), grid, group, threads=False,
                project="torch", wanted=partial(_wanted, op, form, *kinds))  # fmt: skip


def _buffers(op: str, form: str | None, given: str, made: str, divides: bool) -> Mapping[int, Buffer]:
    values = _values(op, given)
    if form != "inner":  # the axis that goes is the first one
        values = values.T
    found = {0: encoded(values, given), 1: Buffer.poisoned(made, ROWS)}
    if form is None:
        return found | {2: _params(1.0 if op == "norm" else 0.0)}
    found[2] = numbers("uint32", ROWS, LENGTH) if form == "inner" else numbers("uint32", LENGTH, ROWS, 1, 0)
    return found | ({3: Buffer.of(0.0, "float32")} if divides else {})


def _values(op: str, kind: str) -> Array:
    """(ROWS, LENGTH). Of these, what is the largest or the smallest is so once in a row."""
    if op.startswith("arg"):
        base = np.arange(LENGTH) % 127 if kind != "bool_" else np.arange(LENGTH) % 2
        values = np.stack([np.random.default_rng(row).permutation(base) for row in range(ROWS)]).astype(np.float64)
        rows, (high, low) = (
            np.arange(ROWS),
            np.random.default_rng(1).permuted(np.tile(np.arange(LENGTH), (ROWS, 1)), axis=1).T[:2],
        )
        values = np.clip(values, 1, 125)
        values[rows, high], values[rows, low] = 127, 0
        return values
    values = small(kind, ROWS * LENGTH).reshape(ROWS, LENGTH)
    if op in ("any", "all"):
        values[::2] = 0 if op == "any" else 1  # in half the rows, not one is different
    if op == "nansum":
        values[:, 7] = np.nan
    return values


def _params(p: float) -> Buffer:
    """NormParams, of a matrix whose first axis goes."""
    head = np.array([p], np.float32).tobytes() + np.array([LENGTH, 2], np.uint32).tobytes()
    lists = [[LENGTH, ROWS], [ROWS, 1], [1, ROWS], [1, 1]]
    sizes = np.array([part + [0] * (DIMS - 2) for part in lists], np.uint32)
    return Buffer(np.frombuffer(head + sizes.tobytes(), np.uint8), "uint8")


def _wanted(op: str, form: str | None, given: str, made: str, buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    x = decoded(buffers[0])
    x = x.reshape(ROWS, LENGTH) if form == "inner" else x.reshape(LENGTH, ROWS).T
    result = {
        "sum": lambda: x.sum(1), "nansum": lambda: np.nansum(x, 1), "count_nonzero": lambda: (x != 0).sum(1),
        "any": lambda: (x != 0).any(1), "all": lambda: (x != 0).all(1), "max": lambda: x.max(1),
        "min": lambda: x.min(1), "argmax": lambda: x.argmax(1), "argmin": lambda: x.argmin(1),
        "norm": lambda: np.abs(x).sum(1),
    }[op]()  # fmt: skip
    return {1: Wanted(encoded(result, made).array)}
