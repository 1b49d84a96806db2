"""permute_columns: elements of rows in another order, and the weight of a norm beside them."""

from __future__ import annotations

from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault, within

from torch_foundry import ops
from torch_foundry.testing import reference as plain


def given(rows: int, n: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    g = kit.generator("permute_columns", rows, n)
    order = torch.randperm(n, generator=g).int()
    return {
        "x": kit.normal(g, rows, n, dtype=dtype),
        "order": order,
        "norm_weight": kit.normal(g, n, dtype=dtype),
    }


BENCHES = [
    kit.Bench(
        "permute_columns",
        [1, 128],
        lambda rows, dtype: given(rows, 4096, dtype),
        ops.permute_columns_and_norm,
        plain.permute_columns_and_norm,
        lambda inputs: check(inputs),
        lambda rows, dtype: (0, 4096 * (4 + 2 * (rows + 1) * dtype.itemsize)),
    )
]


def check(inputs: dict[str, Any]) -> None:
    got = ops.permute_columns_and_norm(**inputs)
    expected = plain.permute_columns_and_norm(**inputs)
    kit.assert_equal(got[0], expected[0])
    kit.assert_equal(got[1], expected[1])
    kit.assert_equal(ops.permute_columns(inputs["x"], inputs["order"]), expected[0])


# Sizes around what a thread has, and around a threadgroup of threads.
@pytest.mark.parametrize("rows, n", [(1, 1), (3, 7), (1, 8), (2, 9), (5, 768), (1, 2056), (300, 33)])
@kit.dtypes(F32, F16, BF16)
def test_exact(rows: int, n: int, dtype: torch.dtype) -> None:
    with kit.poisoned_outputs():
        check(given(rows, n, dtype))


def test_shapes_and_alignment() -> None:
    inputs = given(6, 96, F16)
    x = kit.shifted(inputs["x"]).view(2, 3, 96)
    got = ops.permute_columns(x, inputs["order"])
    kit.assert_equal(got, plain.permute_columns(x, inputs["order"]))
    empty = ops.permute_columns(x[:0], inputs["order"])
    assert empty.shape == (0, 3, 96)
    check(given(0, 96, F16))  # the gains alone
    check(given(3, 0, F16))


def test_a_wrong_number_reads_nothing_else() -> None:
    buffer = torch.full((3, 8), float("nan"))
    buffer[1] = torch.arange(8.0)
    got = ops.permute_columns(buffer[1], torch.tensor([0, -1, 8, 100, 7, 1, -(2**31), 2**31 - 1], dtype=torch.int32))
    kit.assert_equal(got, torch.tensor([0.0, 7, 7, 7, 7, 1, 7, 7]))


@pytest.mark.cpu_only
def test_opcheck() -> None:
    inputs = given(3, 16, F32)
    kit.opcheck("permute_columns", inputs["x"], inputs["order"])
    kit.opcheck("permute_columns", inputs["x"], inputs["order"], inputs["norm_weight"])


def test_bad_inputs() -> None:
    x, order = torch.randn(2, 8), torch.arange(8, dtype=torch.int32)
    with kit.refuses(r"x: expected dtype Float or Half or BFloat16, got Int"):
        ops.permute_columns(x.int(), order)
    with kit.refuses(r"order: expected dtype Int, got Long"):
        ops.permute_columns(x, order.long())
    with kit.refuses(r"order: expected \[features=8\], got \[7\]"):
        ops.permute_columns(x, order[:7])
    with kit.refuses(r"norm_weight: expected dtype Float, got Half"):
        ops.permute_columns_and_norm(x, order, torch.ones(8).half())
    with kit.refuses(r"x: expected a contiguous tensor"):
        ops.permute_columns(x.t(), torch.arange(2, dtype=torch.int32))


def _fault(name: str, old: str, new: str) -> Fault:
    return Fault(name, "permute_columns.metal", old, new, lambda: check(given(3, 41, F32)))


FAULTS = [
    _fault(
        "permute_columns-row",
        *within("device const T* from = row < args.rows ? x + ulong(row) * args.n", " + ulong(row) * args.n", ""),
    ),
    _fault("permute_columns-norm_weight", *within("device const T* from = row < args.rows ?", "<", "<=")),
    _fault("permute_columns-order", "order[i])", "i)"),
    _fault("permute_columns-end", "first + permute_per_thread, args.n", "first + permute_per_thread - 1, args.n"),
]
