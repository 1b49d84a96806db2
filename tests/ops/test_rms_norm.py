"""rms_norm against float64, in all kinds."""

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
    kind: str = "llama"
    residual: bool = False
    scaled: bool = False
    eps: float = 1e-6
    scale: float = 1.0  # of the inputs: small ones make eps count


# Hidden sizes around every branch: one element, below and above one vector, one simdgroup, 32 of them.
CASES = [
    (Case(), F32),
    (Case(), F16),
    (Case(), BF16),
    (Case(hidden=1), F32),
    (Case(hidden=31), F32),
    (Case(hidden=32), F32),
    (Case(hidden=33), F16),
    (Case(hidden=257), BF16),
    (Case(hidden=260), F32),
    (Case(hidden=896, rows=1), F16),
    (Case(hidden=4099), F32),
    (Case(rows=1, hidden=8192), F32),
    (Case(rows=1, hidden=8196), F32),
    (Case(eps=1e-5, scale=1e-3), F32),
    (Case(residual=True), F32),
    (Case(residual=True, hidden=33), F16),
    (Case(kind="olmo"), BF16),
    (Case(kind="gemma"), F16),
    (Case(kind="gemma", residual=True), BF16),
    (Case(kind="olmo", residual=True, scaled=True), BF16),
    (Case(rows=1, hidden=4099, scaled=True), F32),
]
BENCH = [Case(rows=1, hidden=256), Case(rows=1, hidden=896), Case(rows=128, hidden=896), Case(rows=64, hidden=4096)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    x = kit.normal(g, case.rows, case.hidden, dtype=dtype, scale=case.scale)
    weight = kit.normal(g, case.hidden, dtype=dtype)
    residual = kit.normal(g, case.rows, case.hidden, dtype=dtype) if case.residual else None
    scale = kit.normal(g, 1, dtype=dtype) if case.scaled else None
    return {"x": x, "weight": weight, "eps": case.eps, "kind": case.kind, "residual": residual, "scale": scale}


run = ops.rms_norm
reference = plain.rms_norm


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    return 4 * case.rows * case.hidden, (2 * case.rows + 1) * case.hidden * dtype.itemsize


check = op_checks.rms_norm


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@pytest.mark.parametrize(
    "hidden, dtype", [(1, F32), (31, F32), (32, F16), (256, F16), (260, F32), (4099, F32)], ids=str
)
def test_exact_on_plus_minus_one(hidden: int, dtype: torch.dtype) -> None:
    """The mean of squares is exactly 1: the result is the weight with a sign."""
    g = kit.generator(hidden)
    x = torch.randint(0, 2, (4, hidden), generator=g).to(dtype) * 2 - 1
    weight = kit.normal(g, hidden, dtype=dtype)
    kit.assert_equal(ops.rms_norm(x, weight, 0.0), x * weight)


@kit.dtypes()
def test_exact_on_one_hot(dtype: torch.dtype) -> None:
    """Row j holds sqrt(n) at j and 0 elsewhere: reads every weight back."""
    n = 256
    weight = kit.normal(kit.generator(dtype), n, dtype=dtype)
    got = ops.rms_norm(torch.eye(n, dtype=dtype) * 16, weight, 0.0)
    kit.assert_equal(got, torch.diag(weight.float() * 16).to(dtype))


def test_strided_rows_and_offsets() -> None:
    given = inputs(Case(rows=6, residual=True), F32)
    expected = ops.rms_norm(**given)
    for x in (kit.spread(given["x"]), kit.shifted(given["x"]), kit.spread(kit.shifted(given["x"]), 1)):
        kit.assert_equal(ops.rms_norm(**{**given, "x": x}), expected)
    kit.assert_equal(ops.rms_norm(**{**given, "residual": kit.spread(given["residual"], 3)}), expected)
    kit.assert_equal(ops.rms_norm(**{**given, "weight": kit.shifted(given["weight"])}), expected)


def test_rows_of_transposed_heads() -> None:
    """The per-head norm of Qwen3 and Gemma3: heads of a fused projection, before and after the transpose."""
    qkv = kit.normal(kit.generator(7), 2, 5, 6 * 64, dtype=F32)
    weight = kit.normal(kit.generator(8), 64, dtype=F32)
    heads = qkv[..., : 4 * 64].view(2, 5, 4, 64)
    expected = ops.rms_norm(heads.contiguous(), weight, 1e-6)
    kit.assert_equal(ops.rms_norm(heads, weight, 1e-6), expected)
    kit.assert_equal(ops.rms_norm(heads.transpose(1, 2), weight, 1e-6), expected.transpose(1, 2).contiguous())


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(hidden=1100, residual=True), F32)
    kit.in_every_lane_order(lambda: ops.rms_norm(**given))


def test_empty() -> None:
    assert ops.rms_norm(torch.zeros(0, 8), torch.ones(8), 1e-6).shape == (0, 8)
    assert ops.rms_norm(torch.zeros(3, 0), torch.ones(0), 1e-6).shape == (3, 0)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    x, w = torch.randn(2, 3, 16), torch.randn(16)
    kit.opcheck("rms_norm", x, w, 1e-6, "gemma", torch.randn(2, 3, 16), torch.randn(1))


def test_bad_inputs() -> None:
    x, w = torch.randn(2, 16), torch.randn(16)
    with kit.refuses(r"x: expected dtype Float or Half or BFloat16, got Double"):
        ops.rms_norm(x.double(), w.double(), 1e-6)
    with kit.refuses(r"weight: expected \[hidden=16\], got \[15\]"):
        ops.rms_norm(x, w[:15], 1e-6)
    with kit.refuses(r"weight: expected dtype Float, got Half"):
        ops.rms_norm(x, w.half(), 1e-6)
    with kit.refuses(r"x: expected a contiguous last dimension"):
        ops.rms_norm(torch.randn(16, 2).t(), w, 1e-6)
    with kit.refuses(r"x: expected rows in at most three levels"):
        ops.rms_norm(torch.randn(2, 9, 2, 9, 16)[:, ::2, :, ::2].permute(3, 2, 1, 0, 4), w, 1e-6)
    on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    with kit.refuses(r"weight: expected device cpu, got meta"):
        torch.ops.torch_foundry.rms_norm.default.redispatch(on_cpu, x, w.to("meta"), 1e-6)
    with kit.refuses(r"kind: expected one of llama, olmo, gemma, got t5"):
        ops.rms_norm(x, w, 1e-6, kind="t5")
    with kit.refuses(r"eps: expected a finite number >= 0"):
        ops.rms_norm(x, w, -1.0)
    with kit.refuses(r"residual: expected the shape of x"):
        ops.rms_norm(x, w, 1e-6, residual=torch.randn(3, 16))
    with kit.refuses(r"scale: expected \[1\], got \[2\]"):
        ops.rms_norm(x, w, 1e-6, scale=torch.randn(2))
    with kit.refuses(r"x: expected at most 2\^31-1 elements"):
        ops.rms_norm(torch.zeros(1, 16).expand(2**28, 16), w, 1e-6)


REREAD = "    float more[V];\n    load(x_row + i, more);\n    for"
FAULTS = [
    Fault(
        "rms_norm-eps-outside-the-root",
        "rms_norm.metal",
        "float(args.hidden) + args.eps)",
        "float(args.hidden)) + args.eps",
        lambda: test_accuracy(Case(eps=1e-5, scale=1e-3), F32),
    ),
    Fault(
        "rms_norm-weight-of-the-next-column",
        "rms_norm.metal",
        "j < V; ++j) v[j] = Kind::template apply<T>(v[j] * inverse, w[j]);",
        "j < V; ++j) v[j] = Kind::template apply<T>(v[j] * inverse, w[(j + 1) % V]);",
        lambda: test_exact_on_one_hot(F32),
    ),
    Fault(
        "rms_norm-last-simdgroup-left-out-of-the-sum",
        "rms_norm.metal",
        "for (uint i = 0; i < simdgroups; ++i)",
        "for (uint i = 0; i + 1 < simdgroups; ++i)",
        lambda: test_exact_on_plus_minus_one(4099, F32),
        file="reduce.h",
    ),
    Fault(
        "rms_norm-what-is-not-kept-left-out",
        "rms_norm.metal",
        f"i += step) {{\n{REREAD}",
        f"i += 2 * step) {{\n{REREAD}",
        lambda: test_exact_on_plus_minus_one(4099, F32),
    ),
    Fault(
        "rms_norm-gemma-without-the-one",
        "rms_norm.metal",
        "(1.0f + w) * normed",
        "w * normed",
        lambda: test_accuracy(Case(kind="gemma"), F16),
        "norm_kinds.h",
    ),
    Fault(
        "rms_norm-residual-read-with-the-strides-of-x",
        "rms_norm.metal",
        "residual + row_offset(args.residual, row) : nullptr",
        "residual + row_offset(args.x, row) : nullptr",
        lambda: test_strided_rows_and_offsets(),
    ),
    Fault(
        "rms_norm-what-is-not-kept-not-scaled",
        "rms_norm.metal",
        "scale_by<T>(more, float(scale[0]))",
        "scale_by<T>(more, 1.0f)",
        lambda: test_accuracy(Case(rows=1, hidden=4099, scaled=True), F32),
    ),
]
