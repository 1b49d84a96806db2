"""The fused decoder layer: one for all families."""

from __future__ import annotations

from typing import Any

import torch

from torch_foundry.core.errors import Fallback
from torch_foundry.hf import continuous_batching
from torch_foundry.hf.out_of_memory import Described, explain, is_out_of_memory
from torch_foundry.kvcache.base import CacheLayer, KVLayer, KVSpec
from torch_foundry.kvcache.buffered import Buffered
from torch_foundry.kvcache.formats import PLAIN
from torch_foundry.kvcache.hf_cache import kv_layer
from torch_foundry.kvcache.view import Rope, SharedKeys
from torch_foundry.models.attention import Attention
from torch_foundry.models.guards import recording_reason, tensor_reason, weight_reason
from torch_foundry.models.layer import forward
from torch_foundry.models.layer_plan import LayerPlan
from torch_foundry.models.rope import tables_of
from torch_foundry.models.swap import FoundryModule
from torch_foundry.models.weights import AUTO

Store = CacheLayer | continuous_batching.Continuous | SharedKeys
CACHES = ("past_key_values", "layer_past")  # how layers call it
USED = frozenset({*CACHES, "position_embeddings", "shared_kv_states"})
OWN = "per_layer_input"  # a layer's own embedding
# what callers pass down without meaning for the result of a layer
IGNORED = frozenset(
    {
        "position_ids",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "logits_to_keep",
        "tokenizer",
    }
)
KNOWN = USED | IGNORED
KNOWN_OF_MANY = KNOWN | continuous_batching.ARGUMENTS


class LayerMixin(FoundryModule):
    """`forward` of a swapped decoder layer."""

    training: bool

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """The fused layer, or the stock one for whatever the fused layer does not do."""
        if torch.compiler.is_compiling():  # the compiler fuses stock code itself
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        plan = self._foundry
        if not plan.state.enabled:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        try:
            if plan.__class__ is not LayerPlan or plan.outdated():
                plan = self.layer_plan()
            given = plan.named(args, kwargs)
            store = check(plan, self.training, hidden_states, given)
        except Fallback as fallback:
            plan.fell_back(self._foundry_base.__name__, str(fallback))
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        plan.fused += 1
        try:
            y = run(plan, hidden_states, given, store)
        except RuntimeError as error:
            if is_out_of_memory(error):
                name = f"{self._foundry_base.__name__} {plan.spec.layer_idx}"
                explain(error, name, tensors(plan, hidden_states, store))
            raise
        return (y, None) if plan.spec.family.pairs else y

    def layer_plan(self: Any) -> LayerPlan:
        """The plan; a copy of a layer makes its own, and one whose plan is outdated another."""
        plan = self._foundry
        if plan.__class__ is not LayerPlan or plan.outdated():
            own = self.__dict__["_foundry"] = LayerPlan(self, plan.state)
            own.fused, own.fallbacks = plan.fused, plan.fallbacks
        result: LayerPlan = self._foundry
        return result


def check(plan: LayerPlan, training: bool, hidden_states: torch.Tensor, kwargs: dict[str, Any]) -> Store | None:
    """The cache layer to write to; None: no cache. Raises Fallback if stock code has to run."""
    if training:
        raise Fallback("training")
    requests = kwargs.get("cache")  # of continuous batching
    mixer = plan.layer.mixer
    known, config_reason = KNOWN, None if mixer is None else mixer.config_reason
    if requests is not None:
        if not isinstance(mixer, Attention):
            raise Fallback(f"continuous batching of {type(mixer).__name__}")
        known, config_reason = KNOWN_OF_MANY, continuous_batching.attention_reason
    own = kwargs.get(OWN) if plan.spec.per_layer else None
    taken = plan.spec.family.masks if own is None else (*plan.spec.family.masks, OWN)
    for name, value in kwargs.items():
        if name not in known and name not in taken and value is not None and (name, value) != ("is_causal", True):
            raise Fallback(f"argument {name}")
    if kwargs.get("output_attentions"):  # of models that record them by themselves
        raise Fallback("output_attentions")
    if torch.is_grad_enabled() and plan.needs_grad(hidden_states, kwargs.get("attention_mask")):
        raise Fallback("gradients are needed")
    if plan.layer.streams is not None and (hidden_states.ndim != 4 or own is None):
        raise Fallback("no streams, or no embedding of the layer's own")
    x = plan.layer.seen(hidden_states)
    reason = tensor_reason(x) or plan.watch.changed() or recording_reason()
    if reason := reason or (config_reason and config_reason(plan.config)):
        raise Fallback(reason)
    dtype = x.dtype
    if reason := weight_reason(plan.parameters, dtype, *plan.exempt):
        raise Fallback(reason)
    if any(tensor is not None and (tensor.dtype, tensor.device) != (dtype, x.device) for tensor in (own, plan.scalar)):
        raise Fallback("layer_scalar or the layer's own embedding differs in dtype or device")
    if mixer is None:
        return None
    mask = mask_of(plan, kwargs)
    if mixer.rope and kwargs.get("position_embeddings") is None:
        raise Fallback("no position embeddings")
    if plan.spec.family.scaled_queries and kwargs.get("position_ids") is None:
        raise Fallback("no position_ids")
    store: CacheLayer | None = None
    cache = next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)
    if requests is not None:
        if cache is not None:
            raise Fallback("two caches")
        assert isinstance(mixer, Attention)
        if mixer.source is not None or mixer.hands_on:
            raise Fallback("continuous batching of keys that layers share")
        pages = continuous_batching.Continuous(plan.spec.layer_idx, mixer.spec, kwargs)
        pages.check(x, mask)
        return pages
    if mixer.source is not None:
        shared = shared_keys(plan, kwargs.get("shared_kv_states"), x)
        if mask is not None and (reason := mixer.mask_reason(mask, x, shared)):
            raise Fallback(reason)
        return shared
    if cache is not None:
        store = kv_layer(cache, plan.spec.layer_idx, plan.state.kv_cache)
        if not store.fits(x.shape[0], mixer.state, dtype, x.device):
            raise Fallback("cache holds another shape, dtype or device")
        if mixer.hands_on and not (isinstance(store, Buffered) and store.kv_cache == PLAIN):
            raise Fallback("keys that layers share are not stored as they are")
    if mask is not None and (reason := mixer.mask_reason(mask, x, store)):
        raise Fallback(reason)
    return store


def mask_of(plan: LayerPlan, given: dict[str, Any]) -> Any:
    """What the mixer is given of the arguments, or several of these; None: nothing is masked."""
    masks = tuple(map(given.get, plan.spec.family.masks))
    if len(masks) == 1:
        return masks[0]
    return None if all(mask is None for mask in masks) else masks


def shared_keys(plan: LayerPlan, states: Any, x: torch.Tensor) -> SharedKeys:
    """The keys and values that another layer has handed on to this one, for x [B, L, hidden]. Raises Fallback."""
    found = None if states is None else states.get(plan.config.layer_types[plan.spec.layer_idx])
    if found is None:
        raise Fallback("no keys of another layer")
    assert plan.layer.mixer is not None
    spec, (k, v) = plan.layer.mixer.state, found
    assert isinstance(spec, KVSpec)
    expected = (x.shape[0], spec.heads, k.shape[2], spec.head_dim)
    if any((*t.shape,) != expected or (t.dtype, t.device) != (x.dtype, x.device) or t.stride(-1) != 1 for t in (k, v)):
        raise Fallback("keys of another layer have another shape, dtype or device")
    return SharedKeys(k, v)


def run(plan: LayerPlan, hidden_states: torch.Tensor, given: dict[str, Any], store: Store | None) -> torch.Tensor:
    """The fused layer on hidden_states [B, L, hidden], or streams of that. `store` is the cache layer to extend; None:
    attend to these tokens only. given: arguments of stock's."""
    layer, mixer, streams = plan.layer, plan.layer.mixer, hidden_states.contiguous()
    x = layer.seen(streams)
    rope: Rope = (None, None)
    if mixer is not None and mixer.rope:
        rope = tables_of(plan.spec.family, plan.config, given["position_embeddings"], given.get("position_ids"))
    kv: Any = store
    if mixer is not None and not isinstance(store, continuous_batching.Continuous):
        kv = mixer.reserve(store, x)
    mask = None if mixer is None else mask_of(plan, given)
    y = forward(layer, streams, kv, rope, AUTO, mask, given=given.get(OWN))
    if mixer is not None and mixer.hands_on and given.get("shared_kv_states") is not None:
        seen = (t.narrow(2, 0, kv.kv_len) for t in (kv.k, kv.v))
        given["shared_kv_states"][plan.config.layer_types[plan.spec.layer_idx]] = tuple(seen)
    if isinstance(store, CacheLayer):
        store.commit(x.shape[1])
    return y


def tensors(plan: LayerPlan, x: torch.Tensor, store: Store | None) -> dict[str, Described]:
    """The tensors of a layer that grow with the prompt, by name."""
    spec, mixer, (batch, queries, hidden) = plan.spec, plan.layer.mixer, x.shape[-3:]
    shapes = {"hidden states": [batch, queries, hidden], "MLP": [batch, queries, 2 * spec.inner]}
    if isinstance(mixer, Attention):
        keys = store.visible(queries) if isinstance(store, KVLayer) else queries
        shapes["keys"] = shapes["values"] = [batch, mixer.state.heads, keys, mixer.state.head_dim]
    return {name: (shape, x.dtype) for name, shape in shapes.items()}
