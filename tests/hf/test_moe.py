"""Mixtures of experts: packed experts as a module, routing as stock routes, models on kernels and on graphs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from tests.exact import assert_as_exact, assert_found_as_exact
from tests.hf.tiny_models import PROMPT, build, config, fused_all, ids, shared, tokens
from torch_foundry import quant
from torch_foundry.hf.api import patch, report, unpatch
from torch_foundry.nn import FoundryExperts, FoundryLinear, experts

MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"]
T, E, K = 11, 6, 2


def stock_experts(hidden: int = 64, inner: int = 96, dtype: torch.dtype = torch.float32) -> Any:
    settings = config(
        "Qwen3MoeConfig", hidden_size=hidden, moe_intermediate_size=inner, num_experts=E, num_experts_per_tok=K
    )
    settings._experts_implementation = "eager"
    stock = Qwen3MoeExperts(settings)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in stock.parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=generator))
    return stock.to(dtype).eval()


def routed(tokens: int = T, hidden: int = 64, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, hidden, generator=generator).to(dtype)
    chosen = torch.stack([torch.randperm(E, generator=generator)[:K] for _ in range(tokens)])
    return x, chosen, torch.rand(tokens, K, generator=generator).to(dtype)


def called(experts: Any, *given: Tensor) -> Tensor:
    found: Tensor = experts(*given)
    return found


def dequantized(stock: Any, fmt: str) -> Any:
    """A stock copy with the values that packing leaves."""
    copied = copy.deepcopy(stock)
    with torch.no_grad():
        for p in copied.parameters():
            rows = p.flatten(0, 1)
            p.copy_(quant.dequantize(quant.quantize(rows, fmt), fmt, dtype=p.dtype).view(p.shape))
    return copied


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, T, 70])
def test_packed_experts_alone(tokens: int, dtype: torch.dtype) -> None:
    stock = stock_experts(dtype=dtype)
    packed = FoundryExperts.from_experts(copy.deepcopy(stock), "q8_0")
    assert_as_exact(called, packed, dequantized(stock, "q8_0"), *routed(tokens, dtype=dtype))
    assert not list(packed.parameters()) and packed.formats == ("q8_0",) * 3


def test_each_weight_has_a_format_of_its_own() -> None:
    stock = stock_experts()
    gate, up = stock.gate_up_proj.detach().chunk(2, dim=1)
    dense = [gate, up, stock.down_proj.detach()]
    formats = ["q4_0", "q8_0", "f16"]
    tensors = [
        quant.quantize(w.reshape(-1, w.shape[-1]), f).view(*w.shape[:2], -1)
        for w, f in zip(dense, formats, strict=True)
    ]
    packed = FoundryExperts(copy.deepcopy(stock), tensors, formats)
    assert packed.formats == tuple(formats)
    exact = [
        quant.dequantize(t.flatten(0, 1), f).view(w.shape) for t, f, w in zip(tensors, formats, dense, strict=True)
    ]
    with torch.no_grad():
        stock.gate_up_proj.copy_(torch.cat(exact[:2], dim=1))
        stock.down_proj.copy_(exact[2])
    for given in (routed(2), routed(70)):
        assert_as_exact(called, packed, stock, *given)
    assert packed.to(torch.bfloat16).formats == ("q4_0", "q8_0", "bf16")


def test_rows_that_are_not_whole_blocks_stay_dense() -> None:
    packed = FoundryExperts.from_experts(stock_experts(inner=40), "q8_0")
    assert packed.formats == ("q8_0", "q8_0", "f32")
    assert packed(*routed()).isfinite().all()


def test_gradients_reach_the_input_and_the_routing_weights() -> None:
    stock = stock_experts()
    exact = dequantized(stock, "q8_0")
    packed = FoundryExperts.from_experts(stock, "q8_0")

    def gradients(module: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> list[Any]:
        x.requires_grad_(), weights.requires_grad_()
        module(x, chosen, weights).square().sum().backward()
        return [x.grad, weights.grad]

    assert_as_exact(gradients, packed, exact, *routed())


def test_ids_outside_of_the_experts_add_nothing() -> None:
    packed = FoundryExperts.from_experts(stock_experts(), "q8_0")
    x, chosen, weights = routed(3)
    expected = packed(x, chosen[:, :1].contiguous(), weights[:, :1].contiguous())
    for missing in (E, -1):
        chosen[:, 1] = missing
        assert torch.equal(packed(x, chosen, weights), expected)


def test_a_module_like_any_other() -> None:
    stock = stock_experts()
    exact = dequantized(stock, "q8_0")
    packed = FoundryExperts.from_experts(stock, "q8_0")
    given = routed()
    expected = packed(*given)
    twin = copy.deepcopy(packed)
    assert torch.equal(twin(*given), expected) and twin.gate_proj is not packed.gate_proj
    twin.gate_proj.zero_()
    assert not torch.equal(twin(*given), expected)
    twin.load_state_dict(packed.state_dict())
    assert torch.equal(twin(*given), expected)
    assert list(packed.state_dict()) == ["gate_proj", "up_proj", "down_proj"]
    assert packed.half().gate_proj.dtype == torch.uint8
    back: nn.Module = packed.to_experts(torch.float32)
    assert back is stock
    for name, parameter in exact.named_parameters():
        assert torch.equal(parameter, back.get_parameter(name))


def test_weights_that_are_not_the_experts_are_refused() -> None:
    stock = stock_experts()
    w = torch.zeros(E, 96, 68, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"down_proj: expected torch.uint8 \[6, 64, 102\] for q8_0"):
        FoundryExperts(stock, [w, w.clone(), w.clone()], ["q8_0"] * 3)
    assert stock.gate_up_proj is not None


# --------------------------------------------------------------------------------------------------------------- models


def logits(model: Any, inputs: Tensor, **options: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(inputs, **options).logits
    return found


@pytest.mark.parametrize("family", [*MIXTURES, "glm4_moe"])
@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_prompts_short_and_long(family: str, quantize: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tokens, tiles, and torch's own product: the same up to rounding, and what they are meant for."""
    stock = build(family)
    model = patch(copy.deepcopy(stock), quantize=quantize)
    if quantize:
        stock = unpatch(copy.deepcopy(model), dequantize=True)
    ways = []
    for way in ("gemv", "gemm"):
        original = getattr(experts.Weights, way)
        spy = lambda *given, w=way, o=original, **rest: ways.append(w) or o(*given, **rest)  # noqa: E731
        monkeypatch.setattr(experts.Weights, way, spy)
    layers = sum("experts" in layer.mlp._modules for layer in model.model.layers)
    for length, expected in ((9, "gemv"), (40, "gemm" if quantize else None), (300, None)):
        del ways[:]
        assert_found_as_exact(logits(model, ids(1, length)), logits, stock, ids(1, length))
        assert ways == [expected] * layers * (expected is not None)
    assert not report(model).fallbacks


@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_a_batch_with_padding_and_a_choice_without_normalized_weights(quantize: str | None) -> None:
    stock = build("qwen3_moe")
    for layer in stock.model.layers:
        layer.mlp.gate.norm_topk_prob = False
    model = patch(copy.deepcopy(stock), quantize=quantize)
    if quantize:
        stock = unpatch(copy.deepcopy(model), dequantize=True)
    assert tokens(model) == tokens(stock) and fused_all(model)


def test_a_change_of_the_number_of_experts_is_noticed() -> None:
    stock = build("qwen3_moe")
    model = patch(copy.deepcopy(stock))
    assert tokens(model) == tokens(stock)
    for changed in (stock, model):
        for layer in changed.model.layers:
            layer.mlp.gate.top_k, layer.mlp.gate.norm_topk_prob = 2, False
    assert tokens(model) == tokens(stock) and fused_all(model)


@pytest.mark.parametrize("fmt", ["q4_0", "q8_0"])
def test_every_packed_part(fmt: str) -> None:
    """Shared experts of two formats, and a packed gate of theirs, as other people's files have them."""
    model = build("qwen2_moe")
    block: Any = model.model.layers[0].mlp
    for parent, name, own in (
        (block, "shared_expert_gate", fmt), (block.shared_expert, "gate_proj", fmt),
        (block.shared_expert, "up_proj", "f32" if fmt == "q4_0" else "q4_0"), (block, "experts", fmt),
    ):  # fmt: skip
        if own != "f32":
            kind: Any = FoundryExperts.from_experts if name == "experts" else FoundryLinear.from_linear
            setattr(parent, name, kind(getattr(parent, name), own))
    stock = copy.deepcopy(model)
    patch(model)
    for length in (7, 40):
        assert_as_exact(logits, model, stock, ids(1, length))
    assert not report(model).fallbacks and report(model).packed["model.layers.0.mlp.experts.down_proj"] == fmt


def test_gate_and_up_of_two_formats() -> None:
    model = build("mixtral", seed=4)  # with seed 0 two tokens are as good as each other up to rounding
    stock = copy.deepcopy(model)
    for layer, other in zip(model.model.layers, stock.model.layers, strict=True):
        parts = [*layer.mlp.experts.gate_up_proj.detach().chunk(2, dim=1), layer.mlp.experts.down_proj.detach()]
        formats = ("q4_0", "q8_0", "f16")
        packed = [
            quant.quantize(w.reshape(-1, w.shape[2]), f).view(*w.shape[:2], -1)
            for w, f in zip(parts, formats, strict=True)
        ]
        layer.mlp.experts = FoundryExperts(layer.mlp.experts, packed, formats)
        with torch.no_grad():
            exact = copy.deepcopy(layer.mlp.experts).to_experts(torch.float32)
            for name, parameter in other.mlp.experts.named_parameters():
                parameter.copy_(exact.get_parameter(name))
    assert tokens(patch(model)) == tokens(stock) and fused_all(model)


@pytest.mark.parametrize("family", MIXTURES)
@torch.no_grad()
def test_graphs_of_packed_experts(family: str) -> None:
    """What is captured, replayed and computed op by op is the same, bit for bit, as is each row of a batch alone."""
    model = patch(build(family), quantize="q8_0")
    found = []
    for way in ("replayed", "captured", "alone"):
        cache = DynamicCache(config=model.config)
        parts = [model(ids(1, 9), past_key_values=cache).logits]
        for step in range(4):
            if way == "captured":
                model.model.decoder_plan().forget()
            given = ids(1, 3, seed=step)
            for own in given.split(1, dim=1) if way == "alone" else [given]:
                parts.append(model(own, past_key_values=cache).logits)
        found.append(torch.cat(parts, dim=1))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert report(model).captured < report(model).steps and not report(model).eager


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("family", MIXTURES)
def test_router_logits_are_those_of_stock(family: str) -> None:
    stock = shared(family)
    model = patch(copy.deepcopy(stock))
    with torch.no_grad():
        expected = stock(PROMPT, output_router_logits=True)
        for _ in range(2):  # transformers' hooks stay
            got = model(PROMPT, output_router_logits=True)
            assert len(got.router_logits) == len(expected.router_logits)
            for mine, theirs in zip(got.router_logits, expected.router_logits, strict=True):
                assert torch.equal(mine, theirs)
            assert torch.equal(got.aux_loss, expected.aux_loss)
            assert_found_as_exact(got.logits, logits, stock, PROMPT)
            before = report(model).fused
            found = logits(model, PROMPT, output_router_logits=False)
            assert_found_as_exact(found, logits, stock, PROMPT)
            assert report(model).fused == before + len(model.model.layers)
    model.config.output_router_logits = True
    cache = model(PROMPT).past_key_values
    step = model(PROMPT[:, -1:], past_key_values=cache)
    assert step.router_logits is not None and len(step.router_logits) == len(expected.router_logits)
    assert tokens(model) == tokens(stock)


@pytest.mark.parametrize("family, router", [("afmoe", "router.gate"), ("hunyuan_v1_moe", "gate.wg")])
def test_a_router_that_is_a_linear_layer_stays_dense(family: str, router: str) -> None:
    model = patch(build(family), quantize="q8_0")
    block: Any = model.model.layers[1].mlp
    assert not isinstance(block.get_submodule(router), FoundryLinear) and isinstance(block.experts, FoundryExperts)
    assert not report(model).not_replaced


def test_a_router_may_stay_float32() -> None:
    """As transformers keeps some, beside what is bfloat16; sinks as well. Then the choice is as exact as stock's."""
    stock = build("flint", torch.bfloat16)
    for layer in stock.model.layers:
        layer.mlp.gate.float()
        layer.self_attn.sinks.data = layer.self_attn.sinks.data.float()
    model = patch(copy.deepcopy(stock))
    assert_found_as_exact(logits(model, PROMPT), logits, stock, PROMPT)
    tokens(model)
    assert fused_all(model) and report(model).captured and not report(model).eager


def test_a_change_of_the_scale_is_noticed() -> None:
    stock = build("glm4_moe")
    model = patch(copy.deepcopy(stock))
    assert tokens(model) == tokens(stock)
    for changed in (stock, model):
        changed.model.layers[1].mlp.gate.routed_scaling_factor = -6.0
    assert tokens(model) == tokens(stock) and fused_all(model)


@pytest.mark.parametrize("number, why", [(40, "40 of 64 experts in 4 groups"), (0, "3 of 64 experts in 0 groups")])
def test_a_choice_that_kernels_do_not_have_is_left_alone(number: int, why: str) -> None:
    model = build("solar_open", n_routed_experts=64)
    gate: Any = model.model.layers[1].mlp.gate
    if number:
        gate.top_k = number
    else:
        gate.num_group = number
    assert report(patch(model)).not_replaced == {"model.layers.1": why}


def test_a_hook_on_an_expert_runs_stock_code(quiet: None) -> None:
    stock = build("qwen3_moe")
    model = patch(copy.deepcopy(stock))
    seen: list[Any] = []
    model.model.layers[1].mlp.gate.register_forward_hook(lambda _, __, output: seen.append(output))
    assert_as_exact(logits, model, stock, PROMPT)
    assert len(seen) == 1 and dict(report(model).fallbacks) == {"forward hook on mlp.gate": 1}


@pytest.mark.parametrize("family", MIXTURES)
def test_unpatch_gives_everything_back(family: str) -> None:
    stock = build(family)
    before = {name: value.clone() for name, value in stock.state_dict().items()}
    classes = [type(m) for m in stock.modules()]
    unpatch(patch(stock, quantize="q8_0"), dequantize=True)
    assert [type(m) for m in stock.modules()] == classes
    after = stock.state_dict()
    assert list(after) == list(before)
    for name, value in after.items():
        torch.testing.assert_close(value, before[name], rtol=0.02, atol=0.02)


def test_a_shared_expert_with_biases_is_left_alone() -> None:
    model = build("qwen2_moe")
    model.model.layers[0].mlp.shared_expert.up_proj.bias = nn.Parameter(torch.zeros(64))
    assert report(patch(model)).not_replaced == {"model.layers.0": "the shared expert has biases"}


def test_packed_models_are_saved_and_read(tmp_path: Any) -> None:
    model = patch(build("qwen2_moe"), quantize="q8_0")
    expected = tokens(model)
    model.save_pretrained(tmp_path)
    again = type(model)._foundry_base.from_pretrained(tmp_path, attn_implementation="sdpa").eval()
    again.generation_config.eos_token_id = None
    assert tokens(again) == expected


def test_training_runs_stock_code_on_packed_experts(quiet: None) -> None:
    model = patch(build("qwen3_moe"), quantize="q8_0").train()
    loss = model(PROMPT, labels=PROMPT, output_router_logits=True).loss
    loss.backward()
    assert model.model.layers[0].mlp.gate.weight.grad.abs().sum() > 0
