"""One decoder layer of one decode step, with nothing in it that depends on how far the cache is filled.

So it can be recorded on a tape: what changes from token to token is read from a `Step`'s tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_foundry import ops
from torch_foundry.kvcache.formats import PLAIN, Formats
from torch_foundry.nn.linear import FEW
from torch_foundry.patch.layer import LayerPlan, project
from torch_foundry.patch.weights import Linear, Matrices
from torch_foundry.runtime import scope

Tables = tuple[torch.Tensor, torch.Tensor]  # cos, sin
Product = Callable[..., torch.Tensor]  # of a Linear, x, and the residual and scale if they are given


@dataclass(slots=True)
class Step:
    """What the layers read from device memory, for a batch of B sequences with L new tokens each."""

    positions: torch.Tensor  # int32 [B, L]: rows of the tables
    tables: dict[str | None, Tables]  # by layer type (None: of all others): cos and sin of every position, [P, R] each
    start: torch.Tensor
    """int32 [layers, 2]: where in the layer's buffers the first new token is written, and how many tokens had gone
    before the first of the buffer (0 but for sliding windows)"""
    mask: torch.Tensor | None = None  # bool [B, tokens]: which tokens may be seen, from the first ever; None: all
    formats: Sequence[Formats] = ()  # of each layer's packed keys and values; empty: all dense


def decode(plan: LayerPlan, x: torch.Tensor, step: Step, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The layer on x [B, L, hidden]; keys and values: the whole buffers of its cache [B, n_kv_heads, capacity, ...].

    The caller makes room for L more tokens, counts them, and does the checks of `patch.layer.check`.
    """
    spec = plan.spec
    start = step.start[spec.layer_idx]
    formats = step.formats[spec.layer_idx] if step.formats else PLAIN
    with scope(f"layers.{spec.layer_idx}"), scope("attention"):
        q = _heads(plan, x, step, start, keys, values, formats)
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
            k_format=formats[0],
            v_format=formats[1],
        )
        x = project(plan.o, h, x, plan.post_attn, spec.residual_scale)
    with scope(f"layers.{spec.layer_idx}"), scope("mlp"):
        if plan.experts is not None:
            assert plan.pre_ffn is not None
            return plan.experts(x, plan.pre_ffn, spec.residual_scale)
        return project(plan.down, gated(plan, x, _few(x)), x, plan.post_ffn, spec.residual_scale)


def _heads(
    plan: LayerPlan,
    x: torch.Tensor,
    step: Step,
    start: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    formats: Formats,
) -> torch.Tensor:
    """Norm, projections, norms of heads, rotation; k and v go to the cache. Returns q [B, n_heads, L, head_dim]."""
    spec, norm = plan.spec, plan.pre_attn
    where: dict[str, Any] = {"positions": step.positions, "step": start}
    plain = spec.family.qk_norm == "none" and keys.dtype == values.dtype == x.dtype
    if norm is not None and _few(x) and plain and plan.qkv.in_one_order:
        cos, sin = _tables(plan, step.tables)
        matrices = Matrices(plan.qkv, plan.widths)
        x, gain = plan.qkv[0].normed(x, norm)
        return ops.norm_qkv(
            x, gain, norm.eps, matrices.weights, cos, sin, keys, values, 0,
            head_dim=spec.head_dim, kind=norm.kind, formats=matrices.formats, biases=matrices.biases, **where,
        )  # fmt: skip
    where |= {"k_format": formats[0], "v_format": formats[1]}
    return stored(plan, projections(plan, x, _few(x)), step.tables, keys, values, **where)


def projections(
    plan: LayerPlan, x: torch.Tensor, fused: bool, product: Product = Linear.__call__
) -> Sequence[torch.Tensor]:
    """q, k and v of the normed x [..., hidden]: [..., heads * head_dim] each.

    fused: norm and projections in one launch, by the kernel for few rows, in which a row's bits don't depend on other
        rows.
    """
    norm = plan.pre_attn
    if norm is not None and fused and plan.qkv.in_one_order:
        matrices = Matrices(plan.qkv, plan.widths)
        x, gain = plan.qkv[0].normed(x, norm)
        raw = ops.norm_linear(
            x, gain, norm.eps, matrices.weights,
            kind=norm.kind, formats=matrices.formats, biases=matrices.biases,
        )  # fmt: skip
        return raw.split(plan.widths, dim=-1)
    h = x if norm is None else norm(x)
    qkv = plan.qkv.products(h, product)
    return qkv if len(qkv) == 3 else qkv[0].split(plan.widths, dim=-1)


def stored(
    plan: LayerPlan,
    qkv: Sequence[torch.Tensor],
    tables: Mapping[str | None, Tables],
    keys: torch.Tensor,
    values: torch.Tensor,
    **where: Any,
) -> torch.Tensor:
    """Norms of heads, rotation; k and v go to the cache. Returns q [B, n_heads, L, head_dim].

    where: what `ops.rope_and_cache` has to know of the cache's memory and of the tokens' places.
    """
    spec = plan.spec
    q, k, v = qkv
    cos, sin = _tables(plan, tables)
    if plan.qk_norm is not None:
        q_norm, k_norm = plan.qk_norm
        if spec.family.qk_norm == "head":
            where |= {"q_norm": q_norm.weight, "k_norm": k_norm.weight, "eps": q_norm.eps, "kind": q_norm.kind}
        else:
            q, k = q_norm(q), k_norm(k)
    return ops.rope_and_cache(q, k, v, cos, sin, keys, values, 0, head_dim=spec.head_dim, **where)


def gated(plan: LayerPlan, x: torch.Tensor, fused: bool, product: Product = Linear.__call__) -> torch.Tensor:
    """Norm, gate and up projections and their product: [..., intermediate]. fused: as in `projections`."""
    norm, activation = plan.pre_ffn, plan.spec.activation
    width = plan.config.intermediate_size
    matrices = Matrices(plan.gate_up, (width, width))
    alike = matrices.formats[0] == matrices.formats[1] and plan.gate_up.in_one_order
    if norm is not None and fused and alike:
        gate, up = matrices.weights
        x, gain = plan.gate_up[0].normed(x, norm)
        return ops.norm_glu(
            x, gain, norm.eps, gate, up,
            kind=norm.kind, format=matrices.formats[0], biases=matrices.biases, activation=activation,
        )  # fmt: skip
    h = x if norm is None else norm(x)
    gate_up = plan.gate_up.products(h, product)
    gate, up = gate_up if len(gate_up) == 2 else gate_up[0].chunk(2, dim=-1)
    return ops.glu(gate, up, activation)


def _few(x: torch.Tensor) -> bool:
    """Whether the fused decode kernels are made for this number of rows."""
    return x.shape[0] * x.shape[1] <= FEW


def _tables(plan: LayerPlan, tables: Mapping[str | None, Tables]) -> Tables | tuple[None, None]:
    if not plan.spec.rope:
        return None, None
    types = getattr(plan.config, "layer_types", None)
    own = types[plan.spec.layer_idx] if types else None
    return tables[own if own in tables else None]
