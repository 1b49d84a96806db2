"""Undoing a forward pass that failed: otherwise some layers would hold tokens that others do not."""

from __future__ import annotations

from typing import Any

from transformers.cache_utils import DynamicLayer

from torch_foundry.core.interrupts import uninterruptible
from torch_foundry.kvcache.base import CacheLayer
from torch_foundry.kvcache.hf_cache import is_known


class Checkpoint:
    """The lengths of a `DynamicCache` or `KVCache` at a moment; `run()` restores them.

    Holds no tensors, so memory that a growing cache gives up is freed at once.
    """

    __slots__ = ("_cache", "_marks")

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._marks = [(layer, _checkpoint(layer)) for layer in cache.layers]

    @classmethod
    def of(cls, cache: Any) -> Checkpoint | None:
        """For `cache` if it is of a kind whose layers are known."""
        return cls(cache) if is_known(cache) else None

    @uninterruptible()
    def run(self) -> bool:
        """Forget what was appended since. False, and nothing is changed, if a layer of a foreign kind cannot."""
        layers = self._cache.layers
        changed = [(i, layer, mark) for i, (layer, mark) in enumerate(self._marks) if mark is not None]
        stuck = any(mark is None and layer is layers[i] for i, (layer, mark) in enumerate(self._marks))
        if stuck:
            return False
        for i, layer, mark in changed:
            if layer is layers[i]:
                _rollback(layer, mark)
        for i, (layer, _) in enumerate(self._marks):
            layers[i] = layer  # what was adopted is as it was: adopting copies
        del layers[len(self._marks) :]
        return True


def _checkpoint(layer: Any) -> Any:
    """What `_rollback` needs; None for a layer that forgets tokens as it gets new ones, or is not known."""
    if isinstance(layer, CacheLayer):
        return layer.checkpoint()
    if type(layer) is DynamicLayer or not getattr(layer, "is_initialized", True):
        return layer.get_seq_length()
    return None


def _rollback(layer: Any, to: Any) -> None:
    if isinstance(layer, CacheLayer):
        layer.rollback(to)
    elif to == 0:
        layer.reset()
    elif layer.get_seq_length() > to:
        layer.keys, layer.values = layer.keys[..., :to, :], layer.values[..., :to, :]
