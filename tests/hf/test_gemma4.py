"""Gemma 4: keys that layers share, embeddings of layers, a scalar of each layer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import torch_foundry
from tests.hf.tiny_models import build, config, ids, padded, random_model, shared
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import patch, report
from torch_foundry.models.spec import build_spec

SHARES = "gemma4_e"
TOKENS = 24


def generate(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> list[list[int]]:
    return model.generate(**inputs, **{"max_new_tokens": TOKENS, "do_sample": False, **options}).tolist()


def test_what_is_read_of_a_layer() -> None:
    facts = [build_spec(layer).mixer.facts for layer in shared(SHARES).model.layers]
    assert [f.source for f in facts] == [None, None, 0, 1] and [f.hands_on for f in facts] == [True, True, False, False]
    assert [f.head_dim for f in facts] == [32, 64] * 2 and [f.scale for f in facts] == [1.0] * 4
    facts = [build_spec(layer).mixer.facts for layer in shared("gemma4").model.layers]
    assert [(f.head_dim, f.n_kv_heads, f.window) for f in facts] == [(32, 2, 12), (64, 1, 0)]


@torch.no_grad()
@pytest.mark.parametrize("options", [{"num_beams": 2}, {"prefill_chunk_size": 7}, {"sync_every": 0}], ids=str)
def test_other_ways_to_generate(options: dict[str, Any]) -> None:
    stock, model = shared(SHARES), patch(copy.deepcopy(shared(SHARES)))
    inputs = padded([19, 30])
    others = {name: value for name, value in options.items() if name != "sync_every"}
    assert generate(model, inputs, **options) == generate(stock, inputs, **others)
    seen = report(model)
    assert not seen.fallbacks and seen.steps, str(seen)


@torch.no_grad()
@pytest.mark.parametrize("family", ["gemma4", SHARES])
def test_an_engine_that_runs_out_of_blocks(family: str) -> None:
    stock = shared(family)
    engine = Engine(patch(copy.deepcopy(stock)), requests=3, budget=16, blocks=6)
    prompts = [ids(1, n, seed=n) for n in (9, 14, 12)]
    streams = [
        engine.submit(prompt[0].tolist(), SamplingParams(max_tokens=TOKENS, temperature=0)) for prompt in prompts
    ]
    engine.run()
    assert any(stream.sequence.preempted for stream in streams)
    for prompt, stream in zip(prompts, streams, strict=True):
        alone = generate(stock, {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)})
        assert stream.tokens == alone[0][prompt.shape[1] :]


@torch.no_grad()
def test_without_a_cache_and_with_all_logits() -> None:
    stock, model, prompt = shared(SHARES), patch(copy.deepcopy(shared(SHARES))), ids(2, 20)
    for options in ({"use_cache": False}, {"use_cache": True}, {"logits_to_keep": 1}):
        got, expected = (m(prompt, **options).logits for m in (model, stock))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert not report(model).fallbacks


@torch.no_grad()
def test_numbers_that_change_in_place_are_read_again() -> None:
    """A layer's scalar, and the scale of the layers' table, behind steps that were captured before."""
    stock = copy.deepcopy(shared(SHARES))
    model, inputs = patch(copy.deepcopy(stock)), padded([9])
    assert generate(model, inputs) == generate(stock, inputs)
    for each in (stock, model):
        each.model.layers[1].layer_scalar.fill_(-0.4)
        each.model.embed_tokens_per_layer.embed_scale.fill_(9.0)
    changed = generate(stock, inputs)
    assert changed != generate(shared(SHARES), inputs)
    assert generate(model, inputs) == changed
    assert not report(model).fallbacks


@torch.no_grad()
@pytest.mark.parametrize("layer", [1, 3])
def test_one_layer_of_stock_code(layer: int, quiet: None) -> None:
    """Fused layers read the keys that stock ones hand on, and the other way round."""
    stock, model = shared(SHARES), patch(copy.deepcopy(shared(SHARES)))
    model.model.layers[layer].self_attn.o_proj.register_forward_hook(lambda *_: None)
    assert generate(model, padded([9, 15])) == generate(stock, padded([9, 15]))
    seen = report(model)
    assert seen.fallbacks and seen.fused, str(seen)


@torch.no_grad()
def test_packed_keys_are_handed_on_unpacked(quiet: None) -> None:
    """By stock code in the prompt; steps are captured."""
    model = patch(copy.deepcopy(shared(SHARES)), kv_cache="q8_0")
    tokens = generate(model, padded([12, 20]))
    seen = report(model)
    assert any("not stored as they are" in why for why in seen.fallbacks), str(seen)
    assert seen.steps == TOKENS - 1 and len(tokens[0]) == 20 + TOKENS


@torch.no_grad()
def test_packed_weights() -> None:
    model = patch(build(SHARES, hidden_size=64, intermediate_size=96), quantize="q8_0")
    assert len(generate(model, padded([9]))[0]) == 9 + TOKENS
    seen = report(model)
    assert not seen.fallbacks and seen.steps == TOKENS - 1, str(seen)


@torch.no_grad()
def test_factors_of_the_router_that_change_in_place() -> None:
    stock = copy.deepcopy(shared("gemma4_moe"))
    model, inputs = patch(copy.deepcopy(stock)), padded([9, 30])
    before = generate(stock, inputs)
    assert generate(model, inputs) == before
    for each in (stock, model):
        for name, parameter in each.named_parameters():
            if name.endswith("router.scale"):
                parameter.mul_(-3.0)
            elif name.endswith("per_expert_scale"):
                parameter.copy_(parameter.flip(0) * 2)
    assert generate(model, inputs) == generate(stock, inputs) != before
    assert not report(model).fallbacks


@torch.no_grad()
def test_packed_experts_and_a_dense_router() -> None:
    """Of many tokens together as of a few at a time."""
    model = patch(copy.deepcopy(shared("gemma4_moe")), quantize="q8_0")
    router = model.model.layers[0].router.proj
    assert type(router.weight) is torch.nn.Parameter and model.model.layers[0].experts.formats[0] == "q8_0"
    cache = DynamicCache(config=model.config)
    parts = [model(part, past_key_values=cache).logits for part in ids(1, 90).split(6, dim=1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids(1, 90)).logits, rtol=1e-3, atol=1e-3)
    assert len(generate(model, padded([9]))[0]) == 9 + TOKENS
    assert not report(model).fallbacks


def test_a_router_of_another_kind_is_refused() -> None:
    options = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32, "hidden_size_per_layer_input": 0}
    stock = random_model(config("Gemma4TextConfig", enable_moe_block=True, **options))
    stock.model.layers[0].router.proj = torch.nn.Linear(64, 4)
    seen = report(torch_foundry.patch(stock))
    assert seen.layers == 1 and "the router has a bias" in seen.not_replaced["model.layers.0"], str(seen)
