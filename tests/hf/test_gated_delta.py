"""Qwen3-Next, Qwen3.5 and their like: layers with a gated delta rule, and attention with an output gate. LFM2, whose
states are convolutions' alone, where that makes a difference."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache

import torch_foundry
from tests.exact import InFloat64, doubled
from tests.hf.checks import check_engine
from tests.hf.tiny_cases import COMMON, DELTA, HYBRIDS
from tests.hf.tiny_models import PROMPT, build, classes, fused_all, ids, launches_of_a_step, padded, shared, tokens
from torch_foundry.core.errors import Fallback
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import patch, report, unpatch
from torch_foundry.kvcache.recurrent import SLOTS, RecurrentLayer
from torch_foundry.models.spec import build_spec
from torch_foundry.testing.tolerance import assert_norm

pytestmark = pytest.mark.usefixtures("quiet")


STATEFUL = [*HYBRIDS, "lfm2"]


def patched(family: str, **options: Any) -> Any:
    return patch(copy.deepcopy(shared(family)), **options)


# Of a token: norm and projections, the delta rule and out; or norm and projections, rotation, attention, gate and o.
# Kimi's delta rule has six or seven projections of its input, and some two more from those; its other layers, latents.
# Behind either norm, gate and up, and down; with experts, the router's two are more, and so are the shared expert's two
# unless it is as large as the others.
LAUNCHES = {
    "qwen3_next": (3, 4, 6, 2),
    "qwen3_5": (3, 4, 2, 2),
    "qwen3_5_moe": (3, 4, 4, 4),
    "olmo_hybrid": (4, 4, 2, 3),
    "kimi_linear": (6, 8, 2, 4),
    "bailing_hybrid": (4, 10, 2, 4),
    "lfm2": (3, 3, 2, 2),
}


@torch.no_grad()
@pytest.mark.parametrize("family", STATEFUL)
def test_a_step_is_few_launches(family: str) -> None:
    model = patched(family)
    counts = launches_of_a_step(model)
    parts = [f"layers.{layer}.{part}" for part in ("attention", "mlp") for layer in (0, 1)]
    assert tuple(counts[part] for part in parts) == LAUNCHES[family], str(counts)


@torch.no_grad()
@pytest.mark.parametrize("family", HYBRIDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lengths", [(1, 1, 8), (9, 1, 1, 3, 8, 10), (70, 1, 33, 2)], ids=str)
def test_prompts_and_steps_are_as_exact_as_stock(family: str, dtype: torch.dtype, lengths: tuple[int, ...]) -> None:
    """At once and in parts: below and above the number of states, around a chunk of the delta rule."""
    if any(name.endswith("experts") for name, _ in shared(family).named_modules()):
        dtype = torch.float32  # an expert that is chosen otherwise is no rounding
    stock = shared(family) if dtype == torch.float32 else build(family, dtype)
    model, exact, text = patch(copy.deepcopy(stock)), doubled(stock), ids(2, sum(lengths))
    with InFloat64():
        truth = exact(text, use_cache=False).logits
    caches, at = [DynamicCache(config=each.config) for each in (model, stock)], 0
    for length in lengths:
        part = text[:, at : at + length]
        ours, theirs = (m(part, past_key_values=c).logits for m, c in zip((model, stock), caches, strict=True))
        assert_norm(ours, truth[:, at : at + length], theirs)
        at += length
    assert not report(model).fallbacks and not report(model).eager, str(report(model))


@torch.no_grad()
@pytest.mark.parametrize("family", STATEFUL)
def test_padding_inside_a_part_is_left_out(family: str) -> None:
    """As stock code leaves it out of the state, wherever it is."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 3:6] = 0
    results = []
    for model in (patched(family), shared(family)):
        cache = DynamicCache(config=model.config)
        model(ids(2, 12), attention_mask=mask, past_key_values=cache)
        more = torch.cat([mask, mask.new_ones(2, 1)], 1)
        results.append(model(ids(2, 1, seed=1), attention_mask=more, past_key_values=cache).logits)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", STATEFUL)
def test_foreign_caches_run_stock_code(family: str) -> None:
    model = patched(family)
    options = {"cache_implementation": "static", "disable_compile": True}
    assert tokens(model, **options) == tokens(shared(family), **options)
    assert report(model).fallbacks["cache is StaticCache"] and not report(model).fused


@pytest.mark.parametrize("family", HYBRIDS)
def test_life_cycle(family: str, tmp_path: Path) -> None:
    """Copies, files and stock classes give the same tokens; nothing is renamed."""
    stock, model = shared(family), patched(family)
    expected = tokens(stock)
    assert tokens(model) == expected and fused_all(model)
    assert not report(model).not_replaced and report(model).layers == 2
    state = model.state_dict()
    assert list(state) == list(stock.state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert tokens(twin) == expected and fused_all(twin)
    model.save_pretrained(tmp_path)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=HYBRIDS[family].attention).eval()
    saved.generation_config.eos_token_id = None
    assert tokens(saved) == expected
    model.load_state_dict({name: 1.1 * value for name, value in state.items()}, assign=True)
    changed = tokens(model)
    unpatch(model)
    assert classes(model) == classes(stock) and tokens(model) == changed


@pytest.mark.parametrize("family", STATEFUL)
def test_an_engine_with_drafts_and_snapshots(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_engine(family, monkeypatch).cache.manager.states.check()


@torch.no_grad()
def test_prompts_alone_go_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of single tokens launch nothing for prompts, however many requests there are."""
    seen, model = [], patched("qwen3_5")
    compute = torch_foundry.ops.gated_delta

    def look(*args: Any, prompts: bool, **options: Any) -> torch.Tensor:
        seen.append((len(args[0]), prompts))
        return compute(*args, prompts=prompts, **options)

    monkeypatch.setattr("torch_foundry.models.gated_delta.ops.gated_delta", look)
    for length, chunks in ((1, False), (SLOTS - 1, False), (SLOTS, True), (40, True)):
        cache: Any = DynamicCache(config=model.config)
        cache.layers[0] = layer = RecurrentLayer()
        layer._slots = SLOTS
        model(ids(2, length), past_key_values=cache)
        assert seen.pop() == (2 * length, chunks)
    engine = Engine(model, requests=20, budget=60)
    streams = [engine.submit(ids(1, 2, seed=n)[0].tolist(), SamplingParams(max_tokens=4)) for n in range(20)]
    engine.run()
    assert all(len(stream.tokens) == 4 for stream in streams)
    assert (20, False) in seen and not any(prompts for _, prompts in seen)


TOWER = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 4, "out_hidden_size": 64,
    "num_position_embeddings": 16, "temporal_patch_size": 2, "spatial_merge_size": 2,
}  # fmt: skip


def test_texts_of_a_mixture_that_sees() -> None:
    """`test_wrappers.py` shows images to the dense one."""
    text = {**COMMON, **HYBRIDS["qwen3_5_moe"].options}
    settings = transformers.Qwen3_5MoeConfig(text_config=text, vision_config=TOWER, image_token_id=119)
    torch.manual_seed(0)
    stock = transformers.Qwen3_5MoeForConditionalGeneration(settings).eval()
    with torch.no_grad():
        for parameter_name, parameter in stock.model.language_model.named_parameters():
            if "norm" not in parameter_name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
    stock.generation_config.eos_token_id = None
    model = patch(copy.deepcopy(stock))
    for inputs in ({"input_ids": PROMPT % 110}, padded([7, 12])):
        inputs["input_ids"] = inputs["input_ids"] % 110
        found = [m.generate(**inputs, max_new_tokens=20, do_sample=False).tolist() for m in (model, stock)]
        assert found[0] == found[1]
    seen = report(model)
    assert seen.layers == 2 and seen.steps == 2 * 19 and not seen.fallbacks and not seen.eager, str(seen)


# ------------------------------------------------------------------------------------------------- what is refused


def spoilt(change: Callable[[Any], object], layer: int = 0, **sizes: Any) -> Any:
    options = {**COMMON, **HYBRIDS["qwen3_5"].options, **sizes}
    model = AutoModelForCausalLM.from_config(transformers.Qwen3_5TextConfig(**options)).eval()
    found = model.model.layers[layer]
    change(found)
    return found


REFUSED: dict[str, tuple[Callable[[Any], object], dict[str, Any]]] = {
    "has .*in_proj_extra": (lambda layer: layer.linear_attn.add_module("in_proj_extra", nn.Linear(1, 1)), {}),
    "conv1d is a Conv1d with a bias": (
        lambda layer: layer.linear_attn.conv1d.register_parameter("bias", nn.Parameter(torch.zeros(1))),
        {},
    ),
    "in_proj_z is a Identity": (lambda layer: setattr(layer.linear_attn, "in_proj_z", nn.Identity()), {}),
    "norm is a Qwen3_5RMSNormGated": (lambda layer: setattr(layer.linear_attn.norm, "activation", "gelu"), {}),
    "the convolution's activation is gelu": (lambda layer: setattr(layer.linear_attn, "activation", "gelu"), {}),
    "A_log has 3 numbers, expected 4": (
        lambda layer: setattr(layer.linear_attn, "A_log", nn.Parameter(torch.zeros(3))),
        {},
    ),
    "4 value heads are not shared by 3": (lambda layer: setattr(layer.linear_attn, "num_k_heads", 3), {}),
    "heads of 272 numbers, expected at most 256": (lambda layer: None, {"linear_key_head_dim": 272}),
    "a convolution of 9 tokens": (lambda layer: None, {"linear_conv_kernel_dim": 9}),
    "a head's state of 65536 numbers": (
        lambda layer: None,
        {"linear_key_head_dim": 256, "linear_value_head_dim": 256},
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_understood_is_refused(why: str) -> None:
    change, sizes = REFUSED[why]
    with pytest.raises(Fallback, match=why):
        build_spec(spoilt(change, **sizes))


@pytest.mark.parametrize("bound", [0.0, 5.0])
def test_decays_without_a_bound_below_one_are_refused(bound: float) -> None:
    layer = build("bailing_hybrid").model.layers[0]
    layer.self_attn.forget_gate.lower_bound = bound
    with pytest.raises(Fallback, match=f"decays are bounded by {bound}"):
        build_spec(layer)


def test_queries_without_gates_are_refused() -> None:
    narrow = nn.Linear(COMMON["hidden_size"], 128, bias=False)
    with pytest.raises(Fallback, match=r"q_proj maps \(64, 128\), expected \(64, 256\)"):
        build_spec(spoilt(lambda layer: setattr(layer.self_attn, "q_proj", narrow), layer=1))


def test_the_spec_says_how_the_state_looks() -> None:
    spec = build_spec(shared("qwen3_5").model.layers[0])
    assert spec.mixer.name == "linear_attn" and spec.config is None
    facts = spec.mixer.facts
    assert (facts.key_heads, facts.per_key, facts.key_dim, facts.value_dim) == (2, 2, 16, 32)
    assert facts.channels == 2 * 2 * 16 + 4 * 32 and DELTA["linear_num_value_heads"] == 4
