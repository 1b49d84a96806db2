"""What the backward of ops needs, and the rotation that a training step has apart from the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.core import extension  # noqa: F401  (it loads the extension)
from torch_foundry.ops.fake import fake as _fake

_ops = torch.ops.torch_foundry


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float, *, kind: str = "llama"
) -> tuple[Tensor, Tensor]:
    """The gradient of `rms_norm` with respect to x, and 1 / sqrt(mean(x^2) + eps) of each row.

    grad: [..., hidden], of x's dtype; rows may be strided, up to three levels. The others: as in `rms_norm`.
    Sums are float32. Returns [..., hidden], contiguous, and float32 [...].
    """
    return _ops.rms_norm_backward.default(grad, x, weight, eps, kind)


@_fake("rms_norm_backward")
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:-1], dtype=torch.float32)


def rms_norm_backward_weight(grad: Tensor, x: Tensor, inverse_rms: Tensor) -> Tensor:
    """The gradient of `rms_norm` with respect to its weight: the sum of `grad * x * inverse_rms` over rows, in float32.

    grad, x: [..., hidden], as in `rms_norm_backward`, which returns inverse_rms. Returns [hidden].
    """
    return _ops.rms_norm_backward_weight.default(grad, x, inverse_rms)


@_fake("rms_norm_backward_weight")
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[-1:])


def glu_backward(
    grad: Tensor, gate: Tensor, up: Tensor, activation: str = "silu", *, gate_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """The gradients of `glu` with respect to gate and up.

    grad: [..., n], of gate's dtype; rows may be strided, up to three levels. The others: as in `glu`; activations are
    computed again. Returns two [..., n], contiguous.
    """
    return _ops.glu_backward.default(grad, gate, up, activation, gate_scale)


@_fake("glu_backward")
def _(gate: Tensor) -> tuple[Tensor, Tensor]:
    return gate.new_empty(gate.shape), gate.new_empty(gate.shape)


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, transposed: bool = False) -> Tensor:
    """Rotary embedding of heads; the columns of a head behind those of cos stay as they are.

    x: [B, H, L, D], any strides but a contiguous last dimension. cos, sin: [B or 1, L, R], R <= D, float32 or x's
        dtype: element i of the first half of R rotates with element i + R/2, by column i of either half.
    interleaved: elements 2 i and 2 i + 1 rotate together, by columns i and i + R/2.
    transposed: by the transposed matrix, which is the rotation backwards: what this op's backward is.
    Differentiable with respect to x. Returns [B, H, L, D], which lies in memory as [B, L, H, D].
    """
    return _ops.rope.default(x, cos, sin, interleaved, transposed)


@_fake("rope")
def _(x: Tensor) -> Tensor:
    batch, heads, tokens, dim = x.shape
    return x.new_empty_strided((batch, heads, tokens, dim), (tokens * heads * dim, dim, heads * dim, 1))
