"""Looking inside a patched model, and ways of running it besides generate()."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from transformers import DynamicCache
from transformers.cache_utils import Cache, QuantizedLayer

import torch_foundry
from tests.exact import assert_as_exact, assert_found_as_exact
from tests.hf.tiny_models import DEVICE, PROMPT, assert_equal, build, classes, fused_all, ids, padded, shared, tokens
from torch_foundry.hf.api import patch, report, unpatch

pytestmark = pytest.mark.usefixtures("quiet")


# -------------------------------------------------------------------------------------------------- looking inside


def test_hidden_states_are_recorded_without_a_fallback(pair: Any) -> None:
    stock, model = pair
    with torch.no_grad():
        ours = model(PROMPT, output_hidden_states=True).hidden_states
        assert len(ours) == 3
        assert_found_as_exact(ours, lambda each: each(PROMPT, output_hidden_states=True).hidden_states, stock)
    assert tokens(model) == tokens(stock), "the recorders stay installed"
    assert fused_all(model)


def test_attentions(pair: Any) -> None:
    for model in pair:
        model.set_attn_implementation("eager")
    with torch.no_grad():
        ours, theirs = (model(PROMPT, output_attentions=True).attentions for model in pair)
    assert len(ours) == len(theirs) == 2
    assert_equal(list(ours), list(theirs))
    assert report(pair[1]).fallbacks["output_attentions"] == 2


def test_hooks_on_submodules_run(pair: Any) -> None:
    stock, model = pair
    calls = []
    handle = model.model.layers[1].mlp.register_forward_hook(lambda *_: calls.append(1))
    assert tokens(model) == tokens(stock)
    assert len(calls) == 12
    assert report(model).fallbacks == {"forward hook on mlp": 12}, "the other layer stays fused"
    handle.remove()
    fused = report(model).fused
    tokens(model)
    assert report(model).fused == fused + 24


def test_hooks_on_layers_run_fused(pair: Any) -> None:
    _, model = pair
    calls = []
    model.model.layers[0].register_forward_pre_hook(lambda *_: calls.append("before"))
    model.model.layers[0].register_forward_hook(lambda *_: calls.append("after"))
    tokens(model)
    assert calls == ["before", "after"] * 12
    assert fused_all(model)


def test_compile(pair: Any) -> None:
    stock, model = pair
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        ours = compiled(PROMPT, use_cache=False).logits
        assert_found_as_exact(ours, lambda each: each(PROMPT, use_cache=False).logits, stock)


def test_autocast(pair: Any) -> None:
    stock, model = pair
    with torch.no_grad(), torch.autocast(PROMPT.device.type, dtype=torch.bfloat16):
        ours, theirs = model(PROMPT).logits, stock(PROMPT).logits
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


# --------------------------------------------------------------------------------------------------- other ways to run


def test_foreign_caches(pair: Any) -> None:
    """Those that generate() makes are used as they are, also by a model that would store q8_0."""
    options = {"cache_implementation": "static", "disable_compile": True}
    stock, model = pair
    patch(model, kv_cache="q8_0")
    assert tokens(model, **options) == tokens(stock)
    assert report(model).fallbacks["cache is StaticCache"] and not report(model).fused


class Coarse(QuantizedLayer):
    """What quanto or hqq are for: all but the last tokens as small integers."""

    def __init__(self) -> None:
        super().__init__(residual_length=4)

    def _quantize(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return (tensor * 16).round().to(torch.int8)

    def _dequantize(self, q_tensor: torch.Tensor) -> torch.Tensor:
        return q_tensor.float() / 16


def test_a_quantized_cache_of_transformers(pair: Any) -> None:
    """Its rounding is what was asked for, so nothing of ours takes its place."""
    found = []
    for model in pair:
        cache = Cache(layers=[Coarse(), Coarse()])
        found.append(tokens(model, past_key_values=cache))
        assert cache.get_seq_length() == PROMPT.shape[1] + 11
    assert found[0] == found[1]
    assert report(pair[1]).fallbacks["cache is Cache"] and not report(pair[1]).fused


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_cache_moves_between_stock_and_patched(family: str) -> None:
    stock = copy.deepcopy(shared(family))
    model = patch(copy.deepcopy(stock))

    @torch.no_grad()
    def in_turn(*order: Any) -> torch.Tensor:
        cache = DynamicCache(config=stock.config)
        for seed, each in enumerate(order):
            output = each(ids(2, 9, seed), past_key_values=cache).logits
        return output

    for order in ([stock, model, stock], [model, stock, model]):
        assert_found_as_exact(in_turn(*order), lambda each: in_turn(each, each, each), stock)
    assert fused_all(model)


def test_inference_mode_cache_is_usable_outside(pair: Any) -> None:
    def outside(each: Any) -> torch.Tensor:
        cache = DynamicCache(config=each.config)
        with torch.inference_mode():
            each(PROMPT, past_key_values=cache)
        with torch.no_grad():
            return each(ids(1, 3), past_key_values=cache).logits

    stock, model = pair
    assert_as_exact(outside, model, stock)
    assert fused_all(model)


def test_packed_sequences_and_custom_masks(pair: Any) -> None:
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None].to(DEVICE)
    blocks = torch.zeros(1, 1, 12, 12, dtype=torch.bool)
    blocks[..., :5, :5] = torch.ones(5, 5).tril().bool()
    blocks[..., 5:, 5:] = True
    blocks = blocks.to(DEVICE)
    stock, model = pair
    with torch.no_grad():
        for inputs in ({"position_ids": positions}, {"attention_mask": blocks}):
            assert_as_exact(lambda each, given: each(PROMPT, use_cache=False, **given).logits, model, stock, inputs)
    assert fused_all(model)


def test_generation_extras(pair: Any) -> None:
    stock, model = pair

    class Collect:
        """A streamer that only counts."""

        def __init__(self) -> None:
            self.calls = 0

        def put(self, value: torch.Tensor) -> None:
            self.calls += 1

        def end(self) -> None: ...

    streamer = Collect()
    embeddings = stock.get_input_embeddings()(PROMPT)
    assert tokens(model, streamer=streamer) == tokens(stock) and streamer.calls == 13
    assert tokens(model, tokenizer=object()) == tokens(stock), "reaches every layer when `transformers serve` passes it"
    ours, theirs = (
        each.generate(inputs_embeds=embeddings, attention_mask=torch.ones_like(PROMPT), max_new_tokens=5)
        for each in (model, stock)
    )
    assert ours.tolist() == theirs.tolist()
    outputs = model.generate(
        **padded([6, 3]), max_new_tokens=4, return_dict_in_generate=True, output_scores=True, output_hidden_states=True
    )
    assert len(outputs.scores) == 4 and len(outputs.hidden_states) == 4
    assert fused_all(model)


def test_head_less_model_and_classifier() -> None:
    for attribute in ("AutoModel", "AutoModelForSequenceClassification"):
        torch.manual_seed(0)
        stock = getattr(transformers, attribute).from_config(shared("llama").config).eval().to(DEVICE)
        model = patch(copy.deepcopy(stock))
        with torch.no_grad():
            assert_as_exact(lambda each: each(PROMPT)[0], model, stock)
        assert fused_all(model)
        assert classes(unpatch(model)) == classes(stock)


def test_functional_call_uses_the_given_weights(pair: Any) -> None:
    stock, model = pair
    weights = {name: 1.2 * value for name, value in stock.state_dict().items()}
    with torch.no_grad():
        call = lambda each, given: torch.func.functional_call(each, given, (PROMPT,)).logits  # noqa: E731
        assert_as_exact(call, model, stock, weights)


def test_the_package_is_callable_like_its_function() -> None:
    model = copy.deepcopy(shared("llama"))
    assert torch_foundry.patch(model) is model
    assert torch_foundry.report(model).layers == 2
    torch_foundry.unpatch(model)


def test_device_map_sees_whole_layers() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = build("llama", layers=4)
    options = {"max_memory": {0: 400_000, "cpu": 10**9}, "no_split_module_classes": model._no_split_modules}
    assert accelerate.infer_auto_device_map(patch(model), **options) == accelerate.infer_auto_device_map(
        unpatch(model), **options
    )
