"""The backward of glu against float64, and what autograd makes of the op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault

from torch_foundry import ops
from torch_foundry.testing import op_checks
from torch_foundry.testing import reference as forward
from torch_foundry.testing import reference_backward as plain

ACTIVATIONS = ["silu", "gelu_tanh", "gelu", "sigmoid", "relu", "relu2", "softplus", "clamped_swiglu"]


@dataclass(frozen=True)
class Case(kit.Case):
    rows: int = 3
    n: int = 768
    activation: str = "silu"
    gate_scale: float = 1.0


# Sizes as of glu; every activation.
CASES = [(Case(n=n), F32) for n in (1, 3, 7, 8, 9, 768)] + [(Case(n=12), F16), (Case(rows=1, n=2052), F32)]
CASES += [(Case(gate_scale=0.6), F32), (Case(gate_scale=-1.5, n=9, activation="clamped_swiglu"), BF16)]
CASES += [(Case(activation=name), F32) for name in ACTIVATIONS[1:]]
CASES += [(Case(activation=name, n=33), BF16) for name in ACTIVATIONS] + [(Case(), F16), (Case(), BF16)]
BENCH = [Case(512, 4864)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    gate = kit.normal(g, case.rows, case.n, dtype=dtype, scale=3).clamp(-8, 8)
    grad, up = (kit.normal(g, case.rows, case.n, dtype=dtype, scale=s) for s in (1.0, 3.0))
    return {"grad": grad, "gate": gate, "up": up, "activation": case.activation, "gate_scale": case.gate_scale}


run = ops.glu_backward
reference = plain.glu_backward
check = op_checks.glu_backward


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    return 12 * case.rows * case.n, 5 * case.rows * case.n * dtype.itemsize


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_extremes(activation: str) -> None:
    """Slopes are 0 and 1 far from zero, and no square overflows to NaN."""
    gate = torch.tensor([-3e38, -1e4, -200.0, 0.0, 200.0, 1e4, 3e38, float("nan")])
    of_gate, of_up = run(torch.ones(1, 8), gate[None], torch.full((1, 8), 2.0), activation)
    kit.assert_equal(of_gate[0], torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0, float("nan")]))
    kit.assert_equal(of_up[0], torch.tensor([0.0, 0.0, 0.0, 0.0, 200.0, 1e4, 3e38, float("nan")]))


def test_extremes_of_those_that_are_bounded() -> None:
    gate, ones = torch.tensor([[-3e38, -200.0, 0.0, 200.0, 3e38]]), torch.ones(1, 5)
    kit.assert_equal(run(ones, gate, ones, "sigmoid")[0][0], torch.tensor([0.0, 0.0, 0.25, 0.0, 0.0]))
    kit.assert_equal(run(ones, gate, ones, "softplus")[0][0], torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0]))


def test_the_clamped_swiglu_at_its_limits() -> None:
    """Gradients pass at a bound and not beyond it, as torch's clamp has it."""
    gate = torch.tensor([[7.0, 7.5, 1.0, 1.0, 1.0, 1.0]])
    up = torch.tensor([[1.0, 1.0, 7.0, -7.0, 7.5, -8.0]])
    got = run(torch.ones(1, 6), gate, up, "clamped_swiglu")
    for mine, exact in zip(got, plain.glu_backward(torch.ones(1, 6).double(), gate.double(), up.double(),
                                                   "clamped_swiglu"), strict=True):  # fmt: skip
        torch.testing.assert_close(mine.double(), exact, rtol=1e-6, atol=0)


def test_halves_of_one_projection() -> None:
    """gate and up as views of a fused projection, with and without alignment."""
    for n in (768, 33):
        g = kit.generator(n)
        both, grad = kit.normal(g, 2, 3, 2 * n, dtype=F32), kit.normal(g, 2, 3, n, dtype=F32)
        gate, up = both.chunk(2, -1)
        expected = run(grad, gate.contiguous(), up.contiguous())
        for moved in (grad, kit.shifted(grad), kit.spread(grad, 3)):
            for got, exact in zip(run(moved, gate, up), expected, strict=True):
                kit.assert_equal(got, exact)


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(), F32)
    for which in (0, 1):
        kit.in_every_lane_order(lambda i=which: run(**given)[i])  # type: ignore[misc]


def test_empty() -> None:
    assert [t.shape for t in run(*[torch.zeros(0, 8)] * 3)] == [(0, 8), (0, 8)]


def test_bad_inputs() -> None:
    x = torch.randn(2, 8)
    with kit.refuses(r"gate: expected dtype Float or Half or BFloat16, got Int"):
        run(x.int(), x.int(), x.int())
    with kit.refuses(r"grad: expected dtype Float, got Half"):
        run(x.half(), x, x)
    with kit.refuses(r"grad: expected the shape of gate, \[2, 8\], got \[1, 8\]"):
        run(x[:1], x, x)
    with kit.refuses(r"grad: expected a contiguous last dimension"):
        run(torch.randn(8, 2).t(), x, x)
    with kit.refuses(r"activation: expected one of silu, gelu_tanh, gelu, .*got elu"):
        run(x, x, x, "elu")


# ------------------------------------------------------------------------------------------------------------- autograd


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_glu(activation: str) -> None:
    g = kit.generator(activation)
    leaves = [kit.normal(g, 2, 3, 40, dtype=BF16, scale=2).requires_grad_() for _ in range(2)]
    wide, stock = ([t.detach().to(dtype).clone().requires_grad_() for t in leaves] for dtype in (torch.float64, BF16))
    grad = kit.normal(g, 2, 3, 40, dtype=BF16)
    ops.glu(*leaves, activation).backward(grad)
    forward.glu(*wide, activation).backward(grad.double())
    forward.glu(*stock, activation).backward(grad)
    for mine, exact, theirs in zip(leaves, wide, stock, strict=True):
        kit.assert_norm(mine.grad, exact.grad, theirs.grad)


def test_of_one_operand_and_of_a_sum() -> None:
    gate, up = torch.randn(2, 8), torch.randn(2, 8, requires_grad=True)
    ops.glu(gate, up).sum().backward()
    kit.assert_equal(up.grad, ops.glu(gate, torch.ones(2, 8)))
    assert not ops.glu(gate, gate).requires_grad


def test_saves_its_operands_alone() -> None:
    """Stock code saves what the activation gave, too."""
    saved: list[torch.Tensor] = []
    gate, up = (torch.randn(2, 8, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = ops.glu(gate, up)
    assert [t.data_ptr() for t in saved] == [gate.data_ptr(), up.data_ptr()]
    y.sum().backward()


@pytest.mark.cpu_only
def test_opcheck() -> None:
    kit.opcheck("glu_backward", *(torch.randn(2, 3, 8) for _ in range(3)), "gelu")
    kit.opcheck("glu", *(torch.randn(2, 3, 8, requires_grad=True) for _ in range(2)), "gelu_tanh")


# --------------------------------------------------------------------------------------------------------------- faults


def _fault(name: str, old: str, new: str, activation: str, file: str = "activation.h") -> Fault:
    case = Case(activation=activation)
    return Fault(f"glu-backward-{name}", "glu_backward.metal", old, new, lambda: test_accuracy(case, F32), file)


STORE_GATE = "store(gate_grad + row * args.n + i, of_gate);"
FAULTS = [
    _fault("silu", "return sigmoid(x) * (1.0f + x", "return sigmoid(x) * (1.0f - x", "silu"),
    _fault("sigmoid", "return sigmoid(x) * sigmoid(-x)", "return sigmoid(x) * sigmoid(x)", "sigmoid"),
    _fault("relu", "x > 0.0f ? 1.0f", "x < 0.0f ? 1.0f", "relu"),
    _fault("relu2", "0.0f : 2.0f * x", "0.0f : x", "relu2"),
    _fault("gelu-density", "0.3989422804f", "0.3898422804f", "gelu"),
    _fault("gelu-tanh-cubic", "1.0f + 3.0f * cubic", "1.0f + cubic", "gelu_tanh"),
    _fault("clamped-steepness", "const float z = 1.702f * gate;", "const float z = gate;", "clamped_swiglu"),
    _fault("clamped-factor", "return grad * ClampedSwiglu::factor(up) *", "return grad * up *", "clamped_swiglu"),
    _fault("up-for-gate", f"{STORE_GATE}\n      store(up_grad + row * args.n + i, of_up);",
           f"{STORE_GATE}\n      store(up_grad + row * args.n + i, of_gate);", "silu", ""),
    Fault("glu-backward-scale-of-the-gate", "glu_backward.metal", "args.gate_scale * Gate", "Gate",
          lambda: test_accuracy(Case(gate_scale=0.6), F32)),
    Fault("glu-backward-gelu-tanh-overflows", "glu_backward.metal", "x > 16.0f ? 16.0f : x < -16.0f ? -16.0f : x",
          "x", lambda: test_extremes("gelu_tanh"), "activation.h"),
    Fault("glu-backward-up-beyond-its-limit", "glu_backward.metal",
          "metal::abs(up) > ClampedSwiglu::limit ? 0.0f : grad", "grad", test_the_clamped_swiglu_at_its_limits,
          "activation.h"),
    Fault("glu-backward-gate-at-its-limit", "glu_backward.metal", "gate > limit ? 0.0f", "gate >= limit ? 0.0f",
          test_the_clamped_swiglu_at_its_limits, "activation.h"),
    Fault("glu-backward-grad-read-as-gate-lies", "glu_backward.metal", "row_offset(args.grad, row)",
          "row_offset(args.gate, row)", test_halves_of_one_projection),
]  # fmt: skip
