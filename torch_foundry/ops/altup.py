"""Residual streams of Gemma 3n: alternating updates (arXiv 2301.13310)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_foundry.core import extension  # noqa: F401  (it loads the extension)
from torch_foundry.ops.fake import fake as _fake

_ops = torch.ops.torch_foundry


def altup_predict(
    x: Tensor, norm: Tensor, router: Tensor, coefs: Tensor, eps: float, *, scale: float, active: int = 0
) -> Tensor:
    """`x[c] + sum over q of coefficient (c, q) * x[q]`, with coefficients of a router, in one launch.

    The router sees the active stream: m = tanh(scale * rms_norm(x[active]) @ router^T). Coefficient (c, q) is row
    c * N + q of `coefs` times m.
    x: [N, T, hidden], 2 to 8 streams. norm: [hidden]. router: [N, hidden]. coefs: [N * N, N]. All contiguous and of x's
    dtype. Returns the shape of x.
    """
    return _ops.altup_predict.default(x, norm, router, coefs, eps, scale, active)


@_fake("altup_predict")
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


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
    """`x[c] + (1 + coefficient c) * (activated - x[active])`, in one launch; and the active stream of that, times
    `own_scale`.

    x: [N, T, hidden], as predicted. activated: [T, hidden], which the router sees here. coefs: [N, N]. own_scale:
    [hidden]. The others as in `altup_predict`. Returns the shapes of x and of activated.
    """
    y, own = _ops.altup_correct.default(x, activated, norm, router, coefs, eps, scale, active, own_scale)
    return y, own


@_fake("altup_correct")
def _(x: Tensor, activated: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(activated)


def altup_add(x: Tensor, added: Tensor, norm: Tensor, eps: float) -> Tensor:
    """x, to whose streams but the first rms_norm(added) is added.

    x: [N, T, hidden]. added: [T, hidden]. norm: [hidden], its weight. All contiguous and of x's dtype.
    """
    return _ops.altup_add.default(x, added, norm, eps)


@_fake("altup_add")
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def altup_expand(x: Tensor, others: Sequence[Tensor], least: float) -> Tensor:
    """Streams [1 + len(others), T, hidden]: x, and the others, each row made as long as x's is.

    x, others: [T, hidden], contiguous; up to seven others. A row's mean square counts as `least` at least.
    """
    return _ops.altup_expand.default(x, others, least)


@_fake("altup_expand")
def _(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    return x.new_empty((len(others) + 1, *x.shape))


def altup_collapse(x: Tensor, others: Sequence[Tensor], least: float) -> Tensor:
    """The mean of what `altup_expand` gives, in a launch for each of the others. Returns the shape of x."""
    return _ops.altup_collapse.default(x, others, least)


@_fake("altup_collapse")
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)
