"""The forward pass of a decoder layer: one for all families, for eager, captured and paged steps.

A layer is a mixer, in which tokens see each other, and a feed-forward block. Either takes the residual stream and
returns it, with the norms around it.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers.pytorch_utils import Conv1D

from torch_foundry.core.runtime import scope
from torch_foundry.kvcache.base import CacheLayer, StateSpec
from torch_foundry.kvcache.view import Rope, SharedKeys
from torch_foundry.models.altup import StreamBlock
from torch_foundry.models.families import MIXERS, norm_kind
from torch_foundry.models.family import Family
from torch_foundry.models.mlp import MLP, GatedMLP
from torch_foundry.models.moe import ExpertBlock, ExpertsSpec
from torch_foundry.models.parallel_experts import ParallelExperts
from torch_foundry.models.per_layer import PerLayerBlock
from torch_foundry.models.rope import Kind, Table
from torch_foundry.models.spec import LayerSpec
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Norm, Residual, ones
from torch_foundry.nn.packing import lay_out


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
    children: ClassVar[tuple[str, ...]] = ()  # of several modules of a layer, their names; `module` is the layer then
    queries = 0
    rope = False  # whether it rotates heads
    prompts_differ = False  # whether a token of a prompt is mixed in otherwise than a single one
    by_heads = False  # whether products of more tokens than `Gemm.expert_tokens` are torch's, which no graph captures
    hands_on = False  # whether later layers read its state
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

    def prepare(self, device: torch.device) -> None:  # noqa: B027  (most have nothing to make)
        """Make on `device` what calls read besides weights. Not while a step is captured."""

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

    def facts(self) -> Any:
        """Return what captured steps depend on besides the addresses of its module's tensors."""
        return None

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


class FusedLayer:
    """A decoder layer's mixer and feed-forward block; either may be None."""

    __slots__ = ("block", "mixer", "per_layer", "plain", "spec", "streams", "turned")

    def __init__(self, layer: Any, spec: LayerSpec) -> None:
        self.spec, roles = spec, spec.norms
        self.turned: list[dict[str, Any]] = [m._parameters for m in layer.modules() if isinstance(m, Conv1D)]
        self.plain = any(norm_kind(module) == "plain" for module in layer.modules())  # some norms have no weight
        last = PerLayerBlock.norm if spec.per_layer else roles.post_ffn

        def residual(pre: str | None, post: str | None) -> Residual:
            before, behind = (Norm(layer._modules[name]) if name else None for name in (pre, post))
            scaled = post == last and "layer_scalar" in layer._buffers
            return Residual(before, behind, spec.residual_scale, layer._buffers if scaled else None)

        self.streams = StreamBlock(layer, spec.family) if spec.streams else None
        self.mixer: Mixer | None = None
        if (mixer := spec.mixer) is not None:
            around = residual(roles.pre_attn, roles.post_attn)
            if self.streams is not None:
                around = replace(around, buffers=self.streams.scalars)
            module = layer if mixer.kind.children else layer.get_submodule(mixer.name)
            self.mixer = mixer.kind(module, mixer.facts, around)
        self.block: ExpertBlock | ParallelExperts | MLP | None = None
        self.per_layer: PerLayerBlock | None = None
        if (ffn := spec.ffn) is None:
            return
        around, module = residual(roles.pre_ffn, roles.post_ffn), layer._modules.get(ffn.name, layer)
        if isinstance(ffn, ExpertsSpec):
            outer = None if ffn.outer is None else GatedMLP(layer._modules[ffn.outer.name], ffn.outer, around)
            self.block = ExpertBlock(module, ffn, around, outer)
        else:
            self.block = (GatedMLP if ffn.layers.gated else MLP)(module, ffn, around)
        if spec.beside:
            assert isinstance(self.block, GatedMLP)
            self.block = ParallelExperts(layer, spec.family, self.block, around)
        if spec.per_layer:
            self.per_layer = PerLayerBlock(layer, spec.family, ffn.activation, residual(None, last))

    @property
    def experts(self) -> ExpertBlock | ParallelExperts | None:
        """The block, if it has experts."""
        return self.block if isinstance(self.block, (ExpertBlock, ParallelExperts)) else None

    def seen(self, x: Tensor) -> Tensor:
        """The part [B, L, hidden] of x that mixer and feed-forward block see."""
        return x if self.streams is None else x[self.streams.active]

    def prepare(self, dtype: torch.dtype, device: torch.device) -> None:
        """Make what calls read besides weights. Not while a step is captured."""
        for parameters in self.turned:
            lay_out(parameters["weight"])
        if self.mixer is not None:
            self.mixer.prepare(device)
        if self.streams is not None:
            self.streams.prepare(dtype, device)
        if self.experts is not None:
            self.experts.lay_out()
        if self.plain and self.spec.mixer is not None:
            for size in (self.spec.config.hidden_size, self.spec.mixer.facts.head_dim):
                ones(size, dtype, device)
        facts: Any = None if self.spec.mixer is None else self.spec.mixer.facts
        if getattr(facts, "value_scale", 1.0) != 1:
            ones(facts.n_kv_heads * facts.value_dim, dtype, device)

    def rope(self, tables: Mapping[Kind, Table]) -> Rope:
        """This layer's cos and sin of `tables` by kind of layer (None: of all others)."""
        if self.mixer is None or not self.mixer.rope:
            return None, None
        config = self.spec.config
        kinds = getattr(config, "layer_rope_theta", None) or getattr(config, "layer_types", None)
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
    """The layer on x [B, L, hidden], or streams of that, contiguous. Writes to `state` what its mixer keeps of these
    tokens.

    mask: as in `ops.attention`. given: what a `PerLayerBlock` takes. scoped: count launches by part.
    """
    under = scope if scoped else contextlib.nullcontext
    name = f"layers.{layer.spec.layer_idx}"
    streams, all_streams, mixed = layer.streams, x, x
    onto: dict[str, Tensor] = {}
    if streams is not None:
        with under(name), under("streams"):
            all_streams = streams.predict(x)
            x = layer.seen(all_streams)
            onto["onto"] = streams.learned(x, gemm)
    if layer.mixer is not None:
        with under(name), under("attention"):
            mixed = layer.mixer(x, state, rope, gemm, mask, **onto)
    if layer.block is None:
        return mixed
    with under(name), under("mlp"):
        y = layer.block(x, gemm, mixed) if layer.spec.parallel else layer.block(mixed, gemm)
        if layer.per_layer is None or given is None:
            return y
        if streams is None:
            return layer.per_layer(y, given, gemm)
        return streams.correct(all_streams, y, layer.per_layer, given, gemm)
