"""The gated delta rule of hybrid models (Qwen3-Next, Qwen3.5, OLMo hybrid), and Kimi's (Kimi Linear, Ling 3)."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.core import extension  # noqa: F401  (it loads the extension)
from torch_foundry.ops.fake import fake as _fake

_ops = torch.ops.torch_foundry


def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    conv_weight: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    norm_weight: Tensor,
    eps: float,
    conv_states: Tensor,
    states: Tensor,
    runs: Tensor,
    table: Tensor,
    count: Tensor,
    *,
    beta_scale: float = 1.0,
    log_bound: float = 0.0,
    sigmoid_gate: bool = False,
    prompts: bool = False,
) -> Tensor:
    """A mixer's work between its projections, in one launch: causal convolution with silu of q, k and v; L2 norm of
    queries and keys; the recurrence, token after token; RMSNorm of its outputs, times `silu(z)` or `sigmoid(z)`.

    A token changes the state S [Dk, Dv] of a head by `S *= exp(g)`, `S += outer(k, beta * (v - k @ S))`, and gives
    `q @ S / sqrt(Dk)`, where `g = -exp(a_log) * softplus(a + dt_bias)` and `beta = beta_scale * sigmoid(b)`. In Kimi's
    delta attention each row of S has a g of its own.

    q, k: [T, Hk, Dk]. v, z: [T, Hk, R, Dv]: R value heads share a query and a key. b: [T, Hk, R]. a: the same, or of
        each row [T, Hk, 1, Dk]. All may be strided views of projections, but for their last dimension, if it isn't R.
        Dk and Dv up to 256, their product up to 32768.
    conv_weight: [channels, W], of the channels of all q, then k, then v. a_log: [Hk * R], float32 or q's dtype.
        dt_bias: of that dtype, [Hk * R] or [Hk * Dk], as a. norm_weight: [Dv].
    conv_states: [states, channels, W], the last W inputs of the convolution. states: [states, Hk * R, Dk, Dv], float32.
    runs: int32 [N, 2], the first of a sequence's tokens and their number, which may be 0. table: int32 [N, slots], two
        slots or more; count: int32 [N]. State number n of sequence i lies at `table[i, n % slots]`. The step reads
        state `count`, or has zeros if that is 0, and writes the ones behind it: if there are fewer tokens than slots,
        token t leaves state count + 1 + t; else the last token leaves state count + 1. First dimensions may be
        strided.
    log_bound: if less than 0, `g = log_bound * sigmoid(exp(a_log) * (a + dt_bias))`.
    prompts: that some sequences have many tokens. Those of as many as slots, or more, then go in chunks through matrix
        products, in three launches more, if Dk is a multiple of 8 up to 128 and Dv a multiple of 32.
    Returns [T, Hk * R * Dv], contiguous; undefined for tokens that are in no run.
    """
    return _ops.gated_delta.default(
        q, k, v, z, b, a, conv_weight, a_log, dt_bias, norm_weight, eps, conv_states, states, runs, table, count,
        beta_scale, log_bound, sigmoid_gate, prompts,
    )  # fmt: skip


@_fake("gated_delta")
def _(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty(q.shape[0], v.shape[1] * v.shape[2] * v.shape[3])
