"""Columns in an order of their own (GPTQ's act-order) through the fused ops: the model is that of the dense weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.exact import assert_as_exact, assert_found_as_exact
from tests.hf import tiny_models
from torch_foundry import counters, dequantize, patch, quant, report, unpatch
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.nn import FoundryLinear

FORMAT = "int4_g32"
INPUTS = {"q_proj": "attention", "k_proj": "attention", "v_proj": "attention", "gate_proj": "mlp", "up_proj": "mlp"}


def ordered(linear: nn.Linear, seed: str) -> FoundryLinear:
    """A layer whose columns are quantised in a random order; the same for the same seed."""
    generator = torch.Generator().manual_seed(sum(seed.encode()))
    order = torch.randperm(linear.in_features, generator=generator)
    packed = quant.quantize(linear.weight[:, order], FORMAT)
    return FoundryLinear(linear.in_features, linear.out_features, packed, FORMAT, linear.bias, order)


def act_order(family: str, alike: bool) -> Any:
    """A model of a family whose linear layers all have an order: one for each input, or one for each layer."""
    model = copy.deepcopy(tiny_models.shared(family))
    for path, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and "layers" in path and "shared_expert" not in path:
            layer, leaf = path.split(".layers.")[1][0], path.rpartition(".")[2]
            model.set_submodule(path, ordered(module, layer + (INPUTS.get(leaf, leaf) if alike else leaf)))
    return model


@torch.no_grad()
def logits(model: Any, prompt: torch.Tensor = tiny_models.PROMPT) -> torch.Tensor:
    return model(prompt).logits


# no norm before the projections, norms of heads, one matrix for all, sandwiched norms, biases, routed experts
@pytest.mark.parametrize("family", ["olmo2", "qwen3", "phi3", "gemma2", "llama-biased", "qwen2", "qwen2_moe"])
@pytest.mark.parametrize("alike", [True, False])
def test_as_the_dense_weights(family: str, alike: bool) -> None:
    model = act_order(family, alike)
    stock = dequantize(copy.deepcopy(model))
    patch(model)
    for prompt in (tiny_models.PROMPT, tiny_models.ids(2, 20)):
        assert_as_exact(logits, model, stock, prompt)
    assert tiny_models.tokens(model) == tiny_models.tokens(stock)
    seen = report(model)
    assert seen.layers == 2 and not seen.not_replaced and seen.steps and not seen.fallbacks, str(seen)


def launches(model: Any, prompt: torch.Tensor) -> int:
    """Of a forward pass."""
    before = counters().launches
    with torch.no_grad():
        model(prompt)
    return counters().launches - before


@pytest.mark.parametrize("family", ["llama-biased", "qwen3", "phi3"])
def test_each_input_is_reordered_once(family: str) -> None:
    """Also when orders are equal without being one tensor, which is how state dicts are loaded."""
    plain = patch(copy.deepcopy(tiny_models.shared(family)), quantize={"*.layers.*proj": FORMAT})
    for prompt in (tiny_models.PROMPT[:, :1], tiny_models.PROMPT):
        assert launches(patch(act_order(family, True)), prompt) == launches(plain, prompt) + 4 * 2


@pytest.mark.tier("models")
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("requests", [4, 20])
def test_in_an_engine(alike: bool, requests: int) -> None:
    """Few requests by fused kernels, more by torch's products between graphs."""
    model = patch(act_order("llama-biased", alike))
    model.generation_config.eos_token_id = None
    engine = Engine(model, requests=requests)
    prompts = [tiny_models.ids(1, 3 + i, seed=i) for i in range(requests)]
    streams = [engine.submit(prompt[0].tolist(), SamplingParams(max_tokens=8, temperature=0)) for prompt in prompts]
    while not engine.idle:
        engine.step()
    for prompt, stream in zip(prompts, streams, strict=True):
        expected = model.generate(prompt, max_new_tokens=8, do_sample=False)
        assert stream.tokens == expected[0, prompt.shape[1] :].tolist()
    assert not report(model).eager, str(report(model))


@torch.no_grad()
def test_orders_that_change() -> None:
    """In place, or by another tensor: what was compared is compared again, also before a graph is replayed."""
    model = patch(act_order("llama-biased", True))
    attention = model.model.layers[0].self_attn
    cache = model(tiny_models.PROMPT, use_cache=True).past_key_values

    def step(of: Any, at: Any) -> torch.Tensor:
        return of(tiny_models.PROMPT[:, :1], past_key_values=at).logits

    flipped = attention.k_proj.order.flip(0)
    changes = (
        lambda: None,
        lambda: attention.k_proj.order.copy_(flipped),
        lambda: attention.q_proj.order.copy_(flipped),
        lambda: setattr(attention.v_proj, "order", flipped),
    )
    for change in changes:
        step(model, cache)
        change()
        before = copy.deepcopy(cache)
        assert_found_as_exact(step(model, cache), step, unpatch(copy.deepcopy(model), dequantize=True), before)
    assert (report(model).steps, report(model).captured) == (8, 3)  # that q differs too changes nothing
