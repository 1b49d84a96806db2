"""Projections of one input, and the RMSNorm before them, for the few tokens of a decode step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_foundry.core import extension, tuning  # noqa: F401  (they load the extension and the choices of kernels)
from torch_foundry.ops.fake import fake as _fake

_ops = torch.ops.torch_foundry


def norm_linear(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    weights: Sequence[Tensor],
    *,
    kind: str = "llama",
    formats: Sequence[str | None] | None = None,
    biases: Sequence[Tensor | None] | None = None,
) -> Tensor:
    """`[linear(rms_norm(x), w) for w in weights]` side by side, in one launch for each run of weights of one format.

    x: [..., K], contiguous; made for up to 16 rows. norm_weight, eps, kind: as in `rms_norm`, but that nothing is
        rounded between norm and product: with gains g and r the root mean square of x, y = (W (g x)) / r + bias in
        float32. None: x is taken as it is.
    weights: up to `limits.NORM_LINEAR_MATRICES` of [N_i, K]; formats: of each, as in `linear`; biases: [N_i] or None
        for each.
    The result of a row is the same bits however many rows come with it. Returns [..., sum of N_i], contiguous.
    """
    return _ops.norm_linear.default(x, norm_weight, eps, kind, *_matrices(weights, formats, biases))


@_fake("norm_linear")
def _(x: Tensor, weights: list[Tensor]) -> Tensor:
    return x.new_empty((*x.shape[:-1], sum(w.shape[0] for w in weights)))


def norm_glu(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    gate: Tensor,
    up: Tensor,
    *,
    kind: str = "llama",
    format: str | None = None,
    biases: Sequence[Tensor | None] | None = None,
    activation: str = "silu",
    gate_scale: float = 1.0,
) -> Tensor:
    """`glu(linear(h, gate), linear(h, up), activation)` of `h = rms_norm(x)`, or of x where `norm_weight` is None.

    One launch; nothing is rounded between.

    Arguments as in `norm_linear` and `glu`; gate and up have the same shape [N, K] and format. Returns [..., N],
    contiguous.
    """
    return _ops.norm_glu.default(
        x, norm_weight, eps, kind, *_matrices((gate, up), (format, format), biases), activation, gate_scale
    )


@_fake("norm_glu")
def _(x: Tensor, weights: list[Tensor]) -> Tensor:
    return x.new_empty((*x.shape[:-1], weights[0].shape[0]))


def norm_qkv(
    x: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    weights: Sequence[Tensor],
    cos: Tensor | None,
    sin: Tensor | None,
    k_cache: Tensor,
    v_cache: Tensor,
    start: int,
    *,
    head_dim: int,
    kind: str = "llama",
    formats: Sequence[str | None] | None = None,
    biases: Sequence[Tensor | None] | None = None,
    positions: Tensor | None = None,
    step: Tensor | None = None,
    interleaved: bool = False,
) -> Tensor:
    """`rope_kv` of the projections q, k and v of `rms_norm(x)`, or of x where `norm_weight` is None, in one launch for
    each run of weights of one format, with nothing rounded between.

    x: [B, L, K], B * L up to 16, contiguous. weights: [Hq * D, K], [Hkv * D, K] and [Hkv * D, K]; these, formats and
        biases as in `norm_linear`, all else as in `rope_kv`. Returns q as [B, Hq, L, D], contiguous.
    """
    matrices = _matrices(weights, formats, biases)
    return _ops.norm_qkv.default(
        x, norm_weight, eps, kind, *matrices, cos, sin, k_cache, v_cache, start, head_dim, positions, step, interleaved
    )


@_fake("norm_qkv")
def _(x: Tensor, weights: list[Tensor], head_dim: int) -> Tensor:
    return x.new_empty((x.shape[0], weights[0].shape[0] // head_dim, x.shape[1], head_dim))


def _matrices(
    weights: Sequence[Tensor], formats: Sequence[str | None] | None, biases: Sequence[Tensor | None] | None
) -> tuple[list[Tensor], list[str], list[Tensor | None]]:
    none = [None] * len(weights)
    return list(weights), [f or "" for f in formats or none], list(biases or none)
