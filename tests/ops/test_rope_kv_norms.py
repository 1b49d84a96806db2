"""rope_kv with norms of heads, or of all heads at once: what rms_norm gives in front of it."""

from __future__ import annotations

from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault
from test_rope_kv import Case, inputs, own

from torch_foundry import ops
from torch_foundry.testing import reference as plain


def with_norms(given: dict[str, Any], kind: str) -> dict[str, Any]:
    g = kit.generator(kind)
    dim, dtype = given["head_dim"], given["q"].dtype
    gains = {name: kit.normal(g, dim, dtype=dtype) for name in ("q_norm", "k_norm")}
    return own({**given, **gains, "eps": 1e-5, "kind": kind})


NORM_CASES = kit.cases(
    (Case(), F32), (Case(), F16), (Case(), BF16), (Case(rotary=0), F32), (Case(rotary=32, head_dim=96), F16),
    (Case(head_dim=512), BF16), (Case(head_dim=32, rotary=32, tokens=1, start=3), F32),
    (Case(rotary=32, interleaved=True, twice=True), F32),
)  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "olmo", "gemma"])
@NORM_CASES
def test_norms(kind: str, case: Case, dtype: torch.dtype) -> None:
    """As rms_norm of the heads before it."""
    given = with_norms(inputs(case, dtype), kind)
    apart = {n: v for n, v in own(given).items() if n not in ("q_norm", "k_norm", "eps", "kind")}
    for name in ("q", "k"):
        heads = given[name].view(*given[name].shape[:2], -1, case.head_dim)
        apart[name] = ops.rms_norm(heads, given[f"{name}_norm"], 1e-5, kind=kind).view(given[name].shape)
    close = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(dtype).eps}
    torch.testing.assert_close(ops.rope_kv(**given), ops.rope_kv(**apart), **close)
    torch.testing.assert_close(given["k_cache"], apart["k_cache"], **close)
    kit.assert_equal(given["v_cache"], apart["v_cache"])


def with_row_norms(given: dict[str, Any], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The call with norms of all heads at once, and the same behind rms_norm."""
    g, mine, apart = kit.generator(kind), own(given), own(given)
    for name in ("q", "k"):
        gain = mine[f"{name}_norm"] = kit.normal(g, given[name].shape[-1], dtype=given[name].dtype)
        apart[name] = ops.rms_norm(given[name], gain, 1e-5, kind=kind)
    return {**mine, "eps": 1e-5, "kind": kind}, apart


# rows of one simdgroup of rms_norm, of several, of more elements a thread, of as many threads as there are; not aligned
LONG_ROWS = Case(heads=34, kv_heads=5, tokens=2)
ROW_NORM_CASES = kit.cases(
    (Case(), F32), (Case(), F16), (Case(), BF16), (Case(heads=7, kv_heads=1, rotary=0), F32),
    (LONG_ROWS, F32), (LONG_ROWS, F16), (Case(heads=32, kv_heads=8, head_dim=128, rotary=64, table=F32), BF16),
    (Case(batch=1, tokens=1, heads=40, kv_heads=2, head_dim=512), F16), (Case(heads=9, head_dim=10, rotary=6), F32),
    (Case(heads=3, kv_heads=2, head_dim=100, rotary=100, interleaved=True, twice=True), BF16),
)  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "olmo", "gemma"])
@ROW_NORM_CASES
def test_norms_of_all_heads_at_once(kind: str, case: Case, dtype: torch.dtype) -> None:
    """Bit for bit rms_norm of q and k before it."""
    mine, apart = with_row_norms(inputs(case, dtype), kind)
    kit.assert_equal(ops.rope_kv(**mine), ops.rope_kv(**apart))
    kit.assert_equal(mine["k_cache"], apart["k_cache"])
    kit.assert_equal(mine["v_cache"], apart["v_cache"])


def test_norms_of_all_heads_of_slices() -> None:
    """q, k and v as slices of one projection, aligned to vectors and not: the order of sums is that of rms_norm."""
    given = inputs(Case(heads=12, kv_heads=4), F32)
    for pad in (8, 3):
        qkv = kit.spread(torch.cat([given[name] for name in "qkv"], -1), pad)
        parts = dict(zip("qkv", qkv.split([given[name].shape[-1] for name in "qkv"], -1), strict=True))
        mine, apart = with_row_norms({**given, **parts}, "olmo")
        mine |= parts
        kit.assert_equal(ops.rope_kv(**mine), ops.rope_kv(**{**apart, "v": parts["v"]}))
        kit.assert_equal(mine["k_cache"], apart["k_cache"])


def test_norms_of_all_heads_against_float64() -> None:
    for kind in ("llama", "olmo", "gemma"):
        mine, _ = with_row_norms(inputs(Case(heads=12), F32), kind)
        stock, truth = own(mine), own(kit.double(mine))
        got, got_stock, expected = ops.rope_kv(**mine), plain.rope_kv(**stock), plain.rope_kv(**truth)
        kit.assert_norm(got, expected, got_stock)
        kit.assert_norm(mine["k_cache"], truth["k_cache"], stock["k_cache"])


@kit.cases((Case(), F32), (Case(head_dim=512, tokens=1), BF16), (Case(rotary=0, value_dim=96), F16))
def test_a_norm_of_values_has_no_weight(case: Case, dtype: torch.dtype) -> None:
    given = with_norms(inputs(case, dtype), "olmo")
    apart, dim = own(given), case.value_dim or case.head_dim
    heads = given["v"].view(*given["v"].shape[:2], -1, dim)
    apart["v"] = ops.rms_norm(heads, torch.ones(dim, dtype=dtype), 1e-5, kind="olmo").view(given["v"].shape)
    kit.assert_equal(ops.rope_kv(**given, v_norm=True), ops.rope_kv(**apart))
    kit.assert_equal(given["k_cache"], apart["k_cache"])
    close = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(dtype).eps}
    torch.testing.assert_close(given["v_cache"], apart["v_cache"], **close)


def test_without_keys_nothing_is_written() -> None:
    """Of a layer that attends to another one's keys: only its queries are made."""
    given = with_norms(inputs(Case(), F32), "olmo")
    alone = own({**given, "k": given["k"][..., :0], "v": given["v"][..., :0]})
    kit.assert_equal(ops.rope_kv(**alone), ops.rope_kv(**own(given)))
    kit.assert_equal(alone["k_cache"], given["k_cache"])
    kit.assert_equal(alone["v_cache"], given["v_cache"])


@NORM_CASES
def test_norms_after_the_rotation(case: Case, dtype: torch.dtype) -> None:
    """As rms_norm of the heads behind it; in caches of another kind too."""
    given = with_norms(inputs(case, dtype), "llama")
    apart = {n: v for n, v in own(given).items() if n not in ("q_norm", "k_norm", "eps", "kind")}
    new = slice(case.start, case.start + case.tokens)
    expected = ops.rms_norm(ops.rope_kv(**apart), given["q_norm"], 1e-5)
    keys = ops.rms_norm(apart["k_cache"][:, :, new], given["k_norm"], 1e-5)
    close = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 4 * torch.finfo(dtype).eps}
    rows = torch.tensor([[case.start, case.tokens]] * case.batch, dtype=torch.int32)
    for other in ({}, {"rows": rows, "start": 0}):
        mine = own({**given, **other})
        torch.testing.assert_close(ops.rope_kv(**mine, rotate_first=True), expected, **close)
        torch.testing.assert_close(mine["k_cache"][:, :, new], keys, **close)
        kit.assert_equal(mine["v_cache"], apart["v_cache"])


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given, _ = with_row_norms(inputs(Case(heads=20, kv_heads=2), F32), "olmo")
    kit.in_every_lane_order(lambda: ops.rope_kv(**own(given)))


FAULTS = [
    Fault(
        "rope-norm-of-k-with-the-gains-of-q",
        "rope_kv_dense.metal",
        "head < args.n_heads ? q_norm : k_norm",
        "head <= args.n_heads ? q_norm : k_norm",
        lambda: test_norms("llama", Case(), F32),
        "row_norm.h",
    ),
    Fault(
        "rope-norm-of-rows-with-the-gains-of-the-first-head",
        "rope_kv_dense.metal",
        "has_row_norm ? own * args.head_dim : 0",
        "has_row_norm ? own * 0 : 0",
        lambda: test_norms_of_all_heads_at_once("olmo", Case(), F32),
        "row_norm.h",
    ),
    Fault(
        "rope-norm-of-rows-of-heads-alone",
        "rope_kv_dense.metal",
        "has_row_norm ? inverse_of_row(",
        "!has_row_norm ? inverse_of_row(",
        lambda: test_norms_of_all_heads_at_once("olmo", Case(), F32),
        "new_heads.h",
    ),
    Fault(
        "rope-norm-of-rows-counts-elements-twice",
        "rope_kv_dense.metal",
        "if (first + after < threads && i < width)",
        "if (i < width)",
        lambda: test_norms_of_all_heads_at_once("olmo", LONG_ROWS, F16),
        "row_norm.h",
    ),
    Fault(
        "rope-norm-of-rows-in-the-order-of-another-row",
        "rope_kv_dense.metal",
        "query ? args.q_row.threads : args.k_row.threads",
        "query ? args.k_row.threads : args.q_row.threads",
        lambda: test_norms_of_all_heads_at_once("olmo", LONG_ROWS, F32),
        "row_norm.h",
    ),
    Fault(
        "rope-norm-of-rows-in-the-order-of-single-elements",
        "rope_kv_dense.metal",
        "args.k_row.vector) == 8",
        "args.k_row.vector) == 9",
        lambda: test_norms_of_all_heads_at_once("olmo", LONG_ROWS, F32),
        "row_norm.h",
    ),
    Fault(
        "rope-norm-of-v-too",
        "rope_kv_dense.metal",
        "weighted = norms && !value;",
        "weighted = norms;",
        lambda: test_norms("llama", Case(), F32),
        "new_heads.h",
    ),
    Fault(
        "rope-norm-of-v-by-the-width-of-k",
        "rope_kv_dense.metal",
        "/ float(columns) + args.eps",
        "/ float(args.head_dim) + args.eps",
        lambda: test_a_norm_of_values_has_no_weight(Case(rotary=0, value_dim=96), F16),
        "new_heads.h",
    ),
    Fault(
        "rope-pairs-of-halves",
        "rope_kv_dense.metal",
        "first = args.interleaved ? i % 2 == 0 : i < half_way",
        "first = i < half_way",
        lambda: test_norms("llama", Case(rotary=32, interleaved=True), F32),
        "new_heads.h",
    ),
    Fault(
        "rope-norm-of-what-is-not-rotated-yet",
        "rope_kv_dense.metal",
        "if (has_rope && !has_late_norm)",
        "if (has_rope && has_late_norm)",
        lambda: test_norms_after_the_rotation(Case(), F32),
        "new_heads.h",
    ),
]
