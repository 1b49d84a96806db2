"""The choice of experts against float64, from logits and by the router's matrix."""

from __future__ import annotations

import kit
import pytest
import torch
from kit import BF16, F16, F32
from moe_cases import check_route, route_inputs
from torch import Tensor

from torch_foundry import ops
from torch_foundry.testing import reference_moe as plain


def assert_choice(got: tuple[Tensor, Tensor], truth: tuple[Tensor, Tensor]) -> None:
    kit.assert_equal(got[0], truth[0])
    kit.assert_bound(got[1], truth[1].double(), 1e-5 * truth[1].double() + 1e-9)


@kit.dtypes()
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("experts, k", [(1, 1), (8, 2), (31, 31), (33, 3), (128, 8), (1024, 32)])
def test_choice(experts: int, k: int, normalize: bool, dtype: torch.dtype) -> None:
    g = kit.generator(experts, k)
    logits = kit.normal(g, 5, experts, dtype=dtype, scale=4.0)  # many are equal in bfloat16
    shared = kit.normal(g, 5, 1, dtype=dtype) if k % 2 == 0 else None
    wide = None if shared is None else shared.double()
    truth = plain.moe_choose(logits.double(), k, normalize=normalize, shared=wide)
    assert_choice(ops.moe_choose(logits, k, normalize=normalize, shared=shared), truth)


def test_choice_among_equals_and_extremes() -> None:
    inf, nan = float("inf"), float("nan")
    rows = [
        [-0.0, 0.0, 0.0, 1.0, 1.0, 0.0],  # the lowest numbers first; -0 is 0
        [-inf, -inf, -inf, -inf, 2.0, -inf],
        [3e38, -3e38, 3e38, 1.0, 0.0, -1.0],
        [nan, 1.0, 2.0, nan, 0.0, -1.0],
    ]
    ids, weights = ops.moe_choose(torch.tensor(rows), 3)
    assert ids.tolist() == [[3, 4, 0], [4, 0, 1], [0, 2, 3], [0, 3, 2]]
    assert weights[1].tolist() == [1, 0, 0] and weights[2].tolist() == [0.5, 0.5, 0]
    assert weights[3].isnan().all()  # as stock
    torch.testing.assert_close(weights[0], torch.tensor([1.0, 1.0, 1 / torch.e]) / (2 + 1 / torch.e))


@pytest.mark.parametrize(
    "tokens, experts, hidden, k, dtype, shared",
    [
        (1, 8, 256, 2, F32, False),
        (3, 60, 264, 4, F16, True),
        (2, 128, 96, 8, BF16, False),
        (16, 5, 257, 1, F32, True),
        (1, 1000, 64, 8, F16, False),
    ],
)
def test_route(tokens: int, experts: int, hidden: int, k: int, dtype: torch.dtype, shared: bool) -> None:
    check_route(route_inputs(tokens, experts, hidden, dtype, shared), k, normalize=k % 4 != 0)


def test_route_with_a_bias() -> None:
    check_route(route_inputs(3, 40, 96, F32, True, biased=True), 4)
    check_route(route_inputs(2, 33, 264, BF16, False, biased=True), 3)


def test_route_by_the_gemma_norm() -> None:
    check_route(route_inputs(2, 9, 96, F32, False, "gemma"), 3)
