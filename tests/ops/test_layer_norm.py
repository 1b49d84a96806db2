"""layer_norm against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault

from torch_foundry import ops
from torch_foundry.testing import op_checks
from torch_foundry.testing import reference as plain


@dataclass(frozen=True)
class Case(kit.Case):
    rows: int = 3
    hidden: int = 256
    weight: bool = True
    bias: bool = True
    offset: float = 0.0
    eps: float = 1e-5
    mean: float = 0.0  # of the inputs
    scale: float = 1.0


# Hidden sizes around one element, one vector, one simdgroup, all threads of a threadgroup.
CASES = [
    (Case(), F32),
    (Case(), F16),
    (Case(), BF16),
    (Case(hidden=1), F32),
    (Case(hidden=31), F32),
    (Case(hidden=257), BF16),
    (Case(hidden=260, weight=False, bias=False), F32),
    (Case(hidden=896, rows=1, bias=False), F16),
    (Case(rows=1, hidden=8200), F32),
    (Case(rows=2, hidden=8195), F16),
    (Case(scale=1e-3), F32),
    (Case(mean=300.0), F32),
    (Case(offset=1.0), F32),
    (Case(offset=1.0, bias=False), F16),
]
BENCH = [Case(rows=1, hidden=4096), Case(rows=128, hidden=4096)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    x = (kit.normal(g, case.rows, case.hidden, dtype=F32, scale=case.scale) + case.mean).to(dtype)
    weight, bias = (kit.normal(g, case.hidden, dtype=dtype) if has else None for has in (case.weight, case.bias))
    return {"x": x, "weight": weight, "bias": bias, "eps": case.eps, "offset": case.offset}


run = ops.layer_norm
reference = plain.layer_norm


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    return 7 * case.rows * case.hidden, (2 * case.rows + 2) * case.hidden * dtype.itemsize


check = op_checks.layer_norm


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


def exact(rows: int, hidden: int, dtype: torch.dtype) -> dict[str, Any]:
    """As many 4 as 6: mean and variance are exact in any order, and the result is weight with a sign, plus bias."""
    g = kit.generator(hidden)
    signs = torch.tensor([1, -1]).repeat(hidden // 2)
    x = torch.stack([signs[torch.randperm(hidden, generator=g)] + 5 for _ in range(rows)]).to(dtype)
    weight, bias = (kit.integers(g, hidden, dtype=dtype) for _ in range(2))
    return {"x": x, "weight": weight, "bias": bias, "eps": 0.0}


@pytest.mark.parametrize("hidden, dtype", [(2, F32), (34, F16), (8200, F32)], ids=str)
def test_exact_on_plus_minus_one(hidden: int, dtype: torch.dtype) -> None:
    given = exact(2, hidden, dtype)
    kit.assert_equal(ops.layer_norm(**given), (given["x"] - 5) * given["weight"] + given["bias"])


def test_strided_rows_and_offsets() -> None:
    given = exact(6, 256, F32)
    expected = ops.layer_norm(**given)
    for x in (kit.spread(given["x"]), kit.shifted(given["x"]), kit.spread(kit.shifted(given["x"]), 1)):
        kit.assert_equal(ops.layer_norm(**{**given, "x": x}), expected)
    for name in ("weight", "bias"):
        kit.assert_equal(ops.layer_norm(**{**given, name: kit.shifted(given[name])}), expected)


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(hidden=1100), F32)
    kit.in_every_lane_order(lambda: ops.layer_norm(**given))


def test_empty() -> None:
    assert ops.layer_norm(torch.zeros(0, 8)).shape == (0, 8)
    assert ops.layer_norm(torch.zeros(3, 0)).shape == (3, 0)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    kit.opcheck("layer_norm", torch.randn(2, 3, 16), torch.randn(16), None, 1e-5, 1.0)


def test_bad_inputs() -> None:
    x, w = torch.randn(2, 16), torch.randn(16)
    with kit.refuses(r"x: expected dtype Float or Half or BFloat16, got Double"):
        ops.layer_norm(x.double())
    with kit.refuses(r"weight: expected \[hidden=16\], got \[15\]"):
        ops.layer_norm(x, w[:15])
    with kit.refuses(r"bias: expected dtype Float, got Half"):
        ops.layer_norm(x, w, w.half())
    with kit.refuses(r"x: expected a contiguous last dimension"):
        ops.layer_norm(torch.randn(16, 2).t(), w)
    with kit.refuses(r"eps: expected a finite number >= 0"):
        ops.layer_norm(x, w, eps=-1.0)
    with kit.refuses(r"offset: expected a finite number"):
        ops.layer_norm(x, w, offset=float("nan"))


def _fault(name: str, old: str, new: str, case: Case) -> Fault:
    return Fault(f"layer_norm-{name}", "layer_norm.metal", old, new, lambda: test_accuracy(case, F32))


FAULTS = [
    _fault("eps-outside-the-root", "rsqrt(variance + args.eps)", "rsqrt(variance) + args.eps", Case(scale=1e-3)),
    _fault("squares-around-zero", "fma(v[j] - mean, v[j] - mean, square)", "fma(v[j], v[j], square)", Case(mean=3.0)),
    _fault("mean-left-in", "(v[j] - mean) * inverse", "v[j] * inverse", Case(mean=3.0)),
    _fault("no-offset", "v[j] *= args.offset + w[j]", "v[j] *= w[j]", Case(offset=1.0)),
    _fault("bias-of-the-first-column", "v[j] += b[j]", "v[j] += b[0]", Case()),
    _fault(
        "weight-of-the-first-columns",
        "if (has_weight) load(weight + i, w)",
        "if (has_weight) load(weight, w)",
        Case(hidden=8200),
    ),
    _fault("rows-overlap", "y + row * args.hidden", "y + row * (args.hidden - 4)", Case(hidden=260)),
]
