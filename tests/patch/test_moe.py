"""Mixtures of experts: packed experts as a module, routing as stock routes, models on kernels and on tapes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

from tests.patch.zoo import config
from torch_foundry import quant
from torch_foundry.nn import FoundryExperts

T, E, K = 11, 6, 2


def stock_experts(hidden: int = 64, inner: int = 96, dtype: torch.dtype = torch.float32) -> Any:
    settings = config(
        "Qwen3MoeConfig", hidden_size=hidden, moe_intermediate_size=inner, num_experts=E, num_experts_per_tok=K
    )
    settings._experts_implementation = "eager"
    experts = Qwen3MoeExperts(settings)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in experts.parameters():
            p.copy_(0.2 * torch.randn(p.shape, generator=generator))
    return experts.to(dtype).eval()


def routed(tokens: int = T, hidden: int = 64, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, hidden, generator=generator).to(dtype)
    chosen = torch.stack([torch.randperm(E, generator=generator)[:K] for _ in range(tokens)])
    return x, chosen, torch.rand(tokens, K, generator=generator).to(dtype)


def dequantized(experts: Any, fmt: str) -> Any:
    """A stock copy with the values that packing leaves."""
    copied = copy.deepcopy(experts)
    with torch.no_grad():
        for p in copied.parameters():
            rows = p.flatten(0, 1)
            p.copy_(quant.dequantize(quant.quantize(rows, fmt), fmt, dtype=p.dtype).view(p.shape))
    return copied


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, T, 70])
def test_packed_experts_alone(tokens: int, dtype: torch.dtype) -> None:
    stock = stock_experts(dtype=dtype)
    expected = dequantized(stock, "q8_0")(*routed(tokens, dtype=dtype))
    packed = FoundryExperts.from_experts(stock, "q8_0")
    close = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
    torch.testing.assert_close(packed(*routed(tokens, dtype=dtype)), expected, rtol=close, atol=close)
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
    packed = FoundryExperts(copy.deepcopy(stock), *tensors, formats)
    assert packed.formats == tuple(formats)
    exact = [
        quant.dequantize(t.flatten(0, 1), f).view(w.shape) for t, f, w in zip(tensors, formats, dense, strict=True)
    ]
    with torch.no_grad():
        stock.gate_up_proj.copy_(torch.cat(exact[:2], dim=1))
        stock.down_proj.copy_(exact[2])
    for tokens in (2, 70):
        torch.testing.assert_close(packed(*routed(tokens)), stock(*routed(tokens)), rtol=1e-5, atol=1e-5)
    assert packed.to(torch.bfloat16).formats == ("q4_0", "q8_0", "bf16")


def test_rows_that_are_not_whole_blocks_stay_dense() -> None:
    packed = FoundryExperts.from_experts(stock_experts(inner=40), "q8_0")
    assert packed.formats == ("q8_0", "q8_0", "f32")
    assert packed(*routed()).isfinite().all()


def test_gradients_reach_the_input_and_the_routing_weights() -> None:
    stock = stock_experts()
    exact = dequantized(stock, "q8_0")
    packed = FoundryExperts.from_experts(stock, "q8_0")
    gradients = []
    for experts in (exact, packed):
        x, chosen, weights = routed()
        x.requires_grad_(), weights.requires_grad_()
        experts(x, chosen, weights).square().sum().backward()
        gradients.append((x.grad, weights.grad))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


def test_ids_outside_of_the_experts_add_nothing() -> None:
    packed = FoundryExperts.from_experts(stock_experts(), "q8_0")
    x, chosen, weights = routed(3)
    expected = packed(x, chosen[:, :1].contiguous(), weights[:, :1].contiguous())
    for missing in (E, -1):
        chosen[:, 1] = missing
        torch.testing.assert_close(packed(x, chosen, weights), expected)


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
        FoundryExperts(stock, w, w.clone(), w.clone(), ["q8_0"] * 3)
    assert stock.gate_up_proj is not None
