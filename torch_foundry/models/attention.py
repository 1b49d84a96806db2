"""Softmax attention as a mixer."""

from __future__ import annotations

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
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Norm, Normed, Projections, Residual


@mixes("TextAttention")
@mixes("Attention")
class Attention(Mixer):
    """Softmax attention; its state is keys and values."""

    __slots__ = (
        "gate", "groups", "order", "out", "parameters", "qk_norm", "qkv", "queries", "residual", "rope", "source",
        "spec", "spread", "state", "width", "widths",
    )  # fmt: skip
    read = staticmethod(read_attention)  # type: ignore[assignment]
    state: KVSpec

    def __init__(self, module: Any, facts: AttentionSpec, residual: Residual) -> None:
        spec = self.spec = facts
        self.residual, self.parameters = residual, module._parameters
        self.qkv = LinearGroup.of(module, *PACKED, "q_proj", "k_proj", "v_proj")  # one or three; two if v is k
        self.gate = LinearGroup.of(module, spec.family.gate)  # none or one
        self.groups = (self.qkv, self.gate)
        self.out = Linear(module._modules[spec.out])
        self.qk_norm = [Norm(module._modules[name]) for name in spec.family.head_norms if name in module._modules]
        projected = (1 + spec.family.output_gate) * spec.n_heads, spec.n_kv_heads, spec.n_kv_heads
        self.widths = [heads * spec.head_dim for heads in projected]
        if not any(name in module._modules for name in PACKED):
            del self.widths[len(self.qkv) :]
        self.order: Tensor | None = None  # int32: where queries, keys and values are among the rows of their projection
        if spec.family.grouped_rows and spec.n_kv_heads > 1:
            with torch.device("cpu"), torch.inference_mode(False):
                rows = torch.arange(sum(self.widths), dtype=torch.int32).view(spec.n_kv_heads, -1, spec.head_dim)
                self.order = torch.cat([part.flatten() for part in (rows[:, :-2], rows[:, -2], rows[:, -1])])
        self.spread: Tensor | None = None  # [heads * head_dim, heads]: 1 where an element is one of the head
        if spec.gates == spec.n_heads:
            with torch.device("cpu"), torch.inference_mode(False):
                self.spread = torch.eye(spec.n_heads, dtype=torch.float16).repeat_interleave(spec.head_dim, 0)
        self.state, self.rope, self.source = KVSpec(spec.n_kv_heads, spec.head_dim), spec.rope, spec.source
        self.queries, self.width = spec.n_heads * spec.head_dim, 3 * self.widths[0] + sum(self.widths)

    def prepare(self, device: torch.device) -> None:
        """See `Mixer`."""
        if self.order is not None and self.order.device != device:
            self.order = self.order.to(device)
        if self.spread is not None and self.spread.device != device:
            self.spread = self.spread.to(device)

    def without_cache(self, x: Tensor) -> KVView:
        """See `Mixer`."""
        k = x.new_empty(x.shape[0], self.state.heads, x.shape[1], self.state.head_dim)
        return KVView(k, torch.empty_like(k), x.shape[1])

    def config_reason(self, config: Any) -> str | None:
        """See `Mixer`."""
        return attention_reason(config)

    def mask_reason(self, mask: Any, x: Tensor, layer: Any) -> str | None:
        """See `Mixer`."""
        keys = x.shape[1] if layer is None else layer.visible(x.shape[1])
        return mask_reason(mask, x.dtype, x.shape[0], self.spec.n_heads, x.shape[1], keys)

    def __call__(
        self, x: Tensor, state: KVStep, rope: Rope, gemm: Gemm, mask: Tensor | None, *, onto: Tensor | None = None
    ) -> Tensor:
        """See `Mixer`. onto: what the result is added to, in place of x."""
        spec = self.spec
        q, gate = self._heads(x, state, rope, gemm)
        sinks = self.parameters["sinks"] if spec.sinks else None
        h = state.attend(q, mask, scale=spec.scale, window=spec.window, softcap=spec.softcap, sinks=sinks)
        if gate is not None:
            h = ops.glu(gate, h.view(gate.shape), spec.family.gate_activation).flatten(-2)
        return self.residual.add(x if onto is None else onto, self.out, h, gemm)

    def _heads(self, x: Tensor, state: KVStep, rope: Rope, gemm: Gemm) -> tuple[Any, Tensor | None]:
        """Norm, projections, norms of heads, rotation; keys and values are stored. Returns the queries, and the gate
        [B, L, heads, head_dim] of what they find, if the family has one."""
        norm, head_dim, family = self.residual.pre, self.spec.head_dim, self.spec.family
        gated = family.output_gate or self.gate
        plain = not self.qk_norm and not gated and self.order is None and len(self.widths) == 3
        dense = state if plain and isinstance(state, KVView) and state.is_dense(x.dtype) else None
        if dense is not None and (given := self.qkv.together(norm, x, gemm)) is not None:
            return self._in_one_launch(given, dense, rope), None
        if self.order is None:
            q, *kv = self.qkv.behind(norm, x, self.widths, gemm)
        else:
            self.prepare(x.device)
            (rows,) = self.qkv.behind(norm, x, [sum(self.widths)], gemm)
            q, *kv = ops.permute_columns(rows, self.order).split(self.widths, dim=-1)
        k, v = (kv[0], kv[-1]) if kv else (q[..., :0],) * 2  # none: they are another layer's
        gate = q.unflatten(-1, (-1, 2 * head_dim))[..., head_dim:] if family.output_gate else None
        if self.gate:
            (gate,) = self.gate.behind(norm, x, [self.spec.gates], gemm)
            if self.spread is not None:  # one gate to each element, exactly: all other terms are zeros
                self.prepare(x.device)
                gate = ops.linear(gate, self.spread, batch_invariant=True)
            gate = gate.unflatten(-1, (-1, head_dim))
        options: dict[str, Any] = {"head_dim": head_dim, "interleaved": family.interleaved}
        if self.qk_norm:
            q_norm, k_norm = self.qk_norm[0], self.qk_norm[-1]
            whole = family.qk_norm == "full"
            size = None if whole else head_dim
            fused = gemm.fused_heads and (not whole or self._fuses_rows(q))
            if fused or family.v_norm or family.rotate_first:
                options |= {"q_norm": q_norm.gain(q, size), "k_norm": k_norm.gain(k, size)}
                options |= {"eps": q_norm.eps, "kind": q_norm.kind}
                options |= {"v_norm": family.v_norm, "rotate_first": family.rotate_first}
            elif whole:
                q, k = q_norm(q), k_norm(k)
            else:
                q, k = (n(y.unflatten(-1, (-1, head_dim))).flatten(-2) for n, y in ((q_norm, q), (k_norm, k)))
        heads: Any = state.write(q, k, v, rope, **options)
        if family.output_gate:  # gates went along as every other head, which is less work than a copy of the queries
            heads = [own[:, ::2] for own in heads] if isinstance(heads, list) else heads[:, ::2]
        return heads, gate

    def _fuses_rows(self, q: Tensor) -> bool:
        """Whether norms of all heads at once are part of the rotation, where each head reads its whole row. They give
        the bits of norms apart, unless there is one head alone."""
        return self.queries > self.spec.head_dim and q.numel() <= limits.FEW_ROWS * q.shape[-1]

    def _in_one_launch(self, given: Normed, state: KVView, rope: Rope) -> Tensor:
        matrices, (cos, sin) = Projections(self.qkv, self.widths), rope
        return ops.norm_qkv(
            *given[:3], matrices.weights, cos, sin, state.k, state.v, state.start, kind=given.kind,
            formats=matrices.formats, biases=matrices.biases, head_dim=self.spec.head_dim,
            positions=state.positions, step=state.step, interleaved=self.spec.family.interleaved,
        )  # fmt: skip
