"""Families whose blocks are those of others in another combination: in generate(), in the engine, against float64."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

import torch_foundry
from tests.hf.test_families import FLOOR, error_of
from tests.hf.tiny_models import KIN, PROMPT, build, config, ids, padded, random_model, shared
from torch_foundry.core.runtime import scope_counters
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import report

TOKENS = 64


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
        *((f, torch.bfloat16) for f in ("nemotron", "phi", "apertus", "lfm2")),
    ],
)
def test_logits_are_as_exact_as_stock(family: str, dtype: torch.dtype) -> None:
    error, stock_error = error_of(family, dtype)
    assert error <= 1.5 * stock_error + FLOOR[dtype], f"{error:.2e}, stock {stock_error:.2e}"


# Of a token, by part. Attention: norm and q, k, v and rotation are one, or with norms of heads two; with a LayerNorm,
# five. Behind them attention and o. MLP: norm, the first product with its activation, down; a gate is two more.
LAUNCHES = {
    "arcee": (3, 3),
    "apertus": (4, 4),
    "nemotron": (7, 3),
    "jais2": (7, 3),
    "starcoder2": (7, 3),
    "stablelm": (7, 5),
    "stablelm-parallel": (7, 5),
    "phi": (7, 3),
    "olmo": (7, 5),
    "cohere": (7, 5),
}


@torch.no_grad()
@pytest.mark.parametrize("family", LAUNCHES)
def test_a_step_is_few_launches(family: str) -> None:
    _, model = pair(family)
    cache = DynamicCache(config=model.config)
    model(PROMPT, past_key_values=cache)
    torch_foundry.reset_counters()
    model(PROMPT[:, :1], past_key_values=cache)  # it is captured: run by parts
    counts = {name: found.launches for name, found in scope_counters().items()}
    assert tuple(counts[f"layers.1.{part}"] for part in ("attention", "mlp")) == LAUNCHES[family], str(counts)


@torch.no_grad()
def test_a_layer_of_theta_zero_does_not_rotate() -> None:
    stock = random_model(config("GraniteSWAConfig", layer_rope_theta=[0, 1e4], attn_implementation="eager"))
    model = torch_foundry.patch(copy.deepcopy(stock))
    torch.testing.assert_close(model(ids(1, 20)).logits, stock(ids(1, 20)).logits, rtol=1e-4, atol=1e-5)
    assert report(model).fused == 2


@torch.no_grad()
def test_a_factor_on_embeddings_that_rounds_is_refused_by_name() -> None:
    model = torch_foundry.patch(build("afmoe", torch.bfloat16, hidden_size=96))
    model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=3, do_sample=False)
    seen = report(model)
    assert not seen.steps and any("factor on the embedding" in why for why in seen.eager), str(seen)


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
        ("CohereConfig", {"use_qk_norm": True}, "self_attn has ['k_norm'"),
        ("PhiConfig", {"qk_layernorm": True, "num_attention_heads": 2}, "self_attn has ['dense', 'k_layernorm'"),
        ("StableLmConfig", {"qk_layernorm": True, "num_attention_heads": 2}, "self_attn has ['k_layernorm'"),
    ],
)
def test_what_a_config_switches_on_is_refused(name: str, options: dict[str, Any], why: str) -> None:
    seen = report(torch_foundry.patch(random_model(config(name, **options))))
    assert seen.layers == 0 and why in seen.not_replaced["model.layers.0"], str(seen)
