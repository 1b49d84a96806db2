"""Settings of LFM2, and what is refused of it; `test_kin.py`, `test_families.py` and `test_gated_delta.py` run it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache

import torch_foundry
from tests.hf.tiny_cases import KIN
from tests.hf.tiny_models import build, config, ids, random_model, shared
from torch_foundry.core.errors import Fallback
from torch_foundry.hf.api import report
from torch_foundry.models.spec import build_spec

pytestmark = pytest.mark.usefixtures("quiet")


@torch.no_grad()
def test_biases() -> None:
    stock = build("lfm2", conv_bias=True)
    model = torch_foundry.patch(copy.deepcopy(stock))
    mask = torch.ones(2, 17, dtype=torch.long)
    mask[0, :5] = 0
    results = []
    for each in (model, stock):
        cache = DynamicCache(config=each.config)
        parts = [(0, 12), (12, 13), (13, 17)]
        given = [{"attention_mask": mask[:, :end], "past_key_values": cache} for _, end in parts]
        found = [each(ids(2, 17)[:, a:b], **more).logits for (a, b), more in zip(parts, given, strict=True)]
        results.append(torch.cat(found, 1)[mask.bool()])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    seen = report(model)
    assert seen.layers == 2 and not seen.fallbacks, str(seen)


@torch.no_grad()
def test_experts_without_a_correction() -> None:
    stock = build("lfm2_moe", use_expert_bias=False, norm_topk_prob=False)
    model = torch_foundry.patch(copy.deepcopy(stock))
    torch.testing.assert_close(model(ids(1, 5)).logits, stock(ids(1, 5)).logits, rtol=1e-4, atol=1e-5)
    assert report(model).fused == 2, str(report(model))


REFUSED: dict[str, Callable[[Any], object]] = {
    "conv has .*in_proj_extra": lambda layer: layer.conv.add_module("in_proj_extra", nn.Linear(1, 1)),
    "conv is a Conv2d": lambda layer: setattr(layer.conv, "conv", nn.Conv2d(1, 1, 1)),
    r"conv has .*\(64, 1, 3\).*, expected .*\(64, 1, 4\)": lambda layer: setattr(layer.conv, "conv_kernel_size", 4),
    "in_proj is a Identity": lambda layer: setattr(layer.conv, "in_proj", nn.Identity()),
    r"out_proj maps \(64, 32\), expected \(64, 64\)": lambda layer: setattr(layer.conv, "out_proj", nn.Linear(64, 32)),
    "w2 is a Identity": lambda layer: setattr(layer.feed_forward, "w2", nn.Identity()),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_not_understood_is_refused(why: str) -> None:
    layer = copy.deepcopy(shared("lfm2").model.layers[0])
    REFUSED[why](layer)
    with pytest.raises(Fallback, match=why):
        build_spec(layer)


def test_a_convolution_wider_than_the_kernels() -> None:
    seen = report(torch_foundry.patch(random_model(config("Lfm2Config", **KIN["lfm2"].options, conv_L_cache=9))))
    assert "a convolution of 9 tokens" in seen.not_replaced["model.layers.0"] and seen.layers == 1, str(seen)


@pytest.mark.parametrize("size", [3, 64])
def test_gates_are_of_heads_or_of_all_elements(size: int) -> None:
    layer = copy.deepcopy(shared("lfm3").model.layers[1])
    layer.self_attn.g_proj = nn.Linear(64, size, bias=False)
    with pytest.raises(Fallback, match=rf"g_proj maps \(64, {size}\), expected \(64, 128\)"):
        build_spec(layer)


@torch.no_grad()
def test_packed_gates_of_heads() -> None:
    model = torch_foundry.patch(copy.deepcopy(shared("lfm3")), quantize="q8_0")
    dense = torch_foundry.dequantize(copy.deepcopy(model))
    got, expected = (m.generate(ids(1, 9), max_new_tokens=16, do_sample=False).tolist() for m in (model, dense))
    assert got == expected and report(model).steps and not report(model).fallbacks, str(report(model))
