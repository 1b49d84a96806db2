"""The fused decoder layer: one for all families."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from torch_foundry.core.errors import Fallback
from torch_foundry.kvcache.adopt import slot_of
from torch_foundry.kvcache.base import KVLayer
from torch_foundry.patch import continuous
from torch_foundry.patch.forward import FusedLayer, forward
from torch_foundry.patch.guard import Watch, attention_reason, mask_reason, recording_reason, tensor_reason
from torch_foundry.patch.memory import Described, explain, is_out_of_memory
from torch_foundry.patch.spec import build_spec
from torch_foundry.patch.state import ModelState, Plan
from torch_foundry.patch.swap import FoundryModule
from torch_foundry.patch.weights import AUTO, weight_reason

Slot = KVLayer | continuous.Continuous
Rotary = tuple[torch.Tensor, torch.Tensor]  # cos, sin: [B or 1, L, rotated dims]
USED = frozenset({"attention_mask", "past_key_values", "position_embeddings"})
# what callers pass down without meaning for the result of a layer
IGNORED = frozenset(
    {
        "position_ids",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "tokenizer",
    }
)
KNOWN = USED | IGNORED
KNOWN_OF_MANY = KNOWN | continuous.ARGUMENTS


class LayerPlan(Plan):
    """A decoder layer for the fused path, and what it watches."""

    __slots__ = ("config", "layer", "parameters", "spec", "watch")

    def __init__(self, layer: nn.Module, state: ModelState) -> None:
        super().__init__(state)
        self.spec = build_spec(layer)
        self.layer = FusedLayer(layer, self.spec)
        self.config = self.layer.config
        self.watch = Watch(layer)
        self.parameters = tuple(m._parameters for m in layer.modules() if m._parameters)

    def needs_grad(self, x: torch.Tensor, mask: torch.Tensor | None) -> bool:
        """Whether autograd would record this call."""
        if x.requires_grad or (mask is not None and mask.requires_grad):
            return True
        return any(p is not None and p.requires_grad for owner in self.parameters for p in owner.values())


class LayerMixin(FoundryModule):
    """`forward` of a swapped decoder layer."""

    training: bool

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The fused layer, or the stock one for whatever the fused layer does not do."""
        if torch.compiler.is_compiling():  # the compiler fuses stock code itself
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        plan = self._foundry
        if not plan.state.enabled:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        try:
            if plan.__class__ is not LayerPlan:
                plan = self._make_plan()
            slot, keys = check(plan, self.training, hidden_states, args, kwargs)
        except Fallback as fallback:
            plan.fell_back(self._foundry_base.__name__, str(fallback))
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        plan.fused += 1
        try:
            return run(plan, hidden_states, kwargs.get("attention_mask"), kwargs.get("position_embeddings"), slot)
        except RuntimeError as error:
            if is_out_of_memory(error):
                name = f"{self._foundry_base.__name__} {plan.spec.layer_idx}"
                explain(error, name, tensors(plan, hidden_states, keys))
            raise

    def _make_plan(self: Any) -> LayerPlan:
        plan = LayerPlan(self, self._foundry.state)
        plan.fused, plan.fallbacks = self._foundry.fused, self._foundry.fallbacks
        self.__dict__["_foundry"] = plan
        return plan


def check(
    plan: LayerPlan, training: bool, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Slot | None, int]:
    """The cache layer to write to (None: no cache) and the number of keys to attend to. Raises Fallback if stock code
    has to run."""
    if training:
        raise Fallback("training")
    if args:
        raise Fallback("positional arguments")
    requests = kwargs.get("cache")  # of continuous batching
    known, attention = (KNOWN, attention_reason) if requests is None else (KNOWN_OF_MANY, continuous.attention_reason)
    for name in kwargs:
        if name not in known and (value := kwargs[name]) is not None and (name, value) != ("is_causal", True):
            raise Fallback(f"argument {name}")
    mask = kwargs.get("attention_mask")
    if torch.is_grad_enabled() and plan.needs_grad(x, mask):
        raise Fallback("gradients are needed")
    if reason := tensor_reason(x) or plan.watch.changed() or recording_reason() or attention(plan.config):
        raise Fallback(reason)
    dtype = x.dtype
    if reason := weight_reason(plan.parameters, dtype):
        raise Fallback(reason)
    spec = plan.spec
    if spec.rope and kwargs.get("position_embeddings") is None:
        raise Fallback("no position embeddings")
    batch, queries, _ = x.shape
    slot: KVLayer | None = None
    keys = queries
    cache = kwargs.get("past_key_values")
    if requests is not None:
        if cache is not None:
            raise Fallback("two caches")
        pages = continuous.Continuous(spec.layer_idx, kwargs)
        pages.check(spec, x, mask)
        return pages, keys
    if cache is not None:
        slot = slot_of(cache, spec.layer_idx, plan.state.kv_cache)
        if not slot.fits(batch, spec.n_kv_heads, spec.head_dim, dtype, x.device):
            raise Fallback("cache holds another shape, dtype or device")
        keys = slot.visible(queries)
    if mask is not None and (reason := mask_reason(mask, dtype, batch, spec.n_heads, queries, keys)):
        raise Fallback(reason)
    return slot, keys


def run(
    plan: LayerPlan, x: torch.Tensor, mask: torch.Tensor | None, rotary: Rotary | None, slot: Slot | None
) -> torch.Tensor:
    """The fused layer on x [B, L, hidden]. `slot` is the cache layer to extend; None: attend to these tokens only."""
    layer, x = plan.layer, x.contiguous()
    rope = rotary if plan.spec.rope and rotary is not None else (None, None)
    kv = slot if isinstance(slot, continuous.Continuous) else layer.mixer.reserve(slot, x)
    y = forward(layer, x, kv, rope, AUTO, mask)
    if isinstance(slot, KVLayer):
        slot.commit(x.shape[1])
    return y


def tensors(plan: LayerPlan, x: torch.Tensor, keys: int) -> dict[str, Described]:
    """The tensors of a layer that grow with the prompt, by name."""
    spec, (batch, queries, hidden) = plan.spec, x.shape
    cache = ([batch, spec.n_kv_heads, keys, spec.head_dim], x.dtype)
    shapes = {"hidden states": [batch, queries, hidden], "MLP": [batch, queries, 2 * spec.inner]}
    return {name: (shape, x.dtype) for name, shape in shapes.items()} | {"keys": cache, "values": cache}
