"""Muse Glimmer: an embedding and heads that pass norms without weights, a factor on queries, and one on logits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, DynamicCache

import torch_foundry
from tests.exact import assert_as_exact
from tests.hf.tiny_models import classes
from tests.hf.tiny_wrappers import build, prompt, shared
from torch_foundry.core.runtime import reset_counters, scope_counters
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import patch, report
from torch_foundry.models.spec import build_spec
from torch_foundry.nn import FoundryEmbedding

NAME = "muse_glimmer"
TEXT = "model.language_model"


def generate(model: Any, **options: Any) -> list[list[int]]:
    return model.generate(**prompt(NAME, [1], [2]), **{"max_new_tokens": 24, "do_sample": False, **options}).tolist()


def logits(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Of a prompt and four steps, which a patched model replays."""
    cache, ids = DynamicCache(config=model.config.get_text_config()), inputs["input_ids"]
    with torch.no_grad():
        found = [model(ids[:, :-4], past_key_values=cache).logits]
        found += [model(ids[:, [at]], past_key_values=cache).logits for at in range(-4, 0)]
    return torch.cat(found, dim=1)


def test_what_is_read_of_a_layer() -> None:
    facts = [build_spec(layer).mixer.facts for layer in shared(NAME).model.language_model.layers]
    assert [(f.rope, f.window, f.gates) for f in facts] == [(True, 12, 128), (False, 0, 128), (True, 12, 128)]
    assert all(f.scale == pytest.approx(1.9 / 32**0.5) for f in facts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_as_exact_as_stock(dtype: torch.dtype) -> None:
    stock = build(NAME).to(dtype)
    model = patch(copy.deepcopy(stock))
    assert_as_exact(logits, model, stock, {"input_ids": prompt(NAME, [], [])["input_ids"][1:].repeat(1, 3)})
    seen = report(model)
    assert seen.steps == 4 and not seen.fallbacks and not seen.eager, str(seen)


def test_a_step_is_few_launches() -> None:
    """Attention: norm and q, k, v, gates, heads and attention, the gate, o, the norm behind. MLP: three."""
    model = patch(copy.deepcopy(shared(NAME)))
    cache, ids = DynamicCache(config=model.config.get_text_config()), prompt(NAME, [])["input_ids"]
    with torch.no_grad():
        model(ids, past_key_values=cache)
        reset_counters()
        model(ids[:, :1], past_key_values=cache)
    counts = {name: found.launches for name, found in scope_counters().items()}
    assert counts["embedding"] == 2 and counts["layers.1.attention"] == 5 and counts["layers.1.mlp"] == 3, str(counts)


@torch.no_grad()
def test_packed_it_is_the_dense_model_of_the_same_values(tmp_path: Path) -> None:
    """Embedding and output layer too, saved and read again."""
    model: Any = patch(build(NAME), quantize="q4_0")
    assert isinstance(model.get_input_embeddings(), FoundryEmbedding) and f"{TEXT}.embed_tokens" in report(model).packed
    tokens = generate(model)
    seen = report(model)
    assert seen.steps >= 23 and not seen.fallbacks, str(seen)
    model.save_pretrained(tmp_path)
    loaded = patch(AutoModelForImageTextToText.from_pretrained(tmp_path).eval())
    loaded.generation_config.eos_token_id = None
    assert generate(loaded) == tokens
    torch_foundry.unpatch(model, dequantize=True)
    assert classes(model) == classes(shared(NAME)) and generate(model) == tokens


@torch.no_grad()
def test_numbers_that_change_are_read_again() -> None:
    stock: Any = copy.deepcopy(shared(NAME))
    model: Any = patch(copy.deepcopy(stock))
    before = generate(model)
    for each in (stock, model):
        decoder = each.model.language_model
        decoder.embed_tokens.embed_norm.eps = 0.5
        decoder.layers[0].self_attn.qk_scale_factor = -1.0
        decoder.layers[1].post_feedforward_layernorm.eps = 2.0
        decoder.config.output_multiplier = -0.3
    assert generate(model) == generate(stock) != before
    assert not report(model).fallbacks and not report(model).eager, str(report(model))


@torch.no_grad()
def test_an_embedding_that_is_watched_is_left_to_stock_code(quiet: None) -> None:
    stock: Any = copy.deepcopy(shared(NAME))
    model: Any = patch(copy.deepcopy(stock))
    for each in (stock, model):
        each.model.language_model.embed_tokens.embed_norm.register_forward_hook(lambda _, __, rows: 2 * rows)
    assert generate(model) == generate(stock)
    assert any("hook" in reason for reason in report(model).eager), str(report(model))


def test_gradients_are_those_of_stock(quiet: None) -> None:
    inputs, found = prompt(NAME, [1]), []
    for model in (build(NAME), patch(build(NAME))):
        model.train()
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=2e-4, atol=2e-5, msg=name)


@torch.no_grad()
def test_an_engine_refuses_the_ids_of_images_in_texts() -> None:
    model: Any = patch(copy.deepcopy(shared(NAME)))
    image = model.config.image_token_id
    with pytest.raises(ValueError, match=f"token {image} is an image's"):
        Engine(model).submit(torch.tensor([[5, image, 7]]), SamplingParams(max_tokens=4, temperature=0))


@pytest.mark.parametrize(
    "change, why",
    [
        ({"hidden_activation": "tanh"}, "activation Tanh"),
        ({"head_dim": 24}, "head_dim 24"),
    ],
)
def test_what_is_not_understood_is_refused(change: dict[str, Any], why: str) -> None:
    settings = copy.deepcopy(shared(NAME).config)
    for name, value in change.items():
        setattr(settings.text_config, name, value)
    seen = report(patch(AutoModelForImageTextToText.from_config(settings).eval()))
    assert seen.layers == 0 and any(why in found for found in seen.not_replaced.values()), str(seen)
