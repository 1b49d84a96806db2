"""What a growing cache can be taken back to where cropping doesn't reach: copies of what its layers had, by tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torch_foundry.kvcache import packed_states
from torch_foundry.kvcache.base import CacheLayer
from torch_foundry.kvcache.layer import FoundryLayer, FoundrySlidingLayer
from torch_foundry.kvcache.recurrent import RecurrentLayer
from torch_foundry.kvcache.state_tables import EVERY
from torch_foundry.kvcache.stock import DummyLayer

MOST = 32  # of a cache
Stored = dict[int, dict[str, torch.Tensor]]  # by layer: of a recurrent one its state, of a sliding one its window


class Snapshots:
    """Of one `DynamicCache`, whose attribute `snapshots` it is: recurrent states, and sliding windows.

    every: tokens between two that are taken while a text grows. most: of more, one is given up whose neighbours are the
    nearest to each other, so that later ones are denser. format: of recurrent states, "q8_0" for codes of 8 bits;
    default: as they are. Only for caches all of whose layers are ours. ValueError: an unknown format.
    """

    def __init__(self, every: int = EVERY, most: int = MOST, format: str | None = None) -> None:
        packed_states.check(format)
        self.every, self.most, self.format = every, most, format
        self.stored: dict[int, Stored] = {}  # by the number of tokens, rising

    @classmethod
    def of(cls, cache: Any) -> Snapshots | None:
        """Those of `cache`, if it has any."""
        found = vars(cache).get("snapshots")
        return found if isinstance(found, cls) else None

    @property
    def nbytes(self) -> int:
        """Their memory."""
        return sum(t.nbytes for stored in self.stored.values() for layer in stored.values() for t in layer.values())

    def take(self, cache: Any, tokens: int) -> bool:
        """Copy what `cache` has behind its first `tokens`, which are all. False: cropping is enough, or there are
        layers of another kind."""
        own = {i: layer for i, layer in parts_of(cache) if not isinstance(layer, FoundryLayer | DummyLayer)}
        if not own or not all(isinstance(layer, FoundrySlidingLayer | RecurrentLayer) for layer in own.values()):
            return False
        if tokens not in self.stored:
            self.stored[tokens] = {i: self._copied(layer) for i, layer in own.items()}
            if len(self.stored) > self.most:
                at = [0, *self.stored]
                del self.stored[min(zip(at, at[1:], at[2:], strict=False), key=lambda three: three[2] - three[0])[1]]
        return True

    def passed(self, cache: Any) -> None:
        """A text has grown; nothing but newer tokens is being written to `cache` now."""
        tokens = int(cache.get_seq_length())
        if tokens - max(self.stored, default=0) >= self.every:
            self.take(cache, tokens)

    def forget(self, tokens: int) -> None:
        """Give up those behind more than `tokens`, which another text follows from now on."""
        self.stored = {at: stored for at, stored in self.stored.items() if at <= tokens}

    def back(self, cache: Any, tokens: int) -> int:
        """Take `cache` back to the newest one behind at most `tokens`; returns behind how many: 0, and nothing has
        changed but that those of the text that is left are given up, if there is none."""
        self.forget(tokens)
        at = max(self.stored, default=0)
        if at:
            for i, layer in parts_of(cache):
                if isinstance(layer, FoundryLayer):
                    layer.crop(at - layer.get_seq_length())
                elif i in self.stored[at]:
                    layer.restore(self._unpacked(layer, self.stored[at][i]), at)
        return at

    def _copied(self, layer: Any) -> dict[str, torch.Tensor]:
        if not isinstance(layer, RecurrentLayer):
            window = layer.stored_tensors(layer.sliding_window - 1)
            return {name: tensor.clone() for name, tensor in window.items()}
        states, format = layer.stored_tensors(), self.format
        return {n: s.clone() if format is None else packed_states.packed(s, format) for n, s in states.items()}

    def _unpacked(self, layer: Any, stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.format is None or not isinstance(layer, RecurrentLayer):
            return stored
        shapes = {name: state.shape for name, state in layer.stored_tensors().items()}
        return {name: packed_states.unpacked(data, self.format, shapes[name]) for name, data in stored.items()}


def parts_of(cache: Any) -> Iterator[tuple[int, Any]]:
    """What the layers of `cache` consist of, with their numbers; of each at most one part can't be cropped."""
    for i, layer in enumerate(cache.layers):
        for part in layer.parts if isinstance(layer, CacheLayer) else (layer,):
            yield i, part


def stored(layer: Any) -> tuple[int, int]:
    """Rows and tokens that a layer has. Of ours without looking at `keys`: what was looked at is left as it is."""
    if hasattr(layer, "stored"):
        found: tuple[int, int] = layer.stored
        return found
    return (0, 0) if layer.keys is None else (layer.keys.shape[0], layer.keys.shape[2])  # a DummyLayer has none


def take_back(cache: Any, surplus: int, keep: int) -> bool:
    """Drop the newest `surplus` tokens of `cache`, so that `keep` are left, or those before a snapshot. False: neither
    can be done, and the cache has to be reset."""
    windows = [w for w in cache.layers if getattr(w, "is_sliding", False) and w.is_initialized]
    reached = all(stored(w)[1] - surplus >= min(keep, w.sliding_window - 1) for w in windows)
    recurrent = [part for _, part in parts_of(cache) if isinstance(part, RecurrentLayer)]
    snapshots = Snapshots.of(cache)
    if keep and reached and all(surplus <= layer.back for layer in recurrent):
        if snapshots is not None:
            snapshots.forget(keep)
        try:
            cache.crop(-surplus)
        except RuntimeError:  # stock recurrent states can't go back
            return False
        return True
    return snapshots is not None and snapshots.back(cache, keep) > 0
