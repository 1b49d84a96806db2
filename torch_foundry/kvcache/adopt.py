"""Finding or making the cache layer that a decoder layer may write to directly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from torch_foundry.core.errors import Fallback
from torch_foundry.kvcache.base import KVCache, KVLayer
from torch_foundry.kvcache.buffered import Buffered
from torch_foundry.kvcache.formats import PLAIN, Formats, parse
from torch_foundry.kvcache.layer import FoundryLayer, FoundrySlidingLayer


def slot_of(cache: Any, index: int, formats: Formats = PLAIN) -> KVLayer:
    """Layer `index` of `cache` to write to."""
    return cache.kv_layer(index) if isinstance(cache, KVCache) else adopt(cache, index, formats)


def adopt(cache: Any, index: int, formats: Formats = PLAIN) -> KVLayer:
    """The layer `index` of `cache`; one of transformers' dynamic layers is replaced by ours with the same contents,
    stored in `formats`. A `KVLayer` stays as it is.

    Raises Fallback for anything else: another class (which may store less, quantise, offload ...) has to be used
    through its own `update`.
    """
    if type(cache) is not DynamicCache:
        raise Fallback(f"cache is {type(cache).__name__}")
    layers = cache.layers
    if index < len(layers):
        ours = layers[index]
        if isinstance(ours, KVLayer):
            return ours
    if cache.offloading:
        raise Fallback("cache is offloaded DynamicCache")
    if cache.layer_class_to_replicate is DynamicLayer:
        while len(layers) <= index:
            layers.append(DynamicLayer())
    if index >= len(layers):
        raise Fallback(f"cache is DynamicCache without layer {index}")
    layer: Any = layers[index]
    if type(layer) is DynamicLayer and not _is_differentiable(layer):
        layers[index] = adopted = FoundryLayer.adopt(layer, formats)
        return adopted
    if type(layer) is DynamicSlidingWindowLayer and layer.sliding_window > 1 and not _is_differentiable(layer):
        layers[index] = adopted_window = FoundrySlidingLayer.adopt(layer, formats)
        return adopted_window
    raise Fallback(f"cache is {type(layer).__name__}")


def expect(cache: DynamicCache, layers: int, tokens: int, formats: Formats = PLAIN) -> None:
    """Reserve room in the first `layers` layers of `cache`, when they are allocated, for `tokens` more than are stored
    then, so that the memory does not have to move for that long. Raises Fallback as `adopt` does.
    """
    for index in range(layers):
        layer = adopt(cache, index, formats)
        if isinstance(layer, Buffered):
            layer._keys.spare = layer._values.spare = tokens


def new_cache(
    config: Any, kv_cache: str | Mapping[str, str | None] | None = None, *, max_length: int | None = None
) -> DynamicCache:
    """An empty cache for models of `config`, to be passed as `past_key_values`; patched models run on it.

    kv_cache: how keys and values are stored: "q8_0", "q4_0", "f16", "bf16", "f32", or {"k": ..., "v": ...} of these.
    max_length: tokens that a row may ever hold; memory still grows as needed. Exceeding it is a RuntimeError that
        leaves the cache as it was (generate() reserves a block of tokens ahead). Sliding windows need no limit. None:
        no limit, as in transformers' own caches; `generate` warns beyond max_position_embeddings and goes on.
    """
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length={max_length}: expected at least one token")
    cache, formats = DynamicCache(config=config), parse(kv_cache)
    for index in range(len(cache.layers)):
        layer = adopt(cache, index, formats)
        if isinstance(layer, FoundryLayer):
            layer._keys.limit = layer._values.limit = max_length
    return cache


def lend(layer: Buffered, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Let an empty layer use this memory, of which nobody else has a view."""
    layer._keys.lend(keys)
    layer._values.lend(values)


def _is_differentiable(layer: DynamicLayer) -> bool:
    """Whether the contents are part of a graph (prefix tuning) that has to stay one."""
    return torch.is_grad_enabled() and layer.is_initialized and layer.keys is not None and layer.keys.requires_grad
