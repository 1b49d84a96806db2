"""A decoder model's parts, checked, and their forward pass."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torch_foundry.core.errors import Fallback
from torch_foundry.core.runtime import scope
from torch_foundry.kvcache.base import KVSpec, RecurrentSpec, specs_of
from torch_foundry.models import gated_delta, latent_attention, parallel_mixers, short_conv  # noqa: F401  (they register mixers)
from torch_foundry.models.altup import Streams
from torch_foundry.models.embedding import TokenEmbedding, dtype_of
from torch_foundry.models.families import norm_kind
from torch_foundry.models.graph_cache import GraphCache
from torch_foundry.models.guards import attention_reason, device_reason, recording_reason, weight_reason
from torch_foundry.models.layer import Mixer, forward
from torch_foundry.models.layer_plan import LayerPlan
from torch_foundry.models.mtp import FusedMTPInput, input_of
from torch_foundry.models.outputs import decoder_of, path_to_decoder
from torch_foundry.models.per_layer import PerLayerEmbedding
from torch_foundry.models.rope import Kind, RopeTables, Rotary, Table, rotaries_of
from torch_foundry.models.state import ModelPlan, ModelState
from torch_foundry.models.swap import is_swapped
from torch_foundry.models.watch import ModuleGuard, version_of
from torch_foundry.models.weights import Gemm, LinearGroup, Norm

Tail = Callable[[torch.Tensor], torch.Tensor]


class DecoderModel(ModelPlan):
    """A decoder's parts as `check` found them, until the model changes.

    Nothing here, and no graph, refers to the module or to this but weakly: a model that is dropped is freed at once.
    """

    __slots__ = (
        "__weakref__", "_embedding", "_facts", "_module", "_mtp", "_ordered", "_per_layer", "_places", "_ropes",
        "_split", "_streams", "config", "decoder", "device", "dtype", "final", "graphs", "guard", "prompts_differ",
        "recurrent", "rotary", "vocabulary",
    )  # fmt: skip

    def __init__(self, module: Any, state: ModelState) -> None:
        super().__init__(state)
        self.graphs = GraphCache()
        decoder = decoder_of(module)
        assert decoder is not None
        self._module, self.decoder, self.config = weakref.ref(module), decoder, module.config
        self.rotary = Rotary(rotaries_of(module, decoder.rotary), decoder.mrope)
        self.dtype, self.device, self.vocabulary = torch.float32, torch.device("cpu"), 0
        self.final: Norm | None = None
        self.guard: ModuleGuard | None = None
        self._facts: Any = None
        self._ordered: list[LinearGroup] = []  # those whose columns are not stored as they come
        self._places: list[list[int]] = []  # of each layer's states among `specs`
        self._per_layer: PerLayerEmbedding | None = None
        self._streams: Streams | None = None
        self._mtp: FusedMTPInput | None = None
        self._embedding: TokenEmbedding | None = None
        self._split: list[tuple[Any, LayerPlan]] = []  # layers of which other processes have parts
        self._ropes: RopeTables | None = None

    @property
    def module(self) -> Any:
        """The decoder."""
        return self._module()

    @property
    def parts(self) -> tuple[Any, Any, Any]:
        """The decoder's embedding of ids, list of layers, and last norm."""
        module, names = self.module, self.decoder
        return getattr(module, names.embedding), getattr(module, names.layers), getattr(module, names.norm)

    @property
    def mixers(self) -> list[Mixer]:
        """Of the layers that have one."""
        return [plan.layer.mixer for plan in self.layers if plan.layer.mixer is not None]

    @property
    def owners(self) -> dict[int, Mixer]:
        """The mixers that keep a state of their own, by the number of their layer in a cache."""
        mixers = ((plan.spec.layer_idx, plan.layer.mixer) for plan in self.layers)
        return {index: mixer for index, mixer in mixers if mixer is not None and mixer.source is None}

    @property
    def specs(self) -> list[KVSpec | RecurrentSpec]:
        """What is kept of a sequence: of each of `owners`, and of each of its parts."""
        return [spec for mixer in self.owners.values() for spec in specs_of(mixer.state)]

    def check(self) -> None:
        """Raise Fallback if no step may be captured or replayed now. Cheap if nothing has changed since."""
        if reason := recording_reason() or attention_reason(self.config):
            raise Fallback(reason)
        if torch._C._len_torch_dispatch_stack():  # of this thread, unlike torch's flag; it wants to see each op
            raise Fallback("a dispatch mode is active")
        if self.guard is None or not self.guard.is_valid() or self._facts != self._read_facts():
            self._renew()
        assert self.guard is not None
        if reason := device_reason(self.dtype, self.device.type):
            raise Fallback(reason)
        if torch.is_grad_enabled() and self.guard.requires_grad():
            raise Fallback("gradients are needed")

    def _read_facts(self) -> tuple[Any, ...]:
        """Numbers that end up in launches, and what decides which these are."""
        module = self.module
        tables = (self.parts[0], module._modules.get("embed_tokens_per_layer"))
        scales = [scale for m in tables if m is not None and (scale := m._buffers.get("embed_scale")) is not None]
        versions = [(id(scale), version_of(scale)) for scale in scales]
        routing = [experts.facts() for plan in self.layers if (experts := plan.layer.experts) is not None]
        orders = [group.same_perm for group in self._ordered]
        routing += [facts for mixer in self.mixers if (facts := mixer.facts())]
        return self.config.num_hidden_layers, self.decoder.factor(module), versions, routing, orders, self._stale()

    def _stale(self) -> bool:
        """Whether what is split over processes is another by now."""
        moved = self._embedding is not None and self._embedding.changed()
        split = (plan.shards.changed() or plan.watch.changed() or layer.training for layer, plan in self._split)
        return moved or any(split)

    @property
    def split(self) -> bool:
        """Whether other processes have parts of it, and take the same steps at the same time."""
        return bool(self._split) or (self._embedding is not None and self._embedding.rows is not None)

    def forget(self) -> None:
        """Let go of captured steps, and of the tensors that they read."""
        self.guard, self._ropes, self._embedding = None, None, None
        self.graphs.clear()

    def _renew(self) -> None:
        self.guard = None
        self.graphs.clear()
        module = self.module
        if module.training:
            raise Fallback("training")
        embedding, listed, norm = self.parts
        used = list(listed)[: self.config.num_hidden_layers]
        self._embedding, self._split = None, []
        self.dtype, self.device = dtype_of(embedding), embedding.weight.device
        self.layers = [self._layer(layer) for layer in used]
        pairs = list(zip(used, self.layers, strict=True))
        self._split = [(layer, plan) for layer, plan in pairs if plan.shards.view is not None]
        if not self.layers:
            raise Fallback("no layers")
        for plan in self.layers:
            plan.layer.prepare(self.dtype, self.device)
        owners, mixers = self.owners, self.mixers
        if not owners:
            raise Fallback("no layers in which tokens see each other")
        numbers = [index for index, mixer in owners.items() for _ in specs_of(mixer.state)]
        self._places = [[i for i, index in enumerate(numbers) if index == plan.place] for plan in self.layers]
        self.recurrent = any(isinstance(spec, RecurrentSpec) for spec in self.specs)
        self.prompts_differ = any(mixer.prompts_differ for mixer in mixers)
        self._ordered = [
            group
            for plan in self.layers
            for part in (plan.layer.mixer, plan.layer.block)
            for group in (() if part is None else part.groups)
            if any(linear.order is not None for linear in group)
        ]
        self._embedding = TokenEmbedding(module, self.decoder)
        if not is_swapped(norm) or norm_kind(norm) is None:
            raise Fallback(f"the last norm is a {type(norm).__name__}")
        self.final = Norm(norm)
        self.rotary = Rotary(rotaries_of(module, self.decoder.rotary), self.decoder.mrope)
        self.vocabulary = embedding.num_embeddings
        first = self.layers[0].spec
        self._per_layer = PerLayerEmbedding(module, self.decoder.unknown_first) if first.per_layer else None
        self._streams = Streams(module) if first.streams else None
        self._mtp = input_of(module)
        parts = (self._per_layer, self._streams, self._mtp)
        others = [m for part in parts if part is not None for m in part.modules]
        others += self._embedding.modules
        rest = tuple(m._parameters for m in (norm, *others))
        for parameters, *exempt in ((rest,), *((plan.parameters, *plan.exempt) for plan in self.layers)):
            if reason := weight_reason(parameters, self.dtype, *exempt):
                raise Fallback(reason)
        if any(plan.scalar is not None and plan.scalar.dtype != self.dtype for plan in self.layers):
            raise Fallback("layer_scalar is not of the model's dtype")
        inside = (m for layer, plan in pairs for m in (plan.shards.view or layer).modules())
        guard = ModuleGuard([listed, norm, *others, *inside], module)
        if reason := guard.reason():
            raise Fallback(reason)
        if any(t.device != self.device for t in guard.tensors):
            raise Fallback("weights on several devices")
        self._facts, self.guard = self._read_facts(), guard

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

    @property
    def most_positions(self) -> int | None:
        """As of `TokenEmbedding`."""
        return None if self._embedding is None else self._embedding.most_positions

    def embed(self, ids: torch.Tensor, gemm: Gemm, states: Sequence[Any] = ()) -> torch.Tensor:
        """Ids [B, L] to their embeddings, [B, L, hidden], normed if the decoder does so. states: as of `forward`."""
        assert self._embedding is not None
        x = self._embedding(ids, gemm, states)
        return self.norm(x) if self.decoder.first_norm else x

    def new_hidden(self, batch: int, length: int) -> torch.Tensor | None:
        """Memory for hidden states [B, L, hidden], if the decoder is an MTP head's."""
        size = batch, length, self.config.hidden_size
        return None if self._mtp is None else torch.zeros(size, dtype=self.dtype, device=self.device)

    def embed_beside(
        self, ids: torch.Tensor, hidden: torch.Tensor | None, gemm: Gemm, states: Sequence[Any] = ()
    ) -> torch.Tensor:
        """What the first layer gets, [B, L, hidden]; hidden: as large, if the decoder is an MTP head's."""
        x = self.embed(ids, gemm, states)
        if self._mtp is None:
            return x
        assert hidden is not None
        return self._mtp(x, hidden, gemm)

    def of_layers(self, states: Sequence[Any]) -> list[Any]:
        """What each layer's mixer is given, of those of `specs`; None where there is no mixer."""
        found = (tuple(states[place] for place in places) for places in self._places)
        return [own if len(own) > 1 else next(iter(own), None) for own in found]

    def per_layer(self, ids: torch.Tensor, x: torch.Tensor, gemm: Gemm) -> Sequence[torch.Tensor | None]:
        """What the `PerLayerBlock` of each layer takes, of ids [B, L] and their embeddings x."""
        return [None] * len(self.layers) if self._per_layer is None else self._per_layer(ids, x, gemm)

    def expand(self, x: torch.Tensor, gemm: Gemm) -> torch.Tensor:
        """Embeddings [B, L, hidden] as layers take them."""
        return x if self._streams is None else self._streams.expand(x, gemm)

    def collapse(self, x: torch.Tensor, gemm: Gemm) -> torch.Tensor:
        """What layers give as the last norm takes it, [B, L, hidden]."""
        return x if self._streams is None else self._streams.collapse(x, gemm)

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
        self, ids: torch.Tensor, states: Sequence[Any], tables: Mapping[Kind, Table], gemm: Gemm, *,
        hidden: torch.Tensor | None = None, tail: Tail | None = None, scoped: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """The last norm's result for ids [B, L], [B, L, hidden], or what `tail` makes of it.

        states: views of what `specs` say. tables: by kind of layer. hidden: see `embed_beside`. scoped: count launches.
        """
        under = scope if scoped else contextlib.nullcontext
        with under("embedding"):
            x = self.embed_beside(ids, hidden, gemm, states)
            inputs, x = self.per_layer(ids, x, gemm), self.expand(x, gemm)
        for plan, state, given in zip(self.layers, self.of_layers(states), inputs, strict=True):
            x = forward(plan.layer, x, state, plan.layer.rope(tables), gemm, given=given, scoped=scoped)
        with under("head"):
            x = self.norm(self.collapse(x, gemm))
            return x if tail is None else tail(x)


def decoder_plan(model: Any) -> DecoderModel:
    """The plan of a patched language model's decoder. Raises Fallback."""
    plan: DecoderModel = path_to_decoder(model)[-1].decoder_plan()
    return plan
