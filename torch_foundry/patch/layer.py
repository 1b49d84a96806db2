"""The fused decoder layer: one for all families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_foundry import ops
from torch_foundry.kvcache.adopt import ForeignCache, slot_of
from torch_foundry.kvcache.formats import PLAIN
from torch_foundry.kvcache.layer import FoundryLayer, FoundrySlidingLayer
from torch_foundry.kvcache.paged import PagedLayer
from torch_foundry.patch import continuous
from torch_foundry.patch.guard import Watch, attention_reason, mask_reason, recording_reason, tensor_reason
from torch_foundry.patch.memory import Described, explain, is_out_of_memory
from torch_foundry.patch.moe import ExpertBlock
from torch_foundry.patch.spec import Unsupported, build_spec
from torch_foundry.patch.state import Blocked, ModelState, Plan
from torch_foundry.patch.swap import FoundryModule
from torch_foundry.patch.weights import Linear, Norm, Siblings, weight_reason

CacheLayer = FoundryLayer | FoundrySlidingLayer | PagedLayer | continuous.Continuous
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
    """A decoder layer's spec, its weights by role, and what it watches."""

    __slots__ = (
        "config", "down", "experts", "gate_up", "o", "parameters", "post_attn", "post_ffn", "pre_attn", "pre_ffn",
        "qk_norm", "qkv", "spec", "watch", "widths",
    )  # fmt: skip

    def __init__(self, layer: nn.Module, state: ModelState) -> None:
        super().__init__(state)
        spec = self.spec = build_spec(layer)
        attn: Any = layer.self_attn
        mlp: Any = layer.mlp
        roles = spec.family.norms
        self.config = attn.config
        self.watch = Watch(layer)

        def norm(name: str | None) -> Norm | None:
            return Norm(getattr(layer, name)) if name else None

        def linears(parent: nn.Module, *names: str) -> Siblings:
            return Siblings(Linear(getattr(parent, name)) for name in names if name in parent._modules)

        self.pre_attn, self.post_attn = norm(roles.pre_attn), norm(roles.post_attn)
        self.pre_ffn, self.post_ffn = norm(roles.pre_ffn), norm(roles.post_ffn)
        self.qk_norm = None if spec.family.qk_norm == "none" else (Norm(attn.q_norm), Norm(attn.k_norm))
        self.qkv = linears(attn, "qkv_proj", "q_proj", "k_proj", "v_proj")  # one or three
        self.o = Linear(attn.o_proj)
        self.gate_up = linears(mlp, "gate_up_proj", "gate_proj", "up_proj")  # one or two; none of experts
        self.experts: ExpertBlock | None = None
        if spec.experts:
            assert spec.family.experts is not None
            self.experts = ExpertBlock(mlp, spec.family.experts, spec.activation)
        else:
            self.down = Linear(mlp.down_proj)
        self.widths = [heads * spec.head_dim for heads in (spec.n_heads, spec.n_kv_heads, spec.n_kv_heads)]
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
        except Blocked as blocked:
            plan.fell_back(self._foundry_base.__name__, str(blocked))
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
        try:
            plan = LayerPlan(self, self._foundry.state)
        except Unsupported as unsupported:
            raise Blocked(str(unsupported)) from None
        plan.fused, plan.fallbacks = self._foundry.fused, self._foundry.fallbacks
        self.__dict__["_foundry"] = plan
        return plan


def check(
    plan: LayerPlan, training: bool, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[CacheLayer | None, int]:
    """The cache layer to write to (None: no cache) and the number of keys to attend to. Raises Blocked if stock code
    has to run."""
    if training:
        raise Blocked("training")
    if args:
        raise Blocked("positional arguments")
    requests = kwargs.get("cache")  # of continuous batching
    known, attention = (KNOWN, attention_reason) if requests is None else (KNOWN_OF_MANY, continuous.attention_reason)
    for name in kwargs:
        if name not in known and (value := kwargs[name]) is not None and (name, value) != ("is_causal", True):
            raise Blocked(f"argument {name}")
    mask = kwargs.get("attention_mask")
    if torch.is_grad_enabled() and plan.needs_grad(x, mask):
        raise Blocked("gradients are needed")
    if reason := tensor_reason(x) or plan.watch.changed() or recording_reason() or attention(plan.config):
        raise Blocked(reason)
    dtype = x.dtype
    if reason := weight_reason(plan.parameters, dtype):
        raise Blocked(reason)
    spec = plan.spec
    if spec.rope and kwargs.get("position_embeddings") is None:
        raise Blocked("no position embeddings")
    batch, queries, _ = x.shape
    slot, keys = None, queries
    cache = kwargs.get("past_key_values")
    if requests is not None:
        if cache is not None:
            raise Blocked("two caches")
        pages = continuous.Continuous(spec.layer_idx, kwargs)
        pages.check(plan, x, mask)
        return pages, keys
    if cache is not None:
        try:
            slot = slot_of(cache, spec.layer_idx, plan.state.kv_cache)
        except ForeignCache as foreign:
            raise Blocked(f"cache is {foreign}") from None
        if not slot.fits(batch, spec.n_kv_heads, spec.head_dim, dtype, x.device):
            raise Blocked("cache holds another shape, dtype or device")
        keys = slot.visible(queries)
    if mask is not None and (reason := mask_reason(mask, dtype, batch, spec.n_heads, queries, keys)):
        raise Blocked(reason)
    return slot, keys


def run(
    plan: LayerPlan, x: torch.Tensor, mask: torch.Tensor | None, rotary: Rotary | None, slot: CacheLayer | None
) -> torch.Tensor:
    """The fused layer on x [B, L, hidden]. `slot` is the cache layer to extend; None: attend to these tokens only."""
    spec = plan.spec
    x = x.contiguous()
    h = attend(plan, x if plan.pre_attn is None else plan.pre_attn(x), mask, rotary, slot)
    x = project(plan.o.of_many, h, x, plan.post_attn, spec.residual_scale)
    if plan.experts is not None:
        assert plan.pre_ffn is not None
        return plan.experts(x, plan.pre_ffn, spec.residual_scale)
    h = x if plan.pre_ffn is None else plan.pre_ffn(x)
    gate_up = plan.gate_up.products(h, Linear.of_many)
    gate, up = gate_up if len(gate_up) == 2 else gate_up[0].chunk(2, dim=-1)
    return project(plan.down.of_many, ops.glu(gate, up, spec.activation), x, plan.post_ffn, spec.residual_scale)


def tensors(plan: LayerPlan, x: torch.Tensor, keys: int) -> dict[str, Described]:
    """The tensors of a layer that grow with the prompt, by name."""
    spec, (batch, queries, hidden) = plan.spec, x.shape
    cache = ([batch, spec.n_kv_heads, keys, spec.head_dim], x.dtype)
    shapes = {"hidden states": [batch, queries, hidden], "MLP": [batch, queries, 2 * spec.inner]}
    return {name: (shape, x.dtype) for name, shape in shapes.items()} | {"keys": cache, "values": cache}


def project(
    linear: Callable[..., torch.Tensor], h: torch.Tensor, x: torch.Tensor, post_norm: Norm | None, scale: float
) -> torch.Tensor:
    """Back to the residual stream: x + scale * W h, or x + norm(W h)."""
    return linear(h, x, scale) if post_norm is None else post_norm(linear(h), x)


def attend(
    plan: LayerPlan, h: torch.Tensor, mask: torch.Tensor | None, rotary: Rotary | None, slot: CacheLayer | None
) -> torch.Tensor:
    """Attention up to the output projection: [B, L, n_heads * head_dim]."""
    spec = plan.spec
    batch, queries, _ = h.shape
    qkv = plan.qkv.products(h, Linear.of_many)
    q, k, v = qkv if len(qkv) == 3 else qkv[0].split(plan.widths, dim=-1)
    if plan.qk_norm is not None:
        q_norm, k_norm = plan.qk_norm
        if spec.family.qk_norm == "head":
            q = q_norm(q.view(batch, queries, -1, spec.head_dim)).view(batch, queries, -1)
            k = k_norm(k.view(batch, queries, -1, spec.head_dim)).view(batch, queries, -1)
        else:
            q, k = q_norm(q), k_norm(k)
    if isinstance(slot, continuous.Continuous):
        return slot.attend(plan, q, k, v, mask, rotary)
    start, kv_len, formats = 0, queries, PLAIN if slot is None else slot.formats
    stored: dict[str, Any] = dict(zip(("k_format", "v_format"), formats, strict=True))
    if slot is None:
        keys = h.new_empty(batch, spec.n_kv_heads, queries, spec.head_dim)
        values = torch.empty_like(keys)
    else:
        keys, values, start = slot.reserve(batch, spec.n_kv_heads, spec.head_dim, queries, h.dtype, h.device)
        stored |= slot.addressing()
    cos, sin = rotary if spec.rope and rotary is not None else (None, None)
    # [B, n_heads, L, head_dim]
    q = ops.rope_and_cache(q, k, v, cos, sin, keys, values, start, head_dim=spec.head_dim, **stored)
    if slot is not None:
        keys, values, kv_len = slot.advance(queries)
    return ops.attention(
        q,
        keys,
        values,
        kv_len,
        scale=spec.scale,
        mask=mask,
        causal=mask is None,
        window=spec.window if mask is None else 0,
        softcap=spec.softcap,
        **stored,
    )
