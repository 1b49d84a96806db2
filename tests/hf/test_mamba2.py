"""Bamba, Granite 4, Nemotron-H: layers with Mamba2's state space. What holds of all families `test_kin.py` checks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import torch_foundry
from tests.exact import InFloat64, doubled
from tests.hf.checks import check_engine, check_tokens
from tests.hf.test_families import patched_model
from tests.hf.tiny_models import PROMPT, build, config, ids, launches_of_a_step, random_model, shared, tokens
from torch_foundry.core.errors import Fallback
from torch_foundry.hf.api import patch, report
from torch_foundry.models.spec import build_spec
from torch_foundry.nn import FoundryExperts
from torch_foundry.testing.tolerance import assert_norm

pytestmark = pytest.mark.usefixtures("quiet")
FAMILIES = ("bamba", "granite4", "granite4_moe", "nemotron_h", "nemotron_h-latent")


@pytest.mark.parametrize(
    "family, mode",
    [
        ("bamba", "padded beams"),
        ("bamba", "chunked prefill"),
        ("granite4", "second turn"),
        ("granite4_moe", "sampling"),
        ("nemotron_h", "padded beams"),
        ("nemotron_h", "chunked prefill"),
        ("nemotron_h", "second turn"),
        ("nemotron_h-latent", "padded beams"),
        ("nemotron_h-latent", "chunked prefill"),
    ],
)
def test_tokens_equal_stock(family: str, mode: str) -> None:
    check_tokens(family, mode)


@torch.no_grad()
@pytest.mark.parametrize("read", [6, 11])
def test_positions_go_on_where_stock_code_runs(read: int) -> None:
    model, cache, text = patched_model("bamba"), DynamicCache(config=shared("bamba").config), ids(1, 12)
    model(text[:, :read], past_key_values=cache)
    found = model(text[:, read:], past_key_values=cache, output_attentions=True).logits
    torch.testing.assert_close(found, shared("bamba")(text).logits[:, read:], rtol=1e-4, atol=1e-5)


def test_tokens_with_attentions_equal_stock() -> None:
    model, told = patched_model("bamba"), {"output_attentions": True, "return_dict_in_generate": True}
    told |= {"output_logits": True, "max_new_tokens": 3}
    found, stock = (m.generate(PROMPT, **told).logits for m in (model, shared("bamba")))
    torch.testing.assert_close(found, stock, rtol=1e-4, atol=1e-5)


# Of a token: norm and projection, state space, gated norm and out; or norm, projections and rotation, attention and o.
# Behind either norm, gate and up, and down; experts beside these are four more.
LAUNCHES = {
    **{"bamba": [4, 2, 3, 2], "granite4": [4, 2, 3, 2], "granite4_moe": [4, 6, 3, 6]},
    "nemotron_h": [4, 7, 3, 3, 4],  # one or the other; norm, up and down, beside experts that have no gate either
    "nemotron_h-latent": [4, 9, 3, 3, 4],
}


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_few_launches(family: str) -> None:
    model = patched_model(family)
    counts = launches_of_a_step(model)
    assert [n for name, n in counts.items() if name.count(".") == 2] == LAUNCHES[family], str(counts)


@torch.no_grad()
@pytest.mark.parametrize(
    "family, dtype", [("bamba", torch.float32), ("bamba", torch.bfloat16), ("granite4", torch.float32)], ids=str
)
def test_prompts_and_steps_are_as_exact_as_stock(family: str, dtype: torch.dtype) -> None:
    """In parts: below and above the number of states."""
    stock = shared(family) if dtype == torch.float32 else build(family, dtype)
    lengths = (9, 1, 1, 3, 8, 10)
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


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_inside_a_part_is_left_out(family: str) -> None:
    """As stock code leaves it out of the state, wherever it is, though the convolution and projections have biases."""
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 3:6] = 0
    results = []
    for model in (patched_model(family), shared(family)):
        cache = DynamicCache(config=model.config)
        model(ids(2, 12), attention_mask=mask, past_key_values=cache)
        more = torch.cat([mask, mask.new_ones(2, 1)], 1)
        step = {"attention_mask": more, "past_key_values": cache, "position_ids": torch.full((2, 1), 12)}
        results.append(model(ids(2, 1, seed=1), **step).logits)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_foreign_caches_run_stock_code() -> None:
    model = patch(copy.deepcopy(shared("granite4")))
    options = {"cache_implementation": "static", "disable_compile": True}
    assert tokens(model, **options) == tokens(shared("granite4"), **options)
    assert report(model).fallbacks["cache is StaticCache"] and not report(model).fused


@torch.no_grad()
def test_step_sizes_have_bounds_in_prompts_alone() -> None:
    """Of several tokens on a filled cache as well, whose steps are not captured; not of single ones."""
    stock = shared("nemotron_h")
    model, exact, text = patch(copy.deepcopy(stock)), doubled(stock), ids(2, 22)
    caches = [DynamicCache(config=each.config) for each in (model, stock, exact)]
    for part in text.split([9, 1, 1, 3, 8], 1):
        ours, theirs = (m(part, past_key_values=c).logits for m, c in zip((model, stock), caches, strict=False))
        with InFloat64():
            truth = exact(part, past_key_values=caches[2]).logits
        assert_norm(ours, truth, theirs)
    seen = report(model)
    assert not seen.fallbacks and seen.steps == 2, str(seen)
    assert list(seen.eager) == ["several tokens, of a prompt, in which step sizes have bounds"], str(seen)


@pytest.mark.parametrize("family", ["bamba", "granite4_moe", "nemotron_h", "nemotron_h-latent"])
def test_an_engine_with_drafts_and_snapshots(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_engine(family, monkeypatch).cache.manager.states.check()


def test_packed_projections() -> None:
    model = patch(copy.deepcopy(shared("granite4")), quantize="q8_0")
    assert len(tokens(model)[0]) == PROMPT.shape[1] + 12
    assert report(model).steps and not report(model).fallbacks, str(report(model))


# ------------------------------------------------------------------------------------------------- what is refused

REFUSED: dict[str, Callable[[Any], object]] = {  # of a state space
    "has .*in_proj_extra": lambda mamba: mamba.add_module("in_proj_extra", nn.Linear(1, 1)),
    "in_proj is a Identity": lambda mamba: setattr(mamba, "in_proj", nn.Identity()),
    "conv1d is a Identity": lambda mamba: setattr(mamba, "conv1d", nn.Identity()),
    "norm is a BambaRMSNormGated": lambda mamba: setattr(mamba.norm, "group_size", 128),
    "the convolution's activation is gelu": lambda mamba: setattr(mamba, "activation", "gelu"),
    r"time_step_limit is \(0.3, 0.1\)": lambda mamba: setattr(mamba, "time_step_limit", (0.3, 0.1)),
    r"D is \(3,\), expected \(8,\)": lambda mamba: setattr(mamba, "D", nn.Parameter(torch.zeros(3))),
    "8 heads are not of 3 groups": lambda mamba: setattr(mamba, "n_groups", 3),
}


LATENTS: dict[str, Callable[[Any], object]] = {  # of experts that see a projection
    r"fc2_latent_proj maps \(48, 64\), expected \(32,": lambda block: setattr(
        block, "fc2_latent_proj", nn.Linear(48, 64)
    ),
    "fc1_latent_proj is a Tanh": lambda block: setattr(block, "fc1_latent_proj", nn.Tanh()),
    "experts have the shapes": lambda block: block._modules.update(
        fc1_latent_proj=nn.Linear(64, 48), fc2_latent_proj=nn.Linear(48, 64)
    ),
    "experts that see a projection are shared": lambda block: setattr(block.experts, "group", object()),
}


@pytest.mark.parametrize("why", REFUSED | LATENTS)
def test_what_is_not_understood_is_refused(why: str) -> None:
    family, index, name = ("bamba", 0, "mamba") if why in REFUSED else ("nemotron_h-latent", 1, "mixer")
    layer = copy.deepcopy(shared(family).model.layers[index])
    (REFUSED | LATENTS)[why](getattr(layer, name))
    with pytest.raises(Fallback, match=why):
        build_spec(layer)


@torch.no_grad()
def test_packed_experts_that_see_a_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens, and many by tiles, have what the dequantised model has."""
    model = patch(copy.deepcopy(shared("nemotron_h-latent")), quantize="q8_0")
    dense = torch_foundry.unpatch(copy.deepcopy(model), dequantize=True)
    monkeypatch.setattr(FoundryExperts, "unpacks", lambda *_: False)
    for length in (3, 40):
        text = ids(2, length)
        ours, theirs = (each(text, use_cache=False).logits for each in (model, dense))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * theirs.std().item())
    assert not report(model).fallbacks and "model.layers.1" not in report(model).not_replaced, str(report(model))


@pytest.mark.parametrize(
    "sizes, why",
    [
        ({"mamba_d_state": 272}, "heads of 272 numbers, expected at most 256"),
        ({"mamba_d_conv": 9}, "a convolution of 9 tokens, expected at most 8"),
    ],
)
def test_sizes_beyond_the_kernel_s_are_refused(sizes: dict[str, int], why: str) -> None:
    options = {"mamba_n_heads": 8, "mamba_d_head": 16, "layer_types": ["linear_attention"] * 2, "num_local_experts": 0}
    model = torch_foundry.patch(random_model(config("GraniteMoeHybridConfig", **options, **sizes)))
    assert why in report(model).not_replaced["model.layers.0"]


def test_the_spec_says_how_the_state_looks() -> None:
    spec, groups = build_spec(shared("bamba").model.layers[0]), shared("bamba").config.mamba_n_groups
    assert spec.mixer.name == "mamba" and spec.config is None and spec.ffn.name == "feed_forward"
    facts = spec.mixer.facts
    assert (facts.heads, facts.groups, facts.head_dim, facts.state_dim) == (8, groups, 16, 32)
    assert facts.channels == 8 * 16 + 2 * groups * 32 and spec.inner == 96
