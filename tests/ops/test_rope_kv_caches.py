"""rope_kv into caches of every kind: stored is what a dense cache would hold, packed, paged or converted."""

from __future__ import annotations

from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault
from test_rope_kv import Case, inputs, own
from test_rope_kv_norms import with_row_norms
from torch import Tensor

from torch_foundry import ops
from torch_foundry.quant.kv import pack_rows, row_bytes, unpack_rows
from torch_foundry.testing import reference as plain

FORMATS = ["q8_0", "q4_0"]


def with_norms(given: dict[str, Any]) -> dict[str, Any]:
    g = kit.generator("norms")
    gains = {n: kit.normal(g, given["head_dim"], dtype=given["q"].dtype) for n in ("q_norm", "k_norm")}
    return {**given, **gains, "eps": 1e-6, "kind": "gemma"}


def stored(given: dict[str, Any], **formats: str | None) -> dict[str, Any]:
    """The same call with caches of other formats, full of ones."""
    changed: dict[str, Any] = {}
    for name in ("k", "v"):
        cache, fmt = given[f"{name}_cache"], formats.get(f"{name}_format")
        shape = cache.shape if fmt is None else (*cache.shape[:3], row_bytes(cache.shape[3], fmt))
        changed[f"{name}_cache"] = torch.ones(shape, dtype=cache.dtype if fmt is None else torch.uint8)
    return {**given, **formats, **changed}


def pack(cache: Tensor, fmt: str | None) -> Tensor:
    return cache if fmt is None else pack_rows(cache, fmt)


def packs(case: Case, dtype: torch.dtype, k: str | None, v: str | None, norms: str | None = None) -> None:
    """Bit for bit what pack_rows makes of what the dense cache gets; nothing else changes. norms: kind of those of all
    heads at once; those of single heads are sums in another order in the two kernels."""
    given = dense = inputs(case, dtype)
    if norms is not None:
        given, dense = with_row_norms(given, norms)
    dense, mine = own(dense), stored(given, k_format=k, v_format=v)
    q = ops.rope_kv(**dense)
    kit.assert_equal(ops.rope_kv(**mine), q)
    new = slice(case.start, case.start + case.tokens)
    for name, fmt in (("k_cache", k), ("v_cache", v)):
        kit.assert_equal(mine[name][:, :, new], pack(dense[name][:, :, new], fmt))
        for old in (slice(0, new.start), slice(new.stop, None)):
            assert bool((mine[name][:, :, old] == 1).all())


@pytest.mark.parametrize(
    "case, dtype, k, v",
    [
        (Case(), F32, "q8_0", "q8_0"),
        (Case(), F16, "q4_0", "q4_0"),
        (Case(rotary=48, head_dim=80, value_dim=112), BF16, "q8_0", "q4_0"),
        (Case(value_dim=48, rotary=0), F32, "q4_0", "q8_0"),
        (Case(table=F32, head_dim=256), BF16, "q8_0", None),
        (Case(batch=1, tokens=1, start=0), F16, None, "q4_0"),
        (Case(interleaved=True, deinterleave=True, rotary=32), F32, None, "q8_0"),
    ],
    ids=str,
)
def test_packed_at_the_write(case: Case, dtype: torch.dtype, k: str | None, v: str | None) -> None:
    packs(case, dtype, k, v)


@pytest.mark.parametrize(
    "case, dtype, k, v, kind",
    [
        (Case(), F32, "q8_0", "q8_0", "llama"),
        (Case(heads=12, kv_heads=6, rotary=48, head_dim=80, value_dim=112), BF16, "q8_0", "q4_0", "olmo"),
        (Case(heads=32, kv_heads=8, tokens=1, head_dim=128), F16, None, "q4_0", "gemma"),
    ],
    ids=str,
)
def test_norms_of_all_heads_at_once(case: Case, dtype: torch.dtype, k: str | None, v: str | None, kind: str) -> None:
    packs(case, dtype, k, v, kind)


def test_what_f16_can_not_hold() -> None:
    """NaN and infinities are NaN when they are read; a block too large for a scale is cut; zeros stay zeros."""
    case = Case(tokens=4, rotary=0)
    for fmt in FORMATS:
        given = inputs(case, F32)
        given["k"][0, 0, 3], given["k"][0, 1, 40] = torch.nan, -torch.inf
        given["k"][1, 0] *= 1e20
        given["k"][1, 1], given["v"][0, 0] = 0.0, 1e-9
        mine = stored(given, k_format=fmt, v_format=fmt)
        ops.rope_kv(**mine)
        dense = own(given)
        ops.rope_kv(**dense)
        for name in ("k_cache", "v_cache"):
            rows = mine[name][:, :, 5:9], pack_rows(dense[name][:, :, 5:9], fmt)
            got, expected = (unpack_rows(each, fmt) for each in rows)  # a NaN is a NaN, whatever its bits are
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def test_norms_of_heads_before() -> None:
    for kind in ("llama", "olmo", "gemma"):
        given = {**with_norms(inputs(Case(), F32)), "kind": kind}
        mine, stock = stored(given, k_format=None, v_format="q8_0"), own(given)
        got, expected = ops.rope_kv(**mine), plain.rope_kv(**stock)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mine["k_cache"][:, :, 5:8], stock["k_cache"][:, :, 5:8], rtol=1e-5, atol=1e-5)


def test_a_norm_of_values() -> None:
    for formats in ({"k_format": None, "v_format": "q8_0"}, {"k_format": None, "v_format": None}):
        given = {**with_norms(inputs(Case(head_dim=512), BF16)), "v_norm": True}
        rows = torch.tensor([[5, 3], [5, 3]], dtype=torch.int32)
        mine, dense = {**stored(given, **formats), "rows": rows}, own(given)
        ops.rope_kv(**mine)
        ops.rope_kv(**dense)
        got, fmt = mine["v_cache"][:, :, 5:8], formats["v_format"]
        got = got if fmt is None else unpack_rows(got, fmt)
        close = {"rtol": 0.01, "atol": 0.03 if fmt else 0.01}
        torch.testing.assert_close(got.float(), dense["v_cache"][:, :, 5:8].float(), **close)


def test_caches_of_another_dtype() -> None:
    given = inputs(Case(), F32)
    dense, mine = own(given), {**own(given)}
    mine["k_cache"], mine["v_cache"] = mine["k_cache"].half(), mine["v_cache"].bfloat16()
    ops.rope_kv(**dense)
    ops.rope_kv(**mine)
    kit.assert_equal(mine["k_cache"], dense["k_cache"].half())
    kit.assert_equal(mine["v_cache"], dense["v_cache"].bfloat16())


def test_numbers_too_large_for_f16_are_cut() -> None:
    """As in packed caches: a cache of halves makes no infinity of what is none."""
    given = inputs(Case(tokens=4, rotary=0), F32)
    given["k"][0, 0, :4] = torch.tensor([7e4, -1e38, torch.inf, torch.nan])
    mine = own(given)
    mine["k_cache"], mine["v_cache"] = mine["k_cache"].half(), mine["v_cache"].half()
    expected = {**own(given), "k_cache": mine["k_cache"].clone(), "v_cache": mine["v_cache"].clone()}
    ops.rope_kv(**mine)
    plain.rope_kv(**expected)
    torch.testing.assert_close(mine["k_cache"], expected["k_cache"], rtol=0, atol=0, equal_nan=True)
    row = mine["k_cache"][0, 0, 5, :4]
    assert row[:3].tolist() == [65504.0, -65504.0, torch.inf] and row[3].isnan()


ROWS = [[0, 3], [37, 2], [15, 3], [9, 0]]


def ragged(fmt: str | None, paged: bool, norms: bool = False) -> None:
    """Each sequence's tokens where it wants them; in pages, and nowhere else. norms: of rows of q and k."""
    given = apart = inputs(Case(batch=4, capacity=64), F32)
    if norms:
        given, apart = with_row_norms(given, "olmo")
    rows = torch.tensor(ROWS, dtype=torch.int32)
    mine, stock = ({**stored(call, k_format=fmt, v_format=fmt), "rows": rows} for call in (given, apart))
    if paged:
        table = torch.randperm(20, generator=kit.generator())[:16].view(4, 4).int()
        for call in (mine, stock):
            call["block_table"] = table
            for name in ("k_cache", "v_cache"):
                shape = call[name].shape
                call[name] = torch.ones((20, shape[1], 16, shape[3]), dtype=call[name].dtype)
    kit.assert_equal(ops.rope_kv(**mine), plain.rope_kv(**stock))
    for name in ("k_cache", "v_cache"):
        if fmt is None:
            torch.testing.assert_close(mine[name], stock[name], rtol=1e-6, atol=1e-6)
        else:  # a rounding may put a code on the other side
            assert (mine[name] != stock[name]).sum() <= 2
        assert bool((mine[name] != 1).any())


@pytest.mark.parametrize("norms", [False, True], ids=["", "norms"])
@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "pages"])
@pytest.mark.parametrize("fmt", [None, "q8_0"])
def test_sequences_that_are_filled_differently(fmt: str | None, paged: bool, norms: bool) -> None:
    ragged(fmt, paged, norms)


def test_what_has_no_room_is_not_written() -> None:
    given = inputs(Case(batch=3, capacity=64), F32)
    given["rows"] = torch.tensor([[62, 3], [-1, 3], [64, 1]], dtype=torch.int32)
    for table in (None, torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 99]], dtype=torch.int32)):
        mine = own({**given, "block_table": table})
        for name in ("k_cache", "v_cache"):
            shape = mine[name].shape if table is None else (12, 2, 16, 64)
            mine[name] = torch.ones(shape)
        ops.rope_kv(**mine)
        written = (mine["k_cache"] != 1).any(-1).any(1).nonzero().tolist()
        page, slots = (0, [62, 63]) if table is None else (3, [14, 15])
        assert written == [[page, slots[0]], [page, slots[1]], [1 if table is None else 4, 0],
                           [1 if table is None else 4, 1]]  # fmt: skip


def test_a_step_in_memory() -> None:
    given = inputs(Case(), F32)
    expected, mine = (stored(given, k_format="q8_0", v_format="q4_0") for _ in range(2))
    ops.rope_kv(**expected)
    ops.rope_kv(**{**mine, "start": 0, "step": torch.tensor([5, 0], dtype=torch.int32)})
    kit.assert_equal(mine["k_cache"], expected["k_cache"])
    kit.assert_equal(mine["v_cache"], expected["v_cache"])


@pytest.mark.cpu_only
def test_lane_orders_and_opcheck() -> None:
    given = stored(inputs(Case(), F32), k_format="q8_0", v_format="q4_0")

    def once() -> Tensor:
        mine = own(given)
        return torch.cat((ops.rope_kv(**mine).flatten(), mine["k_cache"].flatten(), mine["v_cache"].flatten()))

    kit.in_every_lane_order(once)
    order = ["q", "k", "v", "cos", "sin", "k_cache", "v_cache", "start", "head_dim"]
    kwargs = {n: given[n] for n in ("k_format", "v_format")}
    kit.opcheck("rope_kv", *(given[n] for n in order), **kwargs)


def test_bad_inputs() -> None:
    given = stored(inputs(Case(), F32), k_format="q8_0", v_format="q8_0")

    def refuse(message: str, **changed: Any) -> None:
        with kit.refuses(message):
            ops.rope_kv(**{**given, **changed})

    refuse(r"k_cache: expected dtype Byte, got Float", k_cache=torch.zeros(2, 2, 16, 68))
    refuse(r"k_cache: expected head_dim=64", k_cache=torch.zeros(2, 2, 16, 52, dtype=torch.uint8))
    refuse(r"k_cache: expected \[batch=2, kv_heads=2, tokens, 68\]", k_cache=given["k_cache"][:1])
    refuse(r"start: expected start \+ 3 tokens to fit", start=14)
    refuse(r"rows: expected dtype Int", rows=torch.zeros(2, 2))
    both = {"rows": torch.zeros(2, 2, dtype=torch.int32), "step": torch.zeros(2, dtype=torch.int32)}
    refuse(r"rows: expected step or rows, got both", **both)
    refuse(r"block_table: expected \[2, pages\]", block_table=torch.zeros(3, 1, dtype=torch.int32))
    refuse(r"v_cache: expected memory of its own", v_cache=given["k_cache"])


def test_keys_and_values_may_take_turns_in_one_memory() -> None:
    """Page by page; not if they would overlap by a number."""
    memory = torch.zeros(3, 2, 16, 2, 64)  # pages, keys or values, tokens, heads, columns
    k_cache, v_cache = memory.transpose(3, 2).unbind(1)
    q, kv = torch.randn(1, 5, 256), torch.randn(1, 5, 128)
    given: dict[str, Any] = {"head_dim": 64, "block_table": torch.tensor([[2]], dtype=torch.int32)}
    ops.rope_kv(q, kv, -kv, None, None, k_cache, v_cache, 0, **given)
    expected = torch.zeros_like(memory)
    expected[2, 0, :5], expected[2, 1, :5] = kv.view(5, 2, 64), -kv.view(5, 2, 64)
    assert torch.equal(memory, expected)
    shifted = memory.flatten()[2047:].as_strided(k_cache[:2].shape, k_cache.stride())
    with kit.refuses("v_cache: expected memory of its own, but it overlaps k_cache"):
        ops.rope_kv(q, kv, kv, None, None, k_cache[:2], shifted, 0, **given)


@pytest.mark.cpu_only
@pytest.mark.tier("kernels")
def test_pages_beyond_what_32_bits_count() -> None:
    """The last pages of a memory of more than 2^31 numbers, of which few are ever touched."""
    pages = 2**31 // 1024 + 8
    far = torch.empty(pages, 2, 16, 1, 32, dtype=F16).transpose(3, 2).unbind(1)
    near = torch.zeros(8, 2, 16, 1, 32, dtype=F16).transpose(3, 2).unbind(1)
    q, k, v = torch.randn(3, 1, 40, 32).half()
    found = []
    for (k_cache, v_cache), first in ((far, pages - 3), (near, 2)):
        table = torch.tensor([[first + 1, 0, first]], dtype=torch.int32)
        ops.rope_kv(q, k, v, None, None, k_cache, v_cache, 0, head_dim=32, block_table=table)
        few, many = q[:, None, 35:], q[:, None]
        found.append([ops.attention(x, k_cache, v_cache, 40, scale=0.2, block_table=table) for x in (few, many)])
        assert torch.equal(k_cache[first, 0, :8], k[0, 32:])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    with kit.refuses("k_cache: expected at most 2\\^31-1 elements"):
        ops.attention(q[:, None], far[0][None, :, 0], far[1][None, :, 0], 4, scale=0.2)


STORE, PACK = "rope_kv.metal", "kv_pack.h"
FAULTS = [
    Fault(
        "rope-pairs-side-by-side-into-a-packed-cache",
        "rope_kv.metal",
        "args.deinterleave && i < rotates ?",
        "args.deinterleave && i >= rotates ?",
        lambda: packs(Case(interleaved=True, deinterleave=True, rotary=32), F32, None, "q8_0"),
        "new_heads.h",
    ),
    Fault(
        "store-scale-not-the-stored-one",
        STORE,
        "float(half(metal::min(metal::max(scale, -65504.0f), 65504.0f)));",
        "metal::min(metal::max(scale, -65504.0f), 65504.0f);",
        lambda: packs(Case(), F32, "q8_0", "q8_0"),
        PACK,
    ),
    Fault(
        "store-scale-of-the-largest-only",
        STORE,
        "high >= -low ? high : low;",
        "high;",
        lambda: packs(Case(), F32, "q8_0", "q4_0"),
        PACK,
    ),
    Fault(
        "store-codes-cut-not-rounded",
        STORE,
        "(zero + 0.5f)",
        "(zero + 0.0f)",
        lambda: packs(Case(), F32, "q8_0", "q8_0"),
        PACK,
    ),
    Fault(
        "store-nibbles-of-the-wrong-lane",
        STORE,
        "simd_shuffle_xor(code, 1)",
        "simd_shuffle_xor(code, 2)",
        lambda: packs(Case(), F32, "q4_0", "q4_0"),
        PACK,
    ),
    Fault(
        "store-infinity-kept",
        STORE,
        "metal::isfinite(value) ? 0.0f : 1.0f",
        "metal::isnan(value) ? 1.0f : 0.0f",
        test_what_f16_can_not_hold,
        PACK,
    ),
    Fault(
        "store-last-half-block-left-out",
        STORE,
        "(columns + kv_block - 1) / kv_block;",
        "columns / kv_block;",
        lambda: packs(Case(rotary=48, head_dim=80, value_dim=112), BF16, "q8_0", "q4_0"),
        PACK,
    ),
    Fault(
        "store-page-of-the-first-sequence",
        STORE,
        "table[batch * args.table_row",
        "table[0 * args.table_row",
        lambda: ragged("q8_0", True),
    ),
    Fault(
        "store-tokens-that-are-not-there",
        STORE,
        "int(token) < rows[2 * batch + 1]",
        "int(token) <= rows[2 * batch + 1]",
        lambda: ragged("q8_0", False),
    ),
    Fault(
        "store-row-off-by-one-in-its-page",
        STORE,
        "slot) & ((1u << args.page_shift) - 1)",
        "slot + 1) & ((1u << args.page_shift) - 1)",
        lambda: ragged(None, True),
    ),
    Fault(
        "store-last-place-unused",
        STORE,
        "uint(slot) < capacity;",
        "uint(slot) + 1 < capacity;",
        test_what_has_no_room_is_not_written,
    ),
    Fault(
        "store-no-norm",
        STORE,
        "apply<T>(h.x[e] * inverse, weight[e])",
        "apply<T>(h.x[e], weight[e])",
        test_norms_of_heads_before,
        "new_heads.h",
    ),
    Fault(
        "store-norm-of-rows-of-heads-alone",
        STORE,
        "has_row_norm ? inverse_of_row(",
        "!has_row_norm ? inverse_of_row(",
        lambda: ragged(None, True, True),
        "new_heads.h",
    ),
    Fault(
        "store-rotates-backwards",
        STORE,
        "h.x[e] * cos[e] - across",
        "h.x[e] * cos[e] + across",
        lambda: packs(Case(), F32, "q8_0", None),
        "new_heads.h",
    ),
]
