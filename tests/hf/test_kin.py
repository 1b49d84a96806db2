"""Families whose blocks are those of others in another combination: in generate(), in the engine, against float64."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

import torch_foundry
from tests.hf.test_families import FLOOR, MODES, error_of
from tests.hf.tiny_cases import COHERE2_MOE, KIN, LAGUNA
from tests.hf.tiny_models import (
    DEVICE,
    PROMPT,
    assert_equal,
    build,
    config,
    ids,
    launches_of_a_step,
    padded,
    random_model,
    shared,
)
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import report
from torch_foundry.models.spec import build_spec
from torch_foundry.models.weights import AUTO, ones
from torch_foundry.nn import FoundryLinear
from torch_foundry.testing.tolerance import relative_error

TOKENS = 64
GROUPED = ("gpt_neox", "falcon", "falcon-in-turn")  # q, k and v are one projection, by heads
ROUTED = {**COHERE2_MOE, "first_k_dense_replace": 0}
FALCON = {"num_attention_heads": 2}


@functools.cache
def pair(family: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Stock, patched."""
    stock = shared(family)
    return stock, torch_foundry.patch(copy.deepcopy(stock))


@torch.no_grad()
@pytest.mark.parametrize("family", KIN)
def test_tokens_equal_stock_in_captured_steps(family: str) -> None:
    stock, model = pair(family)
    inputs = padded([9, 4, 7])
    tokens = [m.generate(**inputs, max_new_tokens=TOKENS, do_sample=False).tolist() for m in (stock, model)]
    assert tokens[0] == tokens[1]
    seen = report(model)
    assert not seen.not_replaced and not seen.fallbacks and not seen.eager, str(seen)
    assert seen.layers == stock.config.num_hidden_layers and seen.captured and seen.steps >= TOKENS - 1, str(seen)


@torch.no_grad()
@pytest.mark.parametrize("family", KIN)
def test_engine_gives_stock_tokens(family: str) -> None:
    stock, model = pair(family)
    prompts = [ids(1, n, seed=n) for n in (5, 40, 17)]
    engine = Engine(model, requests=2, budget=20, blocks=9)
    streams = [engine.submit(prompt[0].tolist(), SamplingParams(max_tokens=20, temperature=0)) for prompt in prompts]
    engine.run()
    for prompt, stream in zip(prompts, streams, strict=True):
        alone = stock.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False)
        assert stream.tokens == alone[0, prompt.shape[1] :].tolist()


@torch.no_grad()
@pytest.mark.parametrize(
    "family, dtype",
    [
        *((family, torch.float32) for family in KIN),
        *((f, torch.bfloat16) for f in ("nemotron", "phi", "gpt2", "gpt_neo", "apertus", "lfm2", "lfm3", "gemma3n")),
    ],
)
def test_logits_are_as_exact_as_stock(family: str, dtype: torch.dtype) -> None:
    error, stock_error = error_of(family, dtype)
    assert error <= 1.5 * stock_error + FLOOR[dtype], f"{error:.2e}, stock {stock_error:.2e}"


@torch.no_grad()
@pytest.mark.parametrize("family", ["arcee", "nanochat"])
def test_prompts_are_captured_of_an_mlp_without_a_gate(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its activation is part of the first product, which is torch's for many rows. Of norms without weights, ones that
    stand for these are there before."""
    monkeypatch.setattr("torch_foundry.engine.forward.OFTEN", 1)
    ones.cache_clear()
    stock = shared(family)
    model = torch_foundry.patch(copy.deepcopy(stock))
    prompt = ids(1, 40, seed=1)
    engine = Engine(model, requests=2, budget=64, blocks=9)
    stream = engine.submit(prompt[0].tolist(), SamplingParams(max_tokens=20, temperature=0))
    captured = report(model).captured
    engine.run()
    whole = stock.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False)
    assert stream.tokens == whole[0, prompt.shape[1] :].tolist()
    assert report(model).captured == captured + 2 and not report(model).eager, str(report(model))


# Of a token, by part. Attention: norm and q, k, v, attention, o; a LayerNorm is one more. MLP: norm, the first product
# with its activation and gate, down.
LAUNCHES = {
    "arcee": (3, 3),
    "apertus": (3, 4),
    "nanochat": (3, 3),
    "nemotron": (4, 3),
    "jais2": (4, 3),
    "starcoder2": (4, 3),
    "stablelm": (4, 3),
    "stablelm-parallel": (4, 3),
    "phi": (4, 3),
    "olmo": (4, 3),
    "cohere": (4, 3),
    # a norm, router and choice; the shared expert's two; the experts' two
    "cohere2_moe": (4, 7),
    "cohere2_moe-rms": (3, 4),
    "phimoe": (4, 5),
    "lfm3": (6, 3),  # gates of heads are projected, spread to elements and applied; a norm behind each block
    "olmoe": (3, 4),
    "flex_olmo": (4, 5),
    "minimax_m2": (3, 4),
    "mimo_v2_flash": (4, 4),  # values are multiplied before they are stored
    "laguna": (5, 6),  # gates of heads as of LFM3, without a norm behind
    "gpt_neox": (5, 3),  # one product of q, k and v, whose results are put in order
    "gpt2": (4, 3),
    "gpt_bigcode": (4, 3),
    "gpt_neo": (4, 3),
    "opt": (4, 3),
    "falcon": (4, 3),  # one head of keys: they are in order
    # streams are predicted, and a learned residual is made; behind the MLP they are corrected and get an embedding
    "gemma3n": (4, 8, 5),
}


@torch.no_grad()
@pytest.mark.parametrize("family", LAUNCHES)
def test_a_step_is_few_launches(family: str) -> None:
    _, model = pair(family)
    counts = launches_of_a_step(model)
    parts = (counts.get(f"layers.1.{part}") for part in ("attention", "mlp", "streams"))
    assert tuple(filter(None, parts)) == LAUNCHES[family], str(counts)


@torch.no_grad()
def test_a_layer_of_theta_zero_does_not_rotate() -> None:
    stock = random_model(config("GraniteSWAConfig", layer_rope_theta=[0, 1e4], attn_implementation="eager"))
    model = torch_foundry.patch(copy.deepcopy(stock))
    torch.testing.assert_close(model(ids(1, 20)).logits, stock(ids(1, 20)).logits, rtol=1e-4, atol=1e-5)
    assert report(model).fused == 2


@pytest.mark.parametrize("mode", ["padded beams", "chunked prefill", "second turn"])
def test_streams_in_other_modes(mode: str) -> None:
    stock, model = pair("gemma3n")
    assert torch.equal(MODES[mode](model), MODES[mode](stock))
    assert not report(model).fallbacks, str(report(model))


@torch.no_grad()
def test_packed_streams_with_dense_routers() -> None:
    """Of another stream, whose result is not scaled."""
    stock = build("gemma3n", altup_active_idx=1, altup_correct_scale=False)
    model = torch_foundry.patch(stock, quantize="q8_0")
    dense = torch_foundry.dequantize(copy.deepcopy(model))
    got, expected = (m.generate(**padded([9, 4]), max_new_tokens=16, do_sample=False).tolist() for m in (model, dense))
    assert got == expected and report(model).steps and not report(model).fallbacks, str(report(model))
    layer = model.model.layers[0]
    assert isinstance(layer.laurel.linear_left, FoundryLinear)
    assert not any(isinstance(module, FoundryLinear) for module in layer.altup.modules())


@torch.no_grad()
def test_values_narrower_than_keys() -> None:
    """In packed caches, too; and a factor on them that changes."""
    stock: Any = build("mimo_v2_flash")
    model: Any = torch_foundry.patch(copy.deepcopy(stock), kv_cache="q8_0")
    facts = [build_spec(layer).mixer.facts for layer in stock.model.layers]
    assert [(f.head_dim, f.value_dim, f.n_kv_heads, f.sinks) for f in facts] == [(64, 32, 2, True), (64, 32, 1, False)]
    caches = [DynamicCache(config=stock.config) for _ in range(2)]
    for part in (PROMPT, PROMPT[:, :1]):
        found, wanted = (m(part, past_key_values=c).logits for m, c in zip((model, stock), caches, strict=True))
        assert 0 < relative_error(found, wanted) < 0.02
    model = torch_foundry.patch(copy.deepcopy(stock))
    tokens = []
    for scale in (0.707, 0.1):
        for each in (stock, model):
            each.model.layers[1].self_attn.v_scale = scale
        tokens += [m.generate(**padded([9, 4]), max_new_tokens=24, do_sample=False).tolist() for m in (stock, model)]
    assert tokens[0] == tokens[1] != tokens[2] == tokens[3]
    seen = report(model)
    assert seen.steps == 46 and not seen.fallbacks and not seen.eager, str(seen)


@torch.no_grad()
def test_a_factor_on_embeddings_is_not_rounded() -> None:
    """sqrt(96) is no number of bfloat16; stock code multiplies in float32."""
    stock = build("afmoe", torch.bfloat16, hidden_size=96)
    model = torch_foundry.patch(copy.deepcopy(stock))
    embedded = model.model.decoder_plan()
    model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=3, do_sample=False)
    assert torch.equal(embedded.embed(PROMPT, AUTO), stock.model.embed_tokens(PROMPT) * 96**0.5)
    seen = report(model)
    assert seen.steps and not seen.eager and not seen.fallbacks, str(seen)


@pytest.mark.parametrize(
    "name, options, why",
    [
        (
            "OlmoeConfig",
            {"clip_qkv": 8.0, "num_attention_heads": 2, "num_key_value_heads": 1},
            "config.clip_qkv is set",
        ),
        (
            "HyperCLOVAXConfig",
            {"use_post_norm": True, "residual_multiplier": 0.5},
            "a residual multiplier and norms behind the blocks",
        ),
        (
            "Ernie4_5_MoeConfig",
            {"moe_norm_min": 0.1, "moe_layer_start_index": 0, "moe_num_experts": 6, "moe_k": 3},
            "weights whose sum is less than 0.1",
        ),
        ("OlmoConfig", {"clip_qkv": 8.0}, "config.clip_qkv is set"),
        ("PhimoeConfig", {"num_experts_per_tok": 3, "num_local_experts": 6}, "3 of 6 experts"),
        (
            "LagunaConfig",
            {**LAGUNA, "moe_router_logit_softcapping": 30.0},
            "config.moe_router_logit_softcapping is set",
        ),
        ("Lfm3Config", {"layer_types": ["conv", "conv"], "conv_L_cache": 9}, "a convolution of 9 tokens"),
        ("FalconConfig", {**FALCON, "alibi": True}, "config.alibi is set"),
        ("FalconConfig", {**FALCON, "new_decoder_architecture": True}, "FalconDecoderLayer has ['ln_attn', 'ln_mlp'"),
        (
            "FalconConfig",
            {**FALCON, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
            "config.new_decoder_architecture is set",
        ),
        ("Cohere2MoeConfig", {**ROUTED, "expert_selection_fn": "tanh"}, "scores of tanh"),
        (
            "Cohere2MoeConfig",
            {**ROUTED, "shared_expert_combination_strategy": "product"},
            "results of experts are combined by product",
        ),
        ("CohereConfig", {"use_qk_norm": True}, "self_attn has ['k_norm'"),
        ("PhiConfig", {"qk_layernorm": True, "num_attention_heads": 2}, "self_attn has ['dense', 'k_layernorm'"),
        ("StableLmConfig", {"qk_layernorm": True, "num_attention_heads": 2}, "self_attn has ['k_layernorm'"),
    ],
)
def test_what_a_config_switches_on_is_refused(name: str, options: dict[str, Any], why: str) -> None:
    seen = report(torch_foundry.patch(random_model(config(name, **options))))
    assert seen.layers == 0 and any(why in found for found in seen.not_replaced.values()), str(seen)


@torch.no_grad()
@pytest.mark.parametrize("family", [*GROUPED, "cohere2_moe", "cohere2_moe-rms"])
def test_packed_weights_give_what_dense_ones_of_the_same_values_do(family: str) -> None:
    """One projection's results are put in order, and experts are averaged, whatever weights are stored as."""
    model = torch_foundry.patch(copy.deepcopy(shared(family)), quantize="q8_0")
    dense = torch_foundry.dequantize(copy.deepcopy(model))
    inputs = padded([12, 20])
    packed, expected = (m.generate(**inputs, max_new_tokens=20, do_sample=False).tolist() for m in (model, dense))
    assert packed == expected and report(model).steps and not report(model).fallbacks, str(report(model))


@torch.no_grad()
@pytest.mark.parametrize("family", ["olmo", "nanochat"])
def test_packed_models_without_any_parameter(family: str) -> None:
    """Their norms have no weights: dtype and device are the embedding's."""
    model = torch_foundry.patch(build(family, torch.bfloat16), quantize="q8_0")
    assert not [*model.parameters()] and model.dtype == model.model.dtype == torch.bfloat16 and model.device == DEVICE
    dense = torch_foundry.dequantize(copy.deepcopy(model))
    assert {parameter.dtype for parameter in dense.parameters()} == {torch.bfloat16}
    inputs = padded([12, 20])
    packed, expected = (m.generate(**inputs, max_new_tokens=8, do_sample=False).tolist() for m in (model, dense))
    assert packed == expected and report(model).steps and not report(model).fallbacks, str(report(model))


@torch.no_grad()
@pytest.mark.parametrize("family", GROUPED)
def test_a_saved_model_is_loaded_and_gives_the_same(family: str, tmp_path: Path) -> None:
    stock, model = pair(family)
    model.save_pretrained(tmp_path)
    loaded = torch_foundry.patch(AutoModelForCausalLM.from_pretrained(tmp_path).eval())
    expected = stock.generate(**padded([9, 4]), max_new_tokens=9, do_sample=False, eos_token_id=None)
    got = loaded.generate(**padded([9, 4]), max_new_tokens=9, do_sample=False, eos_token_id=None)
    assert got.tolist() == expected.tolist() and not report(loaded).fallbacks


@torch.no_grad()
@pytest.mark.parametrize("family", GROUPED)
def test_recorded_attentions_are_those_of_stock_code(family: str, quiet: None) -> None:
    stock, model = (build(family), torch_foundry.patch(build(family)))
    for each in (stock, model):
        each.set_attn_implementation("eager")
    got, expected = (m(PROMPT, output_attentions=True).attentions for m in (model, stock))
    assert_equal(got, expected)
    assert report(model).fallbacks, str(report(model))
