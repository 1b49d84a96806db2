"""Kinds of rope, past the lengths at which they change: patched models give stock's tokens and logits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

import torch_foundry
from tests.exact import assert_as_exact
from tests.hf.tiny_cases import COMMON
from tests.hf.tiny_models import config, ids, padded, random_model
from torch_foundry.hf.api import report

ORIGINAL = 24  # positions that the model was trained for, before it was stretched
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
ROPES: dict[str, dict[str, Any]] = {
    "yarn": YARN,
    "yarn with its own factor": {**YARN, "attention_factor": 0.7, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, not truncated": {**YARN, "truncate": False, "mscale": 0.8, "mscale_all_dim": 0.5},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "LlamaConfig": {},
    "Qwen2Config": {"tie_word_embeddings": True},
    "Qwen3MoeConfig": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
}


def spread(model: PreTrainedModel) -> PreTrainedModel:
    """With logits far enough apart that greedy decoding does not depend on rounding."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    model.generation_config.eos_token_id = None
    return model


def phi4_mini(factors: int = 12, **options: Any) -> PreTrainedModel:
    """Phi-4-mini in small: heads that rotate in three quarters of their dimensions, longrope, tied embeddings."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.75,
        "short_factor": [1.0 + 0.05 * i for i in range(factors)],
        "long_factor": [2.0 + 0.5 * i for i in range(factors)],
        "original_max_position_embeddings": ORIGINAL,
    }
    sizes = {**COMMON, "hidden_size": 128, "head_dim": 32, "sliding_window": None, "tie_word_embeddings": True}
    settings = config(
        "Phi3Config", **{**sizes, "rope_parameters": rope, "original_max_position_embeddings": ORIGINAL, **options}
    )
    return spread(random_model(settings))


def both(stock: PreTrainedModel, quantize: str | None = None) -> tuple[Any, Any]:
    model = torch_foundry.patch(copy.deepcopy(stock), quantize=quantize)
    return (torch_foundry.unpatch(copy.deepcopy(model), dequantize=True) if quantize else stock), model


def generate(model: Any, inputs: dict[str, torch.Tensor], new: int, **options: Any) -> list[list[int]]:
    inputs = {"attention_mask": torch.ones_like(inputs["input_ids"]), **inputs}
    found: list[list[int]] = model.generate(**inputs, max_new_tokens=new, do_sample=False, **options).tolist()
    return found


@torch.no_grad()
def by_hand(model: Any, text: torch.Tensor, prompt: int) -> torch.Tensor:
    """Logits of a prompt, then of one and of three tokens at a time on its cache."""
    cache = DynamicCache(config=model.config)
    parts = [model(text[:, :prompt], past_key_values=cache).logits]
    start = prompt
    while start < text.shape[1]:
        end = min(start + (3 if start % 2 else 1), text.shape[1])
        parts.append(model(text[:, start:end], past_key_values=cache).logits)
        start = end
    return torch.cat(parts, dim=1)


PROMPTS = {"short": {"input_ids": ids(1, 9)}, "long": {"input_ids": ids(1, 40)}, "padded": padded([30, 11])}


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("name", MODELS)
def test_static_ropes(name: str, rope: str) -> None:
    stock, model = both(spread(random_model(config(name, **MODELS[name], rope_parameters=ROPES[rope]))))
    for prompt in PROMPTS.values():
        assert generate(model, prompt, 40) == generate(stock, prompt, 40)
    text = ids(2, 60)
    assert_as_exact(lambda each: by_hand(each, text, 11), model, stock)
    seen = report(model)
    assert not seen.fallbacks and seen.tokens and seen.steps, str(seen)


@pytest.mark.parametrize("quantize", [None, "q8_0"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_phi4_mini_beyond_the_switch_of_its_rope(prompt: str, quantize: str | None) -> None:
    stock, model = both(phi4_mini(), quantize)
    assert stock.lm_head.weight is stock.model.embed_tokens.weight
    expected = generate(stock, PROMPTS[prompt], 40)
    assert generate(model, PROMPTS[prompt], 40) == expected
    seen = report(model)
    assert not seen.fallbacks and seen.fused, str(seen)
    fresh = copy.deepcopy(stock)
    fresh.model.rotary_emb.inv_freq.copy_(fresh.model.rotary_emb.original_inv_freq)  # nothing is left of the switch
    assert generate(fresh, PROMPTS[prompt], 40) == expected


@pytest.mark.parametrize("prompt", [9, 30])
def test_phi4_minis_logits(prompt: int) -> None:
    """Also where a cache with short factors goes on with long ones, which generate() avoids."""
    stock, model = both(phi4_mini())
    text = ids(2, 50)
    assert_as_exact(lambda each: by_hand(each, text, prompt), model, stock)
    assert_as_exact(lambda each: by_hand(each, text[:, :9], 9), model, stock)  # and back: a short text
    assert not report(model).fallbacks


def test_the_switch_matters() -> None:
    """Else the tests above prove nothing: with short factors alone the text is another."""
    model = phi4_mini()
    other = phi4_mini(original_max_position_embeddings=200)
    other.config.rope_parameters["original_max_position_embeddings"] = 200
    other.load_state_dict(model.state_dict())
    assert generate(model, PROMPTS["long"], 20) != generate(other, PROMPTS["long"], 20)
