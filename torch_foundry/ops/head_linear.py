"""Products with a matrix for each head, as multi-head latent attention has them."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.core import extension  # noqa: F401  (it loads the extension)
from torch_foundry.ops.fake import fake as _fake

_ops = torch.ops.torch_foundry


def head_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`y[t, h] = weight[h] x[t, h]`, in one launch.

    x: [T, H, K], any strides but a contiguous last dimension. weight: [H, N, K] of x's dtype, whose rows or columns are
        contiguous: a transposed view is read where it lies.
    Meant for few tokens: matrices are read for each. A token's result is the same bits whatever tokens come with it.
    Returns [T, H, N], contiguous.
    """
    return _ops.head_linear.default(x, weight)


@_fake("head_linear")
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:2], weight.shape[1]))
