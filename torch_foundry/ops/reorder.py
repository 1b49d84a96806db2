"""Elements of rows in the order in which a weight stores its columns."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry import _ext  # noqa: F401  (loads the extension)
from torch_foundry.ops.fake import fake as _fake

_ops = torch.ops.torch_foundry


def reorder(x: Tensor, order: Tensor) -> Tensor:
    """`x[..., order]`, contiguous. x: [..., n], contiguous. order: int32 [n], each number from 0 to n - 1 once."""
    return _ops.reorder.default(x, order)[0]


def reorder_with_gain(x: Tensor, order: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """(x[..., order], gain[order]) in one launch: what a norm with this gain makes of x, in that order.

    gain: [n], dtype of x.
    """
    y, gains = _ops.reorder.default(x, order, gain)
    return y, gains


@_fake("reorder")
def _(x: Tensor, order: Tensor, gain: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0 if gain is None else gain.shape[0])
