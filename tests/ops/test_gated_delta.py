"""gated_delta against float64, against transformers' modules, and the states that it leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32
from slot_cases import check_alone, check_columns, check_token_by_token, copied
from torch import Tensor
from transformers.cache_utils import DynamicCache
from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

from torch_foundry import ops
from torch_foundry.testing import reference_mixers as plain

SLOTS = 9


@dataclass(frozen=True)
class Case(kit.Case):
    lengths: tuple[int, ...] = (1,)  # new tokens of each sequence
    counts: tuple[int, ...] = (3,)  # numbers of the states that they begin with
    key_heads: int = 2
    per_key: int = 2
    key_dim: int = 64
    value_dim: int = 64
    width: int = 4
    gates: torch.dtype | None = None  # of a_log and dt_bias; None: as all else
    beta_scale: float = 1.0
    prompts: bool = False


# Every length of a step with drafts, states that wrap around and zeros, heads of all sorts, odd sizes.
CASES = [
    (Case(), F32),
    (Case(key_dim=128, value_dim=128, lengths=(1, 1), counts=(1, 17)), BF16),
    (Case(key_dim=128, value_dim=128, per_key=4, key_heads=1, lengths=(8,), counts=(5,)), F32),
    (Case(key_dim=96, value_dim=192, per_key=1, lengths=(3,), beta_scale=2.0), F32),
    (Case(key_dim=64, value_dim=128, gates=F32, lengths=(2, 4)), F16),
    (Case(key_dim=8, value_dim=20, key_heads=3, lengths=(5, 0, 6), counts=(0, 4, 8)), F32),
    (Case(key_dim=20, value_dim=8, width=3, lengths=(7, 8), counts=(9, 0)), BF16),
    (Case(key_dim=33, value_dim=130, width=1, lengths=(9, 10, 30), counts=(2, 0, 8), per_key=1), F32),
]
# Around every multiple of a chunk, with short and empty sequences between long ones.
PROMPTS = [
    (Case(prompts=True, lengths=(9, 31, 32, 33), counts=(0, 2, 8)), F32),
    (Case(prompts=True, lengths=(63, 3, 64, 0, 65), counts=(3, 8)), F32),
    (Case(prompts=True, lengths=(97,), key_dim=128, value_dim=128), BF16),
    (Case(prompts=True, lengths=(40, 1), key_dim=96, value_dim=192, per_key=1, beta_scale=2.0), F32),
    (Case(prompts=True, lengths=(33, 9), key_dim=64, value_dim=32, per_key=4, key_heads=1, gates=F32), F16),
    (Case(prompts=True, lengths=(20,), key_dim=20, value_dim=32), F32),
]
BENCH = [
    Case(key_heads=16, per_key=2, key_dim=128, value_dim=128, lengths=(n,) * batch, counts=(1,) * batch)
    for batch, n in ((1, 1), (1, 4), (8, 1))
]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    n, tokens, heads = len(case.lengths), sum(case.lengths), case.key_heads * case.per_key
    counts = [case.counts[i % len(case.counts)] for i in range(n)]
    channels = 2 * case.key_heads * case.key_dim + heads * case.value_dim
    projected = kit.normal(g, tokens, case.key_heads, 2 * case.key_dim + 2 * case.per_key * case.value_dim, dtype=dtype)
    values = case.per_key * case.value_dim
    q, k, v, z = projected.split([case.key_dim, case.key_dim, values, values], -1)  # as Qwen3-Next has them
    b, a = kit.normal(g, tokens, case.key_heads, 2 * case.per_key, dtype=dtype, scale=2).chunk(2, -1)
    starts = [sum(case.lengths[:i]) for i in range(n)]
    gates = case.gates or dtype
    return {
        "q": q, "k": k, "v": v.unflatten(-1, (case.per_key, -1)), "z": z.unflatten(-1, (case.per_key, -1)),
        "b": b, "a": a,
        "conv_weight": kit.normal(g, channels, case.width, dtype=dtype, scale=0.5),
        "a_log": kit.normal(g, heads, dtype=gates), "dt_bias": kit.normal(g, heads, dtype=gates),
        "norm_weight": kit.normal(g, case.value_dim, dtype=dtype), "eps": 1e-6,
        "conv_states": kit.normal(g, n * SLOTS, channels, case.width, dtype=dtype),
        "states": kit.normal(g, n * SLOTS, heads, case.key_dim, case.value_dim, dtype=F32),
        "runs": torch.tensor(list(zip(starts, case.lengths, strict=True)), dtype=torch.int32),
        "table": torch.randperm(n * SLOTS, generator=g).to(torch.int32).view(n, SLOTS),
        "count": torch.tensor(counts, dtype=torch.int32), "beta_scale": case.beta_scale, "prompts": case.prompts,
    }  # fmt: skip


run = ops.gated_delta
reference = plain.gated_delta


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    heads, tokens, n = case.key_heads * case.per_key, sum(case.lengths), len(case.lengths)
    state = heads * case.key_dim * case.value_dim
    return 8 * state * tokens, 4 * state * (n + tokens)


def check(given: dict[str, Any]) -> None:
    ours, stock = copied(given), copied(given)
    truth = copied(given, lambda x: x.double() if x.is_floating_point() else x.clone())
    with kit.poisoned_outputs():
        y = run(**ours)
    kit.assert_norm(y, reference(**truth), reference(**stock))
    kit.assert_norm(ours["states"], truth["states"], stock["states"])
    kit.assert_equal(ours["conv_states"], stock["conv_states"])
    for ours_, truth_, stock_ in zip(ours["states"], truth["states"], stock["states"], strict=True):
        kit.assert_norm(ours_, truth_, stock_)


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@kit.cases(*PROMPTS)
def test_prompts(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


def test_a_prompt_does_not_see_another_s_nan() -> None:
    both = inputs(Case(prompts=True, lengths=(33, 40), counts=(2, 0)), F32)
    expected = run(**copied(both))
    both["v"][33:] = float("nan")
    kit.assert_equal(run(**both)[:33], expected[:33])


@pytest.mark.parametrize("length", range(1, 9))
def test_every_length_of_a_step(length: int) -> None:
    check(inputs(Case(lengths=(length, 9 - length), counts=(length, 0)), F32))


def test_token_by_token_leaves_the_same_states() -> None:
    check_token_by_token(run, inputs(Case(lengths=(8,)), F32))


def test_sequences_do_not_depend_on_each_other() -> None:
    check_alone(run, inputs(Case(lengths=(5, 3), counts=(2, 0)), F32))


def test_tables_may_be_columns_of_more() -> None:
    check_columns(run, inputs(Case(lengths=(2, 3)), F32))


def test_padding_on_the_left_changes_nothing() -> None:
    """Zeros before a sequence leave its state at zero."""
    given = inputs(Case(lengths=(11,), counts=(0,)), F32)
    fewer = copied(given)
    for name in ("q", "k", "v", "z", "b", "a"):
        given[name][:6] = 0
        fewer[name] = given[name][6:]
    fewer["runs"] = torch.tensor([[0, 5]], dtype=torch.int32)
    padded = copied(given)
    kit.assert_equal(run(**padded)[6:], run(**fewer))
    first, fifth = given["table"][0, 1], given["table"][0, 5]
    kit.assert_equal(padded["states"][first], fewer["states"][fifth])


@pytest.mark.parametrize("prompts", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=kit.dtype_id)
def test_as_in_transformers(dtype: torch.dtype, prompts: bool) -> None:
    """Its module, a prompt and then four single tokens, is no nearer to float64 than ours."""
    torch.manual_seed(1)
    config = Qwen3NextConfig(
        hidden_size=64, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=64,
        linear_value_head_dim=64, num_hidden_layers=1, layer_types=["linear_attention"],
    )  # fmt: skip
    module = Qwen3NextGatedDeltaNet(config, 0).eval().to(dtype)
    x = kit.normal(kit.generator("x"), 2, 74, 64, dtype=dtype)
    parts = (70, 1, 1, 1, 1)

    def stock(module: Any, x: Tensor) -> Tensor:
        cache = DynamicCache(config=config)
        with torch.no_grad():
            return torch.cat([module(part, cache_params=cache) for part in x.split(parts, 1)], 1)

    table = torch.arange(2 * SLOTS, dtype=torch.int32).view(SLOTS, 2).t().contiguous()
    conv_states, states = torch.zeros(2 * SLOTS, 512, 4, dtype=dtype), torch.zeros(2 * SLOTS, 4, 64, 64)
    found, count = [], 0
    for part in x.split(parts, 1):
        with torch.no_grad():
            flat = part.flatten(0, 1)
            qkvz, ba = module.in_proj_qkvz(flat), module.in_proj_ba(flat)
            q, k, v, z = qkvz.view(len(flat), 2, -1).split([64, 64, 128, 128], -1)
            b, a = ba.view(len(flat), 2, -1).chunk(2, -1)
            length = part.shape[1]
            y = run(
                q, k, v.unflatten(-1, (2, -1)), z.unflatten(-1, (2, -1)), b, a, module.conv1d.weight.squeeze(1),
                module.A_log, module.dt_bias, module.norm.weight, config.rms_norm_eps, conv_states, states,
                torch.tensor([[0, length], [length, length]], dtype=torch.int32), table,
                torch.full((2,), count, dtype=torch.int32), prompts=prompts,
            )  # fmt: skip
            found.append(module.out_proj(y).view(part.shape))
            count += length if length < SLOTS else 1
    kit.assert_norm(torch.cat(found, 1), truth(config, module, x), stock(module, x))


def truth(config: Any, module: Any, x: Tensor) -> Tensor:
    """The module in float64, where transformers' own code has parts in float32."""
    w = {name: p.detach().double() for name, p in module.named_parameters()}
    out = []
    for row in x.double():
        qkvz, ba = row @ w["in_proj_qkvz.weight"].T, row @ w["in_proj_ba.weight"].T
        q, k, v, z = qkvz.view(len(row), 2, -1).split([64, 64, 128, 128], -1)
        b, a = ba.view(len(row), 2, -1).chunk(2, -1)
        y = reference(
            q, k, v.unflatten(-1, (2, -1)), z.unflatten(-1, (2, -1)), b, a, w["conv1d.weight"].squeeze(1), w["A_log"],
            w["dt_bias"], w["norm.weight"], config.rms_norm_eps, torch.zeros(2, 512, 4, dtype=torch.float64),
            torch.zeros(2, 4, 64, 64, dtype=torch.float64), torch.tensor([[0, len(row)]]), torch.tensor([[0, 1]]),
            torch.tensor([0]),
        )  # fmt: skip
        out.append(y @ w["out_proj.weight"].T)
    return torch.stack(out)


LANES = (
    Case(lengths=(3, 2), key_dim=20, value_dim=70),
    Case(lengths=(34, 9), key_dim=16, value_dim=32, prompts=True),
    # more chunks than there are threadgroups to solve them
    Case(lengths=(32800,), counts=(0,), key_heads=1, per_key=1, key_dim=8, value_dim=32, prompts=True),
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
    none = {name: given[name][:0] for name in ("q", "k", "v", "z", "b", "a", "runs", "table", "count")}
    assert run(**{**given, **none}).shape == (0, 256)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    given = inputs(Case(lengths=(2,), key_dim=8, value_dim=8), F32)
    kit.opcheck("gated_delta", *given.values())
    given = inputs(Case(lengths=(9,), key_dim=8, value_dim=32, prompts=True), F32)
    kit.opcheck("gated_delta", *given.values())


def test_bad_inputs() -> None:
    given = inputs(Case(), F32)
    bad = [
        ("q", given["q"].int(), r"q: expected dtype Float or Half or BFloat16, got Int"),
        ("k", given["k"][..., :63], r"k: expected \[tokens=1, key heads=2, key_dim=64\], got \[1, 2, 63\]"),
        ("z", given["z"].half(), r"z: expected dtype Float, got Half"),
        ("conv_weight", given["conv_weight"].t(), r"conv_weight: expected \[channels=512, width\], got \[4, 512\]"),
        ("conv_weight", torch.zeros(512, 9), r"conv_weight: expected a width of 1 to 8"),
        ("a_log", given["a_log"].half(), r"a_log: expected dtype Float"),
        ("dt_bias", given["dt_bias"][:3], r"dt_bias: expected \[value heads=4\], got \[3\]"),
        ("states", given["states"].double(), r"states: expected dtype Float, got Double"),
        ("states", given["states"][1:], r"states: expected \[states=9, value heads=4, key_dim=64, value_dim=64\]"),
        ("runs", given["runs"].long(), r"runs: expected dtype Int, got Long"),
        ("table", given["table"][:, :1], r"table: expected at least two slots a sequence"),
        ("count", given["count"][:0], r"count: expected \[sequences=1\], got \[0\]"),
        ("eps", -1.0, r"eps: expected a finite number >= 0"),
        ("beta_scale", float("nan"), r"beta_scale: expected a finite number"),
    ]
    for name, value, message in bad:
        wide = {"conv_states": torch.zeros(9, 512, 9)} if "width of" in message else {}
        with kit.refuses(message):
            run(**{**given, **wide, name: value})
    large = {"key_dim": 256, "value_dim": 160, "key_heads": 1, "per_key": 1}
    with kit.refuses(r"v: expected heads of 1 to 128 numbers"):
        run(**inputs(Case(**large), F32))
    with kit.refuses(r"q: expected heads of 1 to 256 numbers"):
        run(**inputs(Case(**{**large, "key_dim": 257}), F32))
