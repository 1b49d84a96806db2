"""What the fused ops compute, in plain torch: the same signatures, any floating dtype.

In float64 these are the truth that the kernels are measured against. In other dtypes they round where Hugging Face's
modules round, so they are also the stock implementation that the kernels' errors are compared with.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_foundry.nn.activations import BY_TORCH
from torch_foundry.quant import dequantize
from torch_foundry.quant.kv import cast_saturating, pack_rows, unpack_rows


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


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
    wide = _wide(x)
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if kind == "llama":
        y = weight * normed.to(x.dtype)
    elif kind == "olmo":
        y = (weight * normed).to(x.dtype)
    else:
        y = ((1.0 + _wide(weight)) * normed).to(x.dtype)
    y = y if residual is None else residual + y
    return y if scale is None else y * scale


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *, offset: float = 0.0
) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], None if weight is None else weight + offset, bias, eps)


# ---------------------------------------------------------------------------------------------------------- activations


def activate(x: Tensor, activation: str) -> Tensor:
    return (BY_TORCH | {"sigmoid": torch.sigmoid, "softplus": F.softplus})[activation](x)


# --------------------------------------------------------------------------------------------------- linear, embedding


def _matrix(weight: Tensor, format: str | None, dtype: torch.dtype) -> Tensor:
    return (weight if weight.is_floating_point() or format is None else dequantize(weight, format)).to(dtype)


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
) -> Tensor:
    y = F.linear(x, _matrix(weight[:out_features], format, x.dtype), bias)
    y = y if activation is None else activate(y, activation)
    y = y if scale == 1.0 else y * scale
    return y if residual is None else residual + y


def linear_backward_input(grad: Tensor, weight: Tensor, *, format: str | None = None) -> Tensor:
    return grad @ _matrix(weight, format, grad.dtype)


def head_linear(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("thk,hnk->thn", x, weight)


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
    ids = ids.where((ids >= 0) & (ids < len(weight)), 0) if first_if_unknown else ids
    if dtype is None:
        dtype = weight.dtype if weight.is_floating_point() else torch.get_default_dtype()
    y = F.embedding(ids, _matrix(weight, format, dtype))
    return y * scale if residual is None else y * scale + residual


# -------------------------------------------------------------------------------------------------------- gated product


def glu(gate: Tensor, up: Tensor, activation: str = "silu", *, gate_scale: float = 1.0) -> Tensor:
    gate = gate * gate_scale
    if activation == "clamped_swiglu":
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        return (up + 1) * (gate * torch.sigmoid(gate * 1.702))
    return activate(gate, activation) * up


def sparse_glu(gate: Tensor, up: Tensor, deviations: float, activation: str = "gelu_tanh") -> Tensor:
    cutoff = gate.mean(-1, keepdim=True) + deviations * gate.std(-1, keepdim=True, correction=0)
    return activate(F.relu(gate - cutoff), activation) * up


def xielu(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    below = (torch.expm1(torch.minimum(x, eps)) - x) * (beta + F.softplus(alpha_n))
    return torch.where(x > 0, F.softplus(alpha_p) * x * x, below) + beta * x


# -------------------------------------------------------------------------------------------------- columns in an order


def permute_columns(x: Tensor, order: Tensor) -> Tensor:
    return x[..., order.long()].contiguous()


def permute_columns_and_norm(x: Tensor, order: Tensor, norm_weight: Tensor) -> tuple[Tensor, Tensor]:
    return permute_columns(x, order), permute_columns(norm_weight, order)


# ------------------------------------------------------------------------------------------------------- rope and cache


def _rotate(x: Tensor, cos: Tensor | None, sin: Tensor | None, interleaved: bool, deinterleave: bool = False) -> Tensor:
    if cos is None or sin is None:
        return x
    r, y = cos.shape[-1], x.clone()
    halves = slice(r // 2), slice(r // 2, r)
    first, second = (slice(0, r, 2), slice(1, r, 2)) if interleaved else halves
    (cos_a, cos_b), (sin_a, sin_b) = (table.unsqueeze(1).chunk(2, -1) for table in (cos, sin))
    a, b = x[..., first], x[..., second]
    first, second = halves if deinterleave else (first, second)
    y[..., first], y[..., second] = a * cos_a - b * sin_a, b * cos_b + a * sin_b
    return y


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
    gated: bool = False,
) -> Tensor:
    b, length, _ = q.shape
    q = q.unflatten(-1, (-1, 2 * head_dim))[..., :head_dim].flatten(2) if gated else q
    heads = k_cache.shape[1]
    if v_norm:
        v = v.reshape(b, length, heads, -1)
        v = rms_norm(v, v.new_ones(v.shape[-1]), eps).flatten(2)
    if positions is not None and cos is not None and sin is not None:
        cos, sin = cos[positions], sin[positions]
    if step is not None:
        start = int(step[0])

    def head(x: Tensor, gain: Tensor | None, which: int) -> Tensor:
        own_cos, own_sin = (t if t is None or t.ndim == 3 else t[:, :, which] for t in (cos, sin))
        if gain is not None and not rotate_first:  # of heads, or of all of them at once
            x = rms_norm(x.reshape(b, length, -1, len(gain)), gain, eps, kind=kind)
        x = x.reshape(b, length, -1, head_dim).transpose(1, 2)
        x = _rotate(x, own_cos, own_sin, interleaved, deinterleave)
        return rms_norm(x, gain, eps, kind=kind) if gain is not None and rotate_first else x

    new_q, new_v = head(q, q_norm, 0), v.reshape(b, length, heads, -1).transpose(1, 2)
    for cache, new, name in ((k_cache, head(k, k_norm, 1), k_format), (v_cache, new_v, v_format)):
        new = cast_saturating(new, cache.dtype) if name is None else pack_rows(new, name)
        if rows is None and block_table is None:
            cache[:, :, start : start + length] = new
            continue
        for i in range(b):
            first, count = (start, length) if rows is None else rows[i].tolist()
            for token in range(min(count, length)):
                page, slot = (i, first + token) if block_table is None else divmod(first + token, cache.shape[2])
                page = page if block_table is None else int(block_table[i, page])
                cache[page, :, slot] = new[i, :, token]
    return new_q.contiguous()


# ------------------------------------------------------------------------------------------------------------ attention


def visible(
    length: int, kv_len: int, causal: bool, window: int, kv_start: Tensor | None, device: torch.device
) -> Tensor:
    """Which keys each query sees before any mask: bool [B or 1, 1, L, kv_len]."""
    rows = torch.tensor([[kv_len - length, length]], device=device)
    return visible_in_rows(length, kv_len, causal, window, kv_start, rows)


def visible_in_rows(
    length: int, kv_len: int, causal: bool, window: int, kv_start: Tensor | None, rows: Tensor
) -> Tensor:
    """The same for sequences that are filled differently: rows [B or 1, 2], the first query's key and the queries."""
    query = torch.arange(length, device=rows.device)[:, None]
    key = torch.arange(kv_len, device=rows.device)[None]
    first, count = rows[:, 0, None, None], rows[:, 1, None, None]
    seen = (key < first + count) & (query < count)
    if causal:
        seen = seen & (key <= first + query)
        if window:
            seen = seen & (key > first + query - window)
    if kv_start is not None:
        seen = seen & (key >= kv_start[:, None, None])
    return seen[:, None]


def stored(cache: Tensor, format: str | None, block_table: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Keys or values as [B, Hkv, tokens, D] of `dtype`, out of pages and packed rows."""
    if block_table is not None:
        cache = cache[block_table.long()].transpose(1, 2).flatten(2, 3)
    return (cache if format is None else unpack_rows(cache, format)).to(dtype)


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
    rows: Tensor | None = None,
    block_table: Tensor | None = None,
    sinks: Tensor | None = None,
    k_format: str | None = None,
    v_format: str | None = None,
    value_queries: Tensor | None = None,
) -> Tensor:
    heads, length = q.shape[1:3]
    group = heads // k_cache.shape[1]
    k = stored(k_cache, k_format, block_table, q.dtype)[:, :, :kv_len].repeat_interleave(group, 1)
    v = stored(v_cache, v_format, block_table, q.dtype)[:, :, :kv_len].repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3)
    if value_queries is not None:
        scores = scores + value_queries @ v.transpose(2, 3)
    scores = scores * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if rows is None:
        seen = visible(length, kv_len, causal, window, kv_start, q.device)
    else:
        seen = visible_in_rows(length, kv_len, causal, window, kv_start, rows)
    if mask is not None:
        mask = mask[..., :kv_len]
        if mask.dtype == torch.bool:
            seen = seen & mask
        else:
            scores = scores + mask.to(scores.dtype)
            seen = seen & (mask > max(-1e38, torch.finfo(mask.dtype).min))
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        sink = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sink), -1)
    weights = torch.softmax(_wide(scores), -1).to(q.dtype)[..., :kv_len]
    weights = weights.masked_fill(~seen.any(-1, keepdim=True), 0.0)  # a softmax over nothing is NaN
    return (weights @ v).transpose(1, 2).flatten(2)
