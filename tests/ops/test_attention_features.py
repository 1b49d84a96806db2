"""attention: packed caches, pages, ragged sequences, sinks, and numbers at the edges of a dtype."""

from __future__ import annotations

from typing import Any

import attention_grid as grid
import kit
import pytest
import torch
from kit import BF16, F16, F32

from torch_foundry import ops
from torch_foundry.quant.kv import pack_rows, row_bytes, unpack_rows
from torch_foundry.testing import op_checks
from torch_foundry.testing import reference as plain

KERNEL = {
    "dtype": F32, "columns": (64, 64), "k": "own", "v": "own", "mask": "", "softcap": 0.0, "sinks": "", "lanes": 1,
}  # fmt: skip
CALL = {
    "seed": 0, "batch": 2, "kv_heads": 2, "group": 2, "queries": 2, "kv_len": 600, "window": 0, "causal": True,
    "padding": False, "ragged": False, "page": 16, "gain": 1.0, "broadcast": "",
}  # fmt: skip


def given_for(**changed: Any) -> dict[str, Any]:
    kernel = {**KERNEL, **{n: v for n, v in changed.items() if n in KERNEL}}
    return grid.inputs(kernel, {**CALL, **{n: v for n, v in changed.items() if n in CALL}})


def agrees(**changed: Any) -> None:
    """A call against float64, from pages too."""
    kernel = {**KERNEL, **{n: v for n, v in changed.items() if n in KERNEL}}
    grid.check(kernel, {**CALL, **{n: v for n, v in changed.items() if n in CALL}})


def _packed(format: str, dtype: torch.dtype) -> dict[str, Any]:
    return given_for(k=format, v=format, dtype=dtype, batch=1, queries=1, kv_len=1024, columns=(64, 64))


def _check_packed(given: dict[str, Any]) -> None:
    kernel = {**KERNEL, "k": given["k_format"], "v": given["v_format"], "dtype": given["q"].dtype}
    grid.check(kernel, {**CALL, "batch": 1, "queries": 1, "kv_len": 1024})


BENCHES = [
    kit.Bench(
        "attention_packed", ["q8_0", "q4_0"], _packed, ops.attention,
        lambda **given: plain.attention(**grid.dense(given, given["q"].dtype)), _check_packed,
        lambda name, dtype: (16 * 64 * 1024, 2 * 2 * 1024 * row_bytes(64, name)),
    )
]  # fmt: skip


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_packed_rows_are_close(name: str) -> None:
    """Half a step of the codes, and a step at the end that has one code less; NaN stays; what is too large is cut."""
    g = kit.generator(name)
    for columns in (48, 64, 80, 128, 256):
        x = kit.normal(g, 50, columns, dtype=F32) * torch.logspace(-3, 3, 50)[:, None]
        packed = pack_rows(x, name)
        assert packed.shape == (50, row_bytes(columns, name))
        padded = torch.nn.functional.pad(x, (0, -columns % 32)).unflatten(-1, (-1, 32))
        step = padded.abs().amax(-1, keepdim=True) / (127 if name == "q8_0" else 8)
        allowed = (step * (0.51 if name == "q8_0" else 1.01)).expand_as(padded).flatten(-2)[:, :columns]
        assert bool(((unpack_rows(packed, name) - x).abs() <= allowed + 1e-7).all())
    odd = torch.zeros(4, 64)
    odd[0, 3], odd[1, 40], odd[2, 5] = torch.nan, torch.inf, 1e30
    back = unpack_rows(pack_rows(odd, name), name)
    assert back[0, :32].isnan().all() and back[1, 32:].isnan().all() and not back[2:].isnan().any()
    assert not back[0, 32:].any() and back[2].isfinite().all() and back[2, 5] > 5e5 and not back[3].any()


@pytest.mark.tier("kernels")
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("columns", [(80, 112), (112, 48), (64, 64)], ids=str)
def test_columns_of_any_number(columns: tuple[int, int], lanes: int) -> None:
    agrees(columns=columns, dtype=F16, lanes=lanes)
    agrees(columns=columns, k="q4_0", v="q8_0", lanes=lanes)


@pytest.mark.tier("kernels")
@pytest.mark.parametrize("lanes, dtype", [(1, F32), (8, F32), (32, F16)])
def test_scores_that_grow_along_the_keys(lanes: int, dtype: torch.dtype) -> None:
    """What came before weighs less and less: by more than the room that weights are given."""
    given = given_for(dtype=dtype, kv_len=250)  # in one split, of which a simdgroup has two tiles
    given["q"] = given["q"].abs()
    ramp = torch.linspace(0, 20, given["k_cache"].shape[2], dtype=dtype)
    given["k_cache"] = ramp[:, None].expand_as(given["k_cache"]).contiguous()
    with kit.choice("attention", lanes=lanes):
        op_checks.attention(given)


@pytest.mark.tier("kernels")
def test_each_sequence_of_a_ragged_batch_is_alone() -> None:
    """Bit for bit, whatever else is in the batch, and whatever lies behind what it has."""
    for queries, k in ((4, "own"), (4, "q8_0"), (20, "own")):
        given = given_for(ragged=True, batch=3, queries=queries, k=k, kv_len=120)
        given["rows"] = torch.tensor([[50, queries], [3, queries - 1], [0, 1]], dtype=torch.int32)
        for name in ("k_cache", "v_cache"):
            given[name] = grid.inputs({**KERNEL, "k": k}, {**CALL, "batch": 3, "kv_len": 200})[name]
        together = ops.attention(**given)
        for b, (first, count) in enumerate(given["rows"].tolist()):
            alone = {n: given[n][b : b + 1] for n in ("q", "k_cache", "v_cache")}
            alone["q"] = alone["q"][:, :, :count]
            if queries > 16:  # as many as make the same kernel
                alone["q"] = given["q"][b : b + 1]
                got = ops.attention(**{**given, **alone, "rows": given["rows"][b : b + 1]})
                kit.assert_equal(got[:, :count], together[b : b + 1, :count])
            else:
                kwargs = {**given, **alone, "rows": None, "kv_len": first + count}
                kit.assert_equal(ops.attention(**kwargs), together[b : b + 1, :count])
            assert not together[b, count:].any()


@pytest.mark.tier("kernels")
@pytest.mark.parametrize("queries", [1, 20])
def test_sinks(queries: int) -> None:
    """A sink takes weight and gives nothing; one of minus infinity is none; a query that sees nothing gives zeros."""
    for kv_len in (100, 700, 4700):  # one split, a few that are merged, and many
        agrees(sinks="own", dtype=F16, queries=queries, kv_len=kv_len)
        given = given_for(sinks="float", queries=queries, kv_len=kv_len)
        none = ops.attention(**{**given, "sinks": None})
        kit.assert_equal(ops.attention(**{**given, "sinks": torch.full((4,), -torch.inf)}), none)
        huge = {**given, "sinks": torch.tensor([1e4, -1e4, 3e38, 0.0])}
        got = ops.attention(**huge).view(2, queries, 4, 64)
        assert not got[:, :, 0].any() and not got[:, :, 2].any()
        kit.assert_equal(got[:, :, 1].contiguous(), none.view(2, queries, 4, 64)[:, :, 1].contiguous())
        unseen = torch.zeros(1, 1, 1, kv_len, dtype=torch.bool)
        assert not ops.attention(**{**given, "mask": unseen}).any()


@pytest.mark.tier("kernels")
@pytest.mark.parametrize("queries", [2, 20])
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=kit.dtype_id)
def test_the_largest_numbers_stay_finite(queries: int, dtype: torch.dtype) -> None:
    """Scores of 1e11 and of -1e11, values at the end of f16: finite, and right."""
    given = given_for(dtype=dtype, queries=queries, kv_len=600)
    large = 65504.0
    for name in ("q", "k_cache"):
        given[name] = given[name].sign() * large
    given["v_cache"] = torch.where(given["v_cache"].isnan(), torch.nan, large).to(dtype)
    got = ops.attention(**given)
    kit.assert_equal(got, torch.full_like(got, large))
    given = given_for(dtype=dtype, queries=queries, kv_len=600)
    wide = {n: given[n] * (large / 8) for n in ("q", "k_cache")}
    op_checks.attention({**given, **wide, "scale": 1e4 / (large / 8) ** 2 / 8})  # scores of some 1e4
    assert bool(ops.attention(**{**given, **wide}).isfinite().all())
    op_checks.attention({**given, "q": given["q"] * 2.0**-20, "k_cache": given["k_cache"] * 2.0**-20})


@pytest.mark.parametrize("queries", [2, 20])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=kit.dtype_id)
def test_the_least_number_in_a_mask_hides(queries: int, dtype: torch.dtype) -> None:
    """As minus infinity does: Hugging Face's additive masks hold the one or the other."""
    given = given_for(dtype=dtype, queries=queries, kv_len=100)
    hidden = torch.rand(2, 1, queries, 100, generator=kit.generator()) < 0.5
    hidden[1, :, 1] = True
    masks = [
        torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, x) for x in (torch.finfo(dtype).min, -torch.inf)
    ]
    least, infinite = (ops.attention(**{**given, "mask": mask}) for mask in masks)
    assert not least[1, 1].any() and bool(least[1, 0].any())
    kit.assert_equal(least, infinite)


@pytest.mark.tier("kernels")
def test_pages_that_nobody_sees_are_not_looked_up() -> None:
    """Those behind the last key, and those that a window has left."""
    for queries, lanes, dtype in ((1, 1, F32), (1, 8, F32), (1, 32, F16), (20, 1, F32)):
        given = given_for(dtype=dtype, queries=queries, window=70, kv_len=600)
        with kit.choice("attention", lanes=lanes):
            expected = ops.attention(**given)
            pages = grid.paged(given, 16, kit.generator())
            first = (600 - queries + 1 - 70) // 16
            pages["block_table"][:, :first] = 1 << 26  # far outside of all memory
            pages["block_table"][:, -(-600 // 16) :] = 1 << 26
            kit.assert_equal(ops.attention(**pages), expected)


@pytest.mark.tier("kernels")
@pytest.mark.parametrize("k, dtype", [("own", F16), ("q8_0", F32)])
def test_more_than_8192_tokens(k: str, dtype: torch.dtype) -> None:
    """In one buffer and in pages; and a prompt in two parts sees what it sees at once."""
    long: dict[str, Any] = {"kv_len": 9000, "batch": 1, "kv_heads": 1, "k": k, "v": k}
    agrees(queries=1, dtype=dtype, **long)
    agrees(queries=20, dtype=dtype, **long)
    given = given_for(queries=37, dtype=dtype, **long)
    whole = ops.attention(**given)
    first = {**given, "q": given["q"][:, :, :17], "kv_len": 8980}
    second = {**given, "q": given["q"][:, :, 17:]}
    kit.assert_equal(torch.cat((ops.attention(**first), ops.attention(**second)), 1), whole)


def test_bad_inputs() -> None:
    given = given_for(kv_len=300)
    pages = grid.paged(given, 16, kit.generator())

    def refuse(message: str, **changed: Any) -> None:
        with kit.refuses(message):
            ops.attention(**{**given, **changed})

    table = pages["block_table"]
    refuse(r"block_table: expected dtype Int", **{**pages, "block_table": table.long()})
    refuse(r"block_table: expected \[2, pages\]", **{**pages, "block_table": table[:1]})
    refuse(r"kv_len: expected 0 to the capacity of 32", **{**pages, "block_table": table[:, :2]})
    refuse(r"pages of a power of two", **{**pages, **{n: pages[n][:, :, :12] for n in ("k_cache", "v_cache")}})
    refuse(r"v_cache: expected", **{**pages, "v_cache": pages["v_cache"][1:]})
    refuse(r"rows: expected \[batch=2, 2\]", rows=torch.zeros(2, 3, dtype=torch.int32))
    both = {"rows": torch.zeros(2, 2, dtype=torch.int32), "step": torch.zeros(2, dtype=torch.int32)}
    refuse(r"rows: expected step or rows", **both)
    refuse(r"sinks: expected \[heads=4\]", sinks=torch.zeros(3))
    refuse(r"sinks: expected dtype Float", sinks=torch.zeros(4, dtype=F16))
    refuse(r"format: expected one of q8_0, q4_0, got q9", k_format="q9")
    refuse(r"k_cache: expected dtype Byte", k_format="q8_0")
    refuse(r"k_cache: expected dtype Float or Half", k_cache=given["k_cache"].to(torch.uint8))
    refuse(r"v_cache: expected rows of q8_0", v_format="q8_0", v_cache=torch.zeros(2, 2, 320, 67, dtype=torch.uint8))
    packed = torch.zeros(2, 2, 320, 69, dtype=torch.uint8)[..., 1:]
    refuse(r"v_cache: expected packed rows at multiples of 4 bytes", v_format="q8_0", v_cache=packed)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    given = given_for(k="q8_0", v="q4_0", kv_len=20, ragged=True, sinks="own")
    given["k_cache"], given["v_cache"] = (torch.zeros_like(given[n]) for n in ("k_cache", "v_cache"))
    pages = grid.paged(given, 16, kit.generator())
    order = ["q", "k_cache", "v_cache", "kv_len", "scale", "mask", "causal", "window", "softcap", "kv_start", "step",
             "rows", "block_table", "sinks", "k_format", "v_format"]  # fmt: skip
    kit.opcheck("attention", *(pages.get(name) for name in order))


def test_reference_of_pages_is_that_of_one_buffer() -> None:
    given = given_for(k="q8_0", v="q4_0")
    pages = grid.paged(given, 32, kit.generator())
    kit.assert_equal(plain.attention(**pages), plain.attention(**given))
