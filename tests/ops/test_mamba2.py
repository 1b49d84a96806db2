"""mamba2 against float64, against transformers' modules, and the states that it leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32
from slot_cases import check_alone, check_columns, check_token_by_token, copied
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.models.bamba.configuration_bamba import BambaConfig
from transformers.models.bamba.modeling_bamba import BambaMixer

from torch_foundry import ops
from torch_foundry.testing import reference_mixers as plain

SLOTS = 9
FACTORS = 0.4, 1.5, -0.5, 0.7, 0.25


@dataclass(frozen=True)
class Case(kit.Case):
    lengths: tuple[int, ...] = (1,)  # new tokens of each sequence
    counts: tuple[int, ...] = (3,)  # numbers of the states that they begin with
    groups: int = 1
    per_group: int = 4
    head_dim: int = 16
    state_dim: int = 32
    width: int = 4
    bias: bool = True  # of the convolution
    padding: bool = False
    bounds: tuple[float, float] | None = None  # of step sizes of all but the last of each sequence's tokens
    prompts: bool = False
    norm: str = "last"  # "first": before the gate; "none"
    factors: tuple[float, ...] = (1.0,) * 5

    @property
    def heads(self) -> int:
        return self.groups * self.per_group

    @property
    def channels(self) -> int:
        return self.heads * self.head_dim + 2 * self.groups * self.state_dim


# Every length of a step with drafts, prompts, states that wrap around and zeros, heads and groups of all sorts.
CASES = [
    (Case(), F32),
    (Case(head_dim=64, state_dim=128, lengths=(1, 1), counts=(1, 17)), BF16),
    (Case(head_dim=64, state_dim=128, groups=2, per_group=2, lengths=(8, 30), counts=(5, 0)), F32),
    (Case(groups=4, per_group=1, lengths=(2, 9, 4), counts=(0, 2, 8), bias=False), F16),
    (Case(head_dim=20, state_dim=36, width=3, lengths=(7, 0, 8), counts=(9, 0, 4)), F32),
    (Case(head_dim=3, state_dim=130, width=1, lengths=(5, 10), groups=3, per_group=2), BF16),
    (Case(lengths=(9, 6), counts=(0, 4), padding=True), F32),
    (Case(head_dim=128, state_dim=256, per_group=1, lengths=(2,)), F32),
    (Case(lengths=(3, 10), counts=(0, 2), bounds=(0.5, 1.0)), F32),
    (Case(lengths=(9,), counts=(0,), bounds=(0.4, math.inf)), BF16),
    (Case(lengths=(3, 10), groups=2, per_group=2, norm="first", factors=FACTORS), F32),
    (Case(lengths=(3,), norm="none", factors=FACTORS), BF16),
]
# Around every multiple of a chunk, with short and empty sequences between long ones; values that leave simdgroups idle,
# or are shared by two threadgroups; sizes that go token by token.
PROMPTS = [
    (Case(prompts=True, lengths=(31, 32, 33, 9), counts=(0, 2, 8)), F32),
    (Case(prompts=True, lengths=(63, 3, 64, 0, 65), counts=(3, 8), groups=2, per_group=2, padding=True), F32),
    (Case(prompts=True, lengths=(97,), head_dim=64, state_dim=128, per_group=2), BF16),
    (Case(prompts=True, lengths=(40, 1), head_dim=80, state_dim=128, per_group=1, bias=False), F32),
    (Case(prompts=True, lengths=(34,), head_dim=88, state_dim=8, per_group=1, width=2), F32),
    (Case(prompts=True, lengths=(33, 35), counts=(0, 2), head_dim=8, state_dim=256, bounds=(0.5, 1.0)), F32),
    (Case(prompts=True, lengths=(36, 10), head_dim=64, state_dim=64, groups=4, per_group=1), F16),
    (Case(prompts=True, lengths=(36, 10), groups=2, per_group=2, factors=FACTORS), F32),
    (Case(prompts=True, lengths=(33,), head_dim=20, state_dim=32), F32),
    (Case(prompts=True, lengths=(33,), head_dim=16, state_dim=36), F32),
]
BENCH = [
    Case(per_group=128, head_dim=64, state_dim=128, lengths=(n,) * batch, counts=(1,) * batch)
    for batch, n in ((1, 1), (1, 4), (8, 1))
]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    n, tokens, heads = len(case.lengths), sum(case.lengths), case.heads
    counts = [case.counts[i % len(case.counts)] for i in range(n)]
    inner = heads * case.head_dim
    projected = kit.normal(g, tokens, inner + case.channels + heads, dtype=dtype)  # as families have them
    z, x, dt = projected.split([inner, case.channels, heads], -1)
    starts = [sum(case.lengths[:i]) for i in range(n)]
    return {
        "x": x, "dt": dt, "z": z,
        "conv_weight": kit.normal(g, case.channels, case.width, dtype=dtype, scale=0.5),
        "conv_bias": kit.normal(g, case.channels, dtype=dtype) if case.bias else None,
        **{name: kit.normal(g, heads, dtype=dtype) for name in ("a_log", "dt_bias", "d")},
        "norm_weight": None if case.norm == "none" else kit.normal(g, inner, dtype=dtype), "eps": 1e-5,
        "conv_states": kit.normal(g, n * SLOTS, case.channels, case.width, dtype=dtype),
        "states": kit.normal(g, n * SLOTS, heads, case.head_dim, case.state_dim, dtype=F32),
        "runs": torch.tensor(list(zip(starts, case.lengths, strict=True)), dtype=torch.int32),
        "table": torch.randperm(n * SLOTS, generator=g).to(torch.int32).view(n, SLOTS),
        "count": torch.tensor(counts, dtype=torch.int32),
        "keep": (torch.arange(tokens) % 3 != 1).to(dtype) if case.padding else None,
        "prompt": torch.tensor(case.lengths, dtype=torch.int32) - 1 if case.bounds else None,
        "bounds": case.bounds or (0.0, math.inf), "prompts": case.prompts,
        "norm_before_gate": case.norm == "first", "factors": case.factors,
    }  # fmt: skip


run = ops.mamba2
reference = plain.mamba2
OF_TOKENS = ("x", "dt", "z")


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    tokens, n, state = sum(case.lengths), len(case.lengths), case.heads * case.head_dim * case.state_dim
    return 5 * state * tokens, 4 * state * (n + tokens)


def check(given: dict[str, Any]) -> None:
    ours, stock = copied(given, lambda x: x), copied(given)
    ours |= {name: given[name].clone() for name in ("conv_states", "states")}
    truth = copied(given, lambda x: x.double() if x.is_floating_point() else x.clone())
    with kit.poisoned_outputs():
        y = run(**ours)
    kit.assert_norm(y, reference(**truth), reference(**stock))
    kit.assert_equal(ours["conv_states"], stock["conv_states"])
    for ours_, truth_, stock_ in zip(ours["states"], truth["states"], stock["states"], strict=True):
        kit.assert_norm(ours_, truth_, stock_)


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@kit.cases(*PROMPTS)
def test_prompts(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


def test_prompts_of_all_lengths() -> None:
    """Up to a thousand tokens, around multiples of a chunk; from zeros and from a state."""
    around = [32 * chunks + more for chunks in (0, 1, 2, 3, 4, 8, 15, 31) for more in (-1, 0, 1)][2:]
    check(inputs(Case(prompts=True, lengths=tuple(around), counts=(0, 7), head_dim=8, state_dim=8, per_group=1), F32))


def test_a_prompt_in_parts_leaves_the_same_state() -> None:
    """Cut between chunks and within them, it ends as it does in one."""
    given = inputs(Case(prompts=True, lengths=(160,), counts=(0,), groups=2, per_group=2), F32)
    whole, parts, exact = (copied(given) for _ in range(3))
    expected, found, first = run(**whole), [], 0
    for count, length in enumerate((64, 33, 63)):
        part = {name: given[name][first : first + length] for name in OF_TOKENS}
        part |= {"runs": torch.tensor([[0, length]], dtype=torch.int32)}
        found.append(run(**parts | part | {"count": torch.tensor([count], dtype=torch.int32)}))
        first += length
    exact = copied(given, lambda x: x.double() if x.is_floating_point() else x.clone())
    kit.assert_norm(torch.cat(found), reference(**exact), expected)
    truth = exact["states"][given["table"][0, 1]]
    kit.assert_norm(parts["states"][given["table"][0, 3]], truth, whole["states"][given["table"][0, 1]])


def test_a_prompt_does_not_see_another_s_nan() -> None:
    both = inputs(Case(prompts=True, lengths=(33, 40), counts=(2, 0)), F32)
    expected = run(**copied(both))
    both["x"][33:] = float("nan")
    kit.assert_equal(run(**both)[:33], expected[:33])


def test_decays_of_a_chunk_may_vanish() -> None:
    """Where a prefix sum of their logarithms has no digits left for what comes behind."""
    given = inputs(Case(prompts=True, lengths=(70,), counts=(2,)), F32)
    given["a_log"][:] = 3.0
    given["dt"][::5] = 40.0
    check(given)


def test_token_by_token_leaves_the_same_states() -> None:
    check_token_by_token(run, inputs(Case(lengths=(8,)), F32))


@pytest.mark.parametrize("lengths", [(5, 3), (33, 3, 40)])
def test_sequences_do_not_depend_on_each_other(lengths: tuple[int, ...]) -> None:
    check_alone(run, inputs(Case(lengths=lengths, counts=(2, 0), prompts=max(lengths) > SLOTS), F32))


@pytest.mark.parametrize("lengths", [(2, 3), (33, 40)])
def test_tables_may_be_columns_of_more(lengths: tuple[int, ...]) -> None:
    check_columns(run, inputs(Case(lengths=lengths, prompts=max(lengths) > SLOTS), F32))


def test_padding_on_the_left_changes_nothing() -> None:
    """It leaves the state at zero, though the convolution has a bias."""
    given = inputs(Case(lengths=(11,), counts=(0,)), F32)
    fewer = copied(given) | {name: given[name][6:] for name in OF_TOKENS}
    fewer["runs"] = torch.tensor([[0, 5]], dtype=torch.int32)
    padded = copied(given) | {"keep": (torch.arange(11) >= 6).float()}
    padded["x"][:6] = 0
    kit.assert_equal(run(**padded)[6:], run(**fewer))
    first, fifth = given["table"][0, 1], given["table"][0, 5]
    kit.assert_equal(padded["states"][first], fewer["states"][fifth])


def test_padding_before_a_prompt_changes_nothing() -> None:
    """Whole chunks of it, or a part of one."""
    given = inputs(Case(prompts=True, lengths=(90,), counts=(0,)), F32)
    for padding in (32, 45):
        fewer = copied(given) | {name: given[name][padding:] for name in OF_TOKENS}
        fewer["runs"] = torch.tensor([[0, 90 - padding]], dtype=torch.int32)
        exact = copied(fewer, lambda x: x.double() if x.is_floating_point() else x.clone())
        padded = copied(given) | {"keep": (torch.arange(90) >= padding).float()}
        padded["x"][:padding] = 0
        kit.assert_norm(run(**padded)[padding:], reference(**exact), run(**fewer))
        slot = given["table"][0, 1]
        kit.assert_norm(padded["states"][slot], exact["states"][slot], fewer["states"][slot])


@pytest.mark.parametrize("length", [20, 70])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=kit.dtype_id)
def test_as_in_transformers(dtype: torch.dtype, length: int) -> None:
    """Its module, a prompt and then two single tokens, is no nearer to float64 than ours."""
    torch.manual_seed(1)
    sizes = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 32, "mamba_n_groups": 2}
    config = BambaConfig(hidden_size=32, num_hidden_layers=1, time_step_limit=(1.0, 1.5), **sizes)
    module = BambaMixer(config, 0).eval()
    module.norm.weight.data.normal_()
    module.D.data.normal_()
    module = module.to(dtype)
    x = kit.normal(kit.generator("x"), 2, length + 2, 32, dtype=dtype)
    parts = (length, 1, 1)

    def stock(module: Any, x: Tensor) -> Tensor:
        cache = DynamicCache(config=config)
        with torch.no_grad():
            return torch.cat([module(part, cache_params=cache) for part in x.split(parts, 1)], 1)

    table = torch.arange(2 * SLOTS, dtype=torch.int32).view(SLOTS, 2).t().contiguous()
    conv_states, states = torch.zeros(2 * SLOTS, 192, 4, dtype=dtype), torch.zeros(2 * SLOTS, 4, 16, 32)
    found, count = [], 0
    for part in x.split(parts, 1):
        n = part.shape[1]
        runs = torch.tensor([[0, n], [n, n]], dtype=torch.int32)
        found.append(mixed(run, module, part, conv_states, states, runs, table, count, n if n > 1 else 0))
        count += n if n < SLOTS else 1
    wide, memory = module.double(), (torch.zeros(4, *each.shape[1:]).double() for each in (conv_states, states))
    runs = torch.tensor([[0, length + 2], [length + 2, length + 2]])
    truth = mixed(reference, wide, x.double(), *memory, runs, torch.arange(4).view(2, 2), 0, length)
    kit.assert_norm(torch.cat(found, 1), truth, stock(module.to(dtype), x))


@torch.no_grad()
def mixed(compute: Any, module: Any, x: Tensor, conv: Tensor, states: Tensor, *slots: Any) -> Tensor:
    runs, table, count, prompt = slots
    z, xbc, dt = module.in_proj(x.flatten(0, 1)).split([64, 192, 4], -1)
    y = compute(
        xbc, dt, z, module.conv1d.weight.squeeze(1), module.conv1d.bias, module.A_log, module.dt_bias, module.D,
        module.norm.weight, module.norm.variance_epsilon, conv, states, runs, table,
        torch.full((2,), count, dtype=torch.int32), prompt=torch.full((2,), prompt, dtype=torch.int32),
        bounds=module.time_step_limit, prompts=True,
    )  # fmt: skip
    return module.out_proj(y).view(x.shape)


LANES = (
    Case(lengths=(3, 10), head_dim=20, state_dim=36, groups=2, per_group=2),
    Case(lengths=(70, 3), head_dim=24, state_dim=16, groups=2, per_group=2, prompts=True),
)


@pytest.mark.parametrize("case", LANES, ids=str)
def test_lane_orders(case: Case) -> None:
    given = inputs(case, F32)

    def results() -> Tensor:
        ours = copied(given)
        return torch.cat([run(**ours).flatten(), ours["states"].flatten(), ours["conv_states"].flatten()])

    kit.in_every_lane_order(results)


def test_empty() -> None:
    given = inputs(Case(lengths=(2,)), F32)
    none = {name: given[name][:0] for name in (*OF_TOKENS, "runs", "table", "count")}
    assert run(**{**given, **none}).shape == (0, 64)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    for case in (Case(lengths=(2,), padding=True, bounds=(0.5, 1.0)), Case(lengths=(33,), prompts=True)):
        *given, bounds, prompts, first, factors = inputs(case, F32).values()
        kit.opcheck("mamba2", *given, *bounds, prompts, first, list(factors))


def test_bad_inputs() -> None:
    given = inputs(Case(padding=True), F32)
    bad = [
        ("x", given["x"].int(), r"x: expected dtype Float or Half or BFloat16, got Int"),
        ("x", given["x"][:, :127], r"x: expected channels of heads \[4, 16\] and of groups of them, twice 32 each"),
        ("x", torch.zeros(1, 64 + 3 * 64), r"x: expected channels of heads"),
        ("dt", given["dt"].half(), r"dt: expected dtype Float, got Half"),
        ("z", given["z"][:, :63], r"z: expected \[tokens=1, inner=64\], got \[1, 63\]"),
        ("conv_weight", given["conv_weight"].t(), r"conv_weight: expected \[channels=128, width\], got \[4, 128\]"),
        ("conv_weight", torch.zeros(128, 9), r"conv_weight: expected a width of 1 to 8"),
        ("conv_bias", given["conv_bias"][1:], r"conv_bias: expected \[channels=128\], got \[127\]"),
        ("a_log", given["a_log"].half(), r"a_log: expected dtype Float"),
        ("dt_bias", given["dt_bias"][:3], r"dt_bias: expected \[heads=4\], got \[3\]"),
        ("d", given["d"][:3], r"d: expected \[heads=4\], got \[3\]"),
        ("norm_weight", given["norm_weight"][:16], r"norm_weight: expected \[inner=64\], got \[16\]"),
        ("states", given["states"].double(), r"states: expected dtype Float, got Double"),
        ("states", given["states"][:, :3], r"states: expected \[states, heads=4, head_dim, state_dim\]"),
        ("conv_states", given["conv_states"][1:], r"conv_states: expected \[states=9, channels=128, width=4\]"),
        ("runs", given["runs"].long(), r"runs: expected dtype Int, got Long"),
        ("table", given["table"][:, :1], r"table: expected at least two slots a sequence"),
        ("count", given["count"][:0], r"count: expected \[sequences=1\], got \[0\]"),
        ("keep", given["keep"].bool(), r"keep: expected dtype Float, got Bool"),
        ("prompt", torch.zeros(2, dtype=torch.int32), r"prompt: expected \[sequences=1\], got \[2\]"),
        ("bounds", (0.5, 0.1), r"bounds: expected two numbers from 0 up, the lower one first, got 0.5, 0.1"),
        ("eps", -1.0, r"eps: expected a finite number >= 0"),
        ("factors", (1.0, 2.0), r"factors: expected those of z, x, B, C and dt, or none, got 2"),
    ]
    for name, value, message in bad:
        wide = {"conv_states": torch.zeros(9, 128, 9)} if "width of" in message else {}
        with kit.refuses(message):
            run(**{**given, **wide, name: value})
    for sizes in ({"head_dim": 160, "state_dim": 256}, {"head_dim": 8, "state_dim": 257}):
        with kit.refuses(r"states: expected heads of at most \[256, 256\] numbers, 32768 in all"):
            run(**inputs(Case(per_group=1, **sizes), F32))
