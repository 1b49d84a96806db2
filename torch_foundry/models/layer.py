"""The forward pass of a decoder layer: one for all families, for eager, captured and paged steps.

A layer is a mixer, in which tokens see each other, and a feed-forward block. Either takes the residual stream and
returns it, with the norms around it.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.core.runtime import scope
from torch_foundry.kvcache.base import CacheLayer, KVSpec, KVStep, KVView, Rope, SharedKeys, StateSpec
from torch_foundry.models.attention_spec import AttentionSpec, read_attention
from torch_foundry.models.families import MIXERS
from torch_foundry.models.family import Family, MLPNames
from torch_foundry.models.guards import attention_reason, mask_reason
from torch_foundry.models.moe import ExpertBlock
from torch_foundry.models.parallel_experts import ParallelExperts
from torch_foundry.models.per_layer import PerLayerBlock
from torch_foundry.models.rope import Kind, Table
from torch_foundry.models.spec import LayerSpec, has_norm
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Norm, Projections, Residual


class Mixer(ABC):
    """A layer in which a token's result depends on those before it. To add one: a class in a module of its own, under
    `@mixes` (below).

    out: the projection back to the residual stream. state: what is kept of a sequence; a cache layer makes the views
    that a call gets. width: elements of a token's results on the way, about; queries: of those that each 128 keys have.
    """

    groups: tuple[LinearGroup, ...] = ()
    out: Linear
    state: StateSpec
    width: int
    queries = 0
    rope = False  # whether it rotates heads
    source: int | None = None  # the layer whose state it reads, and doesn't write to; None: it keeps one of its own

    @staticmethod
    @abstractmethod
    def read(module: Any, family: Family) -> Any:
        """Return what the constructor needs to know of `module`. Raises Fallback for what is not understood."""

    @abstractmethod
    def __init__(self, module: Any, facts: Any, residual: Residual) -> None: ...

    @abstractmethod
    def without_cache(self, x: Tensor) -> Any:
        """Return the view of a state that lasts for this step alone."""

    def config_reason(self, config: Any) -> str | None:
        """Return why stock code has to run under this config; None if it need not."""
        return None

    @abstractmethod
    def mask_reason(self, mask: Any, x: Tensor, layer: Any) -> str | None:
        """Return why stock code has to run with this mask, for x [B, L, hidden] behind what `layer` holds; None if it
        need not."""

    @abstractmethod
    def __call__(self, x: Tensor, state: Any, rope: Rope, gemm: Gemm, mask: Tensor | None) -> Tensor:
        """x [B, L, hidden] plus what is mixed in. Writes the new tokens' part of the state.

        mask: as stock code gives it to this layer; None: causal, without padding. An engine's x is [1, T, hidden]: the
        state says which tokens are of one sequence.
        """

    def reserve(self, layer: CacheLayer | SharedKeys | None, x: Tensor) -> Any:
        """This step's view of the state in `layer` of a cache, for x [B, L, hidden]. None: a state for this step."""
        if layer is None:
            return self.without_cache(x)
        return layer.reserve(x.shape[0], self.state, x.shape[1], x.dtype, x.device)


def mixes(suffix: str) -> Callable[[type[Mixer]], type[Mixer]]:
    """Let modules of classes `<family's prefix><suffix>` in decoder layers be run by the decorated `Mixer`."""

    def register(mixer: type[Mixer]) -> type[Mixer]:
        MIXERS[suffix] = mixer
        return mixer

    return register


@mixes("TextAttention")
@mixes("Attention")
class Attention(Mixer):
    """Softmax attention; its state is keys and values."""

    __slots__ = (
        "gate", "groups", "out", "parameters", "qk_norm", "qkv", "queries", "residual", "rope", "source", "spec",
        "state", "width", "widths",
    )  # fmt: skip
    read = staticmethod(read_attention)  # type: ignore[assignment]
    state: KVSpec

    def __init__(self, module: Any, facts: AttentionSpec, residual: Residual) -> None:
        spec = self.spec = facts
        self.residual, self.parameters = residual, module._parameters
        self.qkv = LinearGroup.of(module, "qkv_proj", "q_proj", "k_proj", "v_proj")  # one or three; two if v is k
        self.gate = LinearGroup.of(module, spec.family.gate)  # none or one
        self.groups = (self.qkv, self.gate)
        self.out = Linear(module._modules[spec.out])
        self.qk_norm = [Norm(module._modules[name]) for name in spec.family.head_norms if name in module._modules]
        projected = (1 + spec.family.output_gate) * spec.n_heads, spec.n_kv_heads, spec.n_kv_heads
        self.widths = [heads * spec.head_dim for heads in projected]
        if "qkv_proj" not in module._modules:
            del self.widths[len(self.qkv) :]
        self.state, self.rope, self.source = KVSpec(spec.n_kv_heads, spec.head_dim), spec.rope, spec.source
        self.queries, self.width = spec.n_heads * spec.head_dim, 3 * self.widths[0] + sum(self.widths)

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

    def __call__(self, x: Tensor, state: KVStep, rope: Rope, gemm: Gemm, mask: Tensor | None) -> Tensor:
        spec = self.spec
        q, gate = self._heads(x, state, rope, gemm)
        sinks = self.parameters["sinks"] if spec.sinks else None
        h = state.attend(q, mask, scale=spec.scale, window=spec.window, softcap=spec.softcap, sinks=sinks)
        if gate is not None:
            h = ops.glu(gate, h.view(gate.shape), "sigmoid").flatten(-2)
        return self.residual.add(x, self.out, h, gemm)

    def _heads(self, x: Tensor, state: KVStep, rope: Rope, gemm: Gemm) -> tuple[Any, Tensor | None]:
        """Norm, projections, norms of heads, rotation; keys and values are stored. Returns the queries, and the gate
        [B, L, heads, head_dim] of what they find, if the family has one."""
        norm, head_dim, family = self.residual.pre, self.spec.head_dim, self.spec.family
        gated = family.output_gate or self.gate
        plain = not self.qk_norm and not gated and gemm.fuses(norm, x) and self.qkv.same_perm
        if plain and isinstance(state, KVView) and state.is_dense(x.dtype):
            return self._in_one_launch(x, state, rope), None
        q, *kv = self.qkv.behind(norm, x, self.widths, gemm)
        k, v = (kv[0], kv[-1]) if kv else (q[..., :0],) * 2  # none: they are another layer's
        gate = q.unflatten(-1, (-1, 2 * head_dim))[..., head_dim:] if family.output_gate else None
        if self.gate:
            gate = self.gate.behind(norm, x, self.widths[:1], gemm)[0].unflatten(-1, (-1, head_dim))
        options: dict[str, Any] = {"head_dim": head_dim, "interleaved": family.interleaved}
        if self.qk_norm:
            q_norm, k_norm = self.qk_norm[0], self.qk_norm[-1]
            if family.qk_norm == "full":
                q, k = q_norm(q), k_norm(k)
            elif gemm.fused_heads or family.v_norm or family.rotate_first:
                options |= {"q_norm": q_norm.weight, "k_norm": k_norm.weight, "eps": q_norm.eps, "kind": q_norm.kind}
                options |= {"v_norm": family.v_norm, "rotate_first": family.rotate_first}
            else:
                q, k = (n(y.unflatten(-1, (-1, head_dim))).flatten(-2) for n, y in ((q_norm, q), (k_norm, k)))
        heads: Any = state.write(q, k, v, rope, **options)
        if family.output_gate:  # gates went along as every other head, which is less work than a copy of the queries
            heads = [own[:, ::2] for own in heads] if isinstance(heads, list) else heads[:, ::2]
        return heads, gate

    def _in_one_launch(self, x: Tensor, state: KVView, rope: Rope) -> Tensor:
        norm, matrices = self.residual.pre, Projections(self.qkv, self.widths)
        assert norm is not None
        x, gain = self.qkv[0].normed(x, norm)
        cos, sin = rope
        return ops.norm_qkv(
            x, gain, norm.eps, matrices.weights, cos, sin, state.k, state.v, state.start, kind=norm.kind,
            formats=matrices.formats, biases=matrices.biases, head_dim=self.spec.head_dim,
            positions=state.positions, step=state.step, interleaved=self.spec.family.interleaved,
        )  # fmt: skip


class MLP:
    """down(activation(up(x)))."""

    __slots__ = ("activation", "curve", "down", "groups", "residual", "up")

    def __init__(self, mlp: Any, spec: LayerSpec, names: MLPNames, residual: Residual) -> None:
        self.activation, self.residual, self.curve = spec.activation, residual, mlp._modules[names.activation]
        self.groups = (LinearGroup.of(mlp, *names.first),)
        (self.up,), self.down = self.groups[0], Linear(mlp._modules[names.down])

    def __call__(self, x: Tensor, gemm: Gemm, onto: Tensor | None = None) -> Tensor:
        """onto: what the result is added to, in place of x."""
        norm = self.residual.pre
        h = x if norm is None else norm(x)
        if self.activation == "xielu":
            own, fixed = self.curve._parameters, self.curve._buffers
            h = ops.xielu(gemm.product(self.up, h), own["alpha_p"], own["alpha_n"], fixed["beta"], fixed["eps"])
        else:
            h = gemm.product(self.up, h, activation=self.activation)
        return self.residual.add(x if onto is None else onto, self.down, h, gemm)


class GatedMLP:
    """down(activation(gate(x)) * up(x))."""

    __slots__ = ("activation", "down", "gate_up", "groups", "inner", "residual")

    def __init__(self, mlp: Any, spec: LayerSpec, names: MLPNames, residual: Residual) -> None:
        self.activation, self.residual, self.inner = spec.activation, residual, mlp._modules[names.down].in_features
        self.gate_up = LinearGroup.of(mlp, *names.first)  # one or two
        self.groups, self.down = (self.gate_up,), Linear(mlp._modules[names.down])

    def __call__(self, x: Tensor, gemm: Gemm, onto: Tensor | None = None) -> Tensor:
        """onto: what the result is added to, in place of x."""
        return self.residual.add(x if onto is None else onto, self.down, self.gated(x, gemm), gemm)

    def gated(self, x: Tensor, gemm: Gemm) -> Tensor:
        """What `down` is given."""
        norm = self.residual.pre
        if gemm.fuses(norm, x):
            matrices = Projections(self.gate_up, (self.inner, self.inner))
            if matrices.formats[0] == matrices.formats[1] and self.gate_up.same_perm:
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

    __slots__ = ("block", "config", "mixer", "per_layer", "spec")

    def __init__(self, layer: Any, spec: LayerSpec) -> None:
        roles, mlp, mixed = spec.norms, layer._modules[spec.ffn], layer._modules[spec.mixer]
        self.spec, self.config = spec, spec.config
        last = "post_per_layer_input_norm" if spec.per_layer else roles.post_ffn

        def residual(pre: str | None, post: str | None) -> Residual:
            before, behind = (Norm(layer._modules[n]) if has_norm(layer, n) else None for n in (pre, post))
            scaled = spec.family.layer_scalar and post == last
            return Residual(before, behind, spec.residual_scale, layer._buffers if scaled else None)

        self.mixer: Mixer = spec.kind(mixed, spec.facts, residual(roles.pre_attn, roles.post_attn))
        around = residual(roles.pre_ffn, roles.post_ffn)
        self.block: ExpertBlock | ParallelExperts | GatedMLP | MLP
        if spec.mlp is None and (kind := spec.family.experts) is not None:
            outer = GatedMLP(layer._modules[kind.outer], spec, spec.outer, around) if spec.outer else None
            self.block = ExpertBlock(mlp, kind, spec.activation, around, outer)
        elif spec.mlp is not None:
            self.block = (GatedMLP if spec.mlp.gated else MLP)(mlp, spec, spec.mlp, around)
        if spec.beside:
            self.block = ParallelExperts(layer, spec, self.block, around)
        self.per_layer = PerLayerBlock(layer, spec, residual(None, last)) if spec.per_layer else None

    @property
    def experts(self) -> ExpertBlock | ParallelExperts | None:
        """The block, if it has experts."""
        return self.block if isinstance(self.block, (ExpertBlock, ParallelExperts)) else None

    def rope(self, tables: Mapping[Kind, Table]) -> Rope:
        """This layer's cos and sin of `tables` by kind of layer (None: of all others)."""
        if not self.mixer.rope:
            return None, None
        kinds = getattr(self.config, "layer_rope_theta", None) or getattr(self.config, "layer_types", None)
        own = kinds[self.spec.layer_idx] if kinds else None
        return tables[own if own in tables else None]


def forward(
    layer: FusedLayer,
    x: Tensor,
    state: Any,
    rope: Rope,
    gemm: Gemm,
    mask: Tensor | None = None,
    *,
    given: Tensor | None = None,
    scoped: bool = False,
) -> Tensor:
    """The layer on x [B, L, hidden], contiguous. Writes to `state` what its mixer keeps of these tokens.

    mask: as in `ops.attention`. given: what a `PerLayerBlock` takes. scoped: count launches by part.
    """
    under = scope if scoped else contextlib.nullcontext
    name = f"layers.{layer.spec.layer_idx}"
    with under(name), under("attention"):
        mixed = layer.mixer(x, state, rope, gemm, mask)
    with under(name), under("mlp"):
        y = layer.block(x, gemm, mixed) if layer.spec.parallel else layer.block(mixed, gemm)
        return y if layer.per_layer is None or given is None else layer.per_layer(y, given, gemm)
