"""A layer of a decode step: what the stock layer computes, in how many launches, for every family."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import torch_foundry
from tests.exact import InFloat64, doubled
from tests.hf.tiny_cases import FAMILIES
from tests.hf.tiny_models import build, ids, padded, shared
from torch_foundry.kvcache.view import KVView
from torch_foundry.models.layer import FusedLayer, forward
from torch_foundry.models.spec import build_spec
from torch_foundry.models.weights import GEMV
from torch_foundry.testing.tolerance import assert_norm

# of a layer, attention in one: norm with q, k, v, attention, o, norm with gate and up, down; experts are two more
LAUNCHES = dict.fromkeys(FAMILIES, 5) | {
    "gemma2": 7,
    "gemma3": 7,
    "olmo2": 7,
    "olmo3": 7,
    "mixtral": 7,
    "qwen3_moe": 7,
    "gpt_oss": 7,
}
LAUNCHES |= {"qwen2_moe": 9, "qwen2_moe without experts": 5}  # the shared expert is two more
NORMED_HEADS = ("qwen3", "gemma3", "olmo2", "olmo3", "qwen3_moe")


def launches_of(family: str, layer: Any, tokens: int = 1) -> int:
    """Of a decoder layer for a few tokens of a sequence. Heads that pass norms are part of attention for one alone."""
    without = f"{family} without experts"
    launches = LAUNCHES[without if without in LAUNCHES and "experts" not in layer.mlp._modules else family]
    return launches + (tokens > 1 and family in NORMED_HEADS)


def record_layers(model: Any, **inputs: Any) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Input, output, and output in float64 for the same input, of every layer in a forward pass."""
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def look(layer: Any, args: Any, given: Any, output: torch.Tensor) -> None:
        with InFloat64():
            exact = doubled(layer).forward(*doubled(args), **doubled(given))
        seen.append((args[0], output, exact))

    hooks = [layer.register_forward_hook(look, with_kwargs=True) for layer in model.model.layers]
    model(**inputs, use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def tables(model: Any, length: int) -> dict[str | None, Any]:
    """cos and sin of every position by the model's own rotary embedding."""
    rotary, positions, x = model.model.rotary_emb, torch.arange(length)[None], torch.zeros(1, dtype=model.dtype)
    if isinstance(getattr(rotary, "layer_types", None), (set, list, tuple)):
        made = {t: rotary(x, positions, t) for t in rotary.layer_types}
        return {t: (cos[0].contiguous(), sin[0].contiguous()) for t, (cos, sin) in made.items()}
    cos, sin = rotary(x, positions)
    if model.config.model_type == "gpt_oss":
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
    return {None: (cos[0].contiguous(), sin[0].contiguous())}


def prefilled(model: Any, inputs: dict[str, torch.Tensor], room: int) -> DynamicCache:
    """A cache that has seen `inputs`, with room for more."""
    cache = DynamicCache(config=model.config)
    model(**inputs, past_key_values=cache)
    for layer in cache.layers:
        for buffer in (layer._keys, layer._values):
            buffer.reserve((0, 0, 0), room, model.dtype, model.device)
    return cache


@torch.no_grad()
def check_steps(
    family: str, inputs: dict[str, torch.Tensor], new: int, dtype: torch.dtype = torch.float32, launches: int = 0
) -> None:
    model = copy.deepcopy(shared(family)) if dtype == torch.float32 else build(family, dtype)
    batch, length = inputs["input_ids"].shape
    context = {name: value[:, : length - new] for name, value in inputs.items()}
    mask = inputs.get("attention_mask", torch.ones(batch, length, dtype=torch.long))
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    context["position_ids"] = positions[:, : length - new]
    expected = record_layers(model, **inputs, position_ids=positions)
    torch_foundry.patch(model)
    cache = prefilled(model, context, new)
    seen = torch.zeros(batch, 256, dtype=torch.bool)
    seen[:, :length] = mask.bool()
    ends = [layer._keys.first + layer._keys.length for layer in cache.layers]
    start = torch.tensor([[end, length - new - end] for end in ends], dtype=torch.int32)
    where = {
        "positions": positions[:, length - new :].int(),
        "padding": seen if "attention_mask" in inputs else None,
    }
    real = mask[:, length - new :].bool()
    for i, (layer, slot) in enumerate(zip(model.model.layers, cache.layers, strict=True)):
        x, y, exact = (t[:, length - new :].contiguous() for t in expected[i])
        torch_foundry.reset_counters()
        k, v = slot.memory
        fused = FusedLayer(layer, build_spec(layer))
        kv = KVView(k, v, k.shape[2], step=start[i], **where)
        got = forward(fused, x, kv, fused.rope(tables(model, 64)), GEMV)
        made = torch_foundry.counters().launches
        assert made == (launches or launches_of(family, layer, new)), f"layer {i}: {made} launches"
        assert_norm(got[real], exact[real], y[real])


@pytest.mark.parametrize("new", [1, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_equals_the_stock_layer(family: str, new: int) -> None:
    check_steps(family, {"input_ids": ids(1, 29)}, new)  # beyond the windows of 12


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_left_padding(family: str) -> None:
    check_steps(family, padded([29, 18, 9]), 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_narrow_dtypes(family: str, dtype: torch.dtype) -> None:
    check_steps(family, {"input_ids": ids(2, 20)}, 1, dtype)


@pytest.mark.parametrize("family, launches", [("phi3", 9), ("olmo2", 14)])
def test_a_batch_too_large_for_fused_kernels(family: str, launches: int) -> None:
    check_steps(family, {"input_ids": ids(9, 15)}, 2, launches=launches)


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_moves_little_but_its_weights_and_the_cache(family: str) -> None:
    """Bytes that its launches declare, against those of the weights and of a cache that is full."""
    model = build(family, layers=1, hidden_size=256, intermediate_size=512)
    layer: Any = model.model.layers[0]
    weights = sum(p.nbytes for p in layer.parameters())
    if "experts" in layer.mlp._modules:  # of a token's experts alone
        router = next(module for module in layer.mlp.children() if hasattr(module, "top_k"))
        chosen = router.top_k / layer.mlp.experts.num_experts
        weights -= sum(p.nbytes for p in layer.mlp.experts.parameters()) * (1 - chosen)
    torch_foundry.patch(model)
    slot: Any = prefilled(model, {"input_ids": ids(1, 20)}, 1).layers[0]
    keys, values = slot._keys.data, slot._values.data
    at = {"positions": torch.tensor([[20]], dtype=torch.int32), "step": torch.tensor([20, 0], dtype=torch.int32)}
    fused = FusedLayer(layer, build_spec(layer))
    kv, rope, x = KVView(keys, values, keys.shape[2], **at), fused.rope(tables(model, 64)), torch.randn(1, 1, 256)
    with torch_foundry.capture() as graph:
        forward(fused, x, kv, rope, GEMV)
    least = weights + keys.nbytes + values.nbytes
    assert least < graph.bytes <= 1.05 * least, f"{graph.bytes / least:.3f}"
