"""nn.Linear over a packed weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from torch_foundry import ops, quant
from torch_foundry.core import limits, tuning
from torch_foundry.core.constants import kept
from torch_foundry.nn.packing import KERNEL_DTYPES, give_back, lay_out, take_over

MAX_GEMV_ROWS = limits.FEW_ROWS
DEQUANT_CHUNK = 1 << 26  # weights that are unpacked at a time: 128 MiB of float16


def matrix_of(linear: Any) -> torch.Tensor:
    """The weight [out_features, in_features] of a dense layer, of which a `Conv1D` has the transpose."""
    weight: torch.Tensor = linear.weight
    return weight.t() if isinstance(linear, Conv1D) else weight


def turned(weight: nn.Parameter) -> torch.Tensor:
    """The weight of a `Conv1D` as [out_features, in_features], as which it is stored from now on."""
    lay_out(weight)
    return weight.t()


def linear_sizes(linear: Any) -> tuple[int, int]:
    """in_features and out_features of a dense or packed layer."""
    return (linear.nx, linear.nf) if isinstance(linear, Conv1D) else (linear.in_features, linear.out_features)


def linear_routes(weight: torch.Tensor, fmt: str | None) -> tuning.LinearRoutes:
    """Which way how many rows of x go through a weight [N, K], dense if `fmt` is None (docs/decisions/036)."""
    if fmt is None:
        return tuning.linear_routes(weight.device, quant.DENSE_NAMES.get(weight.dtype, "f32"), *weight.shape)
    known = quant.get_format(fmt)
    return tuning.linear_routes(weight.device, known.name, weight.shape[0], known.columns(weight.shape[1]))


def by_kernel(x: torch.Tensor, weight: torch.Tensor, fmt: str | None) -> bool:
    """Whether `ops.linear` is faster than torch's product for the rows of x [..., K]."""
    return x.numel() <= linear_routes(weight, fmt).most(fmt is not None, x.dtype) * x.shape[-1]


def linear_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    fmt: str | None,
    bias: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x W^T + b by torch's own matrix product, for more rows of x [..., K] than `by_kernel` says. Not for graphs.

    With many rows torch is several times as fast as our kernels (docs/decisions/008). A packed weight is unpacked to
    x's dtype on its device, some rows at a time, so results are those of a dense model. out: where the result is
    written, for x [T, K]; the bits are the same.
    """
    if fmt is None:
        return _product(x, weight, bias, out)
    shape = (*x.shape[:-1], weight.shape[0])
    if out is None and weight.shape[0] > _rows_at_a_time(x.shape[-1]):
        x = x.flatten(0, -2)
        out = x.new_empty(len(x), weight.shape[0])
    for start, end, dense in _unpacked(weight, fmt, x):
        own = None if bias is None else bias[start:end]
        y = _product(x, dense, own, None if out is None else out[:, start:end])
        del dense  # before the next part is unpacked
    return y if out is None else out.view(shape)


def dense_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b in x's dtype for a dense weight [N, K], by the faster of our kernel and torch's. Not for graphs."""
    if by_kernel(x, weight, None):
        return ops.linear(x, weight, bias=bias)
    return linear_gemm(x, weight.to(x.dtype), None, bias)


def linear_gemm_backward(grad: torch.Tensor, weight: torch.Tensor, fmt: str) -> torch.Tensor:
    """grad W by torch's own matrix product, for grad [..., N] of many rows: x's gradient [..., K].

    A packed weight is unpacked to grad's dtype as in `linear_gemm`; products with its parts are added up in that dtype.
    """
    result: torch.Tensor | None = None
    rows = grad.flatten(0, -2)
    for start, end, dense in _unpacked(weight, fmt, grad):
        part = rows[:, start:end]
        result = part @ dense if result is None else result.addmm_(part, dense)
        del dense
    assert result is not None, "a weight has rows"
    return result.view(*grad.shape[:-1], -1)


def _unpacked(weight: torch.Tensor, fmt: str, like: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Rows of a packed weight, DEQUANT_CHUNK weights at a time, on its device and in the dtype of `like`: the first
    one's number, that behind the last, and the dense rows."""
    rows = _rows_at_a_time(quant.get_format(fmt).columns(weight.shape[1]))
    for start in range(0, weight.shape[0], rows):
        end = min(start + rows, weight.shape[0])
        yield start, end, ops.embedding(_ids(start, end, like.device), weight, format=fmt, dtype=like.dtype)


def _rows_at_a_time(columns: int) -> int:
    return max(1, DEQUANT_CHUNK // columns)


def _product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor:
    if out is None:
        return functional.linear(x, weight, bias)
    return torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(bias, x, weight.t(), out=out)


@kept
def _ids(start: int, end: int, device: torch.device) -> torch.Tensor:
    return torch.arange(start, end, dtype=torch.int32, device=device)


def packed_linear(x: torch.Tensor, weight: torch.Tensor, fmt: str, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T + b for x [..., K] and a packed weight; differentiable with respect to x and b.

    By kernels for few rows, by `linear_gemm` for many, and so in backward: W is never unpacked as a whole, but for
    dtypes that kernels don't take and under torch.compile.
    """
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        y: torch.Tensor = _PackedLinear.apply(x, weight, bias, fmt)
        return y
    return _forward(x, weight, fmt, bias)


def _forward(x: torch.Tensor, weight: torch.Tensor, fmt: str, bias: torch.Tensor | None) -> torch.Tensor:
    if not _by_kernels(x) or (bias is not None and bias.dtype != x.dtype):
        return functional.linear(x, quant.dequantize(weight, fmt, x.shape[-1], x.dtype), bias)
    if by_kernel(x, weight, fmt):
        return ops.linear(x.contiguous(), weight, format=fmt, bias=bias)
    return linear_gemm(x.contiguous(), weight, fmt, bias)


def _by_kernels(x: torch.Tensor) -> bool:
    return x.dtype in KERNEL_DTYPES and x.numel() > 0 and not torch.compiler.is_compiling()


class _PackedLinear(torch.autograd.Function):
    """`packed_linear` where autograd records: it keeps the packed weight alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, fmt: str) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.format = fmt
        return _forward(x, weight, fmt, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        grad_x = grad_bias = None
        if ctx.needs_input_grad[0]:
            if not _by_kernels(grad):
                grad_x = grad @ quant.dequantize(weight, ctx.format, dtype=grad.dtype)
            elif grad.numel() > linear_routes(weight, ctx.format).backward * grad.shape[-1]:
                grad_x = linear_gemm_backward(grad, weight, ctx.format)
            else:
                grad_x = ops.linear_backward_input(grad.contiguous(), weight, format=ctx.format)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.flatten(0, -2).sum(0)
        return grad_x, None, grad_bias, None


class FoundryLinear(nn.Linear):
    """A linear layer whose weight stays packed.

    `weight` is a uint8 buffer [out_features, bytes of a row], so `.to(dtype)` leaves it alone. Gradients flow to the
    input and the bias, never to the weight: adapters on top can be trained, the layer itself can't. `order`: int32
    [in_features] if the columns are stored in another order: column j multiplies input element order[j]. `anchor`: an
    empty buffer of the dtype that a dense layer would have here, which `.to(dtype)` converts.
    """

    weight: torch.Tensor
    anchor: torch.Tensor
    order: torch.Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight: torch.Tensor,
        fmt: str,
        bias: nn.Parameter | None = None,
        order: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.format = in_features, out_features, fmt
        self.register_buffer("weight", weight)
        self.register_buffer("order", None if order is None else order.to(torch.int32))
        self.register_buffer("anchor", torch.empty(0, dtype=dtype, device=weight.device), persistent=False)
        self.register_parameter("bias", bias)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear | Conv1D, fmt: str, packed: torch.Tensor | None = None, order: torch.Tensor | None = None
    ) -> FoundryLinear:
        """`linear` with its weight packed. packed: the packed weight, if it exists already; order: of its columns.

        `linear` loses its weight and is kept for `to_linear`.
        """
        weight = quant.quantize(matrix_of(linear), fmt) if packed is None else packed
        return take_over(cls(*linear_sizes(linear), weight, fmt, linear.bias, order, linear.weight.dtype), linear)

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of adapters, as around a dense layer: peft asks for it, as the weight's own dtype is none for them."""
        return self.anchor.dtype

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """The dense weight [out_features, in_features] that the packed one stands for."""
        stored = quant.dequantize(self.weight, self.format, self.in_features, dtype)
        return stored if self.order is None else stored[:, self.order.argsort()]

    def stock(self) -> nn.Module:
        """A dense layer of this one's sizes, without memory."""
        return nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")

    def to_linear(self, dtype: torch.dtype, weight: torch.Tensor | None = None) -> nn.Module:
        """The dense layer that this one was made from, with the dequantised weight (or `weight`, if tied)."""
        weight = self.dequantized(dtype) if weight is None else weight
        return give_back(self, weight.t() if isinstance(self.__dict__.get("_dense"), Conv1D) else weight)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """x W^T + b."""
        bias: torch.Tensor | None = self.bias
        order = self.order
        if torch._C._is_any_autocast_enabled() and input.dtype in KERNEL_DTYPES:  # as stock layers do
            device = input.device.type
            if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
                input = input.to(torch.get_autocast_dtype(device))
                bias = None if bias is None else bias.to(input.dtype)
        if order is not None:
            kernel = _by_kernels(input) and not (torch.is_grad_enabled() and input.requires_grad)
            input = ops.permute_columns(input.contiguous(), order) if kernel else input.index_select(-1, order)
        return packed_linear(input, self.weight, self.format, bias)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"{super().extra_repr()}, format={self.format}"
