"""gated_delta against float64, against transformers' modules, and the states that it leaves."""

from __future__ import annotations

import copy
import importlib
from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32
from slot_cases import check_alone, check_columns, check_token_by_token, copied
from torch import Tensor
from transformers.cache_utils import DynamicCache

from tests.hf import tiny_models
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
    of_rows: bool = False  # each row of a state decays by itself
    log_bound: float = 0.0
    sigmoid_gate: bool = False
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
    (Case(key_dim=128, value_dim=128, per_key=1, of_rows=True, sigmoid_gate=True, lengths=(1, 8)), BF16),
    (Case(key_dim=33, value_dim=40, per_key=1, of_rows=True, gates=F32, lengths=(5, 9), counts=(0, 7)), F32),
    (Case(per_key=1, of_rows=True, log_bound=-5.0, sigmoid_gate=True, lengths=(3, 2)), F16),
    (Case(log_bound=-5.0, lengths=(2,)), F32),
]
# Around every multiple of a chunk, with short and empty sequences between long ones.
PROMPTS = [
    (Case(prompts=True, lengths=(9, 31, 32, 33), counts=(0, 2, 8)), F32),
    (Case(prompts=True, lengths=(63, 3, 64, 0, 65), counts=(3, 8)), F32),
    (Case(prompts=True, lengths=(97,), key_dim=128, value_dim=128), BF16),
    (Case(prompts=True, lengths=(40, 1), key_dim=96, value_dim=192, per_key=1, beta_scale=2.0), F32),
    (Case(prompts=True, lengths=(33, 9), key_dim=64, value_dim=32, per_key=4, key_heads=1, gates=F32), F16),
    (Case(prompts=True, lengths=(20,), key_dim=20, value_dim=32), F32),
    (Case(prompts=True, per_key=1, of_rows=True, lengths=(9, 31, 32, 33), counts=(0, 2, 8)), F32),
    (Case(prompts=True, per_key=1, of_rows=True, sigmoid_gate=True, lengths=(63, 3, 64, 0, 65), counts=(3, 8)), F32),
    (Case(prompts=True, per_key=1, of_rows=True, lengths=(97,), key_dim=128, value_dim=128, gates=F32), BF16),
    (Case(prompts=True, per_key=1, of_rows=True, lengths=(40, 1), key_dim=96, value_dim=192, log_bound=-5.0), F32),
    (Case(prompts=True, per_key=1, of_rows=True, lengths=(35,), key_dim=40, value_dim=32, beta_scale=2.0), F16),
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
    if case.of_rows:
        a = kit.normal(g, tokens, case.key_heads, 1, case.key_dim, dtype=dtype, scale=2)
    starts = [sum(case.lengths[:i]) for i in range(n)]
    gates = case.gates or dtype
    return {
        "q": q, "k": k, "v": v.unflatten(-1, (case.per_key, -1)), "z": z.unflatten(-1, (case.per_key, -1)),
        "b": b, "a": a,
        "conv_weight": kit.normal(g, channels, case.width, dtype=dtype, scale=0.5),
        "a_log": kit.normal(g, heads, dtype=gates),
        "dt_bias": kit.normal(g, heads * (case.key_dim if case.of_rows else 1), dtype=gates),
        "norm_weight": kit.normal(g, case.value_dim, dtype=dtype), "eps": 1e-6,
        "conv_states": kit.normal(g, n * SLOTS, channels, case.width, dtype=dtype),
        "states": kit.normal(g, n * SLOTS, heads, case.key_dim, case.value_dim, dtype=F32),
        "runs": torch.tensor(list(zip(starts, case.lengths, strict=True)), dtype=torch.int32),
        "table": torch.randperm(n * SLOTS, generator=g).to(torch.int32).view(n, SLOTS),
        "count": torch.tensor(counts, dtype=torch.int32), "beta_scale": case.beta_scale, "log_bound": case.log_bound,
        "sigmoid_gate": case.sigmoid_gate, "prompts": case.prompts,
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


def qwen(module: Any, x: Tensor) -> dict[str, Tensor]:
    """What the module of Qwen3-Next gives the op of x [T, hidden]."""
    q, k, v, z = module.in_proj_qkvz(x).view(len(x), 2, -1).split([64, 64, 128, 128], -1)
    b, a = module.in_proj_ba(x).view(len(x), 2, -1).chunk(2, -1)
    return {
        "q": q, "k": k, "v": v.unflatten(-1, (2, -1)), "z": z.unflatten(-1, (2, -1)), "b": b, "a": a,
        "a_log": module.A_log, "dt_bias": module.dt_bias, "norm_weight": module.norm.weight,
    }  # fmt: skip


def kimi(module: Any, x: Tensor) -> dict[str, Tensor]:
    """The same of Kimi Linear."""
    gate = module.forget_gate
    wide = {"z": module.g_b_proj(module.g_a_proj(x)), "a": gate.f_b_proj(gate.f_a_proj(x)), "v": module.v_proj(x)}
    narrow = {"q": module.q_proj(x), "k": module.k_proj(x), "b": module.b_proj(x)}
    parts = {name: part.view(len(x), 2, -1) for name, part in narrow.items()}
    return {
        **parts, **{name: part.view(len(x), 2, 1, -1) for name, part in wide.items()},
        "a_log": gate.A_log.flatten(), "dt_bias": gate.dt_bias, "norm_weight": module.o_norm.weight,
    }  # fmt: skip


QWEN = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
KIMI = {"linear_num_heads": 2, "linear_head_dim": 64}
# class of the config, its settings, the module, what it gives the op, value heads, options of the op
MODULES: dict[str, Any] = {
    "Qwen3-Next": ("Qwen3NextConfig", QWEN, "Qwen3NextGatedDeltaNet", qwen, 4, {}),
    "Kimi Linear": ("KimiLinearConfig", KIMI, "KimiLinearDeltaAttention", kimi, 2, {"sigmoid_gate": True}),
}


@pytest.mark.parametrize("prompts", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=kit.dtype_id)
@pytest.mark.parametrize("name", MODULES)
def test_as_in_transformers(name: str, dtype: torch.dtype, prompts: bool) -> None:
    """Its module, a prompt and then four single tokens, is no nearer to float64 than ours."""
    torch.manual_seed(1)
    made_of, sizes, kind, given, heads, options = MODULES[name]
    config = tiny_models.config(made_of, num_hidden_layers=1, layer_types=["linear_attention"], **sizes)
    modeling = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
    module = getattr(modeling, kind)(config, 0).eval().to(dtype)
    with torch.no_grad():  # some are made without values
        for own in ("A_log", "dt_bias"):
            for part in (p for n, p in module.named_parameters() if n.endswith(own)):
                part.copy_(torch.rand(part.shape, dtype=torch.float32))
    x = kit.normal(kit.generator("x"), 2, 74, 64, dtype=dtype)
    parts = (70, 1, 1, 1, 1)

    def stock() -> Tensor:
        cache = DynamicCache(config=config)
        return torch.cat([module(part, cache_params=cache) for part in x.split(parts, 1)], 1)

    def ours(op: Any, module: Any, x: Tensor, wide: torch.dtype) -> Tensor:
        channels, found, count = module.conv1d.weight.shape[0], [], 0
        table = torch.arange(2 * SLOTS, dtype=torch.int32).view(SLOTS, 2).t().contiguous()
        conv_states = torch.zeros(2 * SLOTS, channels, 4, dtype=x.dtype)
        states = torch.zeros(2 * SLOTS, heads, 64, 64, dtype=wide)
        for part in x.split(parts, 1):
            length = part.shape[1]
            y = op(
                **given(module, part.flatten(0, 1)), conv_weight=module.conv1d.weight.squeeze(1),
                eps=config.rms_norm_eps, conv_states=conv_states, states=states, prompts=prompts, table=table,
                **options,
                runs=torch.tensor([[0, length], [length, length]], dtype=torch.int32),
                count=torch.full((2,), count, dtype=torch.int32),
            )  # fmt: skip
            out = module.o_proj if name == "Kimi Linear" else module.out_proj
            found.append(out(y).view(part.shape))
            count += length if length < SLOTS else 1
        return torch.cat(found, 1)

    with torch.no_grad():
        truth = ours(reference, copy.deepcopy(module).double(), x.double(), torch.float64)
        kit.assert_norm(ours(run, module, x, F32), truth, stock())


LANES = (
    Case(lengths=(3, 2), key_dim=20, value_dim=70),
    Case(lengths=(34, 9), key_dim=16, value_dim=32, prompts=True),
    # more chunks than there are threadgroups to solve them
    Case(lengths=(32800,), counts=(0,), key_heads=1, per_key=1, key_dim=8, value_dim=32, prompts=True),
    Case(lengths=(3, 2), key_dim=20, value_dim=70, per_key=1, of_rows=True),
    Case(lengths=(34, 9), key_dim=16, value_dim=32, per_key=1, of_rows=True, prompts=True),
    Case(lengths=(32800,), counts=(0,), key_heads=1, per_key=1, key_dim=8, value_dim=32, of_rows=True, prompts=True),
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
        ("dt_bias", given["dt_bias"][:3], r"dt_bias: expected \[decays=4\], got \[3\]"),
        ("states", given["states"].double(), r"states: expected dtype Float, got Double"),
        ("states", given["states"][1:], r"states: expected \[states=9, value heads=4, key_dim=64, value_dim=64\]"),
        ("runs", given["runs"].long(), r"runs: expected dtype Int, got Long"),
        ("table", given["table"][:, :1], r"table: expected at least two slots a sequence"),
        ("count", given["count"][:0], r"count: expected \[sequences=1\], got \[0\]"),
        ("eps", -1.0, r"eps: expected a finite number >= 0"),
        ("beta_scale", float("nan"), r"beta_scale: expected a finite number"),
        ("log_bound", 5.0, r"log_bound: expected at most 0, got 5"),
        ("a", torch.zeros(1, 2, 2, 64), r"a: expected one value head of each key head, as rows of states decay"),
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
