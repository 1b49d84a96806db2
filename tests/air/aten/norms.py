"""RMS and layer norm, whose text the wheel hasn't: each number within the bound of its own rounding errors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import numpy as np

from tests.air.aten.types import KINDS, decoded
from tests.air.case import EPS, TINY, Buffer, Case, Wanted, normal

NAME = re.compile(r"(rms_norm|layer_norm)(_looped|_single_row)?_(float|half|bfloat)")
ROWS, LENGTH, LOOPED, EPSILON = 2, 1021, 4501, 1e-5
# Roundings between a number and what it is multiplied by: sums of 4 a pass, 5 and 5 steps of simd_sum, the rest.
STEPS = 2 * 4 + 10 + 8


def case(name: str) -> Case | None:
    if not (found := NAME.fullmatch(name)):
        return None
    what, looped, kind = found[1], found[2] == "_looped", KINDS[found[3]]
    buffers = partial(_buffers, what, kind, LOOPED if looped else LENGTH)
    # the last step reads a sum of each of 32 simdgroups
    group = (1024, 1, 1) if looped else (256, 1, 1)
    return Case(name, "norms", "", buffers, (ROWS, 1, 1), group, threads=False, project="torch",
                wanted=partial(_wanted, what))  # fmt: skip


def _buffers(what: str, kind: str, length: int) -> Mapping[int, Buffer]:
    x, made, weight = normal(kind, ROWS * length, 1), Buffer.poisoned(kind, ROWS * length), normal(kind, length, 2)
    size, small, one = Buffer.of(length, "uint32"), Buffer.of(EPSILON, "float32"), Buffer.of(1, "int32")
    if what == "rms_norm":
        return {0: x, 1: weight, 2: made, 3: small, 4: size, 5: Buffer.of(1, "uint32")}
    each = Buffer.poisoned(kind, ROWS)
    return {0: x, 1: made, 2: each, 3: each, 4: size, 5: small, 6: one, 7: one, 8: weight, 9: normal(kind, length, 3)}


def _wanted(what: str, buffers: Mapping[int, Buffer]) -> Mapping[int, Wanted]:
    x, error, kind = decoded(buffers[0]).reshape(ROWS, -1), STEPS * EPS["float32"], buffers[0].kind
    squares = (x**2).mean(1, keepdims=True)
    if what == "rms_norm":
        weight = decoded(buffers[1])
        values = x / np.sqrt(squares + EPSILON) * weight
        # rounded before it is multiplied by the weight
        bound = np.abs(values) * (error + 1.01 * EPS[kind]) + np.abs(weight) * TINY[kind]
        return {2: Wanted(values.ravel(), bound.ravel())}
    weight, bias = decoded(buffers[8]), decoded(buffers[9])
    mean, variance = x.mean(1, keepdims=True), x.var(1, keepdims=True)
    scale = 1 / np.sqrt(variance + EPSILON)
    mean_error = error * np.abs(x).mean(1, keepdims=True)
    scale_error = scale * (error + (error * squares + 2 * np.abs(mean) * mean_error) / variance)
    normed = (x - mean) * scale
    bound = np.abs(weight) * (scale * mean_error + np.abs(x - mean) * scale_error) + error * (
        np.abs(normed * weight) + np.abs(bias)
    )
    return {1: Wanted((normed * weight + bias).ravel(), bound.ravel()), 2: Wanted(mean.ravel(), mean_error.ravel()),
            3: Wanted(scale.ravel(), scale_error.ravel())}  # fmt: skip
