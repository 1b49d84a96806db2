"""The backward of ops, in plain torch: what autograd makes of the references. See `reference`."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.testing import reference


def _wanted(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float, *, kind: str = "llama"
) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        (leaf,) = _wanted(x)
        (found,) = torch.autograd.grad(reference.rms_norm(leaf, weight, eps, kind=kind), leaf, grad)
    wide = x if x.dtype == torch.float64 else x.float()
    return found, torch.rsqrt(wide.square().mean(-1) + eps)


def rms_norm_backward_weight(grad: Tensor, x: Tensor, inverse_rms: Tensor) -> Tensor:
    normed = (inverse_rms[..., None] * x).to(x.dtype)  # stock code keeps it in x's dtype
    return (grad * normed).flatten(0, -2).sum(0)


def glu_backward(
    grad: Tensor, gate: Tensor, up: Tensor, activation: str = "silu", *, gate_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaves = _wanted(gate, up)
        product = reference.glu(leaves[0], leaves[1], activation, gate_scale=gate_scale)
        of_gate, of_up = torch.autograd.grad(product, leaves, grad)
    return of_gate, of_up


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, transposed: bool = False) -> Tensor:
    rotary = cos.shape[-1]
    cos, sin, turned, rest = cos[:, None], sin[:, None], x[..., :rotary], x[..., rotary:]
    if interleaved:
        turned = torch.cat((turned[..., ::2], turned[..., 1::2]), -1)
    a, b = turned.chunk(2, -1)
    (cos_a, cos_b), (sin_a, sin_b) = cos.chunk(2, -1), sin.chunk(2, -1)
    if transposed:
        a, b = a * cos_a + b * sin_b, b * cos_b - a * sin_a
    else:
        a, b = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    turned = torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)
    return torch.cat((turned.to(x.dtype), rest), -1)
