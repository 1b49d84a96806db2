"""Heads of new tokens, their cache, and attention."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.core import extension, tuning  # noqa: F401  (they load the extension and the choices of kernels)
from torch_foundry.ops.fake import fake as _fake
from torch_foundry.quant.kv import head_dim_of

_ops = torch.ops.torch_foundry


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
    """Rotate q and k by their positions and write k and v into the cache at tokens [start, start + L).

    q: [B, L, Hq * D], k: [B, L, Hkv * D], v: [B, L, Hkv * Dv], each with free batch and token strides. k and v may have
        no columns: then nothing is written.
    cos, sin: [B or 1, L, R] of x's dtype or float32, R <= D even: the first R dimensions of a head rotate (dimension i
        with i + R/2), the others pass. Or [B or 1, L, 2, R]: those of queries, and those of keys. None: nothing
        rotates. Products and sums are float32, rounded once.
    interleaved: dimension 2i rotates with 2i + 1, by columns i and i + R/2. deinterleave: they go to i and i + R/2.
    gated: q is [B, L, Hq * 2D], where D gates come behind each head, which are left alone.
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
        gated,
    )  # fmt: skip


@_fake("rope_kv")
def _(q: Tensor, head_dim: int, gated: bool) -> Tensor:
    return q.new_empty((q.shape[0], q.shape[2] // head_dim // (1 + gated), q.shape[1], head_dim))


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


def rope_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    kv_len: int,
    *,
    head_dim: int,
    scale: float,
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
    gated: bool = False,
    mask: Tensor | None = None,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """`rope_kv`, then `attention` of its queries: for a token of each sequence in one launch, where that is faster.

    Arguments as there, bits as well; the tokens are the newest of kv_len, or where step or rows say. No sequence of the
    batch may see what another one writes; all pages of block_table exist.
    Returns [B, L, Hq * Dv], contiguous.
    """
    return _ops.rope_attention.default(
        q, k, v, cos, sin, k_cache, v_cache, kv_len, head_dim, scale, positions, step, q_norm, k_norm, eps, kind, rows,
        block_table, k_format, v_format, v_norm, interleaved, rotate_first, gated, mask, causal, window, softcap,
        sinks,
    )  # fmt: skip


@_fake("rope_attention")
def _(q: Tensor, v_cache: Tensor, head_dim: int, gated: bool, v_format: str | None) -> Tensor:
    heads = q.shape[2] // head_dim // (1 + gated)
    return q.new_empty((q.shape[0], q.shape[1], heads * _columns(v_cache, v_format)))


def _columns(cache: Tensor, format: str | None) -> int:
    return cache.shape[3] if format is None else head_dim_of(cache.shape[3], format)
