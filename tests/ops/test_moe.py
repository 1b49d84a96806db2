"""Experts for the few tokens of a decode step against float64; errors and schemas of all ops on experts."""

from __future__ import annotations

from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32
from moe_cases import (
    CASES,
    Case,
    Given,
    check_down,
    check_glu,
    check_many,
    check_route,
    down_inputs,
    experts_of,
    glu_inputs,
    many,
    route_inputs,
)  # fmt: skip

from torch_foundry import ops
from torch_foundry.core import runtime
from torch_foundry.testing import reference_moe as plain


def _cost(c: Case, dtype: torch.dtype, matrices: int = 1) -> tuple[int, int]:
    """Of the experts of all tokens; those of several are read once at least."""
    pairs, row = c.tokens * c.k, kit.row_bytes(c.format, c.hidden, dtype)
    moved = matrices * min(pairs, c.experts) * c.inner * row + pairs * (c.hidden + c.inner) * dtype.itemsize
    return 2 * matrices * pairs * c.hidden * c.inner, moved


def _chosen(c: Case, dtype: torch.dtype) -> Given:
    return {"logits": kit.normal(kit.generator(c), c.tokens, c.experts, dtype=dtype, scale=4.0), "k": c.k}


def _check_chosen(given: Given) -> None:
    (ids, weights), (true_ids, truth) = ops.moe_choose(**given), plain.moe_choose(**kit.double(given))
    kit.assert_equal(ids, true_ids)
    kit.assert_norm(weights, truth, plain.moe_choose(**given)[1].to(weights.dtype))


def _routed(c: Case, dtype: torch.dtype) -> Given:
    return {**route_inputs(c.tokens, c.experts, c.hidden, dtype, shared=False), "k": c.k}


def _check_routed(given: Given) -> None:
    check_route({name: value for name, value in given.items() if name != "k"}, given["k"])


FEW = [Case(m, 8, 2, 1024, 512, name) for m in (1, 4) for name in (None, *kit.CODES)]
MANY = [Case(64, 8, 2, 1024, 512, name) for name in (None, *kit.CODES)]
ROUTES = [Case(m, 128, 8, 1024) for m in (1, 16)]
BENCHES = [
    kit.Bench("moe_glu", FEW, glu_inputs, ops.moe_glu, plain.moe_glu, check_glu, lambda c, dtype: _cost(c, dtype, 2)),
    kit.Bench("moe_down", FEW, down_inputs, ops.moe_down, plain.moe_down, check_down, _cost),
    kit.Bench("moe_many", MANY, down_inputs, lambda **given: many(given), plain.moe_down, check_many, _cost),
    kit.Bench(
        "moe_choose", ROUTES, _chosen, ops.moe_choose, plain.moe_choose, _check_chosen,
        lambda c, dtype: (c.tokens * c.experts * c.k, c.tokens * (c.experts + 2 * c.k) * dtype.itemsize),
    ),
    kit.Bench(
        "moe_route", ROUTES, _routed, ops.moe_route, plain.moe_route, _check_routed,
        lambda c, dtype: (2 * c.tokens * c.experts * c.hidden, c.experts * c.hidden * dtype.itemsize),
    ),
]  # fmt: skip


@kit.cases(*CASES)
def test_glu(case: Case, dtype: torch.dtype) -> None:
    with kit.poisoned_outputs():
        check_glu(glu_inputs(case, dtype))


@kit.cases(
    (Case(gated=False, tokens=3), F32),
    (Case(gated=False, tokens=3, k=3, shared=True), F32),
    (Case(gated=False, hidden=257, inner=9, normed=False, biased=True), F16),
    (Case(gated=False, format="q8_0", hidden=320, inner=33, k=4, tokens=2), BF16),
)
def test_without_a_gate(case: Case, dtype: torch.dtype) -> None:
    given = glu_inputs(case, dtype)
    check_glu(given)
    with kit.choice("moe_glu", outputs=1):
        check_glu(given)


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu", "clamped_swiglu"])
def test_glu_activations(activation: str) -> None:
    check_glu({**glu_inputs(Case(tokens=2, biased=True), F32), "activation": activation})


@kit.cases(*CASES, (Case(scale=-0.4, tokens=2), F32), (Case(scale=3.0, normed=False), F32))
def test_down(case: Case, dtype: torch.dtype) -> None:
    check_down(down_inputs(case, dtype))


def test_integers_are_exact() -> None:
    """Every order of summation gives the same: each weight is read, each expert weighed, once."""
    c = Case(tokens=3, k=3, hidden=520, inner=9, normed=False)
    g = kit.generator(c)
    x, ids = kit.integers(g, 3, 3, 520, dtype=F32), experts_of(c, g)
    weight, weights = kit.integers(g, 6, 9, 520, dtype=F32), kit.integers(g, 3, 3, dtype=F32)
    for split in (1, 2, 4, 16):  # in turn; two beside; one each; four share one
        with kit.choice("moe_down", split=split, simdgroups=2 * split):
            kit.assert_equal(ops.moe_down(x, ids, weights, weight), plain.moe_down(x, ids, weights, weight))
    order, tiles = ops.moe_group(ids, 6)
    y = ops.moe_linear(x.view(9, 520), order, tiles, weight)
    kit.assert_equal(ops.moe_combine(y, ids, weights, 6), plain.moe_down(x, ids, weights, weight))


@pytest.mark.cpu_only
@pytest.mark.parametrize("format", [None, "q4_0"])
def test_one_expert_is_a_plain_product(format: str | None) -> None:
    """With its choice, and so its bits, as no experts share a team (of a shared expert, say)."""
    c = Case(k=1, hidden=1184, inner=9, format=format)
    down = down_inputs(c, F32) | {"residual": None, "weights": torch.ones(1, 1), "scale": 1.0}
    with kit.choice("linear", split=4, simdgroups=4), kit.choice("moe_down", split=1, simdgroups=2):
        of = down["weight"][down["ids"].item()]
        kit.assert_equal(ops.moe_down(**down), ops.linear(down["x"][:, 0], of, format=format))


@pytest.mark.cpu_only
@pytest.mark.tier("kernels")
@pytest.mark.parametrize("chains, format", [(4, None), (4, "q8_0"), (1, "q4_0")], ids=str)
@pytest.mark.parametrize("split", [1, 4])
def test_a_token_does_not_depend_on_its_company(split: int, chains: int, format: str | None) -> None:
    c = Case(tokens=7, k=3, hidden=1184, inner=9, format=format)
    glu, down, route = glu_inputs(c, F16), down_inputs(c, F16), route_inputs(7, 40, 1184, F16, True)
    both = {"split": split, "simdgroups": 2 * split, "chains": chains}
    with kit.choice("norm_linear", **both), kit.choice("moe_glu", **both), kit.choice("moe_down", **both):
        together = ops.moe_glu(**glu), ops.moe_down(**down), *ops.moe_route(**route, k=4)
        for rows in (slice(0, 1), slice(3, 5), slice(2, 7)):
            parts = {n: down[n][rows] for n in ("x", "ids", "weights", "residual")}
            apart = (
                ops.moe_glu(**{**glu, "x": glu["x"][rows], "ids": glu["ids"][rows]}),
                ops.moe_down(**{**down, **parts}),
                *ops.moe_route(**{**route, "x": route["x"][rows]}, k=4),
            )
            for whole, part in zip(together, apart, strict=True):
                kit.assert_equal(part, whole[rows])


@pytest.mark.cpu_only
@pytest.mark.parametrize("outputs, chains", kit.some_nightly([(1, 4), (4, 1)], [(1, 1), (4, 4)]))
def test_variants(outputs: int, chains: int) -> None:
    """As they are chosen for other devices."""
    both = {"outputs": outputs, "chains": chains, "split": 2, "simdgroups": 4}
    with kit.choice("norm_linear", **both), kit.choice("moe_glu", **both), kit.choice("moe_down", **both):
        for format in (None, "q8_0", "q4_0"):
            c = Case(tokens=2, hidden=800, inner=9, format=format)
            check_glu(glu_inputs(c, F16))
            check_down(down_inputs(c, F32))
        check_route(route_inputs(2, 37, 800, F16, True), 4)


def test_ids_of_no_expert_add_nothing() -> None:
    for missing in (6, -1, 2**31 - 1):
        glu, down = (make(Case(tokens=2, inner=40, biased=True), F32) for make in (glu_inputs, down_inputs))
        for given in (glu, down):
            given["ids"][1, 0] = missing
        assert not ops.moe_glu(**glu)[1, 0].any()
        check_glu(glu)
        check_down(down)
        check_many(down)


@pytest.mark.parametrize("name", ["q4_0", None])
def test_a_shared_expert_is_one_more(name: str | None) -> None:
    """It has the bits of an expert among the others, whatever its id is, and wherever its matrices lie."""
    case = Case(tokens=3, k=3, format=name, hidden=320, shared=True)
    glu, down = glu_inputs(case, F16), down_inputs(case, F16)
    glu["ids"][:, -1], down["ids"][:, -1] = 0, 6
    results = ops.moe_glu(**glu), ops.moe_down(**down)
    routed = glu["ids"].clone()
    routed[:, -1] = 6
    gate, up = (torch.cat([glu[n], own[None]]) for n, own in zip(("gate", "up"), glu["shared"], strict=True))
    whole = {**glu, "ids": routed, "gate": gate, "up": up, "shared": (None, None)}
    kit.assert_equal(results[0], ops.moe_glu(**whole))
    whole = {**down, "weight": torch.cat([down["weight"], down["shared"][None]]), "shared": None}
    kit.assert_equal(results[1], ops.moe_down(**whole))
    moved = {**glu, "shared": tuple(kit.shifted(own, 2) for own in glu["shared"])}
    kit.assert_equal(ops.moe_glu(**moved), results[0])
    kit.assert_equal(ops.moe_down(**{**down, "shared": kit.shifted(down["shared"], 2)}), results[1])


def test_ids_and_weights_may_be_columns_of_more() -> None:
    glu, down = glu_inputs(Case(tokens=3), F32), down_inputs(Case(tokens=3), F32)
    expected = ops.moe_glu(**glu), ops.moe_down(**down)
    wide = {n: torch.cat([down[n], 9 * torch.ones_like(down[n][:, :1])], 1)[:, :2] for n in ("ids", "weights")}
    kit.assert_equal(ops.moe_down(**{**down, **wide}), expected[1])
    ids = torch.cat([glu["ids"], glu["ids"]], 1)[:, :2]
    kit.assert_equal(ops.moe_glu(**{**glu, "ids": ids}), expected[0])


def test_experts_may_be_strided() -> None:
    """Gate and up as halves of one matrix, or in turn; experts at odd distances."""
    given = glu_inputs(Case(tokens=2, inner=16), F32)
    expected = ops.moe_glu(**given)
    both = torch.cat([given["gate"], given["up"]], 1)
    gate, up = both.split(16, 1)
    kit.assert_equal(ops.moe_glu(**{**given, "gate": gate, "up": up}), expected)
    both = torch.stack([given["gate"], given["up"]], 2).flatten(1, 2)
    kit.assert_equal(ops.moe_glu(**{**given, "gate": both[:, ::2], "up": both[:, 1::2]}), expected)
    odd = {n: kit.spread(given[n], 3) for n in ("gate", "up")}
    check_glu({**given, **odd})
    packed = glu_inputs(Case(format="q8_0", tokens=3), F32)
    expected = ops.moe_glu(**packed)
    apart = torch.stack([packed["up"], packed["up"]], 1)[:, 1]  # every other one
    kit.assert_equal(ops.moe_glu(**{**packed, "up": apart}), expected)


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    with kit.choice("moe_glu", split=4, simdgroups=8), kit.choice("moe_down", split=4, simdgroups=8):
        kit.in_every_lane_order(lambda: ops.moe_glu(**glu_inputs(Case(tokens=2, hidden=1024, biased=True), F32)))
        kit.in_every_lane_order(lambda: ops.moe_down(**down_inputs(Case(tokens=2, hidden=1024, biased=True), F32)))
    kit.in_every_lane_order(lambda: ops.moe_route(**route_inputs(2, 70, 256, F32, True, biased=True), k=5)[1])
    grouped: Given = {"score": "sigmoid", "correction": torch.linspace(0, 1, 70), "groups": 5, "top_groups": 2}
    kit.in_every_lane_order(lambda: ops.moe_route(**route_inputs(2, 70, 256, F32, False), k=5, **grouped)[0])
    ids = experts_of(Case(tokens=30, experts=40, k=5), kit.generator(1))
    kit.in_every_lane_order(lambda: ops.moe_group(ids, 40)[0])
    kit.in_every_lane_order(lambda: many(down_inputs(Case(tokens=40, k=3, inner=33, biased=True), F32)))


def test_launches() -> None:
    before = runtime.counters().launches
    ops.moe_route(**route_inputs(4, 60, 64, F32, True), k=4)
    ops.moe_glu(**glu_inputs(Case(tokens=4), F32))
    ops.moe_down(**down_inputs(Case(tokens=4), F32))
    assert runtime.counters().launches - before == 4  # the router has two


def test_bytes_are_those_of_the_chosen_experts() -> None:
    given = down_inputs(Case(experts=6, k=2), F32)
    before = runtime.counters().bytes
    ops.moe_down(**given)
    moved = runtime.counters().bytes - before
    assert 2 * given["weight"][0].nbytes < moved < 2.2 * given["weight"][0].nbytes


def test_empty() -> None:
    given, down = glu_inputs(Case(), F32), down_inputs(Case(), F32)
    none = {n: down[n][:0] for n in ("x", "ids", "weights", "residual")}
    assert ops.moe_glu(**{**given, "x": given["x"][:0], "ids": given["ids"][:0]}).shape == (0, 2, 24)
    assert ops.moe_down(**{**down, **none}).shape == (0, 24)
    assert many({**down, **none}).shape == (0, 24)
    assert ops.moe_choose(torch.zeros(0, 8), 2)[0].shape == (0, 2)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    glu, down = glu_inputs(Case(tokens=3), F32), down_inputs(Case(tokens=3), F32)
    ids, weights, weight = down["ids"], down["weights"], down["weight"]
    route = route_inputs(2, 6, 64, F32, True)
    kit.opcheck("moe_route", *(route[n] for n in ("x", "norm_weight", "eps", "kind", "weight", "shared")), 2, True)
    given = (route[n] for n in ("x", "norm_weight", "eps", "kind", "weight", "shared"))
    kit.opcheck("moe_route", *given, 2, True, torch.randn(6))
    kit.opcheck("moe_choose", torch.randn(3, 6), torch.randn(3, 1), 2, True)
    kit.opcheck("moe_choose", torch.randn(3, 6), None, 2, True, "sigmoid", torch.randn(6), False, 3, 2, 2, 2.5)
    names = ("x", "norm_weight", "eps", "ids", "gate", "up", "format")
    x, norm, eps, glu_ids, gate, up, format = (glu[n] for n in names)
    bias = torch.randn(6, 24)
    kit.opcheck("moe_glu", x, norm, eps, "llama", glu_ids, gate, up, format, "silu")
    kit.opcheck("moe_glu", x, norm, eps, "llama", glu_ids, gate, up, format, "clamped_swiglu", bias, bias)
    kit.opcheck("moe_down", down["x"], ids, weights, weight, None, down["residual"], 0.5, bias)
    kit.opcheck("moe_group", ids, 6)
    order, tiles = ops.moe_group(ids, 6)
    kit.opcheck("moe_linear", down["x"].view(6, -1), order, tiles, weight, None, bias)
    kit.opcheck("moe_combine", torch.randn(6, 24), ids, weights, 6, None, 1.0)


def test_bad_inputs() -> None:
    glu, down, route = glu_inputs(Case(), F32), down_inputs(Case(), F32), route_inputs(1, 6, 64, F32, False)

    def refuse(message: str, op: Any, base: Given, **changed: Any) -> None:
        with kit.refuses(message):
            op(**{**base, **changed})

    refuse(r"x: expected \[tokens, in_features=256\]", ops.moe_glu, glu, x=torch.zeros(1, 8))
    refuse(r"ids: expected dtype Int", ops.moe_glu, glu, ids=glu["ids"].long())
    refuse(r"ids: expected \[tokens=1, 2\]", ops.moe_glu, glu, ids=glu["ids"].expand(2, 2))
    refuse(r"up: expected the shape and format of gate", ops.moe_glu, glu, up=torch.zeros(6, 8, 256))
    refuse(r"gate: expected 3 dimensions", ops.moe_glu, glu, gate=glu["gate"][0])
    refuse(r"gate: expected 1 to 1024 experts", ops.moe_glu, glu, gate=glu["gate"][:0])
    refuse(r"norm_weight: expected \[in_features=256\]", ops.moe_glu, glu, norm_weight=torch.ones(8))
    refuse(r"activation: expected one of", ops.moe_glu, glu, activation="elu")
    refuse(r"gate_bias: expected \[experts=6, out_features=24\]", ops.moe_glu, glu, biases=(torch.ones(6, 8), None))
    refuse(r"up_bias: expected dtype Float, got Half", ops.moe_glu, glu, biases=(None, torch.ones(6, 24).half()))
    refuse(r"bias: expected \[experts=6, out_features=24\]", ops.moe_down, down, bias=torch.ones(24))
    refuse(r"bias: expected \[experts=6\]", ops.moe_route, {**route, "k": 2}, bias=torch.ones(1, 6))
    refuse(r"weights: expected dtype Float", ops.moe_down, down, weights=down["weights"].half())
    refuse(r"weights: expected the shape of ids", ops.moe_down, down, weights=torch.zeros(1, 3))
    refuse(r"residual: expected \[tokens=1, out_features=24\]", ops.moe_down, down, residual=torch.zeros(1, 8))
    refuse(r"k: expected 1 to 6 experts", ops.moe_route, route, k=7)
    refuse(r"weight: expected .*in_features=64", ops.moe_route, {**route, "k": 2}, weight=torch.zeros(6, 8))
    refuse(r"shared: expected \[1, in_features=64\]", ops.moe_route, {**route, "k": 2}, shared=torch.zeros(1, 8))
    refuse(r"logits: expected \[tokens, experts\]", ops.moe_choose, {"logits": torch.zeros(6), "k": 2})
    refuse(r"k: expected 1 to 32 experts", ops.moe_choose, {"logits": torch.zeros(1, 64), "k": 33})
    choice = {"logits": torch.zeros(1, 12), "k": 4}
    refuse(r"score: expected one of", ops.moe_choose, choice, score="relu")
    refuse(r"correction: expected \[experts=12\]", ops.moe_choose, choice, correction=torch.zeros(6))
    refuse(r"correction: expected dtype Float", ops.moe_choose, choice, correction=torch.zeros(12).int())
    for groups in (0, 5, 12):
        refuse(r"groups: expected 1 to 32 of as many of 12 experts", ops.moe_choose, choice, groups=groups)
    refuse(r"group_best: expected 1 or 2, got 3", ops.moe_choose, choice, groups=4, top_groups=2, group_best=3)
    refuse(r"groups: expected 1 to 32", ops.moe_choose, {"logits": torch.zeros(1, 128), "k": 1}, groups=64)
    refuse(r"top_groups: expected 1 to 4 with at least 4 experts, got 1", ops.moe_choose, choice, groups=4)
    refuse(r"top_groups: expected 1 to 4", ops.moe_choose, choice, groups=4, top_groups=5)
    refuse(r"scale: expected", ops.moe_choose, choice, scale=float("nan"))
    refuse(
        r"shared_weight: expected none beside shared",
        ops.moe_choose,
        choice,
        shared=torch.zeros(1, 1),
        shared_weight=1.0,
    )
    refuse(
        r"shared: expected one matrix as those of the experts, 24 x 256", ops.moe_down, down, shared=torch.ones(24, 128)
    )
    refuse(r"shared: expected no bias", ops.moe_down, down, shared=down["weight"][0], bias=torch.ones(6, 24))
    glu = glu_inputs(Case(), F32)
    refuse(r"shared_gate: expected one if", ops.moe_glu, glu, shared=(None, glu["up"][0]))
    refuse(r"shared_up: expected one matrix", ops.moe_glu, glu, shared=(glu["up"][0], glu["up"][0][:9]))
    refuse(
        r"shared_up: expected no biases", ops.moe_glu, glu, shared=(glu["up"][0],) * 2, biases=(torch.ones(6, 24), None)
    )
    refuse(r"experts: expected 1 to 1024", ops.moe_group, {"ids": down["ids"]}, experts=0)
    order, tiles = ops.moe_group(down["ids"], 6)
    args = {"order": order, "tiles": tiles, "weight": down["weight"]}
    refuse(r"bias: expected \[experts=6", ops.moe_linear, {**args, "x": down["x"][0]}, bias=torch.ones(5, 24))
    refuse(r"order: expected a multiple of 3 pairs, got 2", ops.moe_linear, args, x=torch.zeros(3, 256))
    refuse(r"tiles: expected \[tiles, 3\]", ops.moe_linear, {**args, "x": down["x"][0]}, tiles=tiles[:, :2])
