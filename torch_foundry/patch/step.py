"""One decoder layer of one decode step, with nothing in it that depends on how far the cache is filled.

So it can be recorded on a tape: what changes from token to token is read from a `Step`'s tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torch_foundry import ops
from torch_foundry.patch.layer import LayerPlan, project

Tables = tuple[torch.Tensor, torch.Tensor]  # cos, sin


@dataclass(slots=True)
class Step:
    """What the layers read from the device's memory, for a batch of B and L new tokens each."""

    positions: torch.Tensor  # int32 [B, L]: rows of the tables
    tables: dict[str | None, Tables]  # by layer type (None: of all others): cos and sin of every position, [P, R] each
    start: torch.Tensor
    """int32 [layers, 2]: where in the layer's buffers the first new token is written, and how many tokens had gone
    before the first of the buffer (0 but for sliding windows)"""
    mask: torch.Tensor | None = None  # bool [B, tokens]: which tokens may be seen, from the first ever; None: all


def decode(plan: LayerPlan, x: torch.Tensor, step: Step, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The layer on x [B, L, hidden]; keys and values: its cache's whole buffers [B, n_kv_heads, capacity, head_dim].

    There must be room for L more tokens; counting them is the caller's, as are the checks of `patch.layer.check`.
    """
    spec = plan.spec
    start = step.start[spec.layer_idx]
    h = x if plan.pre_attn is None else plan.pre_attn(x)
    qkv = [linear(h) for linear in plan.qkv]
    q, k, v = qkv if len(qkv) == 3 else qkv[0].split(plan.widths, dim=-1)
    norms: dict[str, Any] = {}
    if plan.qk_norm is not None:
        q_norm, k_norm = plan.qk_norm
        if spec.family.qk_norm == "head":
            gains = {"q_norm": q_norm.weight, "k_norm": k_norm.weight}
            norms = gains | {"eps": q_norm.eps, "kind": q_norm.kind}
        else:
            q, k = q_norm(q), k_norm(k)
    cos, sin = _tables(plan, step) if spec.rope else (None, None)
    q = ops.rope_and_cache(
        q, k, v, cos, sin, keys, values, 0, head_dim=spec.head_dim, positions=step.positions, step=start, **norms
    )
    h = ops.attention(
        q,
        keys,
        values,
        keys.shape[2],
        scale=spec.scale,
        mask=None if step.mask is None else step.mask[:, None, None],
        window=spec.window,
        softcap=spec.softcap,
        step=start,
    )
    x = project(plan.o, h, x, plan.post_attn, spec.residual_scale)
    h = x if plan.pre_ffn is None else plan.pre_ffn(x)
    gate_up = [linear(h) for linear in plan.gate_up]
    gate, up = gate_up if len(gate_up) == 2 else gate_up[0].chunk(2, dim=-1)
    return project(plan.down, ops.glu(gate, up, spec.activation), x, plan.post_ffn, spec.residual_scale)


def _tables(plan: LayerPlan, step: Step) -> Tables:
    types = getattr(plan.config, "layer_types", None)
    own = types[plan.spec.layer_idx] if types else None
    return step.tables[own if own in step.tables else None]
