"""xielu against float64."""

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
    n: int = 256
    scale: float = 3.0  # of the inputs
    alpha: tuple[float, float] = (0.2, -1.1)  # the parameters, before softplus
    beta: float = 0.5
    eps: float = -1e-6


CASES = [
    (Case(), F32),
    (Case(), F16),
    (Case(), BF16),
    (Case(n=1), F32),
    (Case(n=33), F16),
    (Case(scale=1e-3), F32),
    (Case(scale=1e-6), F32),
    (Case(alpha=(30.0, -9.0), beta=-0.75), F32),
    (Case(eps=-0.25), F32),
]
BENCH = [Case(rows=1, n=14336), Case(rows=128, n=14336)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    x = kit.normal(kit.generator(case), case.rows, case.n, dtype=dtype, scale=case.scale)
    alpha_p, alpha_n = (torch.tensor([value], dtype=dtype) for value in case.alpha)
    beta, eps = (torch.tensor(value, dtype=dtype) for value in (case.beta, case.eps))
    return {"x": x, "alpha_p": alpha_p, "alpha_n": alpha_n, "beta": beta, "eps": eps}


run = ops.xielu
reference = plain.xielu


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    return 24 * case.rows * case.n, 2 * case.rows * case.n * dtype.itemsize


check = op_checks.xielu


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


def test_extremes() -> None:
    """With slopes of nearly 1 and beta 0: x^2 above, -1 - x far below; what is no number stays none."""
    x, one = torch.tensor([3e38, 1e4, 0.0, -1e4, -3e38, float("nan")]), torch.tensor(0.5413248546)
    got = ops.xielu(x, one, one, torch.tensor(0.0), torch.tensor(0.0))
    expected = torch.tensor([torch.inf, 1e8, 0.0, 9999.0, 3e38, torch.nan])
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_unaligned() -> None:
    given = inputs(Case(), F16)
    kit.assert_equal(ops.xielu(**{**given, "x": kit.shifted(given["x"])}), ops.xielu(**given))


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(n=33), F32)
    kit.in_every_lane_order(lambda: ops.xielu(**given))


def test_empty() -> None:
    given = inputs(Case(), F32)
    assert ops.xielu(**{**given, "x": torch.zeros(0, 8)}).shape == (0, 8)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    kit.opcheck("xielu", *inputs(Case(n=8), F32).values())


def test_bad_inputs() -> None:
    given = inputs(Case(n=8), F32)
    with kit.refuses(r"x: expected a contiguous tensor"):
        ops.xielu(**{**given, "x": torch.randn(8, 3).t()})
    with kit.refuses(r"alpha_n: expected dtype Float, got Half"):
        ops.xielu(**{**given, "alpha_n": given["alpha_n"].half()})
    with kit.refuses(r"eps: expected a single number, got \[2\]"):
        ops.xielu(**{**given, "eps": torch.zeros(2)})


def _fault(name: str, old: str, new: str, case: Case) -> Fault:
    return Fault(f"xielu-{name}", "xielu.metal", old, new, lambda: test_accuracy(case, F32))


FAULTS = [
    _fault("no-limit", "min(v[j], limit)", "v[j]", Case(eps=-0.25)),
    _fault("slopes-exchanged", "above * v[j] * v[j] : below *", "below * v[j] * v[j] : above *", Case()),
    _fault("beta-not-in-the-slope", "linear + softplus(float(*alpha_n))", "softplus(float(*alpha_n))", Case()),
    _fault("no-line", "fma(linear, v[j], curved)", "curved", Case()),
    _fault("differences-near-zero", "if (x < -0.5f)", "if (x < 0.0f)", Case(scale=1e-3, beta=0.0)),
    _fault("a-short-series", "int n = 9", "int n = 4", Case(eps=-0.25)),
]
