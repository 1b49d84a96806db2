"""rope, forward and backward, against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault

from torch_foundry import ops
from torch_foundry.testing import op_checks
from torch_foundry.testing import reference_backward as plain


@dataclass(frozen=True)
class Case(kit.Case):
    batch: int = 2
    heads: int = 3
    tokens: int = 5
    dim: int = 64
    rotary: int = 64
    tables: int = 2  # their batch
    wide: bool = False  # tables of float32
    interleaved: bool = False
    transposed: bool = False


CASES = [(Case(), F32), (Case(), F16), (Case(), BF16), (Case(transposed=True), F32), (Case(transposed=True), BF16)]
CASES += [(Case(interleaved=i, transposed=t, rotary=r), F32) for i in (False, True) for t in (False, True)
          for r in (2, 30, 32)]  # fmt: skip
CASES += [(Case(dim=2, rotary=2), F32), (Case(dim=34, rotary=34), F32), (Case(1, 1, 1, 128, 128, 1), F16)]
CASES += [(Case(wide=True, tables=1), BF16), (Case(wide=True, dim=80, rotary=20, interleaved=True), F16)]
BENCH = [Case(1, 16, 512, 128, 128, 1), Case(1, 16, 512, 128, 128, 1, transposed=True)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    x = kit.normal(g, case.batch, case.tokens, case.heads, case.dim, dtype=dtype).transpose(1, 2)
    table = F32 if case.wide else dtype
    cos, sin = (kit.normal(g, case.tables, case.tokens, case.rotary, dtype=table) for _ in range(2))
    return {"x": x, "cos": cos, "sin": sin, "interleaved": case.interleaved, "transposed": case.transposed}


run = ops.rope
reference = plain.rope
check = op_checks.rope


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    moved = case.batch * case.heads * case.tokens * case.dim
    return 3 * moved, 2 * moved * dtype.itemsize


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@pytest.mark.parametrize("interleaved", [False, True])
def test_whole_numbers_are_exact(interleaved: bool) -> None:
    g = kit.generator("whole")
    x = kit.integers(g, 2, 3, 5, 48, dtype=F32)
    cos, sin = (kit.integers(g, 1, 5, 32, dtype=F32) for _ in range(2))
    for transposed in (False, True):
        given = {"cos": cos, "sin": sin, "interleaved": interleaved, "transposed": transposed}
        kit.assert_equal(run(x, **given), plain.rope(x, **given))


def test_any_strides() -> None:
    given = inputs(Case(), F32)
    expected = run(**given)
    assert expected.stride() == (5 * 3 * 64, 64, 3 * 64, 1), "as projections lie"
    x = given["x"]
    for moved in (x.contiguous(), kit.spread(x.contiguous(), 2), kit.shifted(x.contiguous()),
                  x.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3)):  # fmt: skip
        kit.assert_equal(run(**{**given, "x": moved}), expected)
    for name in ("cos", "sin"):
        for moved in (kit.spread(given[name]), kit.shifted(given[name])):
            kit.assert_equal(run(**{**given, name: moved}), expected)
    one = {name: given[name][:1] for name in ("cos", "sin")}
    both = {name: t.expand(2, 5, 64) for name, t in one.items()}
    kit.assert_equal(run(**{**given, **one}), run(**{**given, **both}))


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(rotary=32, interleaved=True), F32)
    kit.in_every_lane_order(lambda: run(**given))


def test_empty() -> None:
    assert run(torch.zeros(1, 0, 2, 8), torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)).shape == (1, 0, 2, 8)


def test_bad_inputs() -> None:
    x, t = torch.randn(2, 3, 5, 8), torch.randn(2, 5, 8)
    with kit.refuses(r"x: expected 4 dimensions"):
        run(x[0], t, t)
    with kit.refuses(r"x: expected an even head_dim"):
        run(x[..., :7], t, t)
    with kit.refuses(r"cos: expected a batch of 2 or 1, got \[3, 5, 8\]"):
        run(x, torch.randn(3, 5, 8), t)
    with kit.refuses(r"cos: expected \[2, tokens=5, .*\], got \[2, 4, 8\]"):
        run(x, t[:, :4], t)
    with kit.refuses(r"sin: expected \[2, tokens=5, rotary_dim=8\], got \[2, 5, 6\]"):
        run(x, t, t[..., :6])
    with kit.refuses(r"sin: expected dtype Half, got Float"):
        run(x.half(), t.half(), t)
    with kit.refuses(r"cos: expected an even last dimension of 2 to head_dim=8, got \[2, 5, 10\]"):
        run(x, torch.randn(2, 5, 10), torch.randn(2, 5, 10))


# ------------------------------------------------------------------------------------------------------------- autograd


@pytest.mark.parametrize("case, dtype", [(Case(), F32), (Case(interleaved=True, rotary=32), BF16)], ids=str)
def test_gradients(case: Case, dtype: torch.dtype) -> None:
    """Also of tables whose halves differ, where the transposed rotation is not the one backwards."""
    given = inputs(case, dtype)
    x = given.pop("x").requires_grad_()
    wide, stock = (x.detach().to(kind).requires_grad_() for kind in (torch.float64, dtype))
    grad = kit.normal(kit.generator("grad"), *x.shape, dtype=dtype)
    run(x, **given).backward(grad)
    plain.rope(wide, **kit.double(given)).backward(grad.double())
    plain.rope(stock, **given).backward(grad)
    kit.assert_norm(x.grad, wide.grad, stock.grad)


def test_gradients_of_gradients() -> None:
    given = inputs(Case(), F32)
    x = given.pop("x").requires_grad_()
    (grad,) = torch.autograd.grad(run(x, **given).square().sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(grad.square().sum(), x)
    wide, tables = x.detach().double().requires_grad_(), kit.double(given)
    (exact,) = torch.autograd.grad(plain.rope(wide, **tables).square().sum(), wide, create_graph=True)
    (exact_twice,) = torch.autograd.grad(exact.square().sum(), wide)
    assert kit.relative_error(twice, exact_twice) < 1e-6


def test_what_has_no_gradient() -> None:
    given = inputs(Case(), F32)
    assert not run(**given).requires_grad
    y = run(**{**given, "cos": given["cos"].requires_grad_(), "x": given["x"].requires_grad_()})
    with pytest.raises(NotImplementedError, match="rope: backward is not implemented for cos and sin"):
        y.sum().backward()


@pytest.mark.cpu_only
def test_opcheck() -> None:
    t = torch.randn(1, 5, 6)
    kit.opcheck("rope", torch.randn(2, 3, 5, 8), t, t.clone(), True, True)
    kit.opcheck("rope", torch.randn(2, 3, 5, 8, requires_grad=True), t, t.clone())


# --------------------------------------------------------------------------------------------------------------- faults


def _fault(name: str, old: str, new: str, case: Case | None = None) -> Fault:
    case = case or Case(rotary=32)
    return Fault(f"rope-{name}", "rope.metal", old, new, lambda: test_accuracy(case, F32))


FAULTS = [
    _fault("sign", "q * sin_b[n] : -(q * sin_a[n])", "q * sin_b[n] : q * sin_a[n]"),
    _fault("transposed-with-the-other-sine", "args.transposed ? q * sin_b[n] : -(q * sin_a[n])",
           "args.transposed ? q * sin_a[n] : -(q * sin_a[n])", Case(transposed=True)),
    _fault("transposed-sign", "args.transposed ? -(p * sin_a[n])", "args.transposed ? p * sin_a[n]",
           Case(transposed=True)),
    _fault("pairs-of-the-whole-head", "half_dim = args.rotary_dim / 2", "half_dim = args.head_dim / 2"),
    _fault("interleaved-not-put-back", "if (!apart)", "if (false)", Case(interleaved=True)),
    _fault("tables-of-the-first-token", "token * args.sin_token", "0 * args.sin_token"),
    _fault("tables-of-the-first-row", "batch * args.cos_batch", "0 * args.cos_batch"),
    _fault("one-head-for-another", "head * args.x_head", "(args.heads - 1 - head) * args.x_head"),
]  # fmt: skip
