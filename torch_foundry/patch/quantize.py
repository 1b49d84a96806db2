"""Packing the weights of a model in place, and making them dense again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard, TypeVar

import torch
from torch import nn
from transformers.utils.logging import tqdm

from torch_foundry import quant
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear
from torch_foundry.patch.families import EXPERTS, SCALED_EMBEDDINGS, class_key
from torch_foundry.patch.spec import Unsupported
from torch_foundry.patch.swap import base_class, is_swapped, restore

Module = TypeVar("Module", bound=nn.Module)


def quantize_model(model: nn.Module, layers: Sequence[nn.Module], fmt: str) -> None:
    """Pack, as `fmt`, the linear layers and experts inside `layers` and the input and output embeddings of `model`.

    A weight whose rows are not whole blocks stays dense. If input and output embedding share their weight, they share
    the packed one as well. Dense weights are released one by one: the peak is the model and one packed weight.
    """
    fmt = fmt.lower()
    if fmt not in quant.PACKABLE:
        raise ValueError(f"quantize={fmt!r}: expected one of {quant.listing(quant.PACKABLE)}")
    if not layers:
        raise Unsupported(f"cannot quantize: {type(model).__name__} has no decoder layers of a known family")
    for layer in tqdm(layers, desc=f"Packing as {fmt}", unit="layer", delay=2):
        for name, module in list(layer.named_modules()):
            # one output (the weight of a shared expert) is the router's business, which is dense
            if _is_dense(module) and module.out_features > 1 and _packable(module.in_features, fmt):
                _replace(layer, name, FoundryLinear.from_linear(_stock(module), fmt))
            elif class_key(type(module)) in EXPERTS and any(_packable(p.shape[-1], fmt) for p in module.parameters()):
                _replace(layer, name, FoundryExperts.from_experts(module, fmt))
    _quantize_embeddings(model, fmt)


def packed_formats(model: nn.Module) -> str | None:
    """The formats of the packed weights in `model`, for messages; None if there are none."""
    formats: dict[str, None] = {}
    for module in model.modules():
        if isinstance(module, FoundryLinear | FoundryEmbedding):
            formats[module.format] = None
        elif isinstance(module, FoundryExperts):
            formats |= {fmt: None for fmt in module.formats if quant.get_format(fmt).packed}
    return ", ".join(formats) or None


def dequantize_model(model: nn.Module) -> None:
    """Turn every packed module of `model` into a dense one; what was shared is shared again."""
    dense: dict[int, torch.Tensor] = {}
    dtype: torch.dtype = model.dtype if hasattr(model, "dtype") else torch.get_default_dtype()  # type: ignore[assignment]
    for name, module in list(model.named_modules()):
        if isinstance(module, FoundryLinear | FoundryEmbedding):
            key = id(module.weight)
            known = dense.get(key)
            if isinstance(module, FoundryEmbedding):
                restored = module.to_embedding(known)
            else:
                restored = module.to_linear(dtype, known)
            dense[key] = restored.weight  # type: ignore[assignment]
            _replace(model, name, restored)
        elif isinstance(module, FoundryExperts):
            _replace(model, name, module.to_experts(dtype))


def _quantize_embeddings(model: Any, fmt: str) -> None:
    """The modules that `get_input_embeddings` and `get_output_embeddings` name, wherever they are."""
    if not hasattr(model, "get_input_embeddings"):
        return
    embedding: Any = model.get_input_embeddings()
    head: Any = model.get_output_embeddings()
    shared: torch.Tensor | None = None
    tied = head is not None and embedding is not None and getattr(head, "weight", None) is embedding.weight
    if head is not None and _is_dense(head) and _packable(head.in_features, fmt):
        new_head = FoundryLinear.from_linear(_stock(head), fmt)
        shared = new_head.weight if tied else None
        _replace_module(model, head, new_head)
    if embedding is None or (tied and shared is None):
        return
    cls = base_class(type(embedding))
    plain = cls is nn.Embedding or class_key(cls) in SCALED_EMBEDDINGS
    if plain and embedding.max_norm is None and _packable(embedding.embedding_dim, fmt):
        _replace_module(model, embedding, FoundryEmbedding.from_embedding(_stock(embedding), fmt, shared))


def _is_dense(module: nn.Module) -> TypeGuard[nn.Linear]:
    return base_class(type(module)) is nn.Linear


def _packable(in_features: int, fmt: str) -> bool:
    return in_features % quant.get_format(fmt).block_size == 0


def _stock(module: Module) -> Module:
    if is_swapped(module):
        restore(module)
    return module


def _replace_module(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for name, module in list(model.named_modules()):
        if module is old:
            _replace(model, name, new)


def _replace(root: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    root.get_submodule(parent)._modules[leaf] = new
