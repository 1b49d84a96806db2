"""Falcon-H1: layers with a state space beside attention. What holds of all families `test_kin.py` checks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache

from tests.exact import InFloat64, doubled
from tests.hf.checks import check_engine, check_tokens
from tests.hf.test_families import patched_model
from tests.hf.tiny_cases import KIN
from tests.hf.tiny_models import config, ids, launches_of_a_step, padded, random_model, shared, tokens
from torch_foundry.core.errors import Fallback
from torch_foundry.hf.api import patch, report
from torch_foundry.kvcache.hf_cache import new_cache
from torch_foundry.kvcache.hybrid import HybridLayer
from torch_foundry.kvcache.snapshots import Snapshots, take_back
from torch_foundry.models.spec import build_spec
from torch_foundry.testing.tolerance import assert_norm

pytestmark = pytest.mark.usefixtures("quiet")
FAMILIES = ("falcon_h1", "falcon_h1-normed")


@cache
def scaled() -> Any:
    """One that multiplies what attention sees, too."""
    options = {**KIN["falcon_h1-normed"].options, "attention_in_multiplier": 1.7}
    return random_model(config("FalconH1Config", **options))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("mode", ["padded beams", "chunked prefill", "second turn", "sampling"])
def test_tokens_equal_stock(family: str, mode: str) -> None:
    check_tokens(family, mode)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_few_launches(family: str) -> None:
    """Of a token: norm and projections, attention and o; norm and projection, state space, its gate, out; then norm,
    gate and up, and down."""
    counts = launches_of_a_step(patched_model(family))
    assert [n for name, n in counts.items() if name.count(".") == 2] == [7, 2, 7, 2], str(counts)


@torch.no_grad()
@pytest.mark.parametrize("family", [*FAMILIES, "scaled"])
def test_prompts_and_steps_are_as_exact_as_stock(family: str) -> None:
    """In parts: below and above the number of states, and of a chunk."""
    stock, lengths = scaled() if family == "scaled" else shared(family), (40, 1, 1, 3, 33, 10)
    model, exact, text = patch(copy.deepcopy(stock)), doubled(stock), ids(2, sum(lengths))
    with InFloat64():
        truth = exact(text, use_cache=False).logits
    caches, at = [DynamicCache(config=each.config) for each in (model, stock)], 0
    for length in lengths:
        part, positions = text[:, at : at + length], torch.arange(at, at + length)[None]
        ours, theirs = (
            m(part, past_key_values=c, position_ids=positions).logits
            for m, c in zip((model, stock), caches, strict=True)
        )
        assert_norm(ours, truth[:, at : at + length], theirs)
        at += length
    assert not report(model).fallbacks and not report(model).eager, str(report(model))
    layers = caches[0].layers
    assert all(type(layer) is HybridLayer and layer.get_seq_length() == at for layer in layers)


@torch.no_grad()
def test_stock_code_goes_on_with_the_cache() -> None:
    """And ours with that: keys, values and states are as stock code keeps them."""
    stock, text = shared("falcon_h1"), ids(2, 21)
    model = patch(copy.deepcopy(stock))
    expected = stock(text, use_cache=False).logits[:, -1]
    for first, second in ((model, stock), (stock, model)):
        cache = DynamicCache(config=stock.config)
        first(text[:, :12], past_key_values=cache)
        first(text[:, 12:13], past_key_values=cache)
        torch.testing.assert_close(
            second(text[:, 13:], past_key_values=cache).logits[:, -1], expected, rtol=1e-4, atol=1e-5
        )


@torch.no_grad()
def test_padding_is_left_out() -> None:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, :5] = 0
    results = []
    for model in (patched_model("falcon_h1"), shared("falcon_h1")):
        cache = DynamicCache(config=model.config)
        model(ids(2, 12), attention_mask=mask, past_key_values=cache)
        more = torch.cat([mask, mask.new_ones(2, 1)], 1)
        step = {"attention_mask": more, "past_key_values": cache, "position_ids": torch.full((2, 1), 12)}
        results.append(model(ids(2, 1, seed=1), **step).logits)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_with_drafts_and_snapshots(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_engine(family, monkeypatch).cache.manager.states.check()


@torch.no_grad()
def test_a_cache_is_taken_back_by_snapshots() -> None:
    """Of both parts of a layer, to the same tokens."""
    model, text = patched_model("falcon_h1"), ids(1, 60)
    cache = new_cache(model.config)
    cache.snapshots = Snapshots(every=16)
    model(text[:, :20], past_key_values=cache)
    assert cache.snapshots.take(cache, 20)
    model(text[:, 20:], past_key_values=cache)
    assert take_back(cache, 20, 40) and cache.get_seq_length() == 20
    again = model(text[:, 20:], past_key_values=cache).logits
    whole = model(text, use_cache=False).logits[:, 20:]
    torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_copied_cache_goes_its_own_way() -> None:
    model, text = patched_model("falcon_h1"), ids(1, 20)
    cache = new_cache(model.config)
    model(text, past_key_values=cache)
    other = copy.copy(cache)
    other.layers = [copy.copy(layer) for layer in cache.layers]
    expected = model(ids(1, 1, seed=1), past_key_values=cache).logits
    assert cache.get_seq_length() == 21 and other.get_seq_length() == 20
    torch.testing.assert_close(model(ids(1, 1, seed=1), past_key_values=other).logits, expected, rtol=1e-5, atol=1e-6)


def test_packed_weights_and_caches() -> None:
    model = patch(copy.deepcopy(shared("falcon_h1")), quantize="q8_0", kv_cache="q8_0")
    generated = model.generate(**padded([9, 4]), max_new_tokens=12, do_sample=False)
    assert generated.shape[1] == 21 and report(model).steps and not report(model).fallbacks, str(report(model))


CHANGES: list[Callable[[Any], object]] = [
    lambda norm: None,
    lambda norm: norm.weight.mul_(-1.5),
    lambda norm: setattr(norm, "weight", nn.Parameter(norm.weight * 0.3)),
    lambda norm: setattr(norm.weight, "data", norm.weight.data + 0.5),
]


@torch.no_grad()
def test_what_attention_sees_is_multiplied_in_no_launch_of_its_own() -> None:
    """The norm's weight is, once: again when it is another one, or has other numbers, in captured steps too."""
    model, stock = patch(copy.deepcopy(scaled())), copy.deepcopy(scaled())
    for change in CHANGES:
        for each in (model, stock):
            change(each.model.layers[0].input_layernorm)
        assert tokens(model) == tokens(stock), str(report(model))
    assert report(model).steps and not report(model).fallbacks, str(report(model))
    counts = launches_of_a_step(model)
    assert [n for name, n in counts.items() if name.count(".") == 2] == [7, 2, 7, 2], str(counts)
    assert model.bfloat16()(ids(1, 8)).logits.dtype == torch.bfloat16 and not report(model).fallbacks


@torch.no_grad()
def test_keys_and_values_of_what_is_multiplied_are_as_stock_keeps_them() -> None:
    stock, text = scaled(), ids(2, 21)

    def layers(model: Any, text: torch.Tensor) -> list[Any]:
        cache = DynamicCache(config=stock.config)
        model(text[:, :12], past_key_values=cache)
        model(text[:, 12:13], past_key_values=cache)
        return list(cache.layers)

    rows = [layers(stock, row) for row in text.split(1)]  # with a gated norm 5.21 takes a step of two for two tokens
    for ours, *theirs in zip(layers(patch(copy.deepcopy(stock)), text), *rows, strict=True):
        torch.testing.assert_close(ours.keys, torch.cat([row.keys for row in theirs]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.values, torch.cat([row.values for row in theirs]), rtol=1e-4, atol=1e-5)


def test_foreign_caches_run_stock_code() -> None:
    model = patch(copy.deepcopy(shared("falcon_h1")))
    options = {"cache_implementation": "static", "disable_compile": True}
    assert tokens(model, **options) == tokens(shared("falcon_h1"), **options)
    assert report(model).fallbacks["cache is StaticCache"] and not report(model).fused


# ------------------------------------------------------------------------------------------------- what is refused

REFUSED: dict[str, Callable[[Any], object]] = {
    "key_multiplier is 0.1": lambda layer: setattr(layer.self_attn, "key_multiplier", 0.1),
    "in_proj has a bias behind a multiplier": lambda layer: setattr(
        layer.mamba.in_proj, "bias", nn.Parameter(torch.zeros(layer.mamba.in_proj.out_features))
    ),
    "has .*extra": lambda layer: layer.add_module("extra", nn.Linear(1, 1)),
    "norm is a LayerNorm": lambda layer: setattr(layer.mamba, "norm", nn.LayerNorm(128)),
    "the convolution's activation is gelu": lambda layer: setattr(layer.mamba, "activation", "gelu"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_understood_is_refused(why: str) -> None:
    layer = copy.deepcopy(shared("falcon_h1").model.layers[0])
    REFUSED[why](layer)
    with pytest.raises(Fallback, match=why):
        build_spec(layer)


@torch.no_grad()
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_all_forms_of_its_norm(before: bool, groups: int) -> None:
    options = {**KIN["falcon_h1"].options, "mamba_n_groups": groups, "mamba_rms_norm": True}
    stock = random_model(config("FalconH1Config", **options, mamba_norm_before_gate=before))
    model, text = patch(copy.deepcopy(stock)), ids(2, 40)
    torch.testing.assert_close(model(text).logits, stock(text).logits, rtol=1e-4, atol=1e-5)
    assert report(model).fused == 2 and not report(model).fallbacks, str(report(model))
