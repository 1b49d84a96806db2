"""The forward pass of a decoder layer: one for all families, for eager, captured and paged steps.

A layer is a mixer, in which tokens see each other, and a feed-forward block. Either takes the residual stream and
returns it, with the norms around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from torch_foundry import ops
from torch_foundry.kvcache.base import KVLayer, KVStep, KVView, Rope
from torch_foundry.patch.moe import ExpertBlock
from torch_foundry.patch.spec import LayerSpec
from torch_foundry.patch.weights import Gemm, Linear, Matrices, Norm, Residual, Siblings
from torch_foundry.runtime import scope


class Mixer(Protocol):
    """Attention, or another layer in which a token's result depends on those before it."""

    groups: tuple[Siblings, ...]

    def reserve(self, layer: Any, x: Tensor) -> Any:
        """This step's view of the state in `layer` of a cache, for x [B, L, hidden]. None: a state for this step."""

    def __call__(self, x: Tensor, state: Any, rope: Rope, gemm: Gemm, mask: Tensor | None) -> Tensor:
        """x [B, L, hidden] plus what is mixed in. Writes the new tokens' part of the state."""


class Attention:
    """Softmax attention; its state is keys and values."""

    __slots__ = ("groups", "o", "qk_norm", "qkv", "residual", "spec", "widths")

    def __init__(self, attn: Any, spec: LayerSpec, residual: Residual) -> None:
        self.spec, self.residual = spec, residual
        self.qkv = _siblings(attn, "qkv_proj", "q_proj", "k_proj", "v_proj")  # one or three
        self.groups = (self.qkv,)
        self.o = Linear(attn.o_proj)
        self.qk_norm = None if spec.family.qk_norm == "none" else (Norm(attn.q_norm), Norm(attn.k_norm))
        self.widths = [heads * spec.head_dim for heads in (spec.n_heads, spec.n_kv_heads, spec.n_kv_heads)]

    def reserve(self, layer: KVLayer | None, x: Tensor) -> KVView:
        """See `Mixer`."""
        heads, head_dim, (batch, tokens, _) = self.spec.n_kv_heads, self.spec.head_dim, x.shape
        if layer is not None:
            return layer.reserve(batch, heads, head_dim, tokens, x.dtype, x.device)
        k = x.new_empty(batch, heads, tokens, head_dim)
        return KVView(k, torch.empty_like(k), tokens)

    def __call__(self, x: Tensor, state: KVStep, rope: Rope, gemm: Gemm, mask: Tensor | None) -> Tensor:
        spec = self.spec
        q = self._heads(x, state, rope, gemm)
        h = state.attend(q, mask, scale=spec.scale, window=spec.window, softcap=spec.softcap)
        return self.residual.add(x, self.o, h, gemm)

    def _heads(self, x: Tensor, state: KVStep, rope: Rope, gemm: Gemm) -> Any:
        """Norm, projections, norms of heads, rotation; keys and values are stored. Returns the queries."""
        norm, head_dim = self.residual.pre, self.spec.head_dim
        if norm is not None and gemm.fuses(x) and self.qkv.in_one_order:
            matrices = Matrices(self.qkv, self.widths)
            x, gain = self.qkv[0].normed(x, norm)
            how: dict[str, Any] = {"kind": norm.kind, "formats": matrices.formats, "biases": matrices.biases}
            if self.qk_norm is None and isinstance(state, KVView) and state.is_dense(x.dtype):
                cos, sin = rope
                return ops.norm_qkv(
                    x, gain, norm.eps, matrices.weights, cos, sin, state.k, state.v, state.start,
                    head_dim=head_dim, positions=state.positions, step=state.step, **how,
                )  # fmt: skip
            q, k, v = ops.norm_linear(x, gain, norm.eps, matrices.weights, **how).split(self.widths, dim=-1)
        else:
            qkv = self.qkv.products(x if norm is None else norm(x), gemm.product)
            q, k, v = qkv if len(qkv) == 3 else qkv[0].split(self.widths, dim=-1)
        norms: dict[str, Any] = {}
        if self.qk_norm is not None:
            q_norm, k_norm = self.qk_norm
            if self.spec.family.qk_norm == "full":
                q, k = q_norm(q), k_norm(k)
            elif gemm.fused_heads:
                norms = {"q_norm": q_norm.weight, "k_norm": k_norm.weight, "eps": q_norm.eps, "kind": q_norm.kind}
            else:
                q, k = (n(y.unflatten(-1, (-1, head_dim))).flatten(-2) for n, y in ((q_norm, q), (k_norm, k)))
        return state.write(q, k, v, rope, head_dim=head_dim, **norms)


class GatedMLP:
    """down(activation(gate(x)) * up(x))."""

    __slots__ = ("activation", "down", "gate_up", "groups", "inner", "residual")

    def __init__(self, mlp: Any, spec: LayerSpec, residual: Residual) -> None:
        self.activation, self.inner, self.residual = spec.activation, spec.inner, residual
        self.gate_up = _siblings(mlp, "gate_up_proj", "gate_proj", "up_proj")  # one or two
        self.groups = (self.gate_up,)
        self.down = Linear(mlp.down_proj)

    def __call__(self, x: Tensor, gemm: Gemm) -> Tensor:
        return self.residual.add(x, self.down, self._gated(x, gemm), gemm)

    def _gated(self, x: Tensor, gemm: Gemm) -> Tensor:
        norm = self.residual.pre
        if norm is not None and gemm.fuses(x):
            matrices = Matrices(self.gate_up, (self.inner, self.inner))
            if matrices.formats[0] == matrices.formats[1] and self.gate_up.in_one_order:
                x, gain = self.gate_up[0].normed(x, norm)
                gate, up = matrices.weights
                return ops.norm_glu(
                    x, gain, norm.eps, gate, up, kind=norm.kind, format=matrices.formats[0],
                    biases=matrices.biases, activation=self.activation,
                )  # fmt: skip
        gate_up = self.gate_up.products(x if norm is None else norm(x), gemm.product)
        gate, up = gate_up if len(gate_up) == 2 else gate_up[0].chunk(2, dim=-1)
        return ops.glu(gate, up, self.activation)


class FusedLayer:
    """A decoder layer's mixer and feed-forward block."""

    __slots__ = ("block", "config", "mixer", "spec")

    def __init__(self, layer: Any, spec: LayerSpec) -> None:
        roles, mlp = spec.family.norms, layer.mlp
        self.spec, self.config = spec, layer.self_attn.config

        def residual(pre: str | None, post: str | None) -> Residual:
            before, behind = (Norm(getattr(layer, name)) if name else None for name in (pre, post))
            return Residual(before, behind, spec.residual_scale)

        self.mixer = Attention(layer.self_attn, spec, residual(roles.pre_attn, roles.post_attn))
        around = residual(roles.pre_ffn, roles.post_ffn)
        self.block: ExpertBlock | GatedMLP
        if spec.experts:
            assert spec.family.experts is not None
            self.block = ExpertBlock(mlp, spec.family.experts, spec.activation, around)
        else:
            self.block = GatedMLP(mlp, spec, around)

    @property
    def experts(self) -> ExpertBlock | None:
        """The block, if it is one of experts."""
        return self.block if isinstance(self.block, ExpertBlock) else None

    def rope(self, tables: Mapping[str | None, tuple[Tensor, Tensor]]) -> Rope:
        """This layer's cos and sin of `tables` by layer type (None: of all others)."""
        if not self.spec.rope:
            return None, None
        types = getattr(self.config, "layer_types", None)
        own = types[self.spec.layer_idx] if types else None
        return tables[own if own in tables else None]


def forward(
    layer: FusedLayer,
    x: Tensor,
    state: Any,
    rope: Rope,
    gemm: Gemm,
    mask: Tensor | None = None,
    *,
    scoped: bool = False,
) -> Tensor:
    """The layer on x [B, L, hidden], contiguous. Writes to `state` what its mixer keeps of these tokens.

    mask: in place of causal attention, as in `ops.attention`. scoped: count launches under `layers.N.attention` and
    `layers.N.mlp`.
    """
    if not scoped:
        return layer.block(layer.mixer(x, state, rope, gemm, mask), gemm)
    name = f"layers.{layer.spec.layer_idx}"
    with scope(name), scope("attention"):
        x = layer.mixer(x, state, rope, gemm, mask)
    with scope(name), scope("mlp"):
        return layer.block(x, gemm)


def _siblings(parent: nn.Module, *names: str) -> Siblings:
    return Siblings(Linear(getattr(parent, name)) for name in names if name in parent._modules)
