"""Per-layer embeddings (Gemma 4 E2B and E4B): each layer takes a few numbers more of each token, of a table and of what
the first layer gets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.core.errors import Fallback
from torch_foundry.models.checks import check_linear, check_norm, require
from torch_foundry.models.family import Family
from torch_foundry.models.swap import is_swapped
from torch_foundry.models.weights import Gemm, Linear, Norm, Residual
from torch_foundry.nn import FoundryEmbedding
from torch_foundry.nn.activations import activation_of


class PerLayerBlock:
    """x + norm(project(activation(gate(x)) * input)), the last block of a layer."""

    __slots__ = ("activation", "gate", "projection", "residual")
    norm = "post_per_layer_input_norm"
    children = frozenset({"act_fn", "per_layer_input_gate", "per_layer_projection", norm})

    def __init__(self, layer: Any, family: Family, activation: str, residual: Residual) -> None:
        columns, hidden = layer.per_layer_input_gate.out_features, layer.per_layer_input_gate.in_features
        check_linear("per_layer_input_gate", layer.per_layer_input_gate, hidden, columns)
        check_linear("per_layer_projection", layer.per_layer_projection, columns, hidden)
        check_norm(self.norm, layer._modules[self.norm], family, hidden)
        require(activation_of(layer.act_fn) == activation, "two activations")
        self.activation, self.residual = activation, residual
        self.gate, self.projection = Linear(layer.per_layer_input_gate), Linear(layer.per_layer_projection)

    def __call__(self, x: Tensor, given: Tensor, gemm: Gemm) -> Tensor:
        """x: [B, L, hidden]. given: [B, L, columns], this layer's; rows may be strided."""
        return self.residual.add(x, self.projection, self.gated(x, given, gemm), gemm)

    def gated(self, x: Tensor, given: Tensor, gemm: Gemm) -> Tensor:
        """What `projection` is given."""
        return ops.glu(gemm.product(self.gate, x), given, self.activation)


def _number(factor: Any) -> float:
    """A factor that a module keeps, as a number or a tensor; any will do for a model without data."""
    return 1.0 if isinstance(factor, Tensor) and factor.is_meta else float(factor)


class PerLayerEmbedding:
    """What `PerLayerBlock`s take: (norm(project(x)) + rows of a table) / sqrt(2)."""

    __slots__ = ("embedding", "half", "modules", "norm", "projection", "scale", "unknown_first")

    def __init__(self, model: Any, unknown_first: bool = False) -> None:
        self.modules: list[Any] = [
            model.embed_tokens_per_layer,
            model.per_layer_model_projection,
            model.per_layer_projection_norm,
        ]
        self.embedding = self.modules[0]
        if not all(is_swapped(module) or isinstance(module, FoundryEmbedding) for module in self.modules[::2]):
            raise Fallback("the per-layer embedding is not a known one")
        self.projection, self.norm = Linear(self.modules[1]), Norm(self.modules[2])
        # a norm of numbers times a factor is one of the numbers themselves with another eps
        names = ("per_layer_model_projection_scale", "per_layer_projection_scale")
        self.norm.eps /= _number(next(getattr(model, name) for name in names if hasattr(model, name))) ** 2
        like, self.unknown_first = self.norm.weight, unknown_first
        self.scale = _number(self.embedding.embed_scale.to(like.dtype))
        self.half = torch.full((1,), _number(model.per_layer_input_scale), dtype=like.dtype, device=like.device)

    def __call__(self, ids: Tensor, x: Tensor, gemm: Gemm) -> tuple[Tensor, ...]:
        """Of ids [B, L] and what the first layer gets, x [B, L, hidden]: [B, L, columns] for each layer."""
        embedding, columns = self.embedding, len(self.norm.weight)
        fmt = embedding.format if isinstance(embedding, FoundryEmbedding) else None
        rows = ops.embedding(
            ids, embedding.weight, format=fmt, dtype=x.dtype, scale=self.scale, first_if_unknown=self.unknown_first
        )
        shape = (*ids.shape, -1, columns)
        projected = gemm.product(self.projection, x).view(shape)
        return self.norm(projected, rows.view(shape), self.half).unbind(-2)
