"""Deciding, per call, whether the fused path computes what the stock code would. Cheap: it runs before every layer."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.modules import module as nn_module
from transformers.utils import output_capturing

from torch_foundry.core.runtime import has_executor
from torch_foundry.nn.packing import KERNEL_DTYPES

# the hook of transformers' own recorders, installed for good by the first output_hidden_states=True
RECORDER = f"{output_capturing.__name__}.install_output_capuring_hook.<locals>.output_capturing_hook"
# implementations whose masks are 4D tensors, or None for "causal"
ATTENTION = frozenset({"sdpa", "eager"})
# what norms call the number that they add to a mean square, and attention those of scores and values
NUMBERS = ("eps", "variance_epsilon", "scaling", "qk_scale_factor", "v_scale")


def tensor_reason(x: torch.Tensor, *, differentiable: bool = False) -> str | None:
    """Why kernels may not run on `x`; None if they may. differentiable: as of `device_reason`."""
    if type(x) is not torch.Tensor and type(x) is not nn.Parameter:  # as a tower's queries are
        return f"input is a {type(x).__name__}"
    if not x.numel():
        return "empty input"
    return device_reason(x.dtype, x.device.type, differentiable=differentiable)


def device_reason(dtype: torch.dtype, kind: str, *, differentiable: bool = False) -> str | None:
    """Why kernels may not run on tensors of `dtype` on a device of this kind; None if they may.

    differentiable: by ops with a backward, which stand for what autocast leaves the inputs of as they are.
    """
    if dtype not in KERNEL_DTYPES:
        return f"dtype {str(dtype).removeprefix('torch.')}"
    if not has_executor(kind):
        return f"no executor for device {kind}"
    if kind != "meta" and not differentiable and torch.is_autocast_enabled(kind):
        return "autocast"
    if torch.jit.is_tracing():
        return "tracing"
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return "torch.func (vmap, grad ...) or derivatives in forward mode"
    return None


def derived_reason(module: Any) -> str | None:
    """Why the weight or bias of a leaf is made of other parameters, as pruning and parametrizations do; None if it
    isn't. It is no parameter then, and a norm would be taken for one without a weight."""
    own = module.__dict__
    if "weight" in own or "bias" in own or "parametrizations" in own["_modules"]:
        return "a weight is made of others (pruned, parametrized)"
    return None


def epsilon(norm: Any) -> float:
    """What `norm` adds to a mean square. OLMo's has no attribute for it."""
    return float(getattr(norm, "eps", getattr(norm, "variance_epsilon", 1e-5)))


class Numbers:
    """The `NUMBERS` of some modules, which plans and launches have as they were."""

    __slots__ = ("_owners", "_seen")

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        found = [m.__dict__ for m in modules]
        self._owners = [(itemgetter(name), [own for own in found if name in own]) for name in NUMBERS]
        self._seen = self._now()

    def _now(self) -> list[Any]:
        return [number for get, owners in self._owners for number in map(get, owners)]

    def changed(self) -> bool:
        """Whether one has been given another."""
        return self._now() != self._seen


class CallGuard:
    """The submodules of a layer as they were when its plan was made."""

    __slots__ = ("_entries", "numbers")

    def __init__(self, layer: nn.Module) -> None:
        entries = []
        for name, module in layer.named_modules():
            if name:
                parent, _, leaf = name.rpartition(".")
                group = layer.get_submodule(parent)._modules
                own = module.__dict__.get("forward")  # that of tensor parallelism, if it is understood
                entries.append((group, leaf, module, type(module), module.__dict__, own, name))
        self._entries, self.numbers = tuple(entries), Numbers(layer.modules())

    def changed(self) -> str | None:
        """Why a submodule may compute something else than planned (replaced, hooked ...); None if nothing changed."""
        if nn_module._global_forward_hooks or nn_module._global_forward_pre_hooks:
            return "global module hooks"
        for group, leaf, module, cls, attributes, own, name in self._entries:
            if group.get(leaf) is not module or module.__class__ is not cls:
                return f"{name} was replaced"
            hooks = attributes["_forward_hooks"]
            if attributes["_forward_pre_hooks"] or (hooks and not all(map(is_recorder, hooks.values()))):
                return f"forward hook on {name}"
            if attributes.get("forward") is not own:
                return f"forward of {name} was replaced"
        return None


def is_recorder(hook: Any) -> bool:
    """Whether that is all that a forward hook does: nothing, while nothing is recorded."""
    return f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', '')}" == RECORDER


def recording_reason() -> str | None:
    """What transformers is recording that only stock code produces; None if nothing."""
    recorded = output_capturing._active_collector.get()
    if recorded:
        for key in recorded:
            if key != "hidden_states" and not key.startswith("_"):
                return f"output_{key}"
    return None


def attention_reason(config: Any) -> str | None:
    """Why, under this config, attention (without a mask, or at all) may not be the usual one; None if it is."""
    settings = object.__getattribute__(config, "__dict__")  # the config's own __getattribute__ is slow
    implementation = settings.get("_attn_implementation_internal") or config._attn_implementation
    if implementation not in ATTENTION:
        return f"attention implementation {implementation}"
    if settings.get("is_causal", True) is not True:
        return "attention is not causal"
    return None


def mask_reason(mask: Any, dtype: torch.dtype, batch: int, heads: int, queries: int, keys: int) -> str | None:
    """Why `mask` is not one that ops.attention takes; None if it is."""
    if type(mask) is not torch.Tensor or mask.dim() != 4:
        return "mask is not a 4D tensor"
    if mask.dtype != torch.bool and mask.dtype != dtype:
        return f"mask of {str(mask.dtype).removeprefix('torch.')}"
    rows, mask_heads, mask_queries, mask_keys = mask.shape
    if rows not in (1, batch) or mask_heads not in (1, heads) or mask_queries != queries or mask_keys != keys:
        return "mask of another shape"
    return None


def weight_reason(
    owners: tuple[dict[str, Any], ...], dtype: torch.dtype, free: Collection[int] = (), turned: Collection[int] = ()
) -> str | None:
    """Why the parameters of some modules are not plain tensors of `dtype`; None if they are. free: ids of those owners
    whose parameters may have other dtypes. turned: of those whose matrices are [inputs, outputs]."""
    for parameters in owners:
        for value in parameters.values():
            if value is not None:
                if value.dtype is not dtype and id(parameters) not in free:
                    return "weights and input differ in dtype"
                if type(value) is not nn.Parameter:  # a tensor subclass, or torch.func at work
                    return f"a weight is a {type(value).__name__}"
                if value.dim() > 1 and value.stride(-1) != 1 and id(parameters) not in turned:
                    return "a weight is stored by columns"
    return None
