"""head_linear against float64: rows and columns that are contiguous, and a token's bits whatever comes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, U32, UNIT, Fault

from torch_foundry import ops
from torch_foundry.testing import reference as plain


@dataclass(frozen=True)
class Case(kit.Case):
    tokens: int = 1
    heads: int = 3
    out: int = 96
    k: int = 64
    columns: bool = False  # of a matrix are contiguous, not its rows


# Sizes around the outputs of a threadgroup and what a simdgroup reads at once, in vectors or not.
CASES = [
    (Case(), F32),
    (Case(tokens=3, out=17), BF16),
    (Case(k=520, out=16), F16),
    (Case(k=33, out=5), F32),
    (Case(columns=True), F32),
    (Case(columns=True, tokens=3, out=264, k=7), BF16),
    (Case(columns=True, out=33, k=130), F16),
    (Case(columns=True, out=8, k=3), F32),
]
BENCH = [Case(heads=20, out=512, k=192, columns=True), Case(heads=20, out=256, k=512)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g, c = kit.generator(case), case
    inner, outer = (c.out, c.k) if c.columns else (c.k, c.out)
    weight = kit.spread(kit.normal(g, c.heads, outer, inner, dtype=dtype), 8)
    x = kit.spread(kit.normal(g, c.tokens, c.heads, c.k, dtype=dtype), 8)
    return {"x": x, "weight": weight.transpose(1, 2) if c.columns else weight}


run = ops.head_linear
reference = plain.head_linear


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    matrices, vectors = case.heads * case.out * case.k, case.tokens * case.heads * (case.out + case.k)
    return 2 * case.tokens * matrices, dtype.itemsize * (matrices + vectors)


def check(given: dict[str, Any]) -> None:
    wide = kit.double(given)
    with kit.poisoned_outputs():
        got = run(**given)
    truth, sizes = reference(**wide), reference(**{name: value.abs() for name, value in wide.items()})
    kit.assert_norm(got, truth, reference(**given))
    kit.assert_bound(got, truth, UNIT[got.dtype] * truth.abs() + U32 * (8 + 2 * given["x"].shape[-1] ** 0.5) * sizes)


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@pytest.mark.parametrize("columns", [False, True])
def test_a_token_is_alone(columns: bool) -> None:
    given = inputs(Case(tokens=5, columns=columns), BF16)
    together = run(**given)
    for t in range(5):
        kit.assert_equal(run(given["x"][t : t + 1], given["weight"]), together[t : t + 1])


@pytest.mark.parametrize("columns", [False, True])
def test_lane_orders(columns: bool) -> None:
    given = inputs(Case(columns=columns, out=70), F32)
    kit.in_every_lane_order(lambda: run(**given))


def test_empty() -> None:
    given = inputs(Case(), F32)
    assert run(given["x"][:0], given["weight"]).shape == (0, 3, 96)
    assert not run(given["x"][..., :0], given["weight"][..., :0]).any()


@pytest.mark.cpu_only
def test_opcheck() -> None:
    for columns in (False, True):
        kit.opcheck("head_linear", *inputs(Case(tokens=2, columns=columns), F32).values())


def test_bad_inputs() -> None:
    x, weight = inputs(Case(), F32).values()
    for given, message in (
        ((x.int(), weight), r"x: expected dtype Float or Half or BFloat16, got Int"),
        ((x, weight.half()), r"weight: expected dtype Float, got Half"),
        ((x, weight[:2]), r"weight: expected \[heads=3, out_features, in_features=64\]"),
        ((x.transpose(1, 2), weight), r"x: expected .*contiguous"),
        ((x, weight.repeat(1, 1, 2)[:, :, ::2]), r"weight: expected contiguous rows or columns"),
    ):
        with kit.refuses(message):
            run(*given)


def _fault(name: str, old: str, new: str, case: Case, dtype: torch.dtype = F32) -> Fault:
    return Fault(f"head_linear-{name}", "head_linear.metal", old, new, lambda: test_accuracy(case, dtype))


ROWS, COLUMNS = Case(tokens=3, out=17), Case(columns=True, tokens=3, out=264, k=7)
FAULTS = [
    _fault("rows-of-the-first-head", "row[n] = weight + ulong(head) * args.w_head", "row[n] = weight", ROWS),
    _fault("row-of-the-neighbour", "min(n0 + n, args.n - 1)", "min(n0 + n + 1, args.n - 1)", ROWS),
    _fault("first-lanes-part-alone", "k += simd_width * VEC)", "k += 2 * simd_width * VEC)", Case(k=520, out=16), F16),
    _fault("columns-of-the-first-head", "column = weight + ulong(head) * args.w_head", "column = weight", COLUMNS),
    _fault("a-simdgroup-left-out", "whole += parts[s][i];", "whole += s == 1 ? 0.0f : parts[s][i];", COLUMNS),
    _fault("column-beyond-the-last", "min(n0, args.n - VEC)", "min(n0, args.n - 2 * VEC)", COLUMNS),
]
