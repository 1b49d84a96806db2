"""rope_kv: rotation against float64, and caches that change nowhere but in the new tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault
from torch import Tensor

from torch_foundry import ops
from torch_foundry.testing import op_checks
from torch_foundry.testing import reference as plain


@dataclass(frozen=True)
class Case(kit.Case):
    batch: int = 2
    tokens: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    value_dim: int = 0  # 0: head_dim
    rotary: int = -1  # -1: head_dim; 0: no position embedding
    start: int = 5
    capacity: int = 16
    table: torch.dtype | None = None  # of cos and sin; None: as q
    shared_table: bool = False  # one for the whole batch
    twice: bool = False  # tables of queries, and of keys
    interleaved: bool = False
    deinterleave: bool = False


CASES = [
    (Case(), F32),
    (Case(), F16),
    (Case(), BF16),
    (Case(table=F32), BF16),
    (Case(batch=1, tokens=1, start=0), F32),
    (Case(tokens=16, start=0), F32),  # fills the cache
    (Case(tokens=1, start=15), F32),  # its last place
    (Case(rotary=32), F32),
    (Case(rotary=48), F32),
    (Case(rotary=6, head_dim=10), F32),  # one element at a time
    (Case(rotary=20, head_dim=24, shared_table=True), F16),  # aligned heads, rotary that is not
    (Case(rotary=0), F32),
    (Case(value_dim=32), F32),
    (Case(value_dim=96, head_dim=32), F32),
    (Case(heads=7, kv_heads=1, shared_table=True), F32),
    (Case(interleaved=True), F16),
    (Case(interleaved=True, rotary=32, twice=True), F32),
    (Case(interleaved=True, rotary=6, head_dim=10), F32),
    (Case(interleaved=True, deinterleave=True, value_dim=96), F16),
    (Case(twice=True, table=F32), BF16),
]
BENCH = [Case(batch=1, tokens=1, capacity=256), Case(batch=1, tokens=128, heads=14, capacity=256, start=0)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    c = case
    dv = c.value_dim or c.head_dim
    rotary = c.head_dim if c.rotary < 0 else c.rotary

    def table(f: Any) -> Tensor | None:
        if not rotary:
            return None
        shape = (1 if c.shared_table else c.batch, c.tokens, *[2] * c.twice, rotary)
        angles = torch.rand(shape, generator=g, dtype=torch.float64) * 6
        return f(angles).to(c.table or dtype)

    return {
        "q": kit.normal(g, c.batch, c.tokens, c.heads * c.head_dim, dtype=dtype),
        "k": kit.normal(g, c.batch, c.tokens, c.kv_heads * c.head_dim, dtype=dtype),
        "v": kit.normal(g, c.batch, c.tokens, c.kv_heads * dv, dtype=dtype),
        "cos": table(torch.cos),
        "sin": table(torch.sin),  # of other angles: the kernel knows no trigonometry
        "k_cache": kit.normal(g, c.batch, c.kv_heads, c.capacity, c.head_dim, dtype=dtype),
        "v_cache": kit.normal(g, c.batch, c.kv_heads, c.capacity, dv, dtype=dtype),
        "start": c.start,
        "head_dim": c.head_dim,
        "interleaved": c.interleaved,
        "deinterleave": c.deinterleave,
    }


run = ops.rope_kv
reference = plain.rope_kv


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    q, kv = case.heads * case.head_dim, case.kv_heads * (case.head_dim + (case.value_dim or case.head_dim))
    moved = case.batch * case.tokens * 2 * (q + kv) * dtype.itemsize
    return 3 * case.batch * case.tokens * (case.heads + case.kv_heads) * case.head_dim, moved


own = op_checks.own
check = op_checks.rope_kv


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@pytest.mark.parametrize("interleaved, apart", [(False, False), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize("rotary", [64, 32, 6], ids=str)
def test_exact_on_whole_numbers(rotary: int, interleaved: bool, apart: bool) -> None:
    """cos and sin of small whole numbers: every element is exact, so a swapped half or a sign shows in each."""
    given = inputs(Case(rotary=rotary, interleaved=interleaved, deinterleave=apart, twice=True), F16)
    g = kit.generator(rotary)
    for name in ("q", "k", "v", "cos", "sin"):
        given[name] = kit.integers(g, *given[name].shape, dtype=F16)
    mine, stock = own(given), own(given)
    kit.assert_equal(ops.rope_kv(**mine), plain.rope_kv(**stock))
    kit.assert_equal(mine["k_cache"], stock["k_cache"])
    kit.assert_equal(mine["v_cache"], stock["v_cache"])


def test_strides_and_offsets() -> None:
    """q, k and v as slices of one projection; caches as views into larger memory that must stay as it is."""
    given = inputs(Case(), F32)
    stock = own(given)
    expected = plain.rope_kv(**stock)
    for pad in (4, 3):  # aligned to vectors, and not
        qkv = kit.spread(torch.cat((given["q"], given["k"], given["v"]), -1), pad)
        q, k, v = qkv.split([given["q"].shape[-1], given["k"].shape[-1], given["v"].shape[-1]], -1)
        memory = [torch.full((2, 4, 20, 64 + pad), 9.0) for _ in range(2)]
        caches = [m[:, 1:3, 2:18, :64].copy_(given[n]) for m, n in zip(memory, ("k_cache", "v_cache"), strict=True)]
        strided = {**given, "q": q, "k": k, "v": v, "k_cache": caches[0], "v_cache": caches[1]}
        strided["cos"], strided["sin"] = kit.spread(given["cos"], pad), kit.shifted(given["sin"], pad)
        torch.testing.assert_close(ops.rope_kv(**strided), expected, rtol=0, atol=2e-6)
        for m, cache, name in zip(memory, caches, ("k_cache", "v_cache"), strict=True):
            torch.testing.assert_close(cache, stock[name], rtol=0, atol=2e-6)
            cache.fill_(9.0)
            assert bool((m == 9.0).all()), f"{name}: written outside the view"


def test_rows_do_not_depend_on_their_neighbours() -> None:
    given = inputs(Case(tokens=4, start=0), BF16)
    together = own(given)
    q = ops.rope_kv(**together)
    alone = own(given)
    for t in range(4):
        one = {n: given[n][:, t : t + 1] for n in ("q", "k", "v", "cos", "sin")}
        kit.assert_equal(ops.rope_kv(**{**alone, **one, "start": t}), q[:, :, t : t + 1])
    kit.assert_equal(alone["k_cache"], together["k_cache"])


def by_position(given: dict[str, Any]) -> dict[str, Any]:
    """The same call with tables of cos and sin, and with the first token's position in memory."""
    batch, tokens = given["q"].shape[:2]
    g = kit.generator(tokens)
    shuffled = torch.randperm(50, generator=g)[: batch * tokens].view(batch, tokens).int()
    changed: dict[str, Any] = {"positions": shuffled}
    for name in ("cos", "sin"):
        if given[name] is not None:
            table = torch.full((50, *given[name].shape[2:]), float("nan"), dtype=given[name].dtype)
            table[shuffled.long()] = given[name].expand(batch, *given[name].shape[1:])
            changed[name] = table
    step = torch.tensor([given["start"], 7], dtype=torch.int32)
    return {**given, **changed, "step": step, "start": 0}


@kit.cases(*CASES)
def test_tables_and_a_start_in_memory_are_as_good(case: Case, dtype: torch.dtype) -> None:
    given = own(inputs(case, dtype))
    mine = own(by_position(given))
    kit.assert_equal(ops.rope_kv(**mine), ops.rope_kv(**given))
    kit.assert_equal(mine["k_cache"], given["k_cache"])
    kit.assert_equal(mine["v_cache"], given["v_cache"])


def test_a_start_beyond_the_cache_stays_inside() -> None:
    """Nothing on the host can refuse it: the last slots are written, and no other memory."""
    given = by_position(inputs(Case(), F32))
    memory = [torch.full((2, 2, 40, 64), 9.0) for _ in range(2)]
    caches = {n: m[:, :, :16] for n, m in zip(("k_cache", "v_cache"), memory, strict=True)}
    given["step"][0] = 1000
    ops.rope_kv(**{**given, **caches})
    for m in memory:
        assert (
            bool((m[:, :, :13] == 9).all())
            and bool((m[:, :, 16:] == 9).all())
            and not bool((m[:, :, 13:16] == 9).any())
        )


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(), F32)
    kit.in_every_lane_order(lambda: ops.rope_kv(**own(given)))


def test_empty() -> None:
    given = own(inputs(Case(), F32))
    short = {n: given[n][:, :0] for n in ("q", "k", "v", "cos", "sin")}
    assert ops.rope_kv(**{**given, **short}).shape == (2, 4, 0, 64)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    given = inputs(Case(), F32)
    pairs = {name: given.pop(name) for name in ("interleaved", "deinterleave")}
    kit.opcheck("rope_kv", *given.values())
    kit.opcheck("rope_kv", *{**given, "cos": None, "sin": None}.values(), **pairs)


def refuse(message: str, **changed: Any) -> None:
    with kit.refuses(message):
        ops.rope_kv(**{**own(inputs(Case(), F32)), **changed})


def test_bad_inputs() -> None:
    given = inputs(Case(), F32)
    refuse(r"q: expected dtype Float or Half", q=given["q"].double())
    refuse(r"k: expected dtype Float, got Half", k=given["k"].half())
    refuse(r"v: expected \[batch=2, tokens=3", v=given["v"][:1])
    refuse(r"q: expected a last dimension of a multiple of head_dim=64", q=given["q"][..., :100])
    refuse(r"head_dim: expected a positive even number, got 63", head_dim=63)
    refuse(r"k_cache: expected \[batch=2, kv_heads=2, capacity, head_dim=64\]", k_cache=given["k_cache"][..., :32])
    refuse(r"start: expected start \+ 3 tokens to fit into the capacity of 16, got 14", start=14)
    for start in (-1, 2**63 - 1):
        refuse(r"start: expected", start=start)
    refuse(r"sin: expected both cos and sin", sin=None)
    refuse(r"deinterleave: expected interleaved heads without norms", deinterleave=True)
    refuse(r"cos: expected a batch of 2 or 1", cos=given["cos"].expand(2, 3, 64).repeat(2, 1, 1))
    refuse(r"sin: expected \[2, tokens=3, rotary_dim=64\]", sin=given["sin"][..., :32])
    refuse(r"sin: expected dtype Float", cos=given["cos"], sin=given["sin"].half())
    refuse(r"cos: expected an even last dimension", cos=given["cos"][..., :7], sin=given["sin"][..., :7])
    refuse(
        r"v_cache: expected memory of its own, but it overlaps k_cache",
        v_cache=given["k_cache"],
        k_cache=given["k_cache"],
    )
    for cache, of in (("k_cache", "q"), ("k_cache", "k"), ("v_cache", "v")):
        part = given[cache].view(-1)[: given[of].numel()].view(given[of].shape)
        refuse(rf"{cache}: expected memory of its own, but it overlaps {of}", **{cache: given[cache], of: part})
    twice = given["cos"].unsqueeze(2).expand(2, 3, 2, 64)
    refuse(r"sin: expected the dimensions of cos", cos=twice.contiguous())
    refuse(r"cos: expected 3 dimensions, or", cos=twice, sin=twice)
    refuse(r"rotate_first: expected q_norm and k_norm", rotate_first=True)
    refuse(r"positions: expected \[batch=2, tokens=3\]", positions=torch.zeros(2, 2, dtype=torch.int32))
    refuse(r"cos: expected 2 dimensions", positions=torch.zeros(2, 3, dtype=torch.int32))
    refuse(r"step: expected dtype Int", step=torch.zeros(2))
    refuse(r"k_norm: expected both", q_norm=torch.ones(64))
    refuse(r"q_norm: expected \[head_dim=64\]", q_norm=torch.ones(32), k_norm=torch.ones(64))
    refuse(r"v_norm: expected q_norm and k_norm", v_norm=True)
    rows = {"q_norm": torch.ones(256), "k_norm": torch.ones(128)}
    refuse(r"q_norm: expected \[heads\*head_dim=256\], got \[64\]", q_norm=torch.ones(64), k_norm=rows["k_norm"])
    refuse(r"k_norm: expected \[kv_heads\*head_dim=128\], got \[64\]", q_norm=rows["q_norm"], k_norm=torch.ones(64))
    for name in ("v_norm", "rotate_first"):
        refuse(rf"{name}: expected q_norm and k_norm of head_dim=64, got those of all heads", **rows, **{name: True})
    refuse(r"kind: expected one of llama", q_norm=torch.ones(64), k_norm=torch.ones(64), kind="t5")
    for cache in ("k_cache", "v_cache"):
        refuse(rf"{cache}: expected memory without overlap", **{cache: given[cache][:, :1].expand(2, 2, 16, 64)})
    refuse(
        r"k_cache: expected a contiguous last dimension",
        k_cache=given["k_cache"].transpose(2, 3).contiguous().transpose(2, 3),
    )


FAULTS = [
    Fault(
        "rope-halves-swapped",
        "rope_kv_dense.metal",
        "store(out + (moves ? pair.column : pair.first), a);\n"
        "  store(out + (moves ? pair.column + args.rotary_dim / 2 : second), b);",
        "store(out + (moves ? pair.column : second), a);\n"
        "  store(out + (moves ? pair.column + args.rotary_dim / 2 : pair.first), b);",
        lambda: test_exact_on_whole_numbers(64, False, False),
    ),
    Fault(
        "rope-sign-of-sin",
        "rope_kv_dense.metal",
        "x * cos_a[n] - y * sin_a[n]",
        "x * cos_a[n] + y * sin_a[n]",
        lambda: test_exact_on_whole_numbers(64, False, False),
    ),
    Fault(
        "rope-second-half-takes-cos-of-the-first",
        "rope_kv_dense.metal",
        "a[n] = x * cos_a[n] - y * sin_a[n];\n      b[n] = y * cos_b[n]",
        "a[n] = x * cos_a[n] - y * sin_a[n];\n      b[n] = y * cos_a[n]",
        lambda: test_accuracy(Case(), F16),
    ),
    Fault(
        "rope-cache-written-one-token-late",
        "rope_kv_dense.metal",
        ": args.start) + token;",
        ": args.start) + token + 1;",
        lambda: test_accuracy(Case(), F32),
        "heads.h",
    ),
    Fault(
        "rope-partial-rotary-tail-dropped",
        "rope_kv_dense.metal",
        "pair.first >= (is_value",
        "pair.first + 16 >= (is_value",
        lambda: test_exact_on_whole_numbers(32, False, False),
    ),
    Fault(
        "rope-v-of-the-next-head",
        "rope_kv_dense.metal",
        "(head - args.n_kv_heads) * args.value_dim",
        "((head - args.n_kv_heads) ^ 1) * args.value_dim",
        lambda: test_accuracy(Case(rotary=0), F32),
        file="heads.h",
    ),
    Fault(
        "rope-row-of-the-neighbour",
        "rope_kv_dense.metal",
        "return {row * args.cos_token + keys, row * args.sin_token + keys}",
        "return {row * args.cos_token + keys, (row ^ 1) * args.sin_token + keys}",
        lambda: test_tables_and_a_start_in_memory_are_as_good(Case(), F32),
        "heads.h",
    ),
    Fault(
        "rope-second-of-neighbours-as-the-first",
        "rope_kv_dense.metal",
        "b[n] = row[2 * n + 1]",
        "b[n] = row[2 * n]",
        lambda: test_exact_on_whole_numbers(64, True, False),
    ),
    Fault(
        "rope-pairs-stay-side-by-side",
        "rope_kv_dense.metal",
        "moves ? pair.column : pair.first",
        "pair.first",
        lambda: test_exact_on_whole_numbers(64, True, True),
    ),
    Fault(
        "rope-keys-by-the-tables-of-queries",
        "rope_kv_dense.metal",
        "head < args.n_heads ? 0 : args.key_columns",
        "head < args.n_heads ? 0 : 0 * args.key_columns",
        lambda: test_exact_on_whole_numbers(64, False, False),
        "heads.h",
    ),
]
