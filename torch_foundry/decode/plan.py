"""A decoder model's parts, checked, and the tapes of its steps."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry import ops
from torch_foundry.core.errors import Fallback
from torch_foundry.decode.models import decoder_of
from torch_foundry.decode.state import RopeTables, Rotary
from torch_foundry.decode.tape import CacheTapes
from torch_foundry.decode.watch import Snapshot
from torch_foundry.nn import FoundryEmbedding
from torch_foundry.patch.guard import attention_reason, device_reason, recording_reason
from torch_foundry.patch.layer import LayerMixin, LayerPlan
from torch_foundry.patch.leaves import EmbeddingMixin, NormMixin
from torch_foundry.patch.state import ModelPlan, ModelState
from torch_foundry.patch.weights import Norm, Siblings, weight_reason


class DecoderPlan(ModelPlan):
    """What `check` found, until the model changes."""

    __slots__ = (
        "_facts", "_ordered", "_ropes", "_scale", "_tapes", "config", "decoder", "device", "dtype", "final", "module",
        "proven", "rotary", "snapshot", "vocabulary",
    )  # fmt: skip

    def __init__(self, module: Any, state: ModelState) -> None:
        super().__init__(state)
        decoder = decoder_of(module)
        assert decoder is not None
        self.module, self.decoder, self.config = module, decoder, module.config
        self.rotary = Rotary(module.rotary_emb)
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.vocabulary = 0
        self.final: Norm | None = None
        self.snapshot: Snapshot | None = None
        self.proven: set[Any] = set()  # kinds of steps that were seen to launch nothing but our kernels
        self._facts: Any = None
        self._ordered: list[Siblings] = []  # those whose columns are not stored as they come
        self._scale = 1.0
        self._ropes: RopeTables | None = None
        self._tapes: weakref.WeakKeyDictionary[DynamicCache, CacheTapes] = weakref.WeakKeyDictionary()

    def check(self) -> None:
        """Raise Fallback if a step may not be taken by a tape now. Cheap if nothing has changed since the last call."""
        if reason := recording_reason() or attention_reason(self.config):
            raise Fallback(reason)
        if torch._C._len_torch_dispatch_stack():  # of this thread, unlike torch's flag; it wants to see each op
            raise Fallback("a dispatch mode is active")
        if self.snapshot is None or self._facts != self._read_facts() or not self.snapshot.holds():
            self._renew()
        assert self.snapshot is not None
        if reason := device_reason(self.dtype, self.device.type):
            raise Fallback(reason)
        if torch.is_grad_enabled() and self.snapshot.requires_grad():
            raise Fallback("gradients are needed")

    def _read_facts(self) -> tuple[Any, ...]:
        """Numbers that end up in launches, and what decides which these are."""
        module = self.module
        scale = module.embed_tokens._buffers.get("embed_scale")
        version = None if scale is None else (id(scale), 0 if scale.is_inference() else scale._version)
        multiplier = self.decoder.multiplier
        routing = [experts.facts() for plan in self.layers if (experts := plan.layer.experts) is not None]
        orders = [siblings.in_one_order for siblings in self._ordered]
        return self.config.num_hidden_layers, multiplier and getattr(module, multiplier), version, routing, orders

    def forget(self) -> None:
        """Let go of tapes, and of the tensors that they read."""
        self.snapshot, self._ropes = None, None
        self._tapes.clear()

    def _renew(self) -> None:
        self.snapshot = None
        self.proven.clear()
        self._tapes.clear()
        module = self.module
        if module.training:
            raise Fallback("training")
        used = list(module.layers)[: self.config.num_hidden_layers]
        self.layers = [self._layer(layer) for layer in used]
        if not self.layers:
            raise Fallback("no layers")
        self._ordered = [
            siblings
            for plan in self.layers
            for siblings in (*plan.layer.mixer.groups, *plan.layer.block.groups)
            if any(linear.order is not None for linear in siblings)
        ]
        embedding: Any = module.embed_tokens
        norm: Any = module.norm
        if not issubclass(type(embedding), EmbeddingMixin | FoundryEmbedding):
            raise Fallback(f"the embedding is a {type(embedding).__name__}")
        if not issubclass(type(norm), NormMixin):
            raise Fallback(f"the last norm is a {type(norm).__name__}")
        self.final = Norm(norm)
        self.rotary = Rotary(module.rotary_emb)
        self.vocabulary = embedding.num_embeddings
        self.dtype, self.device = self.final.weight.dtype, self.final.weight.device
        rest = (norm._parameters, embedding._parameters)
        for owners in (rest, *(plan.parameters for plan in self.layers)):
            if reason := weight_reason(owners, self.dtype):
                raise Fallback(reason)
        snapshot = Snapshot([module, module.layers, embedding, norm, *(m for layer in used for m in layer.modules())])
        if reason := snapshot.reason():
            raise Fallback(reason)
        if any(t.device != self.device for t in snapshot.tensors):
            raise Fallback("weights on several devices")
        self._facts = self._read_facts()
        self._scale = self._read_scale()
        self.snapshot = snapshot

    def _layer(self, layer: Any) -> LayerPlan:
        if not isinstance(layer, LayerMixin):
            raise Fallback(f"{type(layer).__name__} is not fused")
        plan = layer._foundry
        if plan.__class__ is not LayerPlan:
            plan = layer._make_plan()
        if layer.training:
            raise Fallback("training")
        if plan.config is not self.config:
            raise Fallback("a layer has a config of its own")  # `check` looks at one
        if reason := plan.watch.changed():
            raise Fallback(reason)
        return plan

    def _read_scale(self) -> float:
        embedding = self.module.embed_tokens
        buffer = embedding._buffers.get("embed_scale")
        scale = 1.0 if buffer is None else float(buffer)
        if self.decoder.multiplier is not None:
            scale *= float(getattr(self.module, self.decoder.multiplier))
            if float(torch.tensor(scale, dtype=self.dtype)) != scale:  # stock code multiplies by the exact number
                raise Fallback("the factor on the embedding is not one of the model's dtype")
        return scale

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids [B, L] to what the first layer gets, [B, L, hidden]."""
        embedding = self.module.embed_tokens
        fmt = embedding.format if isinstance(embedding, FoundryEmbedding) else None
        return ops.embedding(ids, embedding.weight, format=fmt, dtype=self.dtype, scale=self._scale)

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        """The last norm."""
        assert self.final is not None
        return self.final(x)

    def rope_tables(self, rows: int, like: torch.Tensor) -> RopeTables:
        """cos and sin of at least `rows` positions."""
        ropes = self._ropes
        if ropes is None or ropes.rows < rows or ropes.like != (like.dtype, like.device) or not ropes.hold():
            ropes = self._ropes = RopeTables(self.rotary, rows, like)
        return ropes

    def tapes_of(self, cache: DynamicCache) -> CacheTapes:
        """The tapes on `cache`; they live as long as it does. Raises Fallback if its layers are not ours."""
        tapes = self._tapes.get(cache)
        if tapes is None or not tapes.layers.belong_to(cache):
            tapes = self._tapes[cache] = CacheTapes(cache, len(self.layers), self.state.kv_cache)
        return tapes
