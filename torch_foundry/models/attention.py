"""Softmax attention as a mixer."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.core import limits
from torch_foundry.kvcache.base import KVSpec
from torch_foundry.kvcache.view import KVStep, KVView, Rope
from torch_foundry.models.attention_spec import PACKED, AttentionSpec, read_attention
from torch_foundry.models.guards import attention_reason, mask_reason
from torch_foundry.models.layer import Mixer, mixes
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Norm, Normed, Residual, ones


@cache
def head_elements(heads: int, head_dim: int, device: torch.device) -> Tensor:
    """float16 [heads * head_dim, heads]: 1 where an element is of a head. Not first while a step is captured."""
    with torch.inference_mode(False):
        return torch.eye(heads, dtype=torch.float16, device="cpu").repeat_interleave(head_dim, 0).to(device)


def spread(x: Tensor, head_dim: int) -> Tensor:
    """A number of each head, x [..., heads], for each of its elements, [..., heads * head_dim]: exactly, as all other
    terms of the product are zeros."""
    return ops.linear(x, head_elements(x.shape[-1], head_dim, x.device), batch_invariant=True)


class SoftmaxMixer(Mixer):
    """A mixer whose state is keys and values. spec: what it knows of its module, with `n_heads`."""

    spec: Any
    state: KVSpec

    def without_cache(self, x: Tensor) -> KVView:
        """See `Mixer`."""
        k, v = (x.new_empty(x.shape[0], self.state.heads, x.shape[1], n) for n in self.state.head_dims)
        return KVView(k, v, x.shape[1])

    def config_reason(self, config: Any) -> str | None:
        """See `Mixer`."""
        return attention_reason(config)

    def mask_reason(self, mask: Any, x: Tensor, layer: Any) -> str | None:
        """See `Mixer`."""
        keys = x.shape[1] if layer is None else layer.visible(x.shape[1])
        return mask_reason(mask, x.dtype, x.shape[0], self.spec.n_heads, x.shape[1], keys)


@mixes("TextAttention")
@mixes("Attention")
class Attention(SoftmaxMixer):
    """Softmax attention; its state is keys and values."""

    __slots__ = (
        "groups", "hands_on", "order", "out", "parameters", "qk_norm", "qkv", "queries", "residual", "rope", "source",
        "spec", "state", "width", "widths",
    )  # fmt: skip
    read = staticmethod(read_attention)  # type: ignore[assignment]
    spec: AttentionSpec

    def __init__(self, module: Any, facts: AttentionSpec, residual: Residual) -> None:
        spec = self.spec = facts
        self.residual, self.parameters = residual, module._parameters
        # one or three, two if v is k; a gate is one more
        self.qkv = LinearGroup.of(module, *PACKED, "q_proj", "k_proj", "v_proj", spec.family.gate)
        self.groups = (self.qkv,)
        self.out = Linear(module._modules[spec.out])
        self.qk_norm = [Norm(module._modules[name]) for name in spec.family.head_norms if name in module._modules]
        queries = (1 + spec.family.output_gate) * spec.n_heads * spec.head_dim
        self.widths = [queries, spec.n_kv_heads * spec.head_dim, spec.n_kv_heads * spec.value_dim]
        if not any(name in module._modules for name in PACKED):
            del self.widths[len(self.qkv) - (spec.gates > 0) :]
        self.widths += [spec.gates] if spec.gates else []
        self.order: Tensor | None = None  # int32: where queries, keys and values are among the rows of their projection
        if spec.family.grouped_rows and spec.n_kv_heads > 1:
            with torch.device("cpu"), torch.inference_mode(False):
                rows = torch.arange(sum(self.widths), dtype=torch.int32).view(spec.n_kv_heads, -1, spec.head_dim)
                self.order = torch.cat([part.flatten() for part in (rows[:, :-2], rows[:, -2], rows[:, -1])])
        value_dim = None if spec.value_dim == spec.head_dim else spec.value_dim
        self.state, self.rope = KVSpec(spec.n_kv_heads, spec.head_dim, value_dim), spec.rope
        self.source, self.hands_on = spec.source, spec.hands_on
        self.queries, self.width = spec.n_heads * spec.head_dim, 3 * self.widths[0] + sum(self.widths)

    def prepare(self, device: torch.device) -> None:
        """See `Mixer`."""
        if self.order is not None and self.order.device != device:
            self.order = self.order.to(device)
        if self.spec.gates == self.spec.n_heads:
            head_elements(self.spec.n_heads, self.spec.head_dim, device)

    def __call__(
        self, x: Tensor, state: KVStep, rope: Rope, gemm: Gemm, mask: Tensor | None, *, onto: Tensor | None = None
    ) -> Tensor:
        """See `Mixer`. onto: what the result is added to, in place of x."""
        spec, norm, gate = self.spec, self.residual.pre, None
        sinks = self.parameters["sinks"] if spec.sinks else None
        options: dict[str, Any] = {"scale": spec.scale, "window": spec.window, "softcap": spec.softcap, "sinks": sinks}
        if mask is not None and spec.window and spec.family.window == "local":
            mask = within(mask, spec.window)
        gated = spec.family.output_gate or spec.gates
        plain = not self.qk_norm and not gated and self.order is None and len(self.widths) == 3 and spec.alike
        dense = state if plain and isinstance(state, KVView) and state.is_dense(x.dtype) else None
        if dense is not None and (given := self.qkv.together(norm, x, gemm)) is not None:
            h = dense.attend(self._in_one_launch(given, dense, rope), mask, **options)
        else:
            q, k, v, gate = self._projections(x, gemm)
            if spec.value_scale != 1:  # a gate of ones: its factor is not rounded to v's dtype
                v = ops.glu(ones(v.shape[-1], v.dtype, v.device).expand_as(v), v, "relu", gate_scale=spec.value_scale)
            q, k, v, heads = self._heads(q, k, v, gemm)
            h = state.attend_new(q, k, v, rope, mask, heads=heads, **options)
        if gate is not None:
            h = ops.glu(gate, h.view(gate.shape), spec.family.gate_activation).flatten(-2)
        return self.residual.add(x if onto is None else onto, self.out, h, gemm)

    def _projections(self, x: Tensor, gemm: Gemm) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values of x behind its norm, and the gate [B, L, heads, head_dim] of what queries find, if
        the family has one. Gates that lie behind each head of the queries stay there, too."""
        norm, head_dim = self.residual.pre, self.spec.head_dim
        if self.order is None:
            q, *kv = self.qkv.behind(norm, x, self.widths, gemm)
        else:
            self.prepare(x.device)
            (rows,) = self.qkv.behind(norm, x, [sum(self.widths)], gemm)
            q, *kv = ops.permute_columns(rows, self.order).split(self.widths, dim=-1)
        gate = kv.pop() if self.spec.gates else None
        k, v = (kv[0], kv[-1]) if kv else (q[..., :0],) * 2  # none: they are another layer's
        if self.spec.family.output_gate:
            return q, k, v, q.unflatten(-1, (-1, 2 * head_dim))[..., head_dim:]
        if gate is None:
            return q, k, v, None
        if self.spec.gates == self.spec.n_heads:
            gate = spread(gate, head_dim)
        return q, k, v, gate.unflatten(-1, (-1, head_dim))

    def _heads(self, q: Tensor, k: Tensor, v: Tensor, gemm: Gemm) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        """q, k and v, and what becomes of their heads, as `ops.rope_kv` takes it."""
        head_dim, family = self.spec.head_dim, self.spec.family
        heads: dict[str, Any] = {"head_dim": head_dim, "interleaved": family.interleaved, "gated": family.output_gate}
        if not self.qk_norm:
            return q, k, v, heads
        q_norm, k_norm = self.qk_norm[0], self.qk_norm[-1]
        whole = family.qk_norm == "full"
        size = None if whole else head_dim
        fused = gemm.fused_heads and (not whole or self._fuses_rows(q))
        if fused or family.v_norm or family.rotate_first:
            heads |= {"q_norm": q_norm.gain(q, size), "k_norm": k_norm.gain(k, size)}
            heads |= {"eps": q_norm.eps, "kind": q_norm.kind}
            heads |= {"v_norm": family.v_norm, "rotate_first": family.rotate_first}
        elif whole:
            q, k = q_norm(q), k_norm(k)
        else:
            q, k = (n(y.unflatten(-1, (-1, head_dim))).flatten(-2) for n, y in ((q_norm, q), (k_norm, k)))
        return q, k, v, heads

    def _fuses_rows(self, q: Tensor) -> bool:
        """Whether norms of all heads at once are part of the rotation, where each head reads its whole row. They give
        the bits of norms apart, unless there is one head alone."""
        return self.queries > self.spec.head_dim and q.numel() <= limits.FEW_ROWS * q.shape[-1]

    def _in_one_launch(self, given: Normed, state: KVView, rope: Rope) -> Tensor:
        (weights, formats, biases), (cos, sin) = self.qkv.projections(self.widths), rope
        return ops.norm_qkv(
            *given[:3], weights, cos, sin, state.k, state.v, state.start(given[0].shape[1]), kind=given.kind,
            formats=formats, biases=biases, head_dim=self.spec.head_dim,
            positions=state.positions, step=state.step, interleaved=self.spec.family.interleaved,
        )  # fmt: skip


def within(mask: Tensor, window: int) -> Tensor:
    """`mask` [.., queries, keys], boolean or of what is added to scores, of the last `window` keys alone."""
    queries, keys = mask.shape[-2:]
    before = mask.new_ones(queries, keys, dtype=torch.bool).tril(keys - queries - window)
    return mask.masked_fill(before, False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min)
