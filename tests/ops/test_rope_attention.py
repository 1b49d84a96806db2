"""rope_attention: the bits of rope_kv and attention, one behind the other, in caches of every kind."""

from __future__ import annotations

from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault
from torch import Tensor

from torch_foundry import ops
from torch_foundry.core.graph import capture
from torch_foundry.quant import kv
from torch_foundry.testing import reference_attention as plain
from torch_foundry.testing import tolerance

Given = dict[str, Any]
PAGE, BATCH = 16, 3
OF_KV = {
    "head_dim", "positions", "step", "q_norm", "k_norm", "eps", "kind", "rows", "block_table", "k_format", "v_format",
    "v_norm", "interleaved", "rotate_first", "gated",
}  # fmt: skip
OF_ATTENTION = {
    "scale", "step", "rows", "block_table", "k_format", "v_format", "mask", "causal", "window", "softcap", "sinks",
}  # fmt: skip
KERNELS = [(1, F32), (8, F16), (32, BF16)]  # lanes of a key, or matrices, and a dtype for each


def inputs(
    dtype: torch.dtype,
    past: int = 40,
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    value_dim: int = 64,
    rotary: int = 64,
    norm: str = "heads",
    formats: tuple[str | None, str | None] = (None, None),
    paged: bool = False,
    ragged: bool = False,
    **more: Any,
) -> Given:
    """Sequences of `past` keys, ragged ones of fewer, the second of them without a new token. What is not there yet is
    NaN in dense caches."""
    g = kit.generator(past, heads, head_dim, value_dim, str(dtype))
    gated = more.get("gated", False)
    blocks = past // PAGE + 2
    angles = torch.rand(blocks * PAGE, rotary, generator=g, dtype=torch.float64) * 6

    def cache(columns: int, name: str | None) -> Tensor:
        x = kit.normal(g, BATCH, kv_heads, blocks * PAGE, columns, dtype=dtype)
        x[:, :, past:] = 0 if name else torch.nan
        if paged:
            x = x.unflatten(2, (blocks, PAGE)).transpose(1, 2).flatten(0, 1).contiguous()
        return kv.pack_rows(x, name) if name else x

    given: Given = {
        "q": kit.normal(g, BATCH, 1, heads * head_dim * (1 + gated), dtype=dtype),
        "k": kit.normal(g, BATCH, 1, kv_heads * head_dim, dtype=dtype),
        "v": kit.normal(g, BATCH, 1, kv_heads * value_dim, dtype=dtype),
        "cos": angles.cos().to(dtype) if rotary else None,
        "sin": angles.sin().to(dtype) if rotary else None,
        "k_cache": cache(head_dim, formats[0]),
        "v_cache": cache(value_dim, formats[1]),
        "kv_len": past + 1,
        "head_dim": head_dim,
        "scale": head_dim**-0.5,
        "positions": torch.randint(blocks * PAGE, (BATCH, 1), generator=g, dtype=torch.int32) if rotary else None,
        "k_format": formats[0],
        "v_format": formats[1],
        **more,
    }
    if norm:
        widths = (head_dim, head_dim) if norm == "heads" else (heads * head_dim, kv_heads * head_dim)
        given |= {f"{name}_norm": kit.normal(g, n, dtype=dtype) for name, n in zip("qk", widths, strict=True)}
        given["eps"] = 1e-5
    if ragged:
        given["rows"] = torch.tensor([[past, 1], [past // 2, 0], [past // 3, 1]], dtype=torch.int32)
    if paged:
        order = torch.randperm(BATCH * blocks, generator=g)
        given["block_table"] = order.view(BATCH, blocks).int()
    return given


def finite(given: Given) -> Given:
    """With numbers for what is not there yet: plain torch multiplies it by zero."""
    return {**given, **{name: given[name].nan_to_num(0.5) for name in ("k_cache", "v_cache")}}


def own(given: Given) -> Given:
    return {**given, "k_cache": given["k_cache"].clone(), "v_cache": given["v_cache"].clone()}


def apart(given: Given) -> Tensor:
    """The two ops; writes to the caches."""
    k_cache, v_cache, kv_len = (given[name] for name in ("k_cache", "v_cache", "kv_len"))
    q = ops.rope_kv(
        *(given[name] for name in ("q", "k", "v", "cos", "sin")), k_cache, v_cache, kv_len - 1,
        **{name: given[name] for name in OF_KV & given.keys()},
    )  # fmt: skip
    return ops.attention(q, k_cache, v_cache, kv_len, **{name: given[name] for name in OF_ATTENTION & given.keys()})


def same(given: Given) -> Tensor:
    """Bits of both ways, of the caches too."""
    mine, theirs = own(given), own(given)
    y, expected = ops.rope_attention(**mine), apart(theirs)
    kit.assert_equal(y, expected)
    for name in ("k_cache", "v_cache"):
        kit.assert_equal(mine[name].view(torch.uint8), theirs[name].view(torch.uint8))
    return y


@pytest.mark.parametrize("lanes, dtype", KERNELS)
@pytest.mark.parametrize("past", [0, 31, 40, 127, 300])
def test_bits(past: int, lanes: int, dtype: torch.dtype) -> None:
    with kit.choice("attention", lanes=lanes):
        assert same(inputs(dtype, past)).isfinite().all()
        same(inputs(dtype, past, norm="", gated=True, ragged=True, paged=True))
        same(inputs(dtype, past, formats=("q8_0", "q4_0"), paged=True, v_norm=True, kind="gemma"))


@pytest.mark.parametrize("lanes, dtype", KERNELS)
def test_heads_of_every_kind(lanes: int, dtype: torch.dtype) -> None:
    with kit.choice("attention", lanes=lanes):
        same(inputs(dtype, norm="rows", heads=16, kv_heads=2))
        same(inputs(dtype, rotate_first=True, rotary=32))
        same(inputs(dtype, interleaved=True, rotary=32, ragged=True))
        same(inputs(dtype, rotary=0, heads=20, kv_heads=1))
        same(inputs(dtype, head_dim=128, value_dim=32, rotary=128))
        same(inputs(dtype, head_dim=96, value_dim=96, rotary=64, heads=40, kv_heads=2))
        same(inputs(dtype, head_dim=256, value_dim=256, heads=16, gated=True))
    same(inputs(dtype, head_dim=512, value_dim=512, rotary=128, heads=8, kv_heads=1))
    same(inputs(dtype, head_dim=80, value_dim=112, rotary=80, v_norm=True))


@pytest.mark.parametrize("lanes, dtype", KERNELS)
def test_what_a_query_sees(lanes: int, dtype: torch.dtype) -> None:
    mask = torch.rand(BATCH, 1, 1, 64, generator=kit.generator("mask")) > 0.3
    with kit.choice("attention", lanes=lanes):
        same(inputs(dtype, 300, window=20, softcap=5.0))
        same(inputs(dtype, mask=mask, causal=False))
        same(inputs(dtype, sinks=torch.randn(4, generator=kit.generator("sinks"))))
        same(inputs(dtype, step=torch.tensor([40, 0], dtype=torch.int32)) | {"kv_len": 48})


@pytest.mark.parametrize("lanes, dtype", KERNELS)
def test_queries_alone(lanes: int, dtype: torch.dtype) -> None:
    """Of a layer that attends to another one's keys: nothing is written."""
    given = finite(inputs(dtype))
    given |= {name: given[name][..., :0] for name in ("k", "v")}
    with kit.choice("attention", lanes=lanes):
        mine = own(given)
        kit.assert_equal(ops.rope_attention(**mine), apart(own(given)))
        kit.assert_equal(mine["k_cache"], given["k_cache"])


def check(given: Given) -> None:
    """Against float64, of the new token's cache as well."""
    mine, stock, truth = own(given), own(given), own(tolerance.double(given))
    got, theirs, expected = ops.rope_attention(**mine), plain.rope_attention(**stock), plain.rope_attention(**truth)
    tolerance.assert_norm(got, expected, theirs)
    for name in ("k_cache", "v_cache"):
        tolerance.assert_norm(mine[name], truth[name], stock[name])


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_accuracy(dtype: torch.dtype) -> None:
    check(finite(inputs(dtype, 70, window=50)))


def _cost(past: int, dtype: torch.dtype) -> tuple[int, int]:
    keys, q, kv = past + 1, 4 * 64, 2 * 64
    return BATCH * 4 * q * keys, BATCH * (2 * q + 2 * kv * (keys + 1)) * dtype.itemsize


BENCHES = [
    kit.Bench(
        "rope_attention", [40, 300], lambda past, dtype: finite(inputs(dtype, past)), ops.rope_attention,
        plain.rope_attention, check, _cost,
    ),
]  # fmt: skip


def test_several_tokens() -> None:
    """The two launches behind each other, as any op."""
    g = kit.generator("several")
    given = finite(inputs(F32, 60)) | {"kv_len": 63, "positions": None}
    for name, heads in (("q", 4), ("k", 2), ("v", 2)):
        given[name] = kit.normal(g, BATCH, 3, heads * 64, dtype=F32)
    given |= {name: given[name][:3].expand(BATCH, 3, 64) for name in ("cos", "sin")}
    stock, theirs = own(given), own(given)
    y, expected = ops.rope_attention(**stock), plain.rope_attention(**theirs)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(stock["k_cache"], theirs["k_cache"], rtol=1e-5, atol=1e-5)


def test_one_launch() -> None:
    given = inputs(F32, paged=True, ragged=True, formats=("q8_0", None))
    with capture() as graph:
        ops.rope_attention(**given)
    (launch,) = graph.launches()
    assert launch.kernel.startswith("attention_decode<")


@pytest.mark.cpu_only  # whose choices are those of the host
def test_two_launches_by_matrices() -> None:
    given = inputs(F16)
    with kit.choice("attention", lanes=32), capture() as graph:
        ops.rope_attention(**given)
    assert [one.kernel.split("<")[0] for one in graph.launches()] == ["norm_rope_kv_dense", "attention_decode_matrix"]


@pytest.mark.cpu_only
@pytest.mark.parametrize("lanes, dtype", KERNELS)
def test_lane_orders(lanes: int, dtype: torch.dtype) -> None:
    with kit.choice("attention", lanes=lanes):
        given = inputs(dtype, heads=20, kv_heads=2, formats=("q4_0", None))
        kit.in_every_lane_order(lambda: ops.rope_attention(**own(given)))


@pytest.mark.cpu_only
def test_opcheck() -> None:
    given = inputs(F32, gated=True)
    kit.opcheck("rope_attention", *(given.pop(n) for n in list(given)[:8]), **given)


def test_refusals() -> None:
    def refuse(message: str, **changed: Any) -> None:
        with kit.refuses(message):
            ops.rope_attention(**{**inputs(F32), **changed})

    two = torch.zeros(BATCH, 2, 256)
    refuse(r"k: expected .* got \[3, 1, 128\]", q=two)
    refuse(r"q: expected 3 dimensions", q=two[0])
    refuse("kv_len: expected at least the 1 new tokens, got 0", kv_len=0)
    refuse("start: expected start \\+ 1 tokens to fit", kv_len=65)
    refuse("k_norm: expected both", k_norm=None)
    refuse("q: expected a last dimension of a multiple of head_dim=64", q=two[:, :1, :100])
    refuse("q: expected a last dimension of a multiple of head_dim=128", q=two[:, :1, :192], gated=True)
    refuse("window: expected 0", window=-1)
    rows = {"q_norm": torch.ones(512), "k_norm": torch.ones(128)}
    refuse("gated: expected q_norm and k_norm of head_dim", q=torch.zeros(BATCH, 1, 512), gated=True, **rows)
    cache = inputs(F32)["k_cache"]
    refuse("v_cache: expected memory of its own", k_cache=cache, v_cache=cache)


@pytest.mark.parametrize("lanes, dtype", KERNELS)
def test_a_refused_call_writes_nothing(lanes: int, dtype: torch.dtype) -> None:
    given = finite(inputs(dtype))
    mine = own(given)
    with kit.choice("attention", lanes=lanes), kit.refuses("mask: expected"):
        ops.rope_attention(**mine, mask=torch.ones(BATCH, 1, 1, 8, dtype=torch.bool))
    for name in ("k_cache", "v_cache"):
        kit.assert_equal(mine[name], given[name])


HEADS = "attention_heads.h"
FAULTS = [
    Fault(
        "made-key-of-the-split-before",
        "attention_decode.metal",
        "key >= max(split.begin, 0)",
        "key > max(split.begin, 0)",
        lambda: test_bits(0, 1, F32),
        HEADS,
    ),
    Fault(
        "made-value-not-written",
        "attention_decode.metal",
        "writes ? used + 2 : used",
        "writes ? used + 1 : used",
        lambda: test_bits(40, 1, F32),
        HEADS,
    ),
    Fault(
        "made-rows-without-a-token",
        "attention_decode.metal",
        "min(split.end, keys.length)",
        "min(split.end, keys.length + 1)",
        lambda: test_bits(40, 1, F32),
        HEADS,
    ),
    Fault(
        "made-queries-unscaled",
        "attention_decode.metal",
        "h.x[e] *= scale;",
        "h.x[e] *= 1.0f;",
        lambda: test_bits(40, 1, F32),
        HEADS,
    ),
    Fault(
        "made-head-of-the-one-before",
        "attention_decode.metal",
        "next.head = then < used ?",
        "next.head = then <= used ?",
        lambda: test_bits(40, 1, F32),
        HEADS,
    ),
]
