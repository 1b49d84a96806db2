"""The ops of modules, one for one. See the package for what all ops have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.core import extension, tuning  # noqa: F401  (they load the extension and the choices of kernels)
from torch_foundry.ops.fake import fake as _fake
from torch_foundry.quant import get_format

_ops = torch.ops.torch_foundry


# ---------------------------------------------------------------------------------------------------------------- norms


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float,
    *,
    kind: str = "llama",
    residual: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """RMSNorm over the last dimension, then `+ residual` if given, then, rounded, `* scale` if given.

    x, residual: [..., hidden]; rows may be strided, up to three levels. weight: [hidden], scale: [1], dtype of x.
    kind: how the weight is applied, as in the Hugging Face families:
        "llama": weight * cast(normed) · "olmo": cast(weight * normed) · "gemma": cast((1 + weight) * normed)
    Returns [..., hidden], contiguous.
    """
    return _ops.rms_norm.default(x, weight, eps, kind, residual, scale)


@_fake("rms_norm")
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *, offset: float = 0.0
) -> Tensor:
    """LayerNorm over the last dimension: `(x - mean) / sqrt(variance + eps) * (offset + weight) + bias`.

    x: [..., hidden]; rows may be strided, up to three levels. weight, bias: [hidden] of x's dtype, or None for either
    (offset without a weight does nothing). Returns [..., hidden], contiguous.
    """
    return _ops.layer_norm.default(x, weight, bias, eps, offset)


@_fake("layer_norm")
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


# --------------------------------------------------------------------------------------------------- linear, embedding


def linear(
    x: Tensor,
    weight: Tensor,
    *,
    format: str | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    scale: float = 1.0,
    activation: str | None = None,
    out_features: int | None = None,
    batch_invariant: bool = False,
) -> Tensor:
    """`act(x W^T + bias)`, then `residual + scale * that`, in one launch.

    x: [..., K], rows may be strided, up to three levels. bias: [N], residual: [..., N], both of x's dtype.
    weight: dense [N, K] of any of the three dtypes, whatever x's is; or uint8 [N, K / block * bytes] with the name of a
        packed format of `torch_foundry.quant.FORMATS`, as `quant.quantize` makes it and as it lies in a GGUF file.
    activation: None, or one of a single number, as in `glu`. out_features: use only the first rows of weight.
    Up to 16 rows of x the result of a row is the same bits however many rows come with it; more rows use another kernel
    with another order of summation, unless they are to be `batch_invariant`, which may round packed weights to x's
    dtype. Returns [..., N], contiguous. Without an activation it has a backward.
    """
    if out_features is not None:
        weight = weight[:out_features]
    return _ops.linear.default(x, weight, format, bias, residual, scale, activation, batch_invariant)


@_fake("linear")
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def linear_backward_input(grad: Tensor, weight: Tensor, *, format: str | None = None) -> Tensor:
    """The gradient of `linear` with respect to x: `grad W`, where the weight stays as it is stored.

    grad: [..., N], rows may be strided, up to three levels. weight: as in `linear`.
    Sums over N are float32, in an order that doesn't depend on the number of rows. Returns [..., K], contiguous.
    """
    return _ops.linear_backward_input.default(grad, weight, format)


@_fake("linear_backward_input")
def _(grad: Tensor, weight: Tensor, format: str | None) -> Tensor:
    columns = weight.shape[1] if format is None else get_format(format).columns(weight.shape[1])
    return grad.new_empty((*grad.shape[:-1], columns))


def embedding(
    ids: Tensor,
    weight: Tensor,
    *,
    format: str | None = None,
    dtype: torch.dtype | None = None,
    scale: float = 1.0,
    first_if_unknown: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """Rows of a table by id: `scale * dtype(weight[ids])`, then, rounded, `+ residual` if given.

    ids: int64 or int32 [...], may be strided. weight: as in `linear`. dtype: of the result; default: weight's, or
        torch's default dtype for packed weights. residual: [..., K], contiguous, of that dtype.
    An id outside the table raises IndexError when ids lie in host memory; on a device, where that would need a sync,
    its row is NaN; with first_if_unknown it stands for the first row. Returns [..., K].
    """
    if dtype is None:
        dtype = weight.dtype if weight.is_floating_point() else torch.get_default_dtype()
    return _ops.embedding.default(ids, weight, format, dtype, scale, first_if_unknown, residual)


@_fake("embedding")
def _(ids: Tensor, weight: Tensor, format: str | None, dtype: torch.dtype) -> Tensor:
    columns = weight.shape[1] if format is None else get_format(format).columns(weight.shape[1])
    return weight.new_empty((*ids.shape, columns), dtype=dtype)


# -------------------------------------------------------------------------------------------------------- gated product


def glu(gate: Tensor, up: Tensor, activation: str = "silu", *, gate_scale: float = 1.0) -> Tensor:
    """Gated product, of an MLP or of attention: `act(gate_scale * gate) * up`.

    gate, up: [..., n], rows may be strided, up to three levels (both halves of one fused projection). activation:
    "silu", "gelu_tanh", "gelu" (exact), "sigmoid", "softplus", "relu" or "relu2" (its square), of a single number;
    or "clamped_swiglu" of gpt-oss, g * sigmoid(1.702 g) * (u + 1) with g = min(gate, 7) and u = up between -7 and 7.
    Returns [..., n], contiguous.
    """
    return _ops.glu.default(gate, up, activation, gate_scale)


@_fake("glu")
def _(gate: Tensor) -> Tensor:
    return gate.new_empty(gate.shape)


def sparse_glu(gate: Tensor, up: Tensor, deviations: float, activation: str = "gelu_tanh") -> Tensor:
    """Gated product of the largest gates: `act(max(gate - cutoff, 0)) * up`, where a row's cutoff lies so many standard
    deviations above the mean of its gates.

    gate, up, activation: as in `glu`, but for "clamped_swiglu". Returns [..., n], contiguous.
    """
    return _ops.sparse_glu.default(gate, up, deviations, activation)


@_fake("sparse_glu")
def _(gate: Tensor) -> Tensor:
    return gate.new_empty(gate.shape)


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """xIELU (arXiv 2411.13010): `a x^2 + beta x` above 0, `b (expm1(min(x, eps)) - x) + beta x` below, with
    a = softplus(alpha_p), b = beta + softplus(alpha_n).

    x: contiguous. The others: of its dtype, a single number each. Returns the shape of x.
    """
    return _ops.xielu.default(x, alpha_p, alpha_n, beta, eps)


@_fake("xielu")
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)
