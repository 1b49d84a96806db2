"""What the ops on mixtures of experts compute, in plain torch; all else as in `reference`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_foundry.testing.reference import _matrix as matrix
from torch_foundry.testing.reference import _wide as wide
from torch_foundry.testing.reference import activate, glu, linear, rms_norm


def moe_choose(
    logits: Tensor,
    k: int,
    *,
    normalize: bool = True,
    shared: Tensor | None = None,
    score: str = "softmax",
    correction: Tensor | None = None,
    correct_logits: bool = False,
    groups: int = 1,
    top_groups: int = 1,
    group_best: int = 2,
    scale: float = 1.0,
    least_sum: float = 1e-20,
    near: float = 0.0,
    shared_weight: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Weights are rounded to the dtype of the logits, as in Qwen's models; Mixtral's stay float32."""
    scores = torch.softmax(wide(logits), -1) if score == "softmax" else torch.sigmoid(wide(logits))
    ratings = wide(logits) if correct_logits or (correction is None and groups == 1) else scores
    if correction is not None:
        ratings = ratings + correction
    if groups > 1:
        each = ratings.unflatten(-1, (groups, -1))
        of_group = each.topk(group_best).values.sum(-1)
        best = torch.sort(of_group, dim=-1, descending=True, stable=True).indices[:, :top_groups]
        out = torch.ones(len(logits), groups, dtype=torch.bool).scatter(1, best, False)
        ratings = each.masked_fill(out[..., None], -torch.inf).flatten(-2)
    ids = torch.sort(ratings, dim=-1, descending=True, stable=True).indices[:, :k]
    weights = _in_turn(wide(logits), ids, near) if score == "in_turn" else scores.gather(1, ids)
    if normalize:
        weights = weights / (weights.sum(-1, keepdim=True) + least_sum)
    weights = (weights * scale).to(logits.dtype)
    if shared is not None or shared_weight:
        own = torch.full_like(weights[:, :1], shared_weight) if shared is None else torch.sigmoid(shared)
        weights = torch.cat([weights, own], -1)
        ids = torch.cat([ids, torch.zeros_like(ids[:, :1])], -1)
    return ids.int(), weights


def _in_turn(logits: Tensor, ids: Tensor, near: float) -> Tensor:
    left, weights = logits, []
    for chosen in ids.split(1, 1):
        most = left.gather(1, chosen)
        far = (most - left) / torch.maximum(logits.abs(), most) > near
        weights.append(left.masked_fill(far, -torch.inf).softmax(-1).gather(1, chosen))
        left = left.scatter(1, chosen, -torch.inf)
    return torch.cat(weights, 1)


def moe_route(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    k: int,
    *,
    kind: str = "llama",
    shared: Tensor | None = None,
    bias: Tensor | None = None,
    **rule: Any,
) -> tuple[Tensor, Tensor]:
    """rule: all else, as in `moe_choose`."""
    h = rms_norm(x, norm_weight, eps, kind=kind).flatten(0, -2)
    shared = None if shared is None else linear(h, shared)
    return moe_choose(linear(h, weight, bias=bias), k, shared=shared, **rule)


def _experts(weight: Tensor, format: str | None, dtype: torch.dtype) -> Tensor:
    return torch.stack([matrix(own, format, dtype) for own in weight])


def _of_pairs(
    x: Tensor,
    ids: Tensor,
    weight: Tensor,
    format: str | None,
    bias: Tensor | None = None,
    shared: Tensor | None = None,
) -> Tensor:
    """x [T, k, K] times the matrix of each pair's expert, plus its bias; zeros where ids name none. shared: matrix of
    the last of all tokens' experts."""
    if shared is not None:
        routed = ids[:, :-1].masked_fill(ids[:, :-1] >= weight.shape[0], -1)
        ids = torch.cat([routed, torch.full_like(ids[:, -1:], weight.shape[0])], 1)
        weight = torch.cat([weight, shared[None]])
    known = (ids >= 0) & (ids < weight.shape[0])
    matrices = _experts(weight, format, x.dtype)
    y = x.new_zeros(*ids.shape, matrices.shape[1])
    for t, j in known.nonzero().tolist():
        expert = int(ids[t, j])
        y[t, j] = F.linear(x[t, j], matrices[expert], None if bias is None else bias[expert])
    return y


def moe_glu(
    x: Tensor,
    ids: Tensor,
    gate: Tensor | None,
    up: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    kind: str = "llama",
    format: str | None = None,
    activation: str = "silu",
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
    shared: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    h = x if norm_weight is None else rms_norm(x, norm_weight, eps, kind=kind)
    rows = h[:, None].expand(-1, ids.shape[1], -1)
    of_up = _of_pairs(rows, ids, up, format, biases[1], shared[1])
    if gate is None:  # ids of no expert give zeros, as all activations of zero are
        return activate(of_up, activation)
    return glu(_of_pairs(rows, ids, gate, format, biases[0], shared[0]), of_up, activation)


def moe_down(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    weight: Tensor,
    *,
    format: str | None = None,
    residual: Tensor | None = None,
    scale: float = 1.0,
    bias: Tensor | None = None,
    shared: Tensor | None = None,
) -> Tensor:
    y = (_of_pairs(x, ids, weight, format, bias, shared) * weights.to(x.dtype)[..., None]).sum(1)
    y = y if scale == 1.0 else y * scale
    return y if residual is None else residual + y
