"""Merging adapters (peft's LoRA and its like) into packed layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from torch_foundry import quant
from torch_foundry.hf.pretrained import shared_packed
from torch_foundry.nn import FoundryEmbedding, FoundryLinear

SAME = "same"


def adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Packed layers that have adapters around them, by module name."""
    for name, module in model.named_modules():
        if isinstance(getattr(module, "base_layer", None), FoundryLinear | FoundryEmbedding):
            yield name, module


def merge(model: Any, formats: str | None = SAME) -> Any:
    """The model inside the peft model `model`, with its active adapters merged into its layers.

    See `torch_foundry.merge_adapters`.
    """
    if not callable(getattr(model, "unload", None)):
        raise TypeError(f"model: expected one of peft's, with adapters, got a {type(model).__name__}")
    layers = dict(adapted(model))
    shared = {id(module) for group in shared_packed(model) for module in group}
    for name, layer in layers.items():
        fmt = layer.base_layer.format if formats == SAME else formats
        if fmt is not None and not quant.get_format(fmt).packable:
            raise ValueError(f"{name}: nothing can be packed as {fmt}; merge_adapters(model, None) makes it dense")
        if fmt is not None:
            _whole(name, layer.base_layer, fmt)
        if id(layer.base_layer) in shared:
            raise ValueError(f"{name}: expected a weight of its own, got one that another module shares")
    for name, layer in model.named_modules():
        if name not in layers and callable(getattr(layer, "merge", None)) and hasattr(layer, "base_layer"):
            layer.merge()
    dtype = next((p.dtype for p in model.parameters() if not p.requires_grad), torch.get_default_dtype())
    for layer in layers.values():
        _merge(layer, dtype, layer.base_layer.format if formats == SAME else formats)
    return model.unload()


def _whole(name: str, packed: Any, fmt: str) -> None:
    columns = packed.in_features if isinstance(packed, nn.Linear) else packed.embedding_dim
    if columns % quant.get_format(fmt).block_size:
        raise ValueError(f"{name}: {fmt} packs rows of whole blocks, got rows of {columns}")


def _merge(layer: Any, dtype: torch.dtype, fmt: str | None) -> None:
    """Add the adapters to the weight in float32, one layer at a time, and pack it again. dtype: of the model."""
    packed = layer.base_layer
    is_linear = isinstance(packed, FoundryLinear)
    dense = packed.to_linear(torch.float32) if is_linear else packed.to_embedding(packed.dequantized(torch.float32))
    layer.base_layer = dense
    layer.fan_in_fan_out = isinstance(dense, Conv1D)  # peft has taken the packed layer for one of [out, in]
    layer.merge(safe_merge=True)  # raises for weights that are not finite
    if fmt is not None:
        layer.base_layer = (FoundryLinear.from_linear if is_linear else FoundryEmbedding.from_embedding)(dense, fmt)
        layer.base_layer.anchor = layer.base_layer.anchor.to(dtype)
    else:
        dense.weight.data = dense.weight.data.to(dtype)
