"""Finding or making the cache layer that a decoder layer may write to directly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from torch_foundry.core.errors import Fallback
from torch_foundry.kvcache.base import CacheLayer, KVCache
from torch_foundry.kvcache.formats import PLAIN, Formats, parse
from torch_foundry.kvcache.hybrid import HybridLayer
from torch_foundry.kvcache.layer import FoundryLayer, FoundrySlidingLayer
from torch_foundry.kvcache.recurrent import RecurrentLayer
from torch_foundry.kvcache.stock import DummyLayer

# What replaces transformers' layers: makes one with the same contents, or None if it can't be.
REPLACED: dict[type, Callable[[Any, Formats], CacheLayer | None]] = {
    DynamicLayer: FoundryLayer.replace_layers,
    DynamicSlidingWindowLayer: FoundrySlidingLayer.replace_layers,
    LinearAttentionLayer: RecurrentLayer.replace_layers,
    LinearAttentionAndFullAttentionLayer: HybridLayer.replace_layers,
}


def is_known(cache: Any) -> bool:
    """Whether layers of `cache` may be ours: it is a plain `DynamicCache`, whose layers can be replaced, or one of our
    own classes. A subclass of transformers' may do anything with its layers."""
    return type(cache) is DynamicCache or isinstance(cache, KVCache)


def kv_layer(cache: Any, index: int, formats: Formats = PLAIN) -> CacheLayer:
    """Layer `index` of `cache` to write to; one of transformers' dynamic layers is replaced by ours with the same
    contents, stored in `formats`. A `CacheLayer` stays as it is.

    Raises Fallback for anything else: another class (which may store less, quantise, offload ...) has to be used
    through its own `update`.
    """
    if not is_known(cache):
        raise Fallback(f"cache is {type(cache).__name__}")
    return cache.cache_layer(index) if isinstance(cache, KVCache) else _replaced(cache, index, formats)


def check_capturable(cache: Any) -> None:
    """Raise Fallback if captured steps can't be taken on `cache`, as far as that shows before they are."""
    own = isinstance(cache, KVCache)
    if not is_known(cache) or (own and not all(layer.capturable for layer in cache.layers)):
        raise Fallback(f"cache is {type(cache).__name__}")


def captured_layers(cache: Any, numbers: Iterable[int], formats: Formats = PLAIN) -> list[CacheLayer]:
    """These layers of `cache` for captured steps. Raises Fallback if one is not made for them."""
    layers = [kv_layer(cache, number, formats) for number in numbers]
    for layer in layers:
        if not layer.capturable:
            raise Fallback(f"cache layer is {type(layer).__name__}")
    return layers


def in_flight(cache: Any) -> int | None:
    """How many tokens may be written to `cache` before they are committed; None: as many as there is room for."""
    layers = (layer for layer in cache.layers if isinstance(layer, CacheLayer))
    return min((layer.in_flight for layer in layers if layer.in_flight is not None), default=None)


def _replaced(cache: DynamicCache, index: int, formats: Formats) -> CacheLayer:
    layers: list[Any] = cache.layers
    if index < len(layers) and isinstance(layers[index], CacheLayer):
        return layers[index]
    if cache.offloading:
        raise Fallback("cache is offloaded DynamicCache")
    if cache.layer_class_to_replicate is DynamicLayer:
        while len(layers) <= index:
            layers.append(DynamicLayer())
    if index >= len(layers):
        raise Fallback(f"cache is DynamicCache without layer {index}")
    layer = layers[index]
    make = REPLACED.get(type(layer))
    ours = None if make is None or _is_differentiable(layer) else make(layer, formats)
    if ours is None:
        raise Fallback(f"cache is {type(layer).__name__}")
    layers[index] = ours
    return ours


def reserve_hint(cache: DynamicCache, numbers: Iterable[int], tokens: int, formats: Formats = PLAIN) -> None:
    """Reserve room in these layers of `cache`, when they are allocated, for `tokens` more than are stored then, so that
    the memory does not have to move for that long. Raises Fallback as `kv_layer` does.
    """
    for number in numbers:
        kv_layer(cache, number, formats).reserve_hint(tokens)


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
    for index, stock in enumerate(cache.layers):
        if isinstance(stock, DummyLayer):  # which keeps nothing
            continue
        for part in kv_layer(cache, index, formats).parts:
            if isinstance(part, FoundryLayer):
                part.limit(max_length)
    return cache


def _is_differentiable(layer: Any) -> bool:
    """Whether the contents are part of a graph (prefix tuning) that has to stay one."""
    keys = getattr(layer, "keys", None) if torch.is_grad_enabled() else None
    return keys is not None and keys.requires_grad
