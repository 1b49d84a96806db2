"""The gated short convolution of LFM2."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.core import extension  # noqa: F401  (it loads the extension)
from torch_foundry.ops.fake import fake as _fake

_ops = torch.ops.torch_foundry


def short_conv(
    bcx: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, runs: Tensor, table: Tensor, count: Tensor
) -> Tensor:
    """A mixer's work between its projections, in one launch: `C * conv(B * x)`, where conv is causal and of each
    channel alone.

    bcx: [T, 3 * channels], those of B, then C, then x; rows may lie apart. weight: [channels, W], W up to 8. bias:
        [channels].
    states: [states, channels, W], the last W products of B and x. runs, table, count: as in `gated_delta`.
    Returns [T, channels], contiguous; undefined for tokens that are in no run.
    """
    return _ops.short_conv.default(bcx, weight, bias, states, runs, table, count)


@_fake("short_conv")
def _(bcx: Tensor, weight: Tensor) -> Tensor:
    return bcx.new_empty(bcx.shape[0], weight.shape[0])
