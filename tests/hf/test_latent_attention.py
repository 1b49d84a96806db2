"""Multi-head latent attention: DeepSeek and its kin. What holds of all families `test_kin.py` checks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForImageTextToText, DynamicCache, Mistral3Config

import torch_foundry
from tests.hf.checks import check_engine, check_tokens
from tests.hf.test_families import patched_model
from tests.hf.tiny_inputs import TOWER
from tests.hf.tiny_models import (
    PROMPT,
    assert_equal,
    build,
    fused_all,
    ids,
    launches_of_a_step,
    padded,
    settings,
    shared,
    tokens,
)
from torch_foundry.core.errors import Fallback
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import patch, report, unpatch
from torch_foundry.models.spec import build_spec

pytestmark = pytest.mark.usefixtures("quiet")
SEEN = 32  # tokens of a prompt: more than go through the kernels for few


@pytest.mark.parametrize(
    "family, mode",
    [
        ("deepseek_v3", "padded beams"),
        ("deepseek_v2", "chunked prefill"),
        ("youtu", "second turn"),
        ("glm4_moe_lite", "prompt lookup"),
        ("deepseek_v3", "no cache"),
        ("mistral4", "chunked prefill"),
        ("mistral4-direct", "second turn"),
    ],
)
def test_tokens_equal_stock(family: str, mode: str) -> None:
    check_tokens(family, mode)


# Norm and projection of the latent and of queries, twice if they are of low rank; the latent's norm, rotation, queries
# of latents, attention, values and o. Then norm, gate and up, and down.
# Where queries grow, their norm is a launch of its own, and so is what looks up by how much.
LAUNCHES = {"deepseek_v2": (8, 2), "deepseek_v3": (9, 2), "mistral4": (11, 2)}


@torch.no_grad()
@pytest.mark.parametrize("family", LAUNCHES)
def test_a_step_is_few_launches(family: str) -> None:
    model = patched_model(family)
    counts = launches_of_a_step(model)
    assert tuple(counts[f"layers.0.{part}"] for part in ("attention", "mlp")) == LAUNCHES[family], str(counts)


@torch.no_grad()
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "youtu"])
def test_a_cache_holds_what_stock_s_does(family: str) -> None:
    """Latents and rotated parts alone, in the same places: so stock code goes on with our cache, and we with its."""
    stock, model, text = shared(family), patched_model(family), ids(2, 40)
    truth = stock(text).logits[:, SEEN:]
    for first, second in ((stock, model), (model, stock), (model, model)):
        ours, theirs = DynamicCache(config=stock.config), DynamicCache(config=stock.config)
        stock(text, past_key_values=theirs)
        first(text[:, :SEEN], past_key_values=ours)
        found = second(text[:, SEEN:], past_key_values=ours).logits
        torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)
        for mine, layer in zip(ours.layers, theirs.layers, strict=True):
            assert mine.keys.shape == (2, 1, 40, 48) and mine.values.shape == (2, 1, 40, 32)
            torch.testing.assert_close(mine.keys, layer.keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mine.values, layer.values, rtol=1e-4, atol=1e-5)


def test_an_engine_with_drafts_and_shared_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    check_engine("deepseek_v3", monkeypatch)


@torch.no_grad()
def test_an_engine_s_prompts_beyond_what_graphs_take() -> None:
    """More tokens in a step than products for each head have kernels for, which torch takes then."""
    stock = shared("youtu")
    engine = Engine(patch(copy.deepcopy(stock)), requests=2, budget=160, blocks=24)
    text = ids(1, 150)
    stream = engine.submit(text[0].tolist(), SamplingParams(max_tokens=8, temperature=0))
    engine.run()
    assert stream.tokens == stock.generate(text, max_new_tokens=8, do_sample=False)[0, 150:].tolist()


@torch.no_grad()
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_queries_grow_in_an_engine(batch_invariant: bool) -> None:
    """Of a prompt in one step, of more tokens than are captured, whose products are ours or torch's."""
    stock = shared("mistral4")
    engine = Engine(patch(copy.deepcopy(stock)), requests=2, budget=160, blocks=24, batch_invariant=batch_invariant)
    text = ids(1, 150)
    stream = engine.submit(text[0].tolist(), SamplingParams(max_tokens=8, temperature=0))
    engine.run()
    assert stream.tokens == stock.generate(text, max_new_tokens=8, do_sample=False)[0, 150:].tolist()


@torch.no_grad()
@pytest.mark.parametrize("family", ["mistral4", "mistral4-direct"])
def test_packed_queries_grow(family: str) -> None:
    model = patch(copy.deepcopy(shared(family)), quantize="q8_0")
    dense = torch_foundry.dequantize(copy.deepcopy(model))
    inputs = padded([12, 30])
    packed, expected = (m.generate(**inputs, max_new_tokens=20, do_sample=False).tolist() for m in (model, dense))
    assert packed == expected and report(model).steps and fused_all(model), str(report(model))


@torch.no_grad()
def test_a_wrapper_of_queries_that_grow() -> None:
    """As Mistral Small 4 is published."""
    tower = {"model_type": "pixtral", **TOWER, "head_dim": 16}
    text = {"model_type": "mistral4", **settings("mistral4").to_dict()}
    made_of = Mistral3Config(text_config=text, vision_config=tower, image_token_index=5, spatial_merge_size=2)
    torch.manual_seed(0)
    stock = AutoModelForImageTextToText.from_config(made_of).eval()
    stock.generation_config.eos_token_id = None
    model = patch(copy.deepcopy(stock))
    assert tokens(model) == tokens(stock) and report(model).steps == 11 and not report(model).eager


@torch.no_grad()
@pytest.mark.parametrize("kv_cache", ["q8_0", "f16"])
def test_packed_latents(kv_cache: str) -> None:
    stock, model = shared("deepseek_v3"), patch(copy.deepcopy(shared("deepseek_v3")), kv_cache=kv_cache)
    for text in (ids(2, SEEN), ids(2, 9)):
        cache = DynamicCache(config=model.config)
        model(text, past_key_values=cache)
        found = model(text[:, :3], past_key_values=cache).logits
        expected = stock(torch.cat([text, text[:, :3]], 1)).logits[:, -3:]
        torch.testing.assert_close(found, expected, rtol=0.05, atol=0.03)
    assert fused_all(model)


@torch.no_grad()
def test_packed_products_follow_their_weights() -> None:
    """kv_b_proj is unpacked once: steps notice what is loaded into it, in the same memory."""
    model = patch(copy.deepcopy(shared("deepseek_v3")), quantize="q8_0")
    other = patch(build("deepseek_v3", seed=5), quantize="q8_0")
    before = tokens(model)
    assert tokens(model) == before and report(model).steps and fused_all(model), str(report(model))
    model.load_state_dict(other.state_dict())
    assert tokens(model) == tokens(other) != before
    text = ids(1, SEEN)  # both ways to compute the same
    cache = DynamicCache(config=model.config)
    steps = torch.cat([model(part, past_key_values=cache).logits for part in text.split(1, 1)], 1)
    torch.testing.assert_close(steps, model(text).logits, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_dense_products_follow_a_merge() -> None:
    """A merge changes weights through `.data`, which no version counts."""
    model, stock = patch(copy.deepcopy(shared("deepseek_v3"))), copy.deepcopy(shared("deepseek_v3"))
    before = tokens(model)
    for each in (model, stock):
        for layer in each.model.layers:
            layer.self_attn.kv_b_proj.weight.data += 2.0 * layer.self_attn.kv_b_proj.weight.data.flip(0)
    assert tokens(model) == tokens(stock) != before


@torch.no_grad()
def test_unpatched_is_as_before() -> None:
    stock, model = shared("deepseek_v3"), patch(copy.deepcopy(shared("deepseek_v3")))
    tokens(model)
    state = model.state_dict()
    assert list(state) == list(stock.state_dict())
    assert_equal(list(state.values()), list(stock.state_dict().values()))
    unpatch(model)
    torch.testing.assert_close(model(PROMPT).logits, stock(PROMPT).logits, rtol=0, atol=0)


def test_foreign_caches_run_stock_code() -> None:
    model = patch(copy.deepcopy(shared("youtu")))
    options = {"cache_implementation": "static", "disable_compile": True}
    assert tokens(model, **options) == tokens(shared("youtu"), **options)
    assert report(model).fallbacks["cache is StaticCache"] and not report(model).fused


REFUSED: dict[str, Callable[[Any], object]] = {
    "self_attn has .*q_c_proj": lambda attn: attn.add_module("q_c_proj", nn.Linear(1, 1)),
    "kv_b_proj is a Identity": lambda attn: setattr(attn, "kv_b_proj", nn.Identity()),
    "kv_b_proj has a bias": lambda attn: setattr(attn.kv_b_proj, "bias", nn.Parameter(torch.zeros(4 * 112))),
    "kv_a_layernorm has no weight of 48": lambda attn: setattr(attn, "kv_a_layernorm", attn.q_a_layernorm),
    "rank 8 is not a multiple": lambda attn: setattr(attn, "kv_lora_rank", 8),
    "of 96 elements of a head 64 rotate": lambda attn: attn.__dict__.update(qk_nope_head_dim=32, qk_rope_head_dim=64),
    "attention is not causal": lambda attn: setattr(attn, "is_causal", False),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_understood_is_refused(why: str) -> None:
    layer = copy.deepcopy(shared("deepseek_v3").model.layers[0])
    REFUSED[why](layer.self_attn)
    with pytest.raises(Fallback, match=why):
        build_spec(layer)


def test_routing_that_is_not_known_is_refused() -> None:
    layer = copy.deepcopy(shared("deepseek_v2").model.layers[1])
    layer.mlp.gate.topk_method = "noaux_tc"
    with pytest.raises(Fallback, match="routing by noaux_tc"):
        build_spec(layer)
