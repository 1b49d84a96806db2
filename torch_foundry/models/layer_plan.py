"""A decoder layer's plan: what it is fused as, and what has to stay as it is."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from torch_foundry.core.errors import Fallback
from torch_foundry.models.attention import Attention
from torch_foundry.models.families import EXPERTS
from torch_foundry.models.family import class_key
from torch_foundry.models.guards import CallGuard
from torch_foundry.models.layer import FusedLayer
from torch_foundry.models.moe import ExpertBlock
from torch_foundry.models.state import ModelState, Plan
from torch_foundry.models.swap import base_class
from torch_foundry.models.tensor_parallel import local_layer


class LayerPlan(Plan):
    """A decoder layer for the fused path, and what it watches."""

    __slots__ = ("buffers", "config", "exempt", "layer", "names", "parameters", "shards", "spec", "trained", "watch")

    def __init__(self, layer: torch.nn.Module, state: ModelState) -> None:
        super().__init__(state)
        module, self.spec, self.shards = local_layer(layer)
        self.layer = FusedLayer(module, self.spec)
        self.config = self.spec.config
        self.watch = CallGuard(layer)
        self.parameters = tuple(m._parameters for m in module.modules() if m._parameters)
        self.trained = tuple(m._parameters for m in layer.modules() if m._parameters)
        mixer, block = self.layer.mixer, self.layer.block  # sinks and routers may be of other dtypes
        free = [mixer.parameters] if isinstance(mixer, Attention) else []
        free += block.free if isinstance(block, ExpertBlock) else []
        turned = (m for m in module.modules() if isinstance(m, Conv1D) or class_key(type(m)) in EXPERTS)
        # as of `weight_reason`
        self.exempt = frozenset(map(id, free)), frozenset(id(m._parameters) for m in turned)
        self.buffers: dict[str, Any] = layer._buffers
        stock: Any = base_class(type(layer))
        self.names = tuple(inspect.signature(stock.forward).parameters)[2:]  # of arguments behind the hidden states

    def outdated(self) -> bool:
        """Whether another has to be made: shards have been replaced, or modules have other `NUMBERS`."""
        return self.shards.changed() or self.watch.numbers.changed()

    @property
    def place(self) -> int:
        """The number of the layer in a cache whose state this one's mixer reads; -1: it has none."""
        mixer = self.layer.mixer
        if mixer is None:
            return -1
        return self.spec.layer_idx if mixer.source is None else mixer.source

    @property
    def scalar(self) -> torch.Tensor | None:
        """[1]: what the layer's result is multiplied by."""
        return self.buffers.get("layer_scalar")

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments of a call behind its hidden states, by name. Raises Fallback."""
        if not args:
            return kwargs
        if len(args) > len(self.names):
            raise Fallback("positional arguments")
        return {**dict(zip(self.names, args, strict=False)), **kwargs}

    def needs_grad(self, x: torch.Tensor, mask: torch.Tensor | None) -> bool:
        """Whether autograd would record this call."""
        if x.requires_grad or (mask is not None and mask.requires_grad):
            return True
        return any(p is not None and p.requires_grad for owner in self.trained for p in owner.values())
