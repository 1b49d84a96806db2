"""Experts for the many tokens of a prompt against float64: tokens sorted by expert, products in tiles, sums."""

from __future__ import annotations

import kit
import pytest
import torch
from kit import BF16, F16, F32
from moe_cases import Case, check_many, down_inputs, experts_of

from torch_foundry import ops


@pytest.mark.parametrize(
    "tokens, experts, k",
    [(1, 1, 1), (1, 6, 2), (100, 3, 2), (64, 1, 1), (9, 100, 8), (70, 33, 4), (900, 7, 4), (300, 1024, 6)],
)
def test_group(tokens: int, experts: int, k: int) -> None:
    ids = experts_of(Case(tokens=tokens, experts=experts, k=k), kit.generator(tokens, experts))
    order, tiles = ops.moe_group(ids, experts)
    kit.assert_equal(order.long(), torch.sort(ids.flatten(), stable=True).indices)
    counts = torch.bincount(ids.flatten(), minlength=experts).tolist()
    expected, first = [], 0
    for expert, count in enumerate(counts):
        expected += [[expert, first + s, min(32, count - s)] for s in range(0, count, 32)]
        first += count
    assert tiles.tolist() == expected + [[0, 0, 0]] * (len(tiles) - len(expected))


@kit.cases(
    (Case(tokens=70, inner=65), F32),
    (Case(tokens=50, hidden=100, inner=9, k=3, scale=0.5), F16),
    (Case(tokens=40, experts=2, hidden=288, format="q8_0", normed=False), BF16),
    (Case(tokens=33, experts=1, k=1, format="q4_0"), F32),
    (Case(tokens=20, hidden=512, inner=70, format="q6_k"), F16),
    (Case(tokens=40, hidden=64, inner=70, k=3, format="mxfp4", biased=True), F32),
)
def test_many(case: Case, dtype: torch.dtype) -> None:
    given = down_inputs(case, dtype)
    check_many(given)
    x = given["x"][:, 0].contiguous()  # a row for each token
    order, tiles = ops.moe_group(given["ids"], case.experts)
    rows = x[:, None].expand(-1, case.k, -1).reshape(-1, case.hidden)
    args = (order, tiles, given["weight"])
    kit.assert_equal(
        ops.moe_linear(x, *args, format=case.format), ops.moe_linear(rows.contiguous(), *args, format=case.format)
    )
    if dtype == F32:  # nothing is rounded between
        plain, activated = (ops.moe_linear(x, *args, format=case.format, activation=a) for a in (None, "relu2"))
        kit.assert_equal(activated, plain.relu().square())
