"""short_conv against float64, against transformers' module, and the states that it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault, within
from slot_cases import check_columns, check_token_by_token, copied
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.models.lfm2.configuration_lfm2 import Lfm2Config
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

from torch_foundry import ops
from torch_foundry.testing import reference_mixers as plain

SLOTS = 9


@dataclass(frozen=True)
class Case(kit.Case):
    lengths: tuple[int, ...] = (1,)  # new tokens of each sequence
    counts: tuple[int, ...] = (3,)  # numbers of the states that they begin with
    channels: int = 96
    width: int = 3
    biased: bool = False


# Every length of a step with drafts, states that wrap around and zeros, around what a thread takes at once, odd sizes.
CASES = [
    (Case(), F32),
    (Case(lengths=(1, 1), counts=(1, 17), channels=130), BF16),
    (Case(lengths=(8,), counts=(5,)), F16),
    (Case(lengths=(5, 0, 6), counts=(0, 4, 8), channels=33), F32),
    (Case(lengths=(9, 10, 2), counts=(2, 0, 8)), F32),
    (Case(lengths=(15, 16, 17), counts=(9, 0), biased=True), F32),
    (Case(lengths=(70, 1, 33), counts=(4, 8)), BF16),
    (Case(lengths=(40, 3), counts=(0, 1), width=8, channels=20), F32),
    (Case(lengths=(18, 2), width=1), F32),
]
BENCH = [Case(channels=2048, lengths=(n,) * batch) for batch, n in ((1, 1), (1, 4), (8, 1), (1, 2048))]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    n, tokens, channels = len(case.lengths), sum(case.lengths), case.channels
    starts = [sum(case.lengths[:i]) for i in range(n)]
    return {
        "bcx": kit.spread(kit.normal(g, tokens, 3 * channels, dtype=dtype)),
        "weight": kit.normal(g, channels, case.width, dtype=dtype),
        "bias": kit.normal(g, channels, dtype=dtype) if case.biased else None,
        "states": kit.normal(g, n * SLOTS, channels, case.width, dtype=dtype),
        "runs": torch.tensor(list(zip(starts, case.lengths, strict=True)), dtype=torch.int32),
        "table": torch.randperm(n * SLOTS, generator=g).to(torch.int32).view(n, SLOTS),
        "count": torch.tensor([case.counts[i % len(case.counts)] for i in range(n)], dtype=torch.int32),
    }


run = ops.short_conv
reference = plain.short_conv


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    tokens, state = sum(case.lengths), 2 * len(case.lengths) * case.width
    return 2 * (case.width + 1) * case.channels * tokens, dtype.itemsize * case.channels * (4 * tokens + state)


def check(given: dict[str, Any]) -> None:
    ours, stock = given | {"states": given["states"].clone()}, copied(given)
    truth = copied(given, lambda x: x.double() if x.is_floating_point() else x.clone())
    with kit.poisoned_outputs():
        y = run(**ours)
    kit.assert_norm(y, reference(**truth), reference(**stock))
    kit.assert_equal(ours["states"], stock["states"])


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@pytest.mark.parametrize("length", range(1, 9))
def test_token_by_token_is_the_same(length: int) -> None:
    check_token_by_token(run, inputs(Case(lengths=(length,)), F32))


def test_tables_may_be_columns_of_more() -> None:
    check_columns(run, inputs(Case(lengths=(2, 30)), F32))


@pytest.mark.parametrize("biased", [False, True])
def test_as_in_transformers(biased: bool) -> None:
    """Its module, on a cache: a prompt, single tokens and another part."""
    torch.manual_seed(1)
    config = Lfm2Config(hidden_size=64, num_hidden_layers=1, layer_types=["conv"], conv_bias=biased)
    module = Lfm2ShortConv(config, 0).eval()
    cache, parts = (
        DynamicCache(config=config),
        kit.normal(kit.generator("x"), 2, 26, 64, dtype=F32).split([19, 1, 1, 5], 1),
    )
    table = torch.arange(2 * SLOTS, dtype=torch.int32).view(SLOTS, 2).t().contiguous()
    states, count = torch.zeros(2 * SLOTS, 64, 3), 0
    for part in parts:
        length = part.shape[1]
        with torch.no_grad():
            expected = module(part, past_key_values=cache)
            y = run(
                module.in_proj(part).flatten(0, 1), module.conv.weight.squeeze(1), module.conv.bias, states,
                torch.tensor([[0, length], [length, length]], dtype=torch.int32), table,
                torch.full((2,), count, dtype=torch.int32),
            )  # fmt: skip
            count += length if length < SLOTS else 1
            torch.testing.assert_close(module.out_proj(y).view(part.shape), expected, rtol=1e-5, atol=1e-6)
        kit.assert_equal(states[table[:, count % SLOTS].long()], cache.layers[0].conv_states[0])


LANES = Case(lengths=(3, 34), channels=70)


def test_lane_orders() -> None:
    given = inputs(LANES, F32)

    def results() -> Tensor:
        ours = copied(given)
        return torch.cat([run(**ours).flatten(), ours["states"].flatten()])

    kit.in_every_lane_order(results)


def test_empty() -> None:
    given = inputs(Case(lengths=(2,)), F32)
    assert run(**{**given, "bcx": given["bcx"][:0], "runs": given["runs"] * 0}).shape == (0, 96)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    kit.opcheck("short_conv", *inputs(Case(lengths=(2,), biased=True), F32).values())


def test_bad_inputs() -> None:
    given = inputs(Case(biased=True), F32)
    bad = [
        ("weight", given["weight"].int(), r"weight: expected dtype Float or Half or BFloat16, got Int"),
        ("weight", torch.zeros(96, 9), r"weight: expected a width of 1 to 8, got \[96, 9\]"),
        ("bcx", given["bcx"].half(), r"bcx: expected dtype Float, got Half"),
        ("bcx", given["bcx"][:, :287], r"bcx: expected \[tokens, 3 \* channels=288\], got \[1, 287\]"),
        ("bias", given["bias"][:3], r"bias: expected \[channels=96\], got \[3\]"),
        ("states", given["states"][..., :2], r"states: expected \[states, channels=96, width=3\], got \[9, 96, 2\]"),
        ("runs", given["runs"].long(), r"runs: expected dtype Int, got Long"),
        ("table", given["table"][:, :1], r"table: expected at least two slots a sequence"),
        ("count", given["count"][:0], r"count: expected \[sequences=1\], got \[0\]"),
    ]
    for name, value, message in bad:
        wide = {"states": torch.zeros(9, 96, 9)} if "width of" in message else {}
        with kit.refuses(message):
            run(**{**given, **wide, name: value})


def _fault(name: str, old: str, new: str, case: Case = Case(lengths=(3, 20), counts=(2, 0))) -> Fault:
    return Fault(f"short_conv-{name}", "short_conv.metal", old, new, lambda: test_accuracy(case, F32))


FAULTS = [
    _fault("one-token-late", "int(from) - W + w", "int(from) - W + w - 1"),
    _fault("oldest-input", "before[W + at]", "before[0]", Case(lengths=(3,))),
    _fault("state-zero-is-read", "begin != 0 ?", "begin + 1 != 0 ?"),
    _fault("no-bias", "has_bias ? float(bias[channel])", "has_bias ? 0.0f * float(bias[channel])", Case(biased=True)),
    _fault("gate-of-b", "T(float(row[channels]) * sum)", "T(float(row[0]) * sum)"),
    _fault("last-part-left-out", *within("t < min(from + short_conv_tokens, tokens)", "tokens)", "tokens - 1)")),
    _fault("state-of-the-step-s-start", "begin + 1 + (each ? t : 0)", "begin + (each ? t : 0)"),
    _fault("only-the-last-state", "each = tokens < args.slots", "each = tokens < 2"),
    _fault("long-runs-leave-many", "(each ? t : 0)", "t", Case(lengths=(11,))),
]
