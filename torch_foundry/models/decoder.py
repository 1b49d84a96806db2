"""A decoder model's parts, checked, and their forward pass."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

import torch

from torch_foundry import ops
from torch_foundry.core.errors import Fallback
from torch_foundry.core.runtime import scope
from torch_foundry.kvcache.base import RecurrentSpec
from torch_foundry.models import gated_delta, mamba2, short_conv  # noqa: F401  (they register mixers)
from torch_foundry.models.families import norm_kind
from torch_foundry.models.family import Head
from torch_foundry.models.guards import CallGuard, attention_reason, device_reason, recording_reason
from torch_foundry.models.layer import Attention, FusedLayer, forward
from torch_foundry.models.moe import ExpertBlock
from torch_foundry.models.outputs import decoder_of, is_plain, path_to_decoder
from torch_foundry.models.per_layer import PerLayerEmbedding
from torch_foundry.models.rope import Kind, RopeTables, Rotary, Table, rotaries_of
from torch_foundry.models.spec import build_spec
from torch_foundry.models.state import ModelPlan, ModelState, Plan
from torch_foundry.models.swap import is_swapped
from torch_foundry.models.watch import ModuleGuard
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Norm, weight_reason
from torch_foundry.nn import FoundryEmbedding, FoundryLinear

Tail = Callable[[torch.Tensor], torch.Tensor]


class Graphs(Protocol):
    """Captured steps, for whoever captures them (`generation.step_graph.GraphCache`)."""

    proven: set[Hashable]

    @property
    def nbytes(self) -> int:
        """Bytes that they keep."""

    def clear(self) -> None:
        """Let go of them, and of the tensors that they read."""


class LayerPlan(Plan):
    """A decoder layer for the fused path, and what it watches."""

    __slots__ = ("buffers", "config", "free", "layer", "parameters", "spec", "watch")

    def __init__(self, layer: torch.nn.Module, state: ModelState) -> None:
        super().__init__(state)
        self.spec = build_spec(layer)
        self.layer = FusedLayer(layer, self.spec)
        self.config = self.layer.config
        self.watch = CallGuard(layer)
        self.parameters = tuple(m._parameters for m in layer.modules() if m._parameters)
        mixer, block = self.layer.mixer, self.layer.block  # sinks and routers may be of other dtypes
        free = [mixer.parameters] if isinstance(mixer, Attention) else []
        self.free = frozenset(map(id, [*free, *block.free] if isinstance(block, ExpertBlock) else free))
        self.buffers: dict[str, Any] = layer._buffers

    @property
    def scalar(self) -> torch.Tensor | None:
        """[1]: what the layer's result is multiplied by."""
        return self.buffers["layer_scalar"] if self.spec.family.layer_scalar else None

    def needs_grad(self, x: torch.Tensor, mask: torch.Tensor | None) -> bool:
        """Whether autograd would record this call."""
        if x.requires_grad or (mask is not None and mask.requires_grad):
            return True
        return any(p is not None and p.requires_grad for owner in self.parameters for p in owner.values())


class DecoderModel(ModelPlan):
    """A decoder's parts as `check` found them, until the model changes.

    Nothing here, and no graph, refers to the module or to this but weakly: a model that is dropped is freed at once.
    """

    __slots__ = (
        "__weakref__", "_facts", "_module", "_ordered", "_per_layer", "_places", "_ropes", "_scale", "config",
        "decoder", "device", "dtype", "final", "graphs", "guard", "recurrent", "rotary", "vocabulary",
    )  # fmt: skip

    def __init__(self, module: Any, state: ModelState, graphs: Graphs) -> None:
        super().__init__(state)
        self.graphs = graphs
        decoder = decoder_of(module)
        assert decoder is not None
        self._module, self.decoder, self.config = weakref.ref(module), decoder, module.config
        self.rotary = Rotary(rotaries_of(module, decoder.rotary), decoder.mrope)
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.vocabulary = 0
        self.final: Norm | None = None
        self.guard: ModuleGuard | None = None
        self._facts: Any = None
        self._ordered: list[LinearGroup] = []  # those whose columns are not stored as they come
        self._scale = 1.0
        self._places: list[int] = []  # of each layer's state among those of `owners`
        self._per_layer: PerLayerEmbedding | None = None
        self._ropes: RopeTables | None = None

    @property
    def module(self) -> Any:
        """The decoder."""
        return self._module()

    @property
    def last_norm(self) -> Any:
        """The decoder's last norm."""
        return getattr(self.module, self.decoder.norm)

    @property
    def owners(self) -> list[LayerPlan]:
        """The layers that keep a state of their own: those that a cache has."""
        return [plan for plan in self.layers if plan.layer.mixer.source is None]

    def check(self) -> None:
        """Raise Fallback if no step may be captured or replayed now. Cheap if nothing has changed since."""
        if reason := recording_reason() or attention_reason(self.config):
            raise Fallback(reason)
        if torch._C._len_torch_dispatch_stack():  # of this thread, unlike torch's flag; it wants to see each op
            raise Fallback("a dispatch mode is active")
        if self.guard is None or self._facts != self._read_facts() or not self.guard.is_valid():
            self._renew()
        assert self.guard is not None
        if reason := device_reason(self.dtype, self.device.type):
            raise Fallback(reason)
        if torch.is_grad_enabled() and self.guard.requires_grad():
            raise Fallback("gradients are needed")

    def _read_facts(self) -> tuple[Any, ...]:
        """Numbers that end up in launches, and what decides which these are."""
        module = self.module
        tables = (module.embed_tokens, module._modules.get("embed_tokens_per_layer"))
        scales = [scale for m in tables if m is not None and (scale := m._buffers.get("embed_scale")) is not None]
        versions = [(id(scale), 0 if scale.is_inference() else scale._version) for scale in scales]
        routing = [experts.facts() for plan in self.layers if (experts := plan.layer.experts) is not None]
        orders = [group.same_perm for group in self._ordered]
        return self.config.num_hidden_layers, self.decoder.factor(module), versions, routing, orders

    def forget(self) -> None:
        """Let go of captured steps, and of the tensors that they read."""
        self.guard, self._ropes = None, None
        self.graphs.clear()

    def _renew(self) -> None:
        self.guard = None
        self.graphs.clear()
        module = self.module
        if module.training:
            raise Fallback("training")
        used = list(module.layers)[: self.config.num_hidden_layers]
        self.layers = [self._layer(layer) for layer in used]
        if not self.layers:
            raise Fallback("no layers")
        for plan in self.layers:
            if plan.layer.experts is not None:
                plan.layer.experts.lay_out()  # not while a step is captured
        found = {plan.spec.layer_idx: i for i, plan in enumerate(self.owners)}
        sources = [plan.layer.mixer.source for plan in self.layers]
        self._places = [
            found[plan.spec.layer_idx if source is None else source]
            for plan, source in zip(self.layers, sources, strict=True)
        ]
        self.recurrent = any(isinstance(plan.layer.mixer.state, RecurrentSpec) for plan in self.layers)
        self._ordered = [
            group
            for plan in self.layers
            for group in (*plan.layer.mixer.groups, *plan.layer.block.groups)
            if any(linear.order is not None for linear in group)
        ]
        embedding: Any = module.embed_tokens
        norm = self.last_norm
        if not (is_swapped(embedding) or isinstance(embedding, FoundryEmbedding)):
            raise Fallback(f"the embedding is a {type(embedding).__name__}")
        if not is_swapped(norm) or norm_kind(norm) is None:
            raise Fallback(f"the last norm is a {type(norm).__name__}")
        self.final = Norm(norm)
        self.rotary = Rotary(rotaries_of(module, self.decoder.rotary), self.decoder.mrope)
        self.vocabulary = embedding.num_embeddings
        self.dtype, self.device = dtype_of(embedding), embedding.weight.device
        self._per_layer = PerLayerEmbedding(module) if self.layers[0].spec.per_layer else None
        others = [] if self._per_layer is None else self._per_layer.modules
        rest = tuple(m._parameters for m in (norm, embedding, *others))
        for owners, free in ((rest, frozenset()), *((plan.parameters, plan.free) for plan in self.layers)):
            if reason := weight_reason(owners, self.dtype, free):
                raise Fallback(reason)
        if any(plan.scalar is not None and plan.scalar.dtype != self.dtype for plan in self.layers):
            raise Fallback("layer_scalar is not of the model's dtype")
        inside = (m for layer in used for m in layer.modules())
        guard = ModuleGuard([module.layers, embedding, norm, *others, *inside], module)
        if reason := guard.reason():
            raise Fallback(reason)
        if any(t.device != self.device for t in guard.tensors):
            raise Fallback("weights on several devices")
        self._facts = self._read_facts()
        self._scale = self._read_scale()
        self.guard = guard

    def _layer(self, layer: Any) -> LayerPlan:
        if not hasattr(layer, "layer_plan"):
            raise Fallback(f"{type(layer).__name__} is not fused")
        plan: LayerPlan = layer.layer_plan()
        if layer.training:
            raise Fallback("training")
        if plan.config is not None and plan.config is not self.config:
            raise Fallback("a layer has a config of its own")  # `check` looks at one
        if reason := plan.watch.changed():
            raise Fallback(reason)
        return plan

    def _read_scale(self) -> float:
        embedding = self.module.embed_tokens
        buffer = embedding._buffers.get("embed_scale")
        if buffer is not None:
            return float(buffer)
        scale = torch.tensor(self.decoder.factor(self.module))
        if scale.to(self.dtype) != scale:  # stock code multiplies by the number in float32
            raise Fallback("the factor on the embedding is not one of the model's dtype")
        return float(scale)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids [B, L] to what the first layer gets, [B, L, hidden]."""
        embedding = self.module.embed_tokens
        fmt = embedding.format if isinstance(embedding, FoundryEmbedding) else None
        return ops.embedding(ids, embedding.weight, format=fmt, dtype=self.dtype, scale=self._scale)

    def of_layers(self, states: Sequence[Any]) -> list[Any]:
        """What each layer's mixer is given, of those of `owners`."""
        return [states[place] for place in self._places]

    def per_layer(self, ids: torch.Tensor, x: torch.Tensor, gemm: Gemm) -> Sequence[torch.Tensor | None]:
        """What the `PerLayerBlock` of each layer takes, of ids [B, L] and their embeddings x."""
        return [None] * len(self.layers) if self._per_layer is None else self._per_layer(ids, x, gemm)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """The last norm."""
        assert self.final is not None
        return self.final(x)

    def rope_tables(self, rows: int, like: torch.Tensor) -> RopeTables:
        """cos and sin of at least `rows` positions."""
        ropes = self._ropes
        if ropes is None or ropes.rows < rows or ropes.like != (like.dtype, like.device) or not ropes.is_valid():
            ropes = self._ropes = RopeTables(self.rotary, rows, like)
        return ropes

    def forward(
        self,
        ids: torch.Tensor,
        states: Sequence[Any],
        tables: Mapping[Kind, Table],
        gemm: Gemm,
        *,
        tail: Tail | None = None,
        scoped: bool = False,
    ) -> torch.Tensor:
        """The last norm's result for ids [B, L], [B, L, hidden], or what `tail` makes of it.

        states: what the mixers of `owners` are given. tables: by kind of layer. scoped: count launches by part.
        """
        under = scope if scoped else contextlib.nullcontext
        with under("embedding"):
            x = self.embed(ids)
            inputs = self.per_layer(ids, x, gemm)
        for plan, state, given in zip(self.layers, self.of_layers(states), inputs, strict=True):
            x = forward(plan.layer, x, state, plan.layer.rope(tables), gemm, given=given, scoped=scoped)
        with under("head"):
            x = self.norm(x)
            return x if tail is None else tail(x)


def dtype_of(embedding: Any) -> torch.dtype:
    """Of the rows that it gives."""
    dtype: torch.dtype = (embedding.anchor if isinstance(embedding, FoundryEmbedding) else embedding.weight).dtype
    return dtype


def decoder_plan(model: Any) -> DecoderModel:
    """The plan of a patched language model's decoder. Raises Fallback."""
    plan: DecoderModel = path_to_decoder(model)[-1].decoder_plan()
    return plan


def output_of(model: Any, head: Head, decoder: DecoderModel) -> tuple[ModuleGuard, Linear] | None:
    """The output layer, and what it was made from, if its product alone gives the logits and our ops can compute it."""
    output = model.lm_head
    if not is_plain(head, model.config) or not (is_swapped(output) or isinstance(output, FoundryLinear)):
        return None
    guard = ModuleGuard([output])
    if guard.reason() or any(t.device != decoder.device for t in guard.tensors):
        return None
    return None if weight_reason((output._parameters,), decoder.dtype) else (guard, Linear(output))
