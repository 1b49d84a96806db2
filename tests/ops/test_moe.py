"""Mixtures of experts against float64: the choice of experts, their products for few tokens and for many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault
from torch import Tensor

from torch_foundry import ops, quant, runtime
from torch_foundry import reference_moe as plain
from torch_foundry.doctor import blocks
from torch_foundry.doctor.truth import assert_norm, double

EPS = 1e-5
Given = dict[str, Any]


@dataclass(frozen=True)
class Case(kit.Case):
    tokens: int = 1
    experts: int = 6
    k: int = 2
    hidden: int = 256
    inner: int = 24
    format: str | None = None
    normed: bool = True
    scale: float = 1.0


def matrices(g: torch.Generator, experts: int, n: int, k: int, format: str | None, dtype: torch.dtype) -> Tensor:
    packed = format is not None and quant.FORMATS[format].packed
    weight = kit.normal(g, experts * n, k, dtype=F32 if packed else dtype, scale=k**-0.5)
    return (blocks.packed(weight, format) if format and packed else weight).view(experts, n, -1)


def experts_of(c: Case, g: torch.Generator) -> Tensor:
    return torch.stack([torch.randperm(c.experts, generator=g)[: c.k] for _ in range(c.tokens)]).int()


# ----------------------------------------------------------------------------------------------------------- the choice


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


def route_inputs(
    tokens: int, experts: int, hidden: int, dtype: torch.dtype, shared: bool, kind: str = "llama"
) -> Given:
    g = kit.generator(tokens, experts, hidden)
    return {
        "x": kit.normal(g, tokens, hidden, dtype=dtype, scale=3.0),
        "norm_weight": kit.normal(g, hidden, dtype=dtype),
        "eps": EPS,
        "weight": kit.normal(g, experts, hidden, dtype=dtype, scale=2 * hidden**-0.5),
        "kind": kind,
        "shared": kit.normal(g, 1, hidden, dtype=dtype, scale=hidden**-0.5) if shared else None,
    }


def check_route(given: Given, k: int, normalize: bool = True) -> None:
    """Ids where the float64 logits leave no doubt, weights where the ids are right."""
    ids, weights = ops.moe_route(**given, k=k, normalize=normalize)
    true_ids, true_weights = plain.moe_route(**double(given), k=k, normalize=normalize)
    wide = double(given)
    h = plain.rms_norm(wide["x"], wide["norm_weight"], EPS, kind=given["kind"])
    logits = h @ wide["weight"].t()
    ordered = logits.sort(descending=True).values
    sure = ((ordered[:, :-1] - ordered[:, 1:])[:, :k] > 1e-3).all(-1)
    assert sure.any()
    kit.assert_equal(ids[sure], true_ids[sure])
    kit.assert_bound(weights[sure], true_weights[sure], 1e-4 * true_weights[sure] + 1e-7)
    for row, own in zip(logits, ids[:, :k].tolist(), strict=True):  # in doubt: experts nearly as good, each once
        assert len(set(own)) == k
        torch.testing.assert_close(row[own], row.sort(descending=True).values[:k], rtol=0, atol=1e-3)


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


def test_route_by_the_gemma_norm() -> None:
    check_route(route_inputs(2, 9, 96, F32, False, "gemma"), 3)


# ----------------------------------------------------------------------------------------------------------- few tokens


def glu_inputs(c: Case, dtype: torch.dtype) -> Given:
    g = kit.generator(c)
    return {
        "x": kit.normal(g, c.tokens, c.hidden, dtype=dtype, scale=3.0 if c.normed else 1.0),
        "ids": experts_of(c, g),
        "gate": matrices(g, c.experts, c.inner, c.hidden, c.format, dtype),
        "up": matrices(g, c.experts, c.inner, c.hidden, c.format, dtype),
        "norm_weight": kit.normal(g, c.hidden, dtype=dtype) if c.normed else None,
        "eps": EPS,
        "format": c.format,
    }


def check_glu(given: Given) -> None:
    assert_norm(ops.moe_glu(**given), plain.moe_glu(**double(given)), plain.moe_glu(**given))


CASES = [
    *((Case(tokens=t), F32) for t in (1, 3, 17)),
    (Case(normed=False, k=3, tokens=2), F16),
    (Case(hidden=257, inner=9), F32),
    (Case(tokens=4, hidden=264, inner=31, k=4), BF16),
    (Case(format="q8_0", hidden=896, k=4), F16),
    (Case(format="q4_0", hidden=320, inner=33, tokens=2, normed=False), BF16),
    (Case(format="q4_k", hidden=512, inner=7), F32),
    (Case(format="q6_k", hidden=256, tokens=5, experts=2), F16),
    (Case(format="affine5_g32_f16", hidden=320), F16),
    (Case(format="nf4", hidden=192, inner=9), BF16),
    (Case(experts=1, k=1, tokens=3, inner=1), F32),
]


@kit.cases(*CASES)
def test_glu(case: Case, dtype: torch.dtype) -> None:
    check_glu(glu_inputs(case, dtype))


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
def test_glu_activations(activation: str) -> None:
    check_glu({**glu_inputs(Case(tokens=2), F32), "activation": activation})


def down_inputs(c: Case, dtype: torch.dtype) -> Given:
    """Of `inner` outputs, from `hidden` elements."""
    g = kit.generator(c)
    return {
        "x": kit.normal(g, c.tokens, c.k, c.hidden, dtype=dtype),
        "ids": experts_of(c, g),
        "weights": torch.rand(c.tokens, c.k, generator=g),
        "weight": matrices(g, c.experts, c.inner, c.hidden, c.format, dtype),
        "format": c.format,
        "residual": kit.normal(g, c.tokens, c.inner, dtype=dtype) if c.normed else None,
        "scale": c.scale,
    }


def check_down(given: Given) -> None:
    assert_norm(ops.moe_down(**given), plain.moe_down(**double(given)), plain.moe_down(**given))


@kit.cases(*CASES, (Case(scale=-0.4, tokens=2), F32), (Case(scale=3.0, normed=False), F32))
def test_down(case: Case, dtype: torch.dtype) -> None:
    check_down(down_inputs(case, dtype))


def test_integers_are_exact() -> None:
    """Every order of summation gives the same: each weight is read, each expert weighed, once."""
    c = Case(tokens=3, k=3, hidden=520, inner=9, normed=False)
    g = kit.generator(c)
    x, ids = kit.integers(g, 3, 3, 520, dtype=F32), experts_of(c, g)
    weight, weights = kit.integers(g, 6, 9, 520, dtype=F32), kit.integers(g, 3, 3, dtype=F32)
    for split in (1, 4):
        with kit.choice("moe_down", split=split, simdgroups=2 * split):
            kit.assert_equal(ops.moe_down(x, ids, weights, weight), plain.moe_down(x, ids, weights, weight))
    order, tiles = ops.moe_group(ids, 6)
    y = ops.moe_linear(x.view(9, 520), order, tiles, weight)
    kit.assert_equal(ops.moe_combine(y, ids, weights, 6), plain.moe_down(x, ids, weights, weight))


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


@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize("outputs", [1, 4])
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
        glu, down = glu_inputs(Case(tokens=2), F32), down_inputs(Case(tokens=2, inner=40), F32)
        for given in (glu, down):
            given["ids"][1, 0] = missing
        assert not ops.moe_glu(**glu)[1, 0].any()
        check_glu(glu)
        check_down(down)
        check_many(down)


def test_ids_and_weights_may_be_columns_of_more() -> None:
    glu, down = glu_inputs(Case(tokens=3), F32), down_inputs(Case(tokens=3), F32)
    expected = ops.moe_glu(**glu), ops.moe_down(**down)
    wide = {n: torch.cat([down[n], 9 * torch.ones_like(down[n][:, :1])], 1)[:, :2] for n in ("ids", "weights")}
    kit.assert_equal(ops.moe_down(**{**down, **wide}), expected[1])
    ids = torch.cat([glu["ids"], glu["ids"]], 1)[:, :2]
    kit.assert_equal(ops.moe_glu(**{**glu, "ids": ids}), expected[0])


def test_experts_may_be_strided() -> None:
    """Gate and up as halves of one matrix; experts at odd distances."""
    given = glu_inputs(Case(tokens=2, inner=16), F32)
    expected = ops.moe_glu(**given)
    both = torch.cat([given["gate"], given["up"]], 1)
    gate, up = both.split(16, 1)
    kit.assert_equal(ops.moe_glu(**{**given, "gate": gate, "up": up}), expected)
    odd = {n: kit.spread(given[n], 3) for n in ("gate", "up")}
    torch.testing.assert_close(ops.moe_glu(**{**given, **odd}), expected, rtol=0, atol=2e-5)
    packed = glu_inputs(Case(format="q8_0"), F32)
    expected = ops.moe_glu(**packed)
    apart = torch.stack([packed["up"], packed["up"]], 1)[:, 1]  # every other one
    kit.assert_equal(ops.moe_glu(**{**packed, "up": apart}), expected)


def test_lane_orders() -> None:
    with kit.choice("moe_glu", split=4, simdgroups=8), kit.choice("moe_down", split=4, simdgroups=8):
        kit.in_every_lane_order(lambda: ops.moe_glu(**glu_inputs(Case(tokens=2, hidden=1024), F32)))
        kit.in_every_lane_order(lambda: ops.moe_down(**down_inputs(Case(tokens=2, hidden=1024), F32)))
    kit.in_every_lane_order(lambda: ops.moe_route(**route_inputs(2, 70, 256, F32, True), k=5)[1])
    ids = experts_of(Case(tokens=30, experts=40, k=5), kit.generator(1))
    kit.in_every_lane_order(lambda: ops.moe_group(ids, 40)[0])
    kit.in_every_lane_order(lambda: many(down_inputs(Case(tokens=40, k=3, inner=33), F32)))


# ---------------------------------------------------------------------------------------------------------- many tokens


@pytest.mark.parametrize(
    "tokens, experts, k", [(1, 1, 1), (1, 6, 2), (100, 3, 2), (64, 1, 1), (9, 100, 8), (70, 33, 4)]
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


def many(given: Given) -> Tensor:
    """moe_down by the ops for many tokens."""
    experts, (tokens, k, inner) = given["weight"].shape[0], given["x"].shape
    order, tiles = ops.moe_group(given["ids"], experts)
    y = ops.moe_linear(given["x"].view(tokens * k, inner), order, tiles, given["weight"], format=given["format"])
    return ops.moe_combine(y, given["ids"], given["weights"], experts, residual=given["residual"], scale=given["scale"])


def check_many(given: Given) -> None:
    assert_norm(many(given), plain.moe_down(**double(given)), plain.moe_down(**given))


@kit.cases(
    (Case(tokens=70, inner=65), F32),
    (Case(tokens=50, hidden=100, inner=9, k=3, scale=0.5), F16),
    (Case(tokens=40, experts=2, hidden=288, format="q8_0", normed=False), BF16),
    (Case(tokens=33, experts=1, k=1, format="q4_0"), F32),
    (Case(tokens=20, hidden=512, inner=70, format="q6_k"), F16),
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


def test_launches() -> None:
    before = runtime.counters().launches
    ops.moe_route(**route_inputs(4, 60, 64, F32, True), k=4)
    ops.moe_glu(**glu_inputs(Case(tokens=4), F32))
    ops.moe_down(**down_inputs(Case(tokens=4), F32))
    assert runtime.counters().launches - before == 3


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


def test_opcheck() -> None:
    glu, down = glu_inputs(Case(tokens=3), F32), down_inputs(Case(tokens=3), F32)
    ids, weights, weight = down["ids"], down["weights"], down["weight"]
    route = route_inputs(2, 6, 64, F32, True)
    kit.opcheck("moe_route", *(route[n] for n in ("x", "norm_weight", "eps", "kind", "weight", "shared")), 2, True)
    kit.opcheck("moe_choose", torch.randn(3, 6), torch.randn(3, 1), 2, True)
    names = ("x", "norm_weight", "eps", "ids", "gate", "up", "format")
    x, norm, eps, glu_ids, gate, up, format = (glu[n] for n in names)
    kit.opcheck("moe_glu", x, norm, eps, "llama", glu_ids, gate, up, format, "silu")
    kit.opcheck("moe_down", down["x"], ids, weights, weight, None, down["residual"], 0.5)
    kit.opcheck("moe_group", ids, 6)
    order, tiles = ops.moe_group(ids, 6)
    kit.opcheck("moe_linear", down["x"].view(6, -1), order, tiles, weight)
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
    refuse(r"activation: expected one of", ops.moe_glu, glu, activation="relu")
    refuse(r"weights: expected dtype Float", ops.moe_down, down, weights=down["weights"].half())
    refuse(r"weights: expected the shape of ids", ops.moe_down, down, weights=torch.zeros(1, 3))
    refuse(r"residual: expected \[tokens=1, out_features=24\]", ops.moe_down, down, residual=torch.zeros(1, 8))
    refuse(r"k: expected 1 to 6 experts", ops.moe_route, route, k=7)
    refuse(r"weight: expected .*in_features=64", ops.moe_route, {**route, "k": 2}, weight=torch.zeros(6, 8))
    refuse(r"shared: expected \[1, in_features=64\]", ops.moe_route, {**route, "k": 2}, shared=torch.zeros(1, 8))
    refuse(r"logits: expected \[tokens, experts\]", ops.moe_choose, {"logits": torch.zeros(6), "k": 2})
    refuse(r"k: expected 1 to 32 experts", ops.moe_choose, {"logits": torch.zeros(1, 64), "k": 33})
    refuse(r"experts: expected 1 to 1024", ops.moe_group, {"ids": down["ids"]}, experts=0)
    order, tiles = ops.moe_group(down["ids"], 6)
    args = {"order": order, "tiles": tiles, "weight": down["weight"]}
    refuse(r"order: expected a multiple of 3 pairs, got 2", ops.moe_linear, args, x=torch.zeros(3, 256))
    refuse(r"tiles: expected \[tiles, 3\]", ops.moe_linear, {**args, "x": down["x"][0]}, tiles=tiles[:, :2])


# --------------------------------------------------------------------------------------------------------------- faults


def _fault(name: str, old: str, new: str, run: Any, file: str = "", kernel: str = "moe.metal") -> Fault:
    return Fault(f"moe-{name}", kernel, old, new, run, file)


def _many(name: str, old: str, new: str, run: Any = None) -> Fault:
    return _fault(name, old, new, run or (lambda: check_many(down_inputs(Case(tokens=70, inner=65), F32))), "",
                  "moe_many.metal")  # fmt: skip


def _choice(name: str, old: str, new: str, run: Any = None) -> Fault:
    return _fault(name, old, new, run or test_choice_among_equals_and_extremes, "choice.h")


FAULTS = [
    _choice("last-of-equals", "order > best)", "order >= best)", lambda: test_choice(1024, 32, True, BF16)),
    _choice("zeros-differ", "as_type<uint>(v + 0.0f)", "as_type<uint>(v)"),
    _choice("nan-is-the-least", "? ~0u : bits & 0x8", "? 1u : bits & 0x8"),
    _choice("negative-order", "? ~bits :", "? bits :"),
    _choice("taken-twice", "1u << winner / simd_width", "2u << winner / simd_width"),
    _choice("never-normalized", "args.normalize ? weight / all", "args.normalize ? weight"),
    _choice("mass-of-the-first-32", "mass += metal::exp(logits.at(e) - largest)",
            "mass += e < 32 ? metal::exp(logits.at(e) - largest) : 0.0f", lambda: test_choice(33, 3, False, F32)),
    _choice("shared-not-through-the-sigmoid", "metal::exp(-shared)", "metal::exp(shared)",
            lambda: test_choice(8, 2, True, F32)),
    _fault("second-round-of-experts", "first + simdgroup * N;", "simdgroup * N;",
           lambda: test_route(1, 1000, 64, 8, F16, False)),
    _fault("shared-row-as-an-expert", ": shared;", ": weight;", lambda: test_route(3, 60, 264, 4, F16, True)),
    _fault("barrier-before-the-choice", "  threadgroup_barrier(mem_flags::mem_threadgroup);\n", "", test_lane_orders),
    _fault("expert-of-the-first-choice", "r.ids_stride + pair % r.chosen]", "r.ids_stride]",
           lambda: test_glu(*CASES[0])),
    _fault("gate-of-expert-0", "gate + expert *", "gate + 0 * expert *", lambda: test_glu(*CASES[0])),
    _fault("up-with-the-distance-of-gate", "r.expert_blocks[1]", "r.expert_blocks[0]", test_experts_may_be_strided),
    _fault("row-of-the-next-token", "token = pair / r.chosen;", "token = pair / r.chosen ^ 1;",
           lambda: test_glu(Case(tokens=2), F32)),
    _fault("activation-of-up", "activate(args.activation, value) * other", "activate(args.activation, other) * value",
           lambda: test_glu(*CASES[0])),
    _fault("norm-left-out", "Normed ? normed", "!Normed ? normed", lambda: test_glu(*CASES[0])),
    _fault("last-output-not-stored", "n0 + lane < width)", "n0 + lane + 1 < width)", lambda: test_glu(*CASES[4])),
    _fault("weights-of-the-first-token", "weights[token * r.weights_stride + j]", "weights[j]",
           lambda: test_down(*CASES[1])),
    _fault("ids-without-a-stride", "ids[token * r.ids_stride + j]", "ids[token * r.chosen + j]",
           test_ids_and_weights_may_be_columns_of_more),
    _fault("last-expert-dropped", "j < r.chosen; ++j) {\n    const", "j + 1 < r.chosen; ++j) {\n    const",
           lambda: test_down(*CASES[0])),
    _fault("residual-scaled", "fma(args.scale, sum, float(residual[at]))", "args.scale * (sum + float(residual[at]))",
           lambda: test_down(Case(scale=-0.4, tokens=2), F32)),
    _fault("no-expert-is-the-last", "uint(id) < args.experts", "uint(id) <= args.experts && id > -7",
           lambda: check_glu({**glu_inputs(Case(tokens=2), F32), "gate": torch.ones(7, 24, 256)[:6],
                              "up": torch.ones(7, 24, 256)[:6], "ids": torch.full((2, 2), 6, dtype=torch.int32)})),
    _many("pairs-of-the-first-chunk", "order[place + count] = first + i;", "order[place + count] = i;"),
    _many("experts-mixed-up", "place += counts[e];", "place += counts[e] & ~1u;",
          lambda: test_group(70, 33, 4)),
    _many("last-pair-of-a-tile", "m < count && n < args.n)", "m + 1 < count && n < args.n)"),
    _many("matrix-of-expert-0", "weight + ulong(expert)", "weight + 0 * ulong(expert)"),
    _many("row-of-the-first-choice", "x + ulong(pair / args.per_row)", "x + ulong(pair / 2 * 2 / args.per_row)"),
    _many("empty-tiles-not-marked", "tile < args.tiles; ++tile)", "tile + 1 < args.tiles; ++tile)",
          lambda: test_group(9, 100, 8)),
    _many("combined-without-weights", "fma(weights[token * r.weights_stride + j], float", "fma(1.0f, float"),
    _many("ids-of-no-expert-combined", "if (uint(ids[token * r.ids_stride + j]) < r.experts)", "",
          test_ids_of_no_expert_add_nothing),
]  # fmt: skip
