"""Elements of rows in the order in which a weight stores its columns."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.core import extension  # noqa: F401  (loads the extension)
from torch_foundry.ops.fake import fake as _fake

_ops = torch.ops.torch_foundry


def permute_columns(x: Tensor, order: Tensor) -> Tensor:
    """`x[..., order]`, contiguous. x: [..., n], contiguous. order: int32 [n], each number from 0 to n - 1 once."""
    return _ops.permute_columns.default(x, order)[0]


def permute_columns_and_norm(x: Tensor, order: Tensor, norm_weight: Tensor) -> tuple[Tensor, Tensor]:
    """(x[..., order], norm_weight[order]) in one launch: what a norm with this norm_weight makes of x, in that order.

    norm_weight: [n], dtype of x.
    """
    y, permuted_norm = _ops.permute_columns.default(x, order, norm_weight)
    return y, permuted_norm


@_fake("permute_columns")
def _(x: Tensor, norm_weight: Tensor | None) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(0 if norm_weight is None else norm_weight.shape[0])
