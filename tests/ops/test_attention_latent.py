"""attention with value queries: values are keys too, as the latents of multi-head latent attention are."""

from __future__ import annotations

from typing import Any

import attention_grid as grid
import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault
from test_attention import Case, inputs

from torch_foundry import ops
from torch_foundry.testing import op_checks
from torch_foundry.testing import reference as plain


def given_for(case: Case, dtype: torch.dtype, latent: int = 96) -> dict[str, Any]:
    """A call whose values have `latent` columns."""
    given, g = inputs(case, dtype), kit.generator(latent)
    keys = given["k_cache"]
    values = kit.normal(g, *keys.shape[:3], latent, dtype=dtype)
    values[keys.isnan().any(-1)] = torch.nan
    queries = kit.normal(g, case.batch, case.queries, case.heads, latent + 8, dtype=dtype)[..., :latent]
    return {**given, "v_cache": values, "value_queries": queries.transpose(1, 2)}


def check(given: dict[str, Any]) -> None:
    wide = {**given, "v_cache": given["v_cache"].nan_to_num(0.0)}
    wide = kit.double(op_checks.finite(wide))
    stock = op_checks.finite({**given, "v_cache": given["v_cache"].nan_to_num(0.0)})
    got, truth = ops.attention(**given), plain.attention(**wide)
    kit.assert_norm(got, truth, plain.attention(**stock))
    kit.assert_bound(got, truth, op_checks.attention_bound(wide, truth, got.dtype))


CASES = [
    (Case(heads=4, kv_heads=1, head_dim=32), F32, 1),
    (Case(heads=4, kv_heads=1, head_dim=32), F32, 8),
    (Case(heads=5, kv_heads=1, head_dim=32, queries=3, batch=2, start=(0, 40)), F16, 8),
    (Case(heads=4, kv_heads=2, head_dim=48, kv_len=700, capacity=700, softcap=20.0), BF16, 1),
    (Case(heads=3, kv_heads=1, head_dim=32, queries=2, mask="bool", causal=False), F32, 1),
    (Case(heads=2, kv_heads=1, head_dim=32, queries=20), F32, 1),  # more queries than the kernel is made for
    (Case(heads=4, kv_heads=1, head_dim=32), F16, 32),  # products of matrices have no value queries
]


BENCHES = [
    kit.Bench(
        "attention_latent",
        [Case(heads=16, kv_heads=1, kv_len=n, capacity=n) for n in (256, 1024)],
        lambda case, dtype: given_for(case, dtype, 512),
        ops.attention,
        lambda **given: plain.attention(**op_checks.finite(given)),
        check,
        lambda c, dtype: (4 * c.heads * 576 * c.kv_len, 576 * c.kv_len * dtype.itemsize),
    )
]


@pytest.mark.parametrize("case, dtype, lanes", CASES, ids=str)
def test_accuracy(case: Case, dtype: torch.dtype, lanes: int) -> None:
    with kit.choice("attention", lanes=lanes):
        check(given_for(case, dtype, 128 if lanes == 8 else 96))  # of 128, eight lanes read queries in another order


def test_a_latent_of_512_and_64_that_rotate() -> None:
    check(given_for(Case(heads=16, kv_heads=1, kv_len=40, capacity=48), BF16, 512))


@pytest.mark.parametrize("formats", [(None, None), ("q8_0", "q4_0")], ids=str)
def test_pages_give_the_bits_of_one_buffer(formats: tuple[str | None, str | None]) -> None:
    case = Case(heads=4, kv_heads=1, head_dim=32, batch=2, queries=2, kv_len=60, capacity=64)
    given = given_for(case, F32)
    for name, format in zip(("k", "v"), formats, strict=True):
        cache = given[f"{name}_cache"].nan_to_num(0.0)
        given[f"{name}_cache"] = cache if format is None else plain.pack_rows(cache, format)
        given[f"{name}_format"] = format
    got = ops.attention(**given)
    kit.assert_equal(ops.attention(**grid.paged(given, 16, kit.generator())), got)
    wide = {**grid.dense({**given, "sinks": None}, torch.float64), "value_queries": given["value_queries"].double()}
    torch.testing.assert_close(got.double(), plain.attention(**wide), rtol=1e-5, atol=1e-5)


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = given_for(Case(heads=4, kv_heads=1, head_dim=32), F32)
    for lanes in (1, 8):
        with kit.choice("attention", lanes=lanes):
            kit.in_every_lane_order(lambda: ops.attention(**given))


def test_bad_inputs() -> None:
    given = given_for(Case(heads=4, kv_heads=1, head_dim=32), F32)
    queries = given["value_queries"]
    for value, message in (
        (queries.half(), r"value_queries: expected dtype Float, got Half"),
        (queries[..., :32], r"value_queries: expected \[batch=1, heads=4, tokens=1, 96\], got \[1, 4, 1, 32\]"),
        (queries[:, :1], r"value_queries: expected \[batch=1, heads=4"),
    ):
        with kit.refuses(message):
            ops.attention(**{**given, "value_queries": value})


def _fault(name: str, old: str, new: str, lanes: int = 1) -> Fault:
    return Fault(
        f"attention-latent-{name}", "attention_decode.metal", old, new, lambda: test_accuracy(CASES[0][0], F32, lanes)
    )


STORE = """value_query_row(args, r) + column, v);
    const int to = r * (DV / 4) + Scores<VStore, DV, ROWS, LANES>::q_index(i % (DV / 4));
    u_tile[to] = float4(v[0], v[1], v[2], v[3]) * args.scale"""
FAULTS = [
    _fault("values-are-no-keys", "score[r] += more[r];", "score[r] += 0.0f * more[r];"),
    _fault("not-scaled", *kit.within(STORE, " * args.scale", "")),
    _fault("query-of-another-head", "value_query_row(args, r) + column", "value_query_row(args, r + 1) + column"),
    _fault(
        "queries-as-keys-lie",
        *kit.within(STORE, "Scores<VStore, DV, ROWS, LANES>::q_index(i % (DV / 4))", "i % (DV / 4)"),
        8,
    ),
]
