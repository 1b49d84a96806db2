"""The choice of experts against float64, from logits and by the router's matrix."""

from __future__ import annotations

from typing import Any

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
    if shared is None:
        truth = plain.moe_choose(logits.double(), k, normalize=normalize, shared_weight=0.7)
        assert_choice(ops.moe_choose(logits, k, normalize=normalize, shared_weight=0.7), truth)
    else:  # one token's, which may lie at any stride
        one = ops.moe_choose(logits[:1], k, normalize=normalize, shared=shared[0, 0].expand(1, 1))
        kit.assert_equal(one[1], ops.moe_choose(logits[:1], k, normalize=normalize, shared=shared[:1])[1])


RULES: list[dict[str, Any]] = [
    {"score": "sigmoid"},
    {"score": "sigmoid", "corrected": BF16, "scale": 2.5, "least_sum": 0.5},
    {"score": "sigmoid", "corrected": F32, "correct_logits": True},
    {"score": "softmax", "corrected": F32},
    {"score": "sigmoid", "corrected": F32, "groups": 4, "top_groups": 2, "scale": -0.5},
    {"score": "sigmoid", "groups": 32, "top_groups": 31},
    {"score": "softmax", "corrected": F16, "groups": 8, "top_groups": 1},
    {"score": "softmax", "groups": 8, "top_groups": 3, "group_best": 1, "scale": 16.0},
    {"score": "in_turn", "near": 0.1},
    {"score": "in_turn", "near": 1.5, "scale": 2.0},
]


def with_correction(rule: dict[str, Any], experts: int) -> dict[str, Any]:
    """Corrections as large as the scores differ: they change which experts are chosen."""
    given = {name: value for name, value in rule.items() if name != "corrected"}
    if dtype := rule.get("corrected"):
        given["correction"] = kit.normal(kit.generator(experts, "corrections"), experts, dtype=dtype)
    return given


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules(rule: dict[str, Any], normalize: bool) -> None:
    for experts, k, dtype in ((64, 7, F32), (256, 8, F16), (96, 1, BF16)):
        logits = kit.normal(kit.generator(experts, k), 5, experts, dtype=dtype, scale=2.0)
        given = {**with_correction(rule, experts), "normalize": normalize}
        wide = {name: value.double() if isinstance(value, Tensor) else value for name, value in given.items()}
        truth = plain.moe_choose(logits.double(), k, **wide)
        ids, weights = ops.moe_choose(logits, k, **given)
        kit.assert_equal(ids, truth[0])
        kit.assert_bound(weights, truth[1], 1e-5 * truth[1].abs() + 1e-9)


def test_a_correction_chooses_and_does_not_weigh() -> None:
    logits, correction = torch.zeros(1, 4), torch.tensor([0.0, 3.0, -1.0, 2.0])
    ids, weights = ops.moe_choose(logits, 2, score="sigmoid", correction=correction, normalize=False, scale=3.0)
    assert ids.tolist() == [[1, 3]] and weights.tolist() == [[1.5, 1.5]]
    ids, weights = ops.moe_choose(logits - 200, 2, score="sigmoid", correction=correction)
    assert ids.tolist() == [[1, 3]] and weights.tolist() == [[0.0, 0.0]]  # as stock, which adds 1e-20 to their sum


def test_groups_are_chosen_by_their_two_best() -> None:
    """The best expert of all is of a group that is not among them; equal groups go by number."""
    logits = torch.tensor([[0.0, 1.0, 5.0, -9.0, 1.0, 0.0, -9.0, -9.0], [0.0] * 8])
    ids, _ = ops.moe_choose(logits, 3, score="sigmoid", groups=4, top_groups=2)
    assert ids.tolist() == [[1, 4, 0], [0, 1, 2]]


def test_groups_are_chosen_by_their_best() -> None:
    """Two good experts are less than the best one, and a group may be of one expert; equal groups go by number."""
    logits = torch.tensor([[0.0, 1.0, 5.0, -9.0, 3.0, 4.0, -9.0, -9.0], [0.0] * 8])
    rule = {"score": "sigmoid", "group_best": 1}
    ids, _ = ops.moe_choose(logits - 4, 2, groups=4, top_groups=1, **rule)
    assert ids.tolist() == [[2, 3], [0, 1]]
    ids, _ = ops.moe_choose(logits, 3, groups=8, top_groups=3, **rule)
    assert ids.tolist() == [[2, 5, 4], [0, 1, 2]]


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


def test_scores_in_turn() -> None:
    """Of those left, by the size of either logit: 2 is near 3, and -3 near -2, by a half, but -1 is not near 1."""
    logits = torch.tensor([[3.0, 2.0, 1.0, -1.0], [-2.0, -3.0, -9.0, -8.0]])
    ids, weights = ops.moe_choose(logits, 2, score="in_turn", near=0.5, normalize=False)
    assert ids.tolist() == [[0, 1], [0, 1]]
    alone, both = [1 / (1 + 1 / torch.e)] * 2, [1 / (1 + 1 / torch.e), 1.0]
    torch.testing.assert_close(weights, torch.tensor([alone, both]))
    for wrong in ({"groups": 2, "top_groups": 2}, {"correction": torch.zeros(4)}, {"near": -1.0}):
        with pytest.raises(RuntimeError, match=r"in_turn|near"):
            ops.moe_choose(logits, 2, **{"score": "in_turn", "near": 0.5, **wrong})


def test_zeros_of_both_signs_are_equal() -> None:
    rule = {"score": "sigmoid", "correction": torch.tensor([-0.0, -0.0, 0.0]), "correct_logits": True}
    ids, _ = ops.moe_choose(torch.tensor([[-0.0, 0.0, 0.0]]), 2, **rule)
    assert ids.tolist() == [[0, 1]]


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


@pytest.mark.parametrize("rule", RULES[1:5], ids=str)
def test_route_by_rules(rule: dict[str, Any]) -> None:
    given = with_correction(rule, 40)
    check_route(route_inputs(3, 40, 96, F32, "groups" in rule), 4, rule=given)
    check_route(route_inputs(2, 40, 264, BF16, False), 3, normalize=False, rule=given)


def test_route_by_the_gemma_norm() -> None:
    check_route(route_inputs(2, 9, 96, F32, False, "gemma"), 3)
