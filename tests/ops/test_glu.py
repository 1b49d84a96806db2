"""glu: silu, both gelus, relu², sigmoid, softplus and the clamped SwiGLU against float64."""

from __future__ import annotations

import math
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
    n: int = 768
    activation: str = "silu"
    gate_scale: float = 1.0


# Sizes around one vector, around two vectors a thread, and around one threadgroup of threads.
CASES = [
    (Case(), F32),
    (Case(), F16),
    (Case(), BF16),
    (Case(n=1), F32),
    (Case(n=3), F32),
    (Case(n=4), F32),
    (Case(n=7), F32),
    (Case(n=8), F32),
    (Case(n=9), F16),
    (Case(n=12), F16),
    (Case(rows=1, n=2052), F32),
    (Case(gate_scale=0.6), F32),
    (Case(gate_scale=-1.5, n=9, activation="clamped_swiglu"), BF16),
    (Case(activation="gelu_tanh"), F32),
    (Case(activation="gelu_tanh"), BF16),
    (Case(activation="gelu"), F32),
    (Case(activation="gelu", n=33), F16),
    (Case(activation="clamped_swiglu"), F32),
    (Case(activation="clamped_swiglu", n=33), BF16),
    (Case(activation="sigmoid"), F32),
    (Case(activation="sigmoid"), BF16),
    *((Case(activation=a), F16) for a in ("relu", "relu2")),
    (Case(activation="softplus"), F32),
    (Case(activation="softplus"), BF16),
]
BENCH = [Case(rows=1), Case(rows=1, n=4864), Case(rows=128, n=4864)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    gate = kit.normal(g, case.rows, case.n, dtype=dtype, scale=3).clamp(-8, 8)
    up, scale = kit.normal(g, case.rows, case.n, dtype=dtype), case.gate_scale
    return {"gate": gate, "up": up, "activation": case.activation, "gate_scale": scale}


run = ops.glu
reference = plain.glu


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    return 6 * case.rows * case.n, 3 * case.rows * case.n * dtype.itemsize


check = op_checks.glu


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@pytest.mark.parametrize("n, dtype", [(31, F32), (64, F16)], ids=str)
def test_exact_on_saturated_gates(n: int, dtype: torch.dtype) -> None:
    """silu(128) is 128 and silu(0) is 0: one-hot gates read every `up` back."""
    up = kit.normal(kit.generator(n), n, dtype=dtype)
    got = ops.glu(torch.eye(n, dtype=dtype) * 128, up.expand(n, n).contiguous())
    kit.assert_equal(got, torch.diag(up * 128))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu"])
def test_extremes(activation: str) -> None:
    gate = torch.tensor([-3e38, -1e4, -200.0, -0.0, 200.0, 1e4, 3e38, float("nan")])
    got = ops.glu(gate[None], torch.ones(1, 8), activation)[0]
    kit.assert_equal(got, torch.tensor([0.0, 0.0, 0.0, 0.0, 200.0, 1e4, 3e38, float("nan")]))


def test_the_clamped_swiglu_at_its_limits() -> None:
    """Bounds are exact, infinite ones too; what is no number stays none."""
    inf, nan = float("inf"), float("nan")
    gate = torch.tensor([7.0, 7.5, inf, -3e38, 1.0, 1.0, 1.0, nan, 1.0])
    up = torch.tensor([1.0, 1.0, 1.0, 1.0, inf, -inf, -9.0, 1.0, nan])
    got = ops.glu(gate[None], up[None], "clamped_swiglu")[0]
    top, one = 7 / (1 + math.exp(-1.702 * 7)), 1 / (1 + math.exp(-1.702))
    expected = torch.tensor([2 * top, 2 * top, 2 * top, 0.0, 8 * one, -6 * one, -6 * one, nan, nan])
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0, equal_nan=True)


def test_extremes_of_the_sigmoid() -> None:
    gate = torch.tensor([-3e38, -1e4, -200.0, -0.0, 200.0, 1e4, 3e38, float("nan")])
    got = ops.glu(gate[None], torch.full((1, 8), 3.0), "sigmoid")[0]
    kit.assert_equal(got, torch.tensor([0.0, 0.0, 0.0, 1.5, 3.0, 3.0, 3.0, float("nan")]))


def test_extremes_of_softplus() -> None:
    gate = torch.tensor([-3e38, -1e4, -200.0, -0.0, 200.0, 1e4, 3e38, float("nan")])
    got = ops.glu(gate[None], torch.ones(1, 8), "softplus")[0]
    kit.assert_equal(got, torch.tensor([0.0, 0.0, 0.0, math.log(2), 200.0, 1e4, 3e38, float("nan")]))


def test_halves_of_one_projection() -> None:
    """gate and up as views of a fused projection, with and without alignment."""
    for n in (768, 33):
        both = kit.normal(kit.generator(n), 2, 3, 2 * n, dtype=F32)
        gate, up = both.chunk(2, -1)
        kit.assert_equal(ops.glu(gate, up), ops.glu(gate.contiguous(), up.contiguous()))
        kit.assert_equal(ops.glu(kit.shifted(gate.contiguous()), up), ops.glu(gate, up))


def test_gates_of_heads() -> None:
    """Beside each head of queries lies its gate, as Qwen3-Next's attention has them."""
    projected = kit.normal(kit.generator("heads"), 2, 3, 4 * 2 * 32 + 8, dtype=F32)[..., : 4 * 2 * 32]
    gate, up = projected.unflatten(-1, (4, 64))[..., 32:], kit.normal(kit.generator("up"), 2, 3, 4, 32, dtype=F32)
    kit.assert_equal(ops.glu(gate, up, "sigmoid"), ops.glu(gate.contiguous(), up, "sigmoid"))


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(), F32)
    kit.in_every_lane_order(lambda: ops.glu(**given))


def test_empty() -> None:
    assert ops.glu(torch.zeros(0, 8), torch.zeros(0, 8)).shape == (0, 8)
    assert ops.glu(torch.zeros(2, 0), torch.zeros(2, 0)).shape == (2, 0)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    kit.opcheck("glu", torch.randn(2, 3, 8), torch.randn(2, 3, 8), "gelu")


def test_bad_inputs() -> None:
    x = torch.randn(2, 8)
    with kit.refuses(r"gate: expected dtype Float or Half or BFloat16, got Int"):
        ops.glu(x.int(), x.int())
    with kit.refuses(r"up: expected dtype Float, got Half"):
        ops.glu(x, x.half())
    with kit.refuses(r"up: expected the shape of gate, \[2, 8\], got \[1, 8\]"):
        ops.glu(x, x[:1])
    with kit.refuses(r"gate: expected a contiguous last dimension"):
        ops.glu(torch.randn(8, 2).t(), x)
    with kit.refuses(r"activation: expected one of silu, gelu_tanh, gelu, .*clamped_swiglu.*got elu"):
        ops.glu(x, x, "elu")
    with kit.refuses(r"gate: expected at most 2\^31-1 elements"):
        ops.glu(x[:1].expand(2**29, 8), x[:1].expand(2**29, 8))


FAULTS = [
    Fault(
        "glu-gate-not-scaled",
        "glu.metal",
        "g[j] * args.gate_scale",
        "g[j]",
        lambda: test_accuracy(Case(gate_scale=0.6), F32),
    ),
    Fault(
        "glu-up-not-clamped-below",
        "glu.metal",
        "up < -limit ? -limit : up",
        "up",
        test_the_clamped_swiglu_at_its_limits,
        file="activation.h",
    ),
    Fault(
        "glu-gate-not-clamped",
        "glu.metal",
        "const float x = gate > limit ? limit : gate;",
        "const float x = gate;",
        test_the_clamped_swiglu_at_its_limits,
        file="activation.h",
    ),
    Fault(
        "glu-steepness",
        "glu.metal",
        "-1.702f",
        "-1.72f",
        lambda: test_accuracy(Case(activation="clamped_swiglu"), F32),
        file="activation.h",
    ),
    Fault(
        "glu-second-vector-dropped-at-the-end",
        "glu.metal",
        "if (i < args.n)",
        "if (i + 1 < args.n)",
        lambda: test_exact_on_saturated_gates(31, F32),
    ),
    Fault(
        "glu-up-of-the-first-row",
        "glu.metal",
        "row_offset(args.up, row)",
        "row_offset(args.up, 0)",
        lambda: test_accuracy(Case(), F32),
    ),
    Fault(
        "glu-tanh-constant",
        "glu.metal",
        "0.044715f",
        "0.044175f",
        lambda: test_accuracy(Case(activation="gelu_tanh"), F32),
        file="activation.h",
    ),
    Fault(
        "glu-sign-of-the-sigmoid",
        "glu.metal",
        "return 1.0f / (1.0f + metal::exp(-x))",
        "return 1.0f / (1.0f + metal::exp(x))",
        lambda: test_accuracy(Case(activation="sigmoid"), F32),
        file="activation.h",
    ),
    Fault(
        "glu-softplus-of-large-numbers",
        "glu.metal",
        "metal::max(x, 0.0f) + 2.0f * s * p",
        "x + 2.0f * s * p",
        lambda: test_accuracy(Case(activation="softplus"), F32),
        file="activation.h",
    ),
]
