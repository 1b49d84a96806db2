"""The backward of linear against float64: x's gradient for every weight format, and what autograd makes of the op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault

from torch_foundry import ops, quant
from torch_foundry.testing import op_checks
from torch_foundry.testing import reference as plain
from torch_foundry.testing import weights as blocks

PACKED = [*kit.CODES, "q4_k"]
OTHERS = [name for name in blocks.samples() if name not in PACKED]


@dataclass(frozen=True)
class Case(kit.Case):
    m: int = 33
    n: int = 40
    k: int = 256
    format: str | None = None  # None: dense, of the dtype of the gradient


# m and k around a tile (32 x 64), n around a chunk (8), a slab (32) and a run of slabs (128).
CASES = [(Case(m, n, k), F32) for m, n, k in ((1, 1, 1), (31, 31, 63), (32, 32, 64), (33, 33, 65), (65, 136, 72))]
CASES += [(Case(m, 40, 72), F16) for m in (1, 33)] + [(Case(33, 41, 65), BF16), (Case(20, 4096, 40), F32)]
CASES += [(Case(format="f16", n=264), F32), (Case(format="bf16", k=72), F16)]
for _name in PACKED:
    _block = quant.FORMATS[_name].block_size
    CASES += [(Case(m, n, 3 * _block, _name), F32) for m, n in ((1, 9), (33, 65), (64, 160))]
    CASES += [(Case(33, 72, 3 * _block, _name), dtype) for dtype in (F16, BF16)]

BENCH = [Case(m, 4864, 1024, name) for m, name in ((512, None), (512, "q8_0"), (16, "q4_k"))]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    dense = kit.normal(g, case.n, case.k, dtype=F32, scale=case.n**-0.5)
    weight = dense.to(dtype) if case.format is None else blocks.packed(dense, case.format)
    return {"grad": kit.normal(g, case.m, case.n, dtype=dtype), "weight": weight, "format": case.format}


run = ops.linear_backward_input
reference = plain.linear_backward_input
check = op_checks.linear_backward_input


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    matrix = case.n * kit.row_bytes(case.format, case.k, dtype)
    return 2 * case.m * case.n * case.k, matrix + case.m * (case.k + case.n) * dtype.itemsize


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    with kit.poisoned_outputs():
        check(inputs(case, dtype))


@pytest.mark.tier("nightly", quick=5)  # formats differ in their unpacking alone, which tests of linear have
@pytest.mark.parametrize("format", [None, *PACKED, *OTHERS])
def test_one_hot_reads_every_weight_back(format: str | None) -> None:
    k = 2 * quant.FORMATS[format].block_size if format else 72
    given = inputs(Case(1, 40, k, format), F32)
    kit.assert_equal(run(torch.eye(40), given["weight"], format=format), op_checks.dense_of(given).float())


@pytest.mark.cpu_only
@pytest.mark.parametrize("format", [None, "q8_0"])
def test_lane_orders(format: str | None) -> None:
    given = inputs(Case(33, 72, 96, format), F32)
    kit.in_every_lane_order(lambda: run(**given))


@pytest.mark.parametrize("format", [None, "q4_0"])
def test_rows_are_alone_and_may_lie_anywhere(format: str | None) -> None:
    """A row's bits don't depend on the others, nor on addresses."""
    given = inputs(Case(35, 72, 96, format), F32)
    expected = run(**given)
    kit.assert_equal(run(**{**given, "grad": given["grad"][33:34]}), expected[33:34])
    for moved in (kit.shifted(given["grad"]), kit.spread(given["grad"]), kit.spread(kit.shifted(given["grad"]), 1)):
        kit.assert_equal(run(**{**given, "grad": moved}), expected)
    step = quant.FORMATS[format].block_bytes if format else 1
    for moved in (kit.shifted(given["weight"], min(step, 2)), kit.spread(given["weight"], step)):
        kit.assert_equal(run(**{**given, "weight": moved}), expected)
    kit.assert_equal(run(**{**given, "grad": given["grad"].view(5, 7, 72)}), expected.view(5, 7, 96))


def test_rows_behind_the_last_are_not_read_again() -> None:
    """A slab's rows that W doesn't have are zeros: zero times an infinite weight would be NaN."""
    assert torch.equal(run(torch.ones(2, 33), torch.full((33, 8), torch.inf)), torch.full((2, 8), torch.inf))


def test_empty() -> None:
    assert run(torch.zeros(0, 4), torch.zeros(4, 8)).shape == (0, 8)
    assert torch.equal(run(torch.zeros(2, 3, 0), torch.zeros(0, 8)), torch.zeros(2, 3, 8))


def test_bad_inputs() -> None:
    grad, weight = torch.randn(2, 4), torch.randn(4, 64)
    packed = quant.quantize(weight, "q8_0")
    with kit.refuses(r"grad: expected \[..., out_features=4\], got \[2, 3\]"):
        run(grad[:, :3], weight)
    with kit.refuses(r"grad: expected dtype Float or Half or BFloat16, got Double"):
        run(grad.double(), weight)
    with kit.refuses(r"grad: expected a contiguous last dimension"):
        run(torch.randn(4, 2).t(), weight)
    with kit.refuses(r"weight: expected rows of whole q8_0 blocks of 34 bytes, got 67 bytes"):
        run(grad, packed[:, :67], format="q8_0")
    with kit.refuses(r"weight: expected at least one input feature"):
        run(grad, torch.zeros(4, 0))
    with kit.refuses(r"output: expected at most 2\^31-1 elements"):
        run(torch.zeros(1, 4).expand(2**26, 4), weight)


# ------------------------------------------------------------------------------------------------------------- autograd


@pytest.mark.parametrize("format, dtype", [(None, F32), ("q8_0", F32), ("q4_k", BF16)], ids=str)
def test_gradients_of_linear(format: str | None, dtype: torch.dtype) -> None:
    """Of x, bias, residual and a dense weight, as autograd has them of stock code in float64."""
    g = kit.generator(format, dtype)
    given = inputs(Case(6, 40, 256, format), dtype)
    grad, weight = given["grad"].view(2, 3, 40), given["weight"]
    others = {"bias": kit.normal(g, 40, dtype=dtype), "residual": kit.normal(g, 2, 3, 40, dtype=dtype)}
    leaves = {"x": kit.normal(g, 2, 3, 256, dtype=dtype), **others}
    if format is None:
        leaves["weight"] = weight
    leaves = {name: value.requires_grad_() for name, value in leaves.items()}
    wide = {name: value.detach().double().requires_grad_() for name, value in leaves.items()}
    ops.linear(**{"weight": weight, **leaves}, format=format, scale=0.5).backward(grad)
    plain.linear(**{"weight": op_checks.dense_of(given), **wide}, scale=0.5).backward(grad.double())
    for name, leaf in leaves.items():
        found, truth = leaf.grad, wide[name].grad
        assert found is not None and truth is not None and found.dtype == dtype
        assert float((found.double() - truth).norm()) <= 4 * kit.UNIT[dtype] * float(truth.norm()), name


def test_what_linear_needs_no_gradient_for() -> None:
    x, weight, bias = torch.randn(2, 16), torch.ones(4, 16), torch.ones(4, requires_grad=True)
    ops.linear(x, weight, bias=bias).sum().backward()
    assert torch.equal(bias.grad, torch.full((4,), 2.0)) and x.grad is None and weight.grad is None
    assert not ops.linear(x, weight).requires_grad
    with torch.no_grad():
        assert not ops.linear(x, weight, bias=bias).requires_grad


def test_no_backward() -> None:
    y = ops.linear(torch.randn(2, 16, requires_grad=True), torch.ones(4, 16), activation="silu")
    with pytest.raises(NotImplementedError, match="linear: backward is not implemented for an activation, got silu"):
        y.sum().backward()
    x = torch.randn(2, 16, requires_grad=True)
    (grad,) = torch.autograd.grad(ops.linear(x, torch.ones(4, 16)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        grad.sum().backward()


@pytest.mark.cpu_only
def test_opcheck() -> None:
    given = inputs(Case(6, 9, 64), F32)
    packed = quant.quantize(given["weight"], "q8_0")
    kit.opcheck("linear_backward_input", given["grad"], given["weight"])
    kit.opcheck("linear_backward_input", given["grad"], packed, "q8_0")
    x, residual = torch.randn(6, 64, requires_grad=True), torch.randn(6, 9, requires_grad=True)
    kit.opcheck("linear", x, packed, "q8_0", torch.randn(9, requires_grad=True), residual, 0.5)
    kit.opcheck("linear", x, given["weight"].requires_grad_())


# --------------------------------------------------------------------------------------------------------------- faults


def _fault(name: str, old: str, new: str, case: Case | None = None) -> Fault:
    case = case or Case(33, 65, 96, "q8_0")
    return Fault(f"linear-backward-{name}", "linear_backward.metal", old, new, lambda: test_accuracy(case, F32))


INSIDE = "n0 + i < args.n;"
END_OF_SLAB = "run[i][j]);\n    }\n    threadgroup_barrier(mem_flags::mem_threadgroup);"
LOAD_W = "simdgroup_load(b[j], w_slab + n * w_width + sk + j * 8"
FAULTS = [
    Fault("linear-backward-rows-behind-the-last", "linear_backward.metal", "inside ? k0 + w_column : args.k",
          "k0 + w_column", test_rows_behind_the_last_are_not_read_again),
    _fault("last-row-dropped", INSIDE, "n0 + i + 1 < args.n;"),
    _fault("stale-rows-of-w", "inside ? n0 + i : 0", "inside ? (n0 & ~63u) + i : 0"),
    _fault("quarters-mixed-up", "sk = simdgroup % 2", "sk = simdgroup / 2"),
    _fault("w-transposed", f"{LOAD_W}, w_width);", f"{LOAD_W}, w_width, ulong2(0, 0), true);"),
    _fault("last-run-dropped", "add_runs(sum, run);\n  }\n  add_runs(sum, run);", "add_runs(sum, run);\n  }"),
    _fault("edge-of-k", "m < args.rows && k < args.k", "m < args.rows && k + 1 < args.k", Case(33, 33, 65)),
    Fault(
        "linear-backward-barrier-missing-after-a-slab",
        "linear_backward.metal",
        END_OF_SLAB,
        END_OF_SLAB.split("\n    threadgroup")[0],
        lambda: test_lane_orders(None),
    ),
]  # fmt: skip
