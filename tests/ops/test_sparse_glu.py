"""sparse_glu against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault

from torch_foundry import ops
from torch_foundry.testing import reference as plain


@dataclass(frozen=True)
class Case(kit.Case):
    rows: int = 3
    n: int = 768
    deviations: float = 1.6448536
    activation: str = "gelu_tanh"
    mean: float = 0.0


CASES = [
    (Case(), F32),
    (Case(), F16),
    (Case(n=8300), BF16),
    (Case(n=33, activation="silu"), F32),
    (Case(deviations=-0.5, mean=3.0), F32),
    (Case(rows=1, n=1, deviations=0.0), F32),
    (Case(activation="relu2", deviations=0.3), F32),
]
BENCH = [Case(rows=rows, n=16384) for rows in (1, 32)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    gate = kit.normal(g, case.rows, case.n, dtype=dtype, scale=2) + case.mean
    up = kit.normal(g, case.rows, case.n, dtype=dtype)
    return {"gate": gate, "up": up, "deviations": case.deviations, "activation": case.activation}


run = ops.sparse_glu
reference = plain.sparse_glu


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    return 12 * case.rows * case.n, 3 * case.rows * case.n * dtype.itemsize


def check(given: dict[str, Any]) -> None:
    with kit.poisoned_outputs():
        got = run(**given)
    kit.assert_norm(got, reference(**kit.double(given)), reference(**given))


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


def test_most_gates_are_cut_off() -> None:
    given = inputs(Case(n=4096), F32)
    open_gates = (run(**given) != 0).float().mean()
    assert 0.03 < open_gates < 0.07


def test_halves_of_one_projection() -> None:
    both = kit.normal(kit.generator("halves"), 2, 3, 2 * 96, dtype=F32)
    gate, up = both.chunk(2, -1)
    kit.assert_equal(run(gate, up, 1.0), run(gate.contiguous(), up.contiguous(), 1.0))


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(), F32)
    kit.in_every_lane_order(lambda: run(**given))


def test_empty() -> None:
    assert run(torch.zeros(0, 8), torch.zeros(0, 8), 1.0).shape == (0, 8)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    kit.opcheck("sparse_glu", torch.randn(2, 3, 8), torch.randn(2, 3, 8), 1.0, "silu")


def test_bad_inputs() -> None:
    x = torch.randn(2, 8)
    with kit.refuses(r"up: expected the shape of gate, \[2, 8\], got \[1, 8\]"):
        run(x, x[:1], 1.0)
    with kit.refuses(r"deviations: expected a finite number"):
        run(x, x, float("inf"))
    with kit.refuses(r"activation: expected one of a single number, got clamped_swiglu"):
        run(x, x, 1.0, "clamped_swiglu")


def _fault(name: str, old: str, new: str, case: Case = Case(deviations=-0.5, mean=3.0)) -> Fault:
    return Fault(f"sparse_glu-{name}", "sparse_glu.metal", old, new, lambda: test_accuracy(case, F32))


FAULTS = [
    _fault("mean-left-out", "fma(sqrt(variance), args.deviations, mean)", "sqrt(variance) * args.deviations"),
    _fault("variance-for-its-root", "sqrt(variance)", "variance"),
    _fault("nothing-cut-off", "beyond < 0.0f ? 0.0f : beyond", "beyond"),
    _fault(
        "cut-off-but-not-lowered",
        "beyond = float(gate_row[i]) - cutoff",
        "beyond = float(gate_row[i]) < cutoff ? -1.0f : float(gate_row[i])",
    ),
    _fault("up-of-the-first-row", "row_offset(args.up, row)", "row_offset(args.up, 0)"),
]
