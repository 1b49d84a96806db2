"""The backward of rms_norm against float64, and what autograd makes of the op."""

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


@dataclass(frozen=True)
class Case(kit.Case):
    rows: int = 3
    hidden: int = 256
    kind: str = "llama"
    eps: float = 1e-6
    scale: float = 1.0  # of the inputs: small ones make eps count


# Hidden sizes as of rms_norm; rows around those of a run and of all simdgroups, for the weight's gradient.
CASES = [(Case(hidden=n), F32) for n in (1, 31, 32, 256, 260, 4099)]
CASES += [(Case(rows=1, hidden=8192), F32), (Case(rows=1, hidden=8196), F32)]
CASES += [(Case(hidden=33), F16), (Case(hidden=896), F16), (Case(hidden=257), BF16), (Case(), BF16)]
CASES += [(Case(rows, 40), F32) for rows in (1, 16, 17, 512, 513, 1100)] + [(Case(700, 64), BF16)]
CASES += [(Case(kind="olmo"), BF16), (Case(kind="gemma"), F16), (Case(kind="gemma", hidden=33), F32)]
CASES += [(Case(eps=1e-5, scale=1e-3), F32)]
BENCH = [Case(512, 896), Case(512, 4096)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    grad, x = (kit.normal(g, case.rows, case.hidden, dtype=dtype, scale=s) for s in (1.0, case.scale))
    return {"grad": grad, "x": x, "weight": kit.normal(g, case.hidden, dtype=dtype), "eps": case.eps, "kind": case.kind}


run = ops.rms_norm_backward
reference = plain.rms_norm_backward
check = op_checks.rms_norm_backward


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    return 9 * case.rows * case.hidden, (3 * case.rows + 1) * case.hidden * dtype.itemsize


def weight_inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    given = inputs(case, dtype)
    return {"grad": given["grad"], "x": given["x"], "inverse_rms": reference(**given)[1]}


def check_weight(given: dict[str, Any]) -> None:
    truth, stock = plain.rms_norm_backward_weight(**kit.double(given)), plain.rms_norm_backward_weight(**given)
    kit.assert_norm(ops.rms_norm_backward_weight(**given), truth, stock)


BENCHES = [
    kit.Bench(
        "rms_norm_backward_weight", BENCH, weight_inputs, ops.rms_norm_backward_weight, plain.rms_norm_backward_weight,
        check_weight, lambda c, dtype: (3 * c.rows * c.hidden, (2 * c.rows + 1) * c.hidden * dtype.itemsize),
    )
]  # fmt: skip


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


def test_weight_gradient_counts_every_row_once() -> None:
    """Of whole numbers, whose sums are exact: x is 1 in a column of its own, and r is 1."""
    g = kit.generator("rows")
    for rows, hidden in ((1, 5), (17, 33), (600, 64)):
        grad, x = (kit.integers(g, rows, hidden, dtype=F32) for _ in range(2))
        kit.assert_equal(ops.rms_norm_backward_weight(grad, x, torch.ones(rows)), (grad * x).sum(0))


def test_errors_do_not_grow_with_rows() -> None:
    """A sum of 2^16 tenths, one after the other, would be off by thousands of roundings."""
    ones = torch.ones(1 << 16, 1)
    got = ops.rms_norm_backward_weight(ones * 0.1, ones, ones[:, 0])
    truth = float(torch.tensor(0.1)) * (1 << 16)
    assert abs(float(got) - truth) <= 40 * kit.U32 * truth


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(rows=40, hidden=1100), F32)
    kit.in_every_lane_order(lambda: ops.rms_norm_backward(**given)[0])
    inverse = ops.rms_norm_backward(**given)[1]
    kit.in_every_lane_order(lambda: ops.rms_norm_backward_weight(given["grad"], given["x"], inverse))


def test_strided_rows_and_offsets() -> None:
    given = inputs(Case(rows=6), F32)
    expected, inverse = run(**given)
    weights = ops.rms_norm_backward_weight(given["grad"], given["x"], inverse)
    for name in ("grad", "x"):
        both = {**given, name: kit.spread(given[name])}  # aligned still: the same kernel
        kit.assert_equal(run(**both)[0], expected)
        for moved in (both[name], kit.shifted(given[name]), kit.spread(kit.shifted(given[name]), 1)):
            both = {**given, name: moved}
            check(both)
            kit.assert_equal(ops.rms_norm_backward_weight(both["grad"], both["x"], inverse), weights)
    check({**given, "weight": kit.shifted(given["weight"])})
    heads = {name: given[name].view(2, 3, 256).transpose(0, 1) for name in ("grad", "x")}
    got, of_heads = run(**{**given, **heads})
    kit.assert_equal(got, expected.view(2, 3, 256).transpose(0, 1).contiguous())
    kit.assert_equal(of_heads, inverse.view(2, 3).t().contiguous())


def test_empty() -> None:
    x = torch.zeros(0, 8)
    got, inverse = ops.rms_norm_backward(x, x, torch.ones(8), 1e-6)
    assert got.shape == (0, 8) and inverse.shape == (0,)
    assert torch.equal(ops.rms_norm_backward_weight(x, x, inverse), torch.zeros(8))


def test_bad_inputs() -> None:
    x, w = torch.randn(2, 16), torch.randn(16)
    with kit.refuses(r"grad: expected dtype Float, got Half"):
        ops.rms_norm_backward(x.half(), x, w, 1e-6)
    with kit.refuses(r"grad: expected the shape of x, \[2, 16\], got \[1, 16\]"):
        ops.rms_norm_backward(x[:1], x, w, 1e-6)
    with kit.refuses(r"grad: expected a contiguous last dimension"):
        ops.rms_norm_backward(torch.randn(16, 2).t(), x, w, 1e-6)
    with kit.refuses(r"weight: expected \[hidden=16\], got \[15\]"):
        ops.rms_norm_backward(x, x, w[:15], 1e-6)
    with kit.refuses(r"kind: expected one of llama, olmo, gemma, got t5"):
        ops.rms_norm_backward(x, x, w, 1e-6, kind="t5")
    with kit.refuses(r"inverse_rms: expected a number for each row of x, \[2, 16\], got \[3\]"):
        ops.rms_norm_backward_weight(x, x, torch.ones(3))
    with kit.refuses(r"inverse_rms: expected dtype Float, got Half"):
        ops.rms_norm_backward_weight(x, x, torch.ones(2).half())


# ------------------------------------------------------------------------------------------------------------- autograd


@pytest.mark.parametrize("kind, dtype", [("llama", F32), ("olmo", F16), ("gemma", BF16)], ids=str)
def test_gradients_of_rms_norm(kind: str, dtype: torch.dtype) -> None:
    """Of x, weight and residual, as autograd has them of stock code in float64."""
    g = kit.generator(kind)
    shapes = {"x": (2, 5, 96), "weight": (96,), "residual": (2, 5, 96)}
    leaves = {name: kit.normal(g, *shape, dtype=dtype).requires_grad_() for name, shape in shapes.items()}
    wide = {name: value.detach().double().requires_grad_() for name, value in leaves.items()}
    stock = {name: value.detach().clone().requires_grad_() for name, value in leaves.items()}
    grad = kit.normal(g, 2, 5, 96, dtype=dtype)
    ops.rms_norm(**leaves, eps=1e-6, kind=kind).backward(grad)
    forward.rms_norm(**wide, eps=1e-6, kind=kind).backward(grad.double())
    forward.rms_norm(**stock, eps=1e-6, kind=kind).backward(grad)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        kit.assert_norm(leaf.grad, wide[name].grad, stock[name].grad)


def test_gradients_of_a_sum_and_of_one_input_alone() -> None:
    x, weight = torch.randn(4, 3, 16).transpose(0, 1).requires_grad_(), torch.randn(16)
    ops.rms_norm(x, weight, 1e-6).sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    fixed, learned = x.detach(), weight.clone().requires_grad_()
    ops.rms_norm(fixed, learned, 1e-6).sum().backward()
    kit.assert_norm(learned.grad, *(forward.rms_norm(t, torch.ones(16).to(t.dtype), 1e-6).flatten(0, 1).sum(0)
                                    for t in (fixed.double(), fixed)))  # fmt: skip
    assert not ops.rms_norm(fixed, weight, 1e-6).requires_grad


def test_saves_nothing_besides_its_inputs() -> None:
    """Stock code saves several tensors of x's size, some of them in float32."""
    saved: list[torch.Tensor] = []
    x, weight = torch.randn(4, 16, dtype=BF16).requires_grad_(), torch.ones(16, dtype=BF16)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = ops.rms_norm(x, weight, 1e-6)
    assert {t.data_ptr() for t in saved} == {x.data_ptr(), weight.data_ptr()}
    y.sum().backward()


def test_no_backward() -> None:
    x = torch.randn(2, 16, requires_grad=True)
    with pytest.raises(NotImplementedError, match="rms_norm: backward is not implemented for a scale"):
        ops.rms_norm(x, torch.ones(16), 1e-6, scale=torch.ones(1)).sum().backward()
    (grad,) = torch.autograd.grad(ops.rms_norm(x, torch.ones(16), 1e-6).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        grad.sum().backward()


@pytest.mark.cpu_only
def test_opcheck() -> None:
    x, w = torch.randn(2, 3, 16), torch.randn(16)
    kit.opcheck("rms_norm_backward", torch.randn(2, 3, 16), x, w, 1e-6, "gemma")
    kit.opcheck("rms_norm_backward_weight", torch.randn(2, 3, 16), x, torch.rand(2, 3))
    residual = torch.randn(2, 3, 16, requires_grad=True)
    kit.opcheck("rms_norm", x.requires_grad_(), w.requires_grad_(), 1e-6, "llama", residual)


# --------------------------------------------------------------------------------------------------------------- faults


def _fault(name: str, old: str, new: str, case: Case | None = None, file: str = "") -> Fault:
    case = case or Case()
    return Fault(
        f"rms-norm-backward-{name}", "rms_norm_backward.metal", old, new, lambda: test_accuracy(case, F32), file
    )


TOTAL = "for (uint s = 0; s < rms_norm_weight_simdgroups; ++s)"
FAULTS = [
    _fault("eps-outside-the-root", "float(args.hidden) + args.eps)", "float(args.hidden)) + args.eps",
           Case(eps=1e-5, scale=1e-3)),
    _fault("mean-without-r", "products / float(args.hidden) * r", "products / float(args.hidden)"),
    _fault("sums-swapped", "threadgroup_sum(sums.y,", "threadgroup_sum(sums.x,"),
    _fault("gemma-without-the-one", "static float factor(float w) { return 1.0f + w; }",
           "static float factor(float w) { return w; }", Case(kind="gemma"), "norm_kinds.h"),
    _fault("rows-of-x-for-grad", "grad + row_offset(args.grad, row);", "grad + row_offset(args.grad, 0);"),
    _fault("what-is-not-kept-twice-as-far", "i += step) {\n    float more[VEC], more_g[VEC];\n"
           "    read_both<Kind>(x_row + i, grad_row + i, weight + i, more, more_g);\n    add_up",
           "i += 2 * step) {\n    float more[VEC], more_g[VEC];\n"
           "    read_both<Kind>(x_row + i, grad_row + i, weight + i, more, more_g);\n    add_up", Case(hidden=4099)),
    _fault("weight-last-run-dropped", "sum + run;", "sum;", Case(17, 40)),
    _fault("weight-rows-of-the-first-simdgroup", TOTAL, TOTAL.replace("s < rms", "s + 1 < rms"), Case(16, 40)),
    Fault("rms-norm-backward-weight-one-long-sum", "rms_norm_backward.metal", "++n % rms_norm_weight_run == 0",
          "++n == 0", test_errors_do_not_grow_with_rows),
    Fault("rms-norm-backward-weight-edge", "rms_norm_backward.metal", "simdgroup == 0 && column < args.hidden",
          "simdgroup == 0 && column + 1 < args.hidden", test_weight_gradient_counts_every_row_once),
]  # fmt: skip
