"""Residual streams of Gemma 3n in plain torch; see `reference` for what it is for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_foundry.testing.reference import rms_norm


def _routed(x: Tensor, norm: Tensor, router: Tensor, coefs: Tensor, eps: float, scale: float) -> Tensor:
    logits = F.linear(rms_norm(x, norm, eps, kind="olmo") * scale, router)
    return F.linear(torch.tanh(logits if x.dtype == torch.float64 else logits.float()).to(x.dtype), coefs)


def altup_predict(
    x: Tensor, norm: Tensor, router: Tensor, coefs: Tensor, eps: float, *, scale: float, active: int = 0
) -> Tensor:
    n = len(x)
    rows = _routed(x[active], norm, router, coefs, eps, scale).unflatten(-1, (n, n))
    return x + torch.einsum("tcq,qth->cth", rows, x)


def altup_correct(
    x: Tensor,
    activated: Tensor,
    norm: Tensor,
    router: Tensor,
    coefs: Tensor,
    eps: float,
    *,
    scale: float,
    active: int = 0,
    own_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    factors = _routed(activated, norm, router, coefs, eps, scale) + 1
    y = x + factors.T[..., None] * (activated - x[active])
    return y, y[active] if own_scale is None else y[active] * own_scale


def altup_add(x: Tensor, added: Tensor, norm: Tensor, eps: float) -> Tensor:
    return torch.cat([x[:1], x[1:] + rms_norm(added, norm, eps, kind="olmo")])


def altup_expand(x: Tensor, others: Sequence[Tensor], least: float) -> Tensor:
    length = x.square().mean(-1, keepdim=True).sqrt()
    return torch.stack([x, *(o * length / o.square().mean(-1, keepdim=True).clamp(min=least).sqrt() for o in others)])


def altup_collapse(x: Tensor, others: Sequence[Tensor], least: float) -> Tensor:
    return altup_expand(x, others, least).mean(0)
