"""One engine in several processes that share a model's weights: the first decides, the others do the same."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from torch_foundry.core.errors import Fallback

if TYPE_CHECKING:
    from torch_foundry.engine.request import EngineConfig, SamplingParams

FOREVER = datetime.timedelta(days=1000)  # that others wait for a first process which has nothing to do


class Ranks:
    """What the first process tells the others before it does it, in a group of its own on the CPU.

    shared: whether there are others. Then all have to make this at the same time, as it is with groups. Raises Fallback
    for an engine that would not do the same in all.
    """

    def __init__(self, shared: bool, config: EngineConfig) -> None:
        if shared and config.drafts:
            raise Fallback("drafts, whose number each process would time by itself, of weights that are sharded")
        self.shared = shared
        self._group = distributed.new_group(backend="gloo", timeout=FOREVER) if shared else None
        self.first = not shared or distributed.get_rank(self._group) == 0

    def check(self, params: SamplingParams, images: Any) -> None:
        """ValueError for a request that can't be told to others."""
        if self.shared and (images is not None or params.constraint is not None):
            raise ValueError("prompt: expected no images and no constraint, as weights are sharded over processes")

    def tell(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Send a name and its arguments to the others. Nothing, in these."""
        if self.shared and self.first:
            data = torch.frombuffer(bytearray(pickle.dumps((name, args, kwargs))), dtype=torch.uint8)
            self._send(torch.tensor([len(data)]))
            self._send(data)

    def follow(self, calls: dict[str, Callable[..., object]]) -> None:
        """Do what the first process tells, by its name, until that is "close"."""
        while True:
            length = torch.zeros(1, dtype=torch.int64)
            self._send(length)
            data = torch.empty(int(length), dtype=torch.uint8)
            self._send(data)
            name, args, kwargs = pickle.loads(data.numpy().tobytes())  # of a process of the same job
            if name == "close":
                return
            calls[name](*args, **kwargs)

    def _send(self, data: torch.Tensor) -> None:
        distributed.broadcast(data, group=self._group, group_src=0)
