"""gpt-oss: what no other family has, on the tiny model and on its experts alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tests.exact import assert_as_exact, assert_found_as_exact
from tests.hf.tiny_models import build, fused_all, ids, padded, shared
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import patch, report, unpatch
from torch_foundry.nn import FoundryExperts
from torch_foundry.nn.experts import biases_of, matrices_of

TOKENS = 64


def louder(model: Any) -> Any:
    """With sinks that take weight, and gates and ups beyond the clamps."""
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.add_(1.0)
            layer.mlp.experts.gate_up_proj_bias.mul_(20.0)
    return model


def logits(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(inputs).logits
    return found


@torch.no_grad()
def test_tokens_across_windows_are_stocks() -> None:
    """64 greedy tokens of a batch with left padding and a prompt longer than the window, in captured steps."""
    stock = shared("gpt_oss")
    model = patch(copy.deepcopy(stock))
    inputs = padded([9, 4, 17])
    found, expected = (m.generate(**inputs, max_new_tokens=TOKENS, do_sample=False).tolist() for m in (model, stock))
    seen = report(model)
    assert found == expected and fused_all(model) and not seen.eager and seen.captured, str(seen)
    one = {"input_ids": ids(1, 17), "attention_mask": torch.ones(1, 17, dtype=torch.long)}
    plain = stock.generate(**one, max_new_tokens=TOKENS, do_sample=False)
    drafted = model.generate(**one, max_new_tokens=TOKENS, do_sample=False, prompt_lookup_num_tokens=3)
    assert drafted.tolist() == plain.tolist() and fused_all(model)


@torch.no_grad()
def test_the_engine_gives_stocks_tokens() -> None:
    stock = shared("gpt_oss")
    engine = Engine(patch(copy.deepcopy(stock)), requests=2, budget=20, blocks=9)
    prompts = [ids(1, n, seed=n) for n in (5, 40)]
    streams = [engine.submit(prompt[0].tolist(), SamplingParams(max_tokens=20, temperature=0)) for prompt in prompts]
    engine.run()
    for prompt, stream in zip(prompts, streams, strict=True):
        alone = stock.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=20, do_sample=False)
        assert stream.tokens == alone[0, prompt.shape[1] :].tolist()


@pytest.mark.parametrize("quantize", [None, "mxfp4"])
@pytest.mark.parametrize("length", [3, 40, 300])
def test_sinks_and_clamps(quantize: str | None, length: int) -> None:
    stock = louder(build("gpt_oss"))
    model = patch(copy.deepcopy(stock), quantize=quantize)
    if quantize:
        stock = unpatch(copy.deepcopy(model), dequantize=True)
    assert_found_as_exact(logits(model, ids(1, length)), logits, stock, ids(1, length))
    assert fused_all(model)


def test_dense_matrices_are_laid_out_once_and_keep_their_values() -> None:
    """No second copy is kept; stock code, the state dict and `unpatch` see the same parameters."""
    stock = build("gpt_oss")
    before = {name: value.clone() for name, value in stock.state_dict().items()}
    parameters = dict(stock.named_parameters())
    model = patch(stock)
    assert dict(model.named_parameters()) == parameters
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) and value.shape == before[name].shape
    experts = model.model.layers[0].mlp.experts
    assert experts.gate_up_proj.stride(1) == experts.down_proj.stride(1) == 1
    assert experts.gate_up_proj.untyped_storage().nbytes() == experts.gate_up_proj.nbytes
    logits(model, ids(1, 3))
    model.load_state_dict(before, assign=True)  # as files have them
    assert_found_as_exact(logits(model, ids(1, 3)), logits, build("gpt_oss"), ids(1, 3))
    assert model.model.layers[1].mlp.experts.down_proj.stride(1) == 1 and fused_all(model)


def test_packed_experts_alone() -> None:
    stock = louder(build("gpt_oss")).model.layers[0].mlp.experts
    before = {name: value.clone() for name, value in stock.state_dict().items()}
    exact = copy.deepcopy(stock)
    packed = FoundryExperts.from_experts(stock, "q8_0")
    with torch.no_grad():
        for dense, name in zip(matrices_of(exact), ("gate_proj", "up_proj", "down_proj"), strict=True):
            dense.copy_(packed.dequantized(name, torch.float32))
    g = torch.Generator().manual_seed(1)
    for tokens in (2, 40, 300):
        x = torch.randn(tokens, 64, generator=g)
        chosen = torch.stack([torch.randperm(6, generator=g)[:3] for _ in range(tokens)])
        weights = torch.rand(tokens, 3, generator=g)
        assert_as_exact(lambda m, *given: m(*given).detach(), packed, exact, x, chosen, weights)
    assert packed.formats == ("q8_0",) * 3 and all(bias is not None for bias in biases_of(packed))
    back = packed.to_experts(torch.float32)
    assert back is stock and list(back.state_dict()) == list(before)
    for name, value in back.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0.02, atol=0.02)


@pytest.mark.parametrize(("name", "value"), [("alpha", 1.5), ("limit", 6.0)])
def test_another_swiglu_is_left_alone(name: str, value: float) -> None:
    model = build("gpt_oss")
    setattr(model.model.layers[0].mlp.experts, name, value)
    assert report(patch(model)).not_replaced == {"model.layers.0": "activation of GptOssExperts"}
