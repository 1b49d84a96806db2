"""What a model keeps of captured steps: for each cache that they write to, and from one generation to the next."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Hashable, Iterator
from typing import Any

import torch

from torch_foundry.core import devices, environment


class OwnedGraphs(dict[Any, Any]):
    """Graphs of one owner (`generation.step_graph`) by kind. memory: what they write to, for the owner's use."""

    def __init__(self, clock: Iterator[int]) -> None:
        super().__init__()
        self.memory: Any = None
        self._clock = clock

    def find(self, key: Hashable, positions: int = 0) -> Any:
        """The graph of this key if it is valid for positions < `positions`; it counts as used. Else None."""
        graph = self.get(key)
        if graph is None or not graph.is_valid(positions):
            return None
        graph.used = next(self._clock)
        return graph


class GraphCache:
    """The captured steps of a model: for each owner of a cache's memory, by kind.

    Together they keep at most `budget` bytes of what is computed on the way (default: `TORCH_FOUNDRY_GRAPH_MEMORY`, or
    4 GiB on CUDA and 1 GiB elsewhere); beyond that, the least recently used are dropped, those of prompts first. An
    owner's graphs live as long as it does, so they must not refer to it.
    """

    def __init__(self) -> None:
        self.limit: int | None = None  # bytes, in place of the default
        self.proven: set[Hashable] = set()  # kinds of steps that were seen to launch nothing but our kernels
        self._spares: dict[Hashable, Any] = {}  # what generations have left, with the memory of their caches
        self._owned: weakref.WeakKeyDictionary[Any, OwnedGraphs] = weakref.WeakKeyDictionary()
        self._clock, self._lock = itertools.count(), threading.RLock()  # threads may share a model

    def budget(self, device: torch.device) -> int:
        """Bytes that graphs on `device` may keep."""
        if self.limit is not None:
            return self.limit
        given = environment.GRAPH_MEMORY.value()
        return devices.of(device).graph_budget if given is None else given << 20

    @property
    def nbytes(self) -> int:
        """Bytes that the graphs keep."""
        with self._lock:
            return sum(kept.nbytes for _, _, kept in self._places())

    def of(self, owner: Any) -> OwnedGraphs:
        """An owner's graphs, which live as long as it does."""
        owned = self._owned.get(owner)
        if owned is None:
            with self._lock:  # others may be counting
                owned = self._owned[owner] = OwnedGraphs(self._clock)
        return owned

    def put(self, owner: Any, key: Hashable, graph: Any) -> list[Hashable]:
        """Keep a graph. Returns the owner's keys whose graphs were dropped for it."""
        with self._lock:
            owned = self.of(owner)
            owned[key], graph.used = graph, next(self._clock)
            keys = list(owned)
            self._shrink(graph.decoder.device)
            return [key for key in keys if key not in owned]

    def _places(self) -> list[tuple[dict[Any, Any], Hashable, Any]]:
        """All that is kept, and where."""
        homes: list[dict[Any, Any]] = [*list(self._owned.values()), self._spares]
        return [(home, key, kept) for home in homes for key, kept in list(home.items())]

    def _shrink(self, device: torch.device) -> None:
        places = self._places()
        total, budget = sum(kept.nbytes for _, _, kept in places), self.budget(device)
        if total > budget:
            for home, key, kept in sorted(places, key=lambda place: (not place[2].of_prompts, place[2].used)):
                if total <= budget:
                    break
                total -= kept.nbytes
                home.pop(key, None)

    def take(self, key: Hashable) -> Any:
        """What `give` was given under this key, which only one generation can have; None if there is nothing."""
        return self._spares.pop(key, None)

    def give(self, key: Hashable, spare: Any) -> bool:
        """Keep what a generation has left, unless it is more than a quarter of the budget."""
        device = spare.memory[0][0].device
        if spare.nbytes > self.budget(device) // 4:
            return False
        with self._lock:
            spare.used = next(self._clock)
            self._spares[key] = spare
            self._shrink(device)
        return True

    def drop(self, owner: Any) -> None:
        """Let go of an owner's graphs."""
        with self._lock:
            self._owned.pop(owner, None)

    def clear(self) -> None:
        """Let go of all graphs, and of the tensors that they read."""
        with self._lock:
            self._owned.clear()
            self._spares.clear()
        self.proven.clear()
