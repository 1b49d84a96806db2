"""Swapped leaf modules: embeddings, norms and linear layers outside of fused decoder layers.

Their arithmetic is fixed by their class alone, so they are replaced in any architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from torch_foundry import ops
from torch_foundry.core.errors import Fallback
from torch_foundry.hf.out_of_memory import Described, described, explain, is_out_of_memory
from torch_foundry.hf.training import NormPlan, trained_norm
from torch_foundry.models.families import EMBEDDINGS, POSITIONS, is_dense_linear, norm_kind
from torch_foundry.models.family import class_key
from torch_foundry.models.guards import derived_reason, device_reason, tensor_reason, weight_reason
from torch_foundry.models.outputs import number
from torch_foundry.models.state import ModelState, Plan, plan_of
from torch_foundry.models.swap import FoundryModule, has_own_forward
from torch_foundry.models.watch import version_of
from torch_foundry.models.weights import Linear
from torch_foundry.nn.linear import matrix_of


def leaf_mixin(module: nn.Module) -> type[LeafMixin] | None:
    """The mixin for `module`; None if it is not a leaf that is known."""
    cls = type(module)
    if not has_own_forward(module):
        return None
    if is_dense_linear(cls):
        return LinearMixin
    if norm_kind(module) is not None:
        return NormMixin
    if cls is nn.Embedding or class_key(cls) in EMBEDDINGS:
        return EmbeddingMixin if module.max_norm is None else None
    return PositionMixin if class_key(cls) in POSITIONS else None


def check_weights(parameters: dict[str, Any], dtype: torch.dtype, x: torch.Tensor | None, turned: bool = False) -> None:
    """Raise Fallback if the weights are not plain tensors of `dtype`, or if autograd has to record the call. turned: a
    matrix is [inputs, outputs]."""
    if reason := weight_reason((parameters,), dtype, turned=[id(parameters)] if turned else ()):
        raise Fallback(reason)
    if needs_grad(parameters, x):
        raise Fallback("gradients are needed")


def needs_grad(parameters: dict[str, Any], x: torch.Tensor | None) -> bool:
    """Whether autograd has to record a call with x."""
    return torch.is_grad_enabled() and (
        (x is not None and x.requires_grad) or any(p is not None and p.requires_grad for p in parameters.values())
    )


class LeafMixin(FoundryModule):
    """`forward` of a swapped leaf: `_fused` unless it raises Fallback."""

    plan_class: Callable[[Any, ModelState], Plan]
    weight: Any
    _parameters: dict[str, Any]

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The fused op, or stock code."""
        if torch.compiler.is_compiling():
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        plan = self._foundry
        if not plan.state.enabled:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        plan = plan_of(self, type(self).plan_class)
        try:
            if reason := derived_reason(self):
                raise Fallback(reason)
            result = self._fused(plan, *args, **kwargs)
        except Fallback as fallback:
            plan.fell_back(self._foundry_base.__name__, str(fallback))
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        except RuntimeError as error:
            if is_out_of_memory(error):
                explain(error, self._foundry_base.__name__, self._tensors(next(iter((*args, *kwargs.values())))))
            raise
        plan.fused += 1
        return result

    def _fused(self, plan: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        raise NotImplementedError

    def _tensors(self, input: torch.Tensor) -> dict[str, Described]:
        weight = self._parameters.get("weight")  # OLMo's norm has none
        return {"input": described(input)} | ({} if weight is None else {"weight": described(weight)})


class LinearPlan(Plan):
    """A linear layer's weights."""

    __slots__ = ("linear",)

    def __init__(self, module: nn.Module, state: ModelState) -> None:
        super().__init__(state)
        self.linear = Linear(module)


class LinearMixin(LeafMixin):
    """nn.Linear, and GPT-2's Conv1D."""

    plan_class = LinearPlan

    def _fused(self, plan: LinearPlan, input: torch.Tensor) -> torch.Tensor:
        if reason := tensor_reason(input):
            raise Fallback(reason)
        check_weights(plan.linear.parameters, input.dtype, input, isinstance(self, Conv1D))
        return plan.linear.gemm(input.contiguous())

    def _tensors(self, input: torch.Tensor) -> dict[str, Described]:
        return super()._tensors(input) | {"result": ([*input.shape[:-1], matrix_of(self).shape[0]], input.dtype)}


class NormMixin(LeafMixin):
    """The norms of `families.NORMS`, and torch's LayerNorm."""

    plan_class = NormPlan

    def _fused(self, plan: NormPlan, input: torch.Tensor) -> torch.Tensor:
        norm = plan.norm(self)
        if norm.fuses and needs_grad(norm.parameters, input):
            return trained_norm(norm, input)
        if reason := tensor_reason(input):
            raise Fallback(reason)
        check_weights(norm.parameters, input.dtype, input)
        return norm(input.contiguous())


class EmbeddingPlan(Plan):
    """An embedding's weight and scale."""

    __slots__ = ("_read", "_scale", "buffers", "parameters", "scaled")

    def __init__(self, module: nn.Module, state: ModelState) -> None:
        super().__init__(state)
        self.parameters: dict[str, Any] = module._parameters
        self.buffers: dict[str, Any] = module._buffers
        self.scaled = "embed_scale" in module._buffers
        self._read: tuple[torch.Tensor, int, torch.dtype] | None = None  # what `_scale` was made of: buffer, version
        self._scale = 1.0

    def scale(self) -> float:
        """The factor on each row, of the weight's dtype. Read from its buffer only when that has changed: on a GPU,
        reading waits for it."""
        if self.scaled:
            buffer, dtype = self.buffers["embed_scale"], self.parameters["weight"].dtype
            version = version_of(buffer)
            if self._read is None or self._read[0] is not buffer or self._read[1:] != (version, dtype):
                self._read, self._scale = (buffer, version, dtype), number(buffer, dtype)
        return self._scale


class EmbeddingMixin(LeafMixin):
    """nn.Embedding, Gemma's, which scales the rows, and Muse Glimmer's, which norms them."""

    plan_class = EmbeddingPlan
    _modules: dict[str, Any]

    def _fused(self, plan: EmbeddingPlan, input: torch.Tensor) -> torch.Tensor:
        weight = plan.parameters["weight"]
        if type(input) is not torch.Tensor or input.dtype not in (torch.int64, torch.int32) or not input.numel():
            raise Fallback("ids are not a tensor of integers")
        if reason := device_reason(weight.dtype, weight.device.type):
            raise Fallback(reason)
        if input.device != weight.device:
            raise Fallback("ids are on another device")
        check_weights(plan.parameters, weight.dtype, None)
        rows = ops.embedding(input.contiguous(), weight, scale=plan.scale())
        return self._modules["embed_norm"](rows) if "embed_norm" in self._modules else rows

    def _tensors(self, input: torch.Tensor) -> dict[str, Described]:
        return super()._tensors(input) | {"result": ([*input.shape, self.weight.shape[1]], self.weight.dtype)}


class PositionMixin(EmbeddingMixin):
    """OPT's embedding of positions, which stock code tells the mask that it would count them from as well."""

    offset: int

    def _fused(self, plan: EmbeddingPlan, *_: Any, position_ids: Any = None, **__: Any) -> torch.Tensor:
        if position_ids is None:
            raise Fallback("positions are counted from a mask")
        return super()._fused(plan, position_ids + self.offset)
