"""The ops of modules, one for one. See the package for what all ops have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.core import extension, tuning  # noqa: F401  (they load the extension and the choices of kernels)
from torch_foundry.ops.fake import fake as _fake
from torch_foundry.quant import get_format
from torch_foundry.quant.kv import head_dim_of

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
) -> Tensor:
    """Rows of a table by id: `scale * dtype(weight[ids])`.

    ids: int64 or int32 [...], may be strided. weight: as in `linear`. dtype: of the result; default: weight's, or
        torch's default dtype for packed weights.
    An id outside the table raises IndexError when ids lie in host memory; on a device, where that would need a sync,
    its row is NaN; with first_if_unknown it stands for the first row. Returns [..., K].
    """
    if dtype is None:
        dtype = weight.dtype if weight.is_floating_point() else torch.get_default_dtype()
    return _ops.embedding.default(ids, weight, format, dtype, scale, first_if_unknown)


@_fake("embedding")
def _(ids: Tensor, weight: Tensor, format: str | None, dtype: torch.dtype) -> Tensor:
    columns = weight.shape[1] if format is None else get_format(format).columns(weight.shape[1])
    return weight.new_empty((*ids.shape, columns), dtype=dtype)


# -------------------------------------------------------------------------------------------------------- gated product


def glu(gate: Tensor, up: Tensor, activation: str = "silu", *, gate_scale: float = 1.0) -> Tensor:
    """Gated product, of an MLP or of attention: `act(gate_scale * gate) * up`.

    gate, up: [..., n], rows may be strided, up to three levels (both halves of one fused projection). activation:
    "silu", "gelu_tanh", "gelu" (exact), "sigmoid", "softplus" or "relu2" (max(0, gate)^2), of a single number; or
    "clamped_swiglu" of gpt-oss, g * sigmoid(1.702 g) * (u + 1) with g = min(gate, 7) and u = up between -7 and 7.
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


# ------------------------------------------------------------------------------------------------------- rope and cache


def rope_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    start: int,
    *,
    head_dim: int,
    positions: Tensor | None = None,
    step: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
    kind: str = "llama",
    rows: Tensor | None = None,
    block_table: Tensor | None = None,
    k_format: str | None = None,
    v_format: str | None = None,
    v_norm: bool = False,
    interleaved: bool = False,
    rotate_first: bool = False,
    deinterleave: bool = False,
) -> Tensor:
    """Rotate q and k by their positions and write k and v into the cache at tokens [start, start + L).

    q: [B, L, Hq * D], k: [B, L, Hkv * D], v: [B, L, Hkv * Dv], each with free batch and token strides. k and v may have
        no columns: then nothing is written.
    cos, sin: [B or 1, L, R] of x's dtype or float32, R <= D even: the first R dimensions of a head rotate (dimension i
        with i + R/2), the others pass. Or [B or 1, L, 2, R]: those of queries, and those of keys. None: nothing
        rotates. Products and sums are float32, rounded once.
    interleaved: dimension 2i rotates with 2i + 1, by columns i and i + R/2. deinterleave: they go to i and i + R/2.
    k_cache: [B, Hkv, capacity, D], v_cache: [B, Hkv, capacity, Dv]: written in place, nothing outside the new tokens.
    positions: int32 [B, L]: then cos and sin are tables [P, R] or [P, 2, R], and these are the tokens' rows.
    step: int32 [2] on the device, for graphs: its first element takes the place of start.
    q_norm, k_norm: [D], x's dtype: before it rotates, each head of q and k passes an RMSNorm of `eps` and `kind`
        (`rms_norm`), rounded to its dtype. rotate_first: after that, and what was rotated is rounded. v_norm: each head
        of v passes one without a weight. Or [Hq * D] and [Hkv * D]: then q and k pass norms of all their heads at once,
        before they rotate; the same bits as `rms_norm` in front. For few tokens: each head reads its whole row.
    rows, block_table, k_format, v_format: as in `attention`; caches of any of the three dtypes, in pages, or packed at
        the write: what is packed is the numbers rounded to q's dtype, as a dense cache would have them. A token that
        rows says a sequence does not have, or for which there is no room, is not written.
    Returns q as [B, Hq, L, D], contiguous.
    """
    return _ops.rope_kv.default(
        q, k, v, cos, sin, k_cache, v_cache, start, head_dim, positions, step, q_norm, k_norm, eps, kind,
        rows, block_table, k_format, v_format, v_norm, interleaved, rotate_first, deinterleave,
    )  # fmt: skip


@_fake("rope_kv")
def _(q: Tensor, head_dim: int) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[2] // head_dim, q.shape[1], head_dim))


# ------------------------------------------------------------------------------------------------------------ attention


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_len: int,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    kv_start: Tensor | None = None,
    step: Tensor | None = None,
    rows: Tensor | None = None,
    block_table: Tensor | None = None,
    sinks: Tensor | None = None,
    k_format: str | None = None,
    v_format: str | None = None,
    value_queries: Tensor | None = None,
) -> Tensor:
    """Attention of the newest L tokens over a cache of kv_len tokens; softmax in float32, no score matrix in memory.

    q: [B, Hq, L, D], any strides but a contiguous last dimension; D, Dv = 32, 48 ... 256.
    k_cache, v_cache: [B, Hkv, capacity >= kv_len, D or Dv], Hq a multiple of Hkv; may be strided views; of any of the
        three dtypes; or, with the name of k_format or v_format (q8_0, q4_0), packed rows (`quant.kv`), uint8.
    block_table: int32 [B, pages]: then caches are pools of pages, [pages, Hkv, tokens of a page, D or Dv], and key i
        is row i % tokens of page block_table[b, i // tokens], a power of two of at least 16. Same bits as contiguous.
    value_queries: [B, Hq, L, Dv], strided as q, or None: their products with the values are added to q·k. So values are
        keys too, as the latents of multi-head latent attention are. Always by the kernel for few queries.
    scale multiplies q·k; then, if softcap > 0, score = softcap * tanh(score / softcap).
    causal: query i sees keys up to position kv_len - L + i and, if window > 0, of these the last `window`. Without
        causal every key is seen and window is ignored.
    mask: [B or 1, Hq or 1, L or 1, >= kv_len], combined with the above: bool (True: seen) or additive, float32 or q's
        dtype, where the dtype's least number, and whatever is -1e38 or below, means not seen.
    kv_start: int32 [B], first key that is seen (left padding). Keys outside the range may hold anything, even NaN.
    step: int32 [2] on the device, for graphs: step[0] is where the first query's own key lies in the cache, so that
        step[0] + L keys are filled, and kv_len is only a bound of that; step[1] is the number of keys that came before
        the first one in the cache: mask's columns and kv_start count from there (mask: >= kv_len + step[1] columns).
    rows: int32 [B, 2] on the device, in place of step: the same for each sequence alone, without a shift: rows[b] is
        where its first query's own key lies and how many of the L queries it has; the others give zeros.
    sinks: [Hq], float32 or q's dtype: a score of each head that adds to the sum of its weights, and has no value.
    A query that sees no key gives zeros. Up to 16 queries, the result of each one is the same bits whatever L is and
    whatever keys lie beyond those it sees; longer L uses other kernels with another order of summation.
    Returns [B, L, Hq * Dv], contiguous.
    """
    return _ops.attention.default(
        q, k_cache, v_cache, kv_len, scale, mask, causal, window, softcap, kv_start, step, rows, block_table, sinks,
        k_format, v_format, value_queries,
    )  # fmt: skip


@_fake("attention")
def _(q: Tensor, v_cache: Tensor, v_format: str | None) -> Tensor:
    columns = v_cache.shape[3] if v_format is None else head_dim_of(v_cache.shape[3], v_format)
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1] * columns))
