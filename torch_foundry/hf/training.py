"""Norms, MLPs and rotations of decoder layers while these run stock code to be differentiated: as ops with a backward.

A layer in training is stock code, in which adapters, hooks and dropout have their places. Of what it calls, these parts
have classes of their own, which do nothing else than stock code does as long as no gradients are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as nn_module

from torch_foundry import ops
from torch_foundry.core.errors import Fallback
from torch_foundry.models.checks import require
from torch_foundry.models.families import FAMILIES, norm_kind
from torch_foundry.models.family import Family, class_key
from torch_foundry.models.guards import derived_reason, epsilon, tensor_reason, weight_reason
from torch_foundry.models.mlp import MLPS, MLPNames
from torch_foundry.models.rope import tables_of
from torch_foundry.models.state import ModelState, Plan, plan_of
from torch_foundry.models.swap import FoundryModule, base_class, has_own_forward
from torch_foundry.models.weights import OFFSETS, Norm
from torch_foundry.nn.activations import activation_of

ROTATE = "apply_rotary_pos_emb"  # how modeling files call their rotation
GATED = frozenset({"silu", "gelu_tanh", "gelu", "relu2"})  # activations of ops.glu that MLPs have
PLAIN = frozenset({"chunk", "F", "silu"})  # what an MLP's forward may name besides its layers


class TrainedMixin(FoundryModule):
    """`forward` of such a part: `_trained`, where autograd records or the part is in training, unless it raises
    Fallback. In training also without autograd: the first pass of checkpoints that are recomputed has no graph."""

    plan_class: Callable[[Any, ModelState], Plan]
    training: bool
    _parameters: dict[str, Any]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The same as stock code."""
        plan = self._foundry
        if not plan.state.enabled or torch.compiler.is_compiling() or not self._wanted(args, kwargs):
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        plan = plan_of(self, type(self).plan_class)
        try:
            if reason := derived_reason(self):
                raise Fallback(reason)
            result = self._trained(plan, *args, **kwargs)
        except Fallback as fallback:
            plan.fell_back(self._foundry_base.__name__, str(fallback))
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        plan.fused += 1
        return result

    def _wanted(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if self.training or not torch.is_grad_enabled():
            return bool(self.training)
        given = (*args, *kwargs.values(), *self.parameters())
        return any(isinstance(each, torch.Tensor) and each.requires_grad for each in given)

    def _trained(self, plan: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def check(x: torch.Tensor) -> None:
    """Raise Fallback unless ops with a backward run on `x`."""
    if reason := tensor_reason(x, differentiable=True):
        raise Fallback(reason)


# ---------------------------------------------------------------------------------------------------------------- norms


class NormPlan(Plan):
    """A norm's weight, and how it rounds."""

    __slots__ = ("_norm",)

    def __init__(self, module: nn.Module, state: ModelState) -> None:
        super().__init__(state)
        self._norm = Norm(module)

    def norm(self, module: Any) -> Norm:
        """That of `module` as it is by now."""
        if self._norm.eps != epsilon(module):
            self._norm = Norm(module)
        return self._norm


class TrainedNormMixin(TrainedMixin):
    """An RMS norm."""

    plan_class = NormPlan

    def _trained(self, plan: NormPlan, input: torch.Tensor) -> torch.Tensor:
        return trained_norm(plan.norm(self), input)


def trained_norm(norm: Norm, x: torch.Tensor) -> torch.Tensor:
    """The norm of `x` by an op with a backward. Raises Fallback."""
    check(x)
    if reason := weight_reason((norm.parameters,), x.dtype):
        raise Fallback(reason)
    return norm(_rows(x))


# ----------------------------------------------------------------------------------------------------------------- MLPs


class MLPPlan(Plan):
    """The names of an MLP's layers."""

    __slots__ = ("names",)

    def __init__(self, module: nn.Module, state: ModelState) -> None:
        super().__init__(state)
        names = mlp_names(module)
        assert names is not None
        self.names = names


class TrainedMLPMixin(TrainedMixin):
    """down(act(gate) * up). Its linear layers are called as modules, whatever has taken their places."""

    plan_class = MLPPlan
    _modules: dict[str, Any]

    def _trained(self, plan: MLPPlan, input: torch.Tensor) -> torch.Tensor:
        names, modules = plan.names, self._modules
        act = modules[names.activation] if names.activation else torch.nn.functional.silu
        name = activation_of(act)
        require(name in GATED and not _watched(act), f"{type(act).__name__} has hooks, or is another activation")
        check(input)
        first = [modules[each](input) for each in names.first]
        gate, up = first if len(first) == 2 else first[0].chunk(2, dim=-1)
        found: torch.Tensor
        if (
            tensor_reason(gate, differentiable=True)
            or type(up) is not torch.Tensor
            or (gate.dtype, gate.shape) != (up.dtype, up.shape)
        ):
            found = act(gate) * up
        else:
            assert name is not None
            found = ops.glu(_rows(gate), _rows(up), name)
        result: torch.Tensor = modules[names.down](found)
        return result


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 and x.dim() <= 4 else x.contiguous()


def _watched(module: Any) -> bool:
    """Whether something besides its own code runs when `module` is called, forward or backward."""
    if not isinstance(module, nn.Module):
        return False
    own = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    everywhere = (
        nn_module._global_forward_hooks, nn_module._global_forward_pre_hooks, nn_module._global_backward_hooks,
        nn_module._global_backward_pre_hooks,
    )  # fmt: skip
    return any(map(bool, (*own, *everywhere))) or "forward" in module.__dict__


def mlp_names(module: nn.Module) -> MLPNames | None:
    """What the layers of a gated MLP are called, if its code names nothing else; None if it is no such MLP."""
    names = next((each for each in MLPS if each.gated and each.children() == module._modules.keys()), None)
    stock: Any = base_class(type(module))
    code = getattr(stock.forward, "__code__", None)
    if names is None or code is None or not names.children() | PLAIN >= set(code.co_names):
        return None
    act = module._modules[names.activation] if names.activation else torch.nn.functional.silu
    return names if activation_of(act) in GATED else None


# ------------------------------------------------------------------------------------------------------------ rotations


class _Globals(dict[str, Any]):
    """The globals of a function with some of our own before them; those are looked up when they are needed."""

    def __init__(self, stock: dict[str, Any], own: dict[str, Any]) -> None:
        super().__init__(own)
        self._stock = stock

    def __missing__(self, name: str) -> Any:
        return self._stock[name]


class AttentionPlan(Plan):
    """Stock attention with another rotation."""

    __slots__ = ("stock",)

    def __init__(self, module: nn.Module, state: ModelState) -> None:
        super().__init__(state)
        self.stock = with_rotation(base_class(type(module)))


class TrainedAttentionMixin(TrainedMixin):
    """Stock code, for which the name of its rotation stands for ours. Modeling files have it as a function of their
    own; replacing that would change models which aren't patched."""

    plan_class = AttentionPlan

    def _trained(self, plan: AttentionPlan, *args: Any, **kwargs: Any) -> Any:
        return plan.stock(self, *args, **kwargs)


def with_rotation(cls: Any) -> Callable[..., Any]:
    """The forward of an attention class, with ops.rope in place of its rotation."""
    family = rotating_family(cls)
    assert family is not None
    stock = cls.forward
    own = {ROTATE: rotation(family, stock.__globals__[ROTATE])}
    result = FunctionType(
        stock.__code__, _Globals(stock.__globals__, own), stock.__name__, stock.__defaults__, stock.__closure__
    )
    result.__kwdefaults__ = stock.__kwdefaults__
    return result


def rotation(family: Family, stock: Callable[..., Any]) -> Callable[..., Any]:
    """What computes as `stock` does, which takes one or two tensors of heads, cos and sin."""

    def apply_rotary_pos_emb(*given: Any, unsqueeze_dim: int = 1, **others: Any) -> Any:
        *heads, cos, sin = given if len(given) > 2 else (None, None)
        if others or unsqueeze_dim not in (1, 2) or not all(_rotates(x, cos, sin) for x in heads) or not heads:
            return stock(*given, unsqueeze_dim=unsqueeze_dim, **others)
        table = tables_of(family, None, (cos, sin), None)
        found = []
        for x in heads:
            x = x if unsqueeze_dim == 1 else x.transpose(1, 2)
            y = ops.rope(x, *table, interleaved=family.interleaved)
            found.append(y if unsqueeze_dim == 1 else y.transpose(1, 2))
        return tuple(found) if len(found) > 1 else found[0]

    return apply_rotary_pos_emb


def _rotates(x: Any, cos: Any, sin: Any) -> bool:
    """Whether ops.rope takes these."""
    tables = (cos, sin)
    return (
        isinstance(x, torch.Tensor)
        and tensor_reason(x, differentiable=True) is None
        and x.dim() == 4
        and x.stride(-1) == 1
        and all(
            type(t) is torch.Tensor and t.dim() == 3 and t.dtype in (torch.float32, x.dtype) and t.device == x.device
            for t in tables
        )
        and cos.dtype == sin.dtype
        and not (cos.requires_grad or sin.requires_grad)
    )


def rotating_family(cls: Any) -> Family | None:
    """The family whose attention `cls` is, if its code has a rotation that ops.rope can take the place of."""
    code = getattr(cls.forward, "__code__", None)
    if code is None or ROTATE not in code.co_names or ROTATE not in cls.forward.__globals__:
        return None
    for family in FAMILIES.values():
        if class_key(cls) in (family.key("Attention"), family.key("TextAttention")):
            usual = not (family.mixer or family.scaled_queries or family.tables == "complex")
            return family if usual else None
    return None


# --------------------------------------------------------------------------------------------------------------- layers


def trained_parts(layer: nn.Module, state: ModelState) -> Iterator[tuple[nn.Module, type[TrainedMixin], Plan]]:
    """The parts of a decoder layer that train on ops, with their mixins and plans; none of a layer that isn't known."""
    if class_key(type(layer)) not in FAMILIES:
        return
    for module in layer.modules():
        if isinstance(module, FoundryModule) or not has_own_forward(module):
            continue
        kind = norm_kind(module)
        if kind is not None and kind not in OFFSETS:
            yield module, TrainedNormMixin, NormPlan(module, state)
        elif mlp_names(module) is not None:
            yield module, TrainedMLPMixin, MLPPlan(module, state)
        elif rotating_family(type(module)) is not None:
            yield module, TrainedAttentionMixin, AttentionPlan(module, state)
