"""nn.Linear over a packed weight."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from torch_foundry import ops, quant
from torch_foundry.core import limits
from torch_foundry.nn.packing import KERNEL_DTYPES, give_back, take_over

MAX_GEMV_ROWS = limits.FEW_ROWS
MAX_GEMV_ROWS_DENSE = 8  # rows from which on torch's own product of a dense weight is faster (docs/decisions/008)
DEQUANT_CHUNK = 1 << 26  # weights that are unpacked at a time: 128 MiB of float16


def linear_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    fmt: str | None,
    bias: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x W^T + b by torch's own matrix product, for more than MAX_GEMV_ROWS rows of x [..., K]. Not for graphs.

    With many rows torch is several times as fast as our kernels (docs/decisions/008). A packed weight is unpacked to
    x's dtype on its device, some rows at a time, so results are those of a dense model. out: where the result is
    written, for x [T, K]; the bits are the same.
    """
    if fmt is None:
        return _product(x, weight, bias, out)
    rows = max(1, DEQUANT_CHUNK // x.shape[-1])
    parts = []
    for start in range(0, weight.shape[0], rows):
        end = min(start + rows, weight.shape[0])
        # under a dispatch mode it may be a fake tensor, which must not be kept
        many = _ids.__wrapped__ if torch._C._len_torch_dispatch_stack() else _ids
        ids = many(start, end, x.device)
        dense = ops.embedding(ids, weight, format=fmt, dtype=x.dtype)
        own = None if bias is None else bias[start:end]
        parts.append(_product(x, dense, own, None if out is None else out[:, start:end]))
    if out is not None:
        return out
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor:
    if out is None:
        return functional.linear(x, weight, bias)
    return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)


@functools.lru_cache(maxsize=32)
def _ids(start: int, end: int, device: torch.device) -> torch.Tensor:
    """0 ... n - 1 on the device, kept so that they cost one launch in all."""
    with torch.inference_mode(False):
        return torch.arange(start, end, dtype=torch.int32, device=device)


class _PackedMatmul(torch.autograd.Function):
    """x W^T + b, differentiable with respect to x and b; W is unpacked again in backward instead of being kept."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, fmt: str, in_features: int
    ) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.format, ctx.in_features = fmt, in_features
        return functional.linear(x, quant.dequantize(weight, fmt, in_features, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        grad_x = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = grad @ quant.dequantize(weight, ctx.format, ctx.in_features, grad.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.flatten(0, -2).sum(0)
        return grad_x, None, grad_bias, None, None


class FoundryLinear(nn.Linear):
    """A linear layer whose weight stays packed.

    `weight` is a uint8 buffer [out_features, bytes of a row], so `.to(dtype)` leaves it alone. Gradients flow to the
    input and the bias, never to the weight: adapters on top can be trained, the layer itself can't. `order`: int32
    [in_features] if the columns are stored in another order: column j multiplies input element order[j].
    """

    weight: torch.Tensor
    order: torch.Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight: torch.Tensor,
        fmt: str,
        bias: nn.Parameter | None = None,
        order: torch.Tensor | None = None,
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.format = in_features, out_features, fmt
        self.register_buffer("weight", weight)
        self.register_buffer("order", None if order is None else order.to(torch.int32))
        self.register_parameter("bias", bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear, fmt: str, packed: torch.Tensor | None = None) -> FoundryLinear:
        """`linear` with its weight packed. packed: the packed weight, if it exists already (tied to the embedding).

        `linear` loses its weight and is kept for `to_linear`.
        """
        weight = quant.quantize(linear.weight, fmt) if packed is None else packed
        return take_over(cls(linear.in_features, linear.out_features, weight, fmt, linear.bias), linear)

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """The dense weight [out_features, in_features] that the packed one stands for."""
        stored = quant.dequantize(self.weight, self.format, self.in_features, dtype)
        return stored if self.order is None else stored[:, self.order.argsort()]

    def stock(self) -> nn.Module:
        """A dense layer of this one's sizes, without memory."""
        return nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")

    def to_linear(self, dtype: torch.dtype, weight: torch.Tensor | None = None) -> nn.Module:
        """The dense layer that this one was made from, with the dequantised weight (or `weight`, if tied)."""
        return give_back(self, self.dequantized(dtype) if weight is None else weight)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """x W^T + b."""
        bias, order = self.bias, self.order
        needs_grad = torch.is_grad_enabled() and (input.requires_grad or (bias is not None and bias.requires_grad))
        if needs_grad:
            input = input if order is None else input.index_select(-1, order)
            return _PackedMatmul.apply(input, self.weight, bias, self.format, self.in_features)
        if (
            input.dtype in KERNEL_DTYPES
            and input.numel()
            and (bias is None or bias.dtype == input.dtype)
            and not torch.compiler.is_compiling()
        ):
            input = input.contiguous() if order is None else ops.permute_columns(input.contiguous(), order)
            if input.numel() > MAX_GEMV_ROWS * self.in_features:
                return linear_gemm(input, self.weight, self.format, bias)
            return ops.linear(input, self.weight, format=self.format, bias=bias)
        weight = self.dequantized(input.dtype)
        return functional.linear(input, weight, bias)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"{super().extra_repr()}, format={self.format}"
