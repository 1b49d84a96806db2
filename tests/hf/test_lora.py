"""peft's adapters on packed layers: they train, and are merged into packed or dense weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.hf.tiny_models import ids, shared
from torch_foundry import quant
from torch_foundry.nn import FoundryEmbedding, FoundryLinear

PROMPT = ids(2, 12)
TARGETS = ["q_proj", "down_proj"]


def with_adapters(model: Any, targets: list[str] | None = None, **options: Any) -> Any:
    torch.manual_seed(3)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", target_modules=targets or TARGETS, init_lora_weights=False, **options
    )
    return peft.get_peft_model(model, config)


def packed(family: str = "llama", formats: Any = "q8_0") -> Any:
    return torch_foundry.quantize(copy.deepcopy(shared(family)), formats)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(PROMPT).logits


@pytest.mark.parametrize("formats", ["q4_0", "affine4_g32_f16", "nf4"])
@pytest.mark.parametrize("patched", [False, True])
def test_training_on_packed_weights(formats: str, patched: bool) -> None:
    base = packed(formats=formats)
    if patched:
        torch_foundry.patch(base)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = with_adapters(base).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    assert trained and all(p.dim() == 2 for p in trained)
    optimizer = torch.optim.Adam(trained, lr=3e-3)
    losses = []
    for _ in range(6):
        loss = model(PROMPT, labels=PROMPT).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in trained)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] - 0.1, losses
    after = model.unload().state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items()), "the packed weights stay as they are"


@pytest.mark.parametrize("formats", ["same", "q4_0", None])
@pytest.mark.parametrize("patched", [False, True])
def test_merged(formats: str | None, patched: bool, tmp_path: Path) -> None:
    base = packed()
    model = with_adapters(torch_foundry.patch(base) if patched else base)
    expected, adapted = logits(model), copy.deepcopy(model)
    layer = base.model.layers[1].mlp.down_proj
    dense = layer.base_layer.dequantized(torch.float32) + layer.get_delta_weight("default").detach()

    merged = torch_foundry.merge_adapters(model, formats)
    assert merged is base and not any(hasattr(module, "base_layer") for module in merged.modules())
    layer = merged.model.layers[1].mlp.down_proj
    fmt = "q8_0" if formats == "same" else formats
    if fmt is None:
        assert not isinstance(layer, FoundryLinear)
        assert torch.equal(layer.weight, dense)
        assert_found_as_exact(logits(merged), logits, adapted)
    else:
        assert isinstance(layer, FoundryLinear) and layer.format == fmt
        assert torch.equal(layer.weight, quant.quantize(dense, fmt))
        assert float((logits(merged) - expected).abs().mean()) < 0.1 * float(expected.abs().mean())
    assert merged.model.layers[0].mlp.up_proj.format == "q8_0"
    if patched:
        report = torch_foundry.report(merged)
        assert report.fused and not any("replaced" in reason for reason in report.fallbacks), str(report)
    merged.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_found_as_exact(logits(merged), logits, again.eval())


def test_adapters_on_the_embedding_and_the_output_layer() -> None:
    model = with_adapters(packed().bfloat16(), ["embed_tokens", "lm_head"])
    adapted = copy.deepcopy(model)
    merged = torch_foundry.merge_adapters(model, None)
    assert type(merged.lm_head) is nn.Linear and type(merged.model.embed_tokens) is nn.Embedding
    assert merged.lm_head.weight.dtype == merged.model.embed_tokens.weight.dtype == torch.bfloat16
    assert_found_as_exact(logits(merged), logits, adapted)
    model = with_adapters(packed().bfloat16(), ["embed_tokens", "lm_head"])
    merged = torch_foundry.merge_adapters(model)
    assert isinstance(merged.model.embed_tokens, FoundryEmbedding) and merged.dtype == torch.bfloat16
    assert logits(merged).dtype == torch.bfloat16


def test_columns_in_an_order_of_their_own() -> None:
    base = packed()
    dense = base.model.layers[0].mlp.down_proj
    order = torch.randperm(dense.in_features, generator=torch.Generator().manual_seed(0))
    weight = quant.quantize(dense.dequantized(torch.float32)[:, order], "q8_0")
    base.model.layers[0].mlp.down_proj = FoundryLinear(
        dense.in_features, dense.out_features, weight, "q8_0", None, order
    )
    model = with_adapters(base)
    adapted = copy.deepcopy(model)
    assert_found_as_exact(logits(torch_foundry.merge_adapters(model, None)), logits, adapted)


def test_what_is_refused_changes_nothing() -> None:
    model = with_adapters(packed())
    expected = logits(model)
    for formats, message in (("iq2_xxs", "nothing can be packed as iq2_xxs"), ("q4_k", "whole blocks")):
        with pytest.raises(ValueError, match=message):
            torch_foundry.merge_adapters(model, formats)
    assert torch.equal(logits(model), expected)
    with pytest.raises(RuntimeError, match="must match the size"):
        model.merge_and_unload()
    with pytest.raises(TypeError, match="expected one of peft's"):
        torch_foundry.merge_adapters(packed())
    tied = with_adapters(packed("qwen2"), ["lm_head"])
    with pytest.raises(ValueError, match="another module shares"):
        torch_foundry.merge_adapters(tied)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_adapters_on_a_mixture_that_has_run(family: str) -> None:
    """peft puts a module of its own in the router's place, which has none of the router's numbers."""
    stock, model = copy.deepcopy(shared(family)), torch_foundry.patch(copy.deepcopy(shared(family)))
    length = {"max_new_tokens": 4, "do_sample": False}
    model.generate(PROMPT, **length)
    options = {"targets": ["o_proj"], "target_parameters": ["gate.weight"]}
    found, expected = (with_adapters(m, **options).eval().generate(input_ids=PROMPT, **length) for m in (model, stock))
    assert found.tolist() == expected.tolist()
