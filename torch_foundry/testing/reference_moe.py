"""What the ops on mixtures of experts compute, in plain torch; all else as in `reference`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_foundry.testing.reference import _matrix as matrix
from torch_foundry.testing.reference import _wide as wide
from torch_foundry.testing.reference import glu, linear, rms_norm


def moe_choose(
    logits: Tensor, k: int, *, normalize: bool = True, shared: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Weights are rounded to the dtype of the logits, as in Qwen's models; Mixtral's stay float32."""
    probabilities = torch.softmax(wide(logits), -1)
    ids = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :k]
    weights = probabilities.gather(1, ids)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights.to(logits.dtype)
    if shared is not None:
        weights = torch.cat([weights, torch.sigmoid(shared)], -1)
        ids = torch.cat([ids, torch.zeros_like(ids[:, :1])], -1)
    return ids.int(), weights


def moe_route(
    x: Tensor,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    k: int,
    *,
    kind: str = "llama",
    normalize: bool = True,
    shared: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    h = rms_norm(x, norm_weight, eps, kind=kind).flatten(0, -2)
    shared = None if shared is None else linear(h, shared)
    return moe_choose(linear(h, weight, bias=bias), k, normalize=normalize, shared=shared)


def _experts(weight: Tensor, format: str | None, dtype: torch.dtype) -> Tensor:
    return torch.stack([matrix(own, format, dtype) for own in weight])


def _of_pairs(x: Tensor, ids: Tensor, weight: Tensor, format: str | None, bias: Tensor | None = None) -> Tensor:
    """x [T, k, K] times the matrix of each pair's expert, plus its bias; zeros where ids name none."""
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
    gate: Tensor,
    up: Tensor,
    *,
    norm_weight: Tensor | None = None,
    eps: float = 0.0,
    kind: str = "llama",
    format: str | None = None,
    activation: str = "silu",
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    h = x if norm_weight is None else rms_norm(x, norm_weight, eps, kind=kind)
    rows = h[:, None].expand(-1, ids.shape[1], -1)
    return glu(_of_pairs(rows, ids, gate, format, biases[0]), _of_pairs(rows, ids, up, format, biases[1]), activation)


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
) -> Tensor:
    y = (_of_pairs(x, ids, weight, format, bias) * weights.to(x.dtype)[..., None]).sum(1)
    y = y if scale == 1.0 else y * scale
    return y if residual is None else residual + y
