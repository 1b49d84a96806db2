"""Mamba2's selective state space of hybrid models (Bamba, Granite 4, Nemotron-H)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_foundry.core import extension  # noqa: F401  (it loads the extension)
from torch_foundry.ops.fake import fake as _fake

_ops = torch.ops.torch_foundry


def mamba2(
    x: Tensor,
    dt: Tensor,
    z: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor | None,
    a_log: Tensor,
    dt_bias: Tensor,
    d: Tensor,
    norm_weight: Tensor | None,
    eps: float,
    conv_states: Tensor,
    states: Tensor,
    runs: Tensor,
    table: Tensor,
    count: Tensor,
    *,
    keep: Tensor | None = None,
    prompt: Tensor | None = None,
    bounds: tuple[float, float] = (0.0, math.inf),
    prompts: bool = False,
    norm_before_gate: bool = False,
    factors: Sequence[float] = (),
) -> Tensor:
    """A mixer's work between its projections (Mamba2, "Transformers are SSMs", arXiv:2405.21060), in two launches:
    causal convolution with silu and the recurrence, token after token; then RMSNorm of its outputs times `silu(z)`,
    over all heads of a group together; or of its outputs, which are multiplied by that then; or no norm.

    The convolution makes u [P] of each head, and B and C [N] of each group of heads. A token changes the state S [P, N]
    of a head to `S = exp(-exp(a_log) * step) * S + step * outer(u, B)`, where `step = softplus(dt + dt_bias)`, and
    gives `S @ C + d * u`.

    x: [T, channels], of u of all heads, then B of all groups, then C. dt: [T, H]. z: [T, H * P]. All may be strided
        views of a projection, but for their last dimension. P and N up to 256, their product up to 32768.
    conv_weight: [channels, W], W up to 8. conv_bias: [channels]. a_log, dt_bias, d: [H]. norm_weight: [H * P]; None: no
        norm.
    conv_states: [states, channels, W], the last W inputs of the convolution. states: [states, H, P, N], float32.
    runs: int32 [N, 2], the first of a sequence's tokens and their number, which may be 0. table: int32 [N, slots], two
        slots or more; count: int32 [N]. State number n of sequence i lies at `table[i, n % slots]`. The step reads
        state `count`, or has zeros if that is 0, and writes the ones behind it, as in `gated_delta`. First dimensions
        may be strided.
    keep: [T], 0 for padding, whose inputs of the recurrence are zeros, and 1 for all else; None: nothing is padding.
    prompt: int32 [N], how many of a sequence's tokens, from the first on, are of a prompt; None: none are. bounds: what
        the step sizes of those are at least, and at most.
    prompts: that some sequences have many tokens. Those of as many as slots, and of a chunk or more, then go in chunks
        through matrix products, in two launches more, if P and N are multiples of 8.
    factors: of z, u, B, C and dt, before all else; by default 1.
    Returns [T, H * P], contiguous; undefined for tokens that are in no run.
    """
    return _ops.mamba2.default(
        x, dt, z, conv_weight, conv_bias, a_log, dt_bias, d, norm_weight, eps, conv_states, states, runs, table, count,
        keep, prompt, bounds[0], bounds[1], prompts, norm_before_gate, factors,
    )  # fmt: skip


@_fake("mamba2")
def _(z: Tensor) -> Tensor:
    return z.new_empty(z.shape)
