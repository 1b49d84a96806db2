"""Device memory of a step on growing caches: where it writes, positions, mask, rope tables and the caches' own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import is_
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core import devices
from torch_foundry.core.errors import Fallback
from torch_foundry.generation.step_graph import Sizes, StepGraph
from torch_foundry.kvcache.base import CapturedStep
from torch_foundry.kvcache.formats import PLAIN, Formats
from torch_foundry.kvcache.hf_cache import captured_layers
from torch_foundry.kvcache.room import check_growth
from torch_foundry.models.decoder import DecoderModel, Tail
from torch_foundry.models.rope import Kind, RopeRows, RopeTables, Table, horizon_for
from torch_foundry.models.weights import GEMV, Gemm


class CacheLayers:
    """The layers of a cache, by number, as memory at fixed addresses that captured steps write to, and how far they
    have."""

    def __init__(self, cache: DynamicCache, numbers: Iterable[int], formats: Formats = PLAIN) -> None:
        numbers = tuple(numbers)
        self._layers = dict(zip(numbers, captured_layers(cache, numbers, formats), strict=True))
        self.parts = [part for layer in self._layers.values() for part in layer.parts]
        self.memory: list[tuple[torch.Tensor, ...]] = []  # of each of `parts`
        self.batch = 0
        self.starts: list[int] = []  # flat `CapturedStep.start` of the first token that there is room for
        # tokens that `place` has made room for, that are in it, that are part of the text, and of the cache
        self.room = self.used = self.text = self.counted = 0
        self._positions: list[int] = []  # when they were placed

    @property
    def capacity(self) -> int:
        """Tokens of a row that there is room for; 0 if that is never a question."""
        return min((part.capacity for part in self.parts if part.capacity), default=0)

    def belong_to(self, cache: DynamicCache) -> bool:
        """Whether `cache` still has these layers."""
        layers = cache.layers
        if not self._layers or max(self._layers) >= len(layers):
            return False
        return all(layers[number] is layer for number, layer in self._layers.items())

    def place(self, decoder: DecoderModel, batch: int, tokens: int) -> bool:
        """Room for `tokens` more. Returns whether no memory was exchanged.

        DoesNotFit: there is no memory for them. Raises Fallback unless the layers hold the same number of tokens, of
        the model's shape, dtype and device.
        """
        seen = {number for part in self.parts if (number := part.seen) is not None}
        if len(seen) > 1 or not all(part.memory for part in self.parts):
            raise Fallback("layers of the cache hold different numbers of tokens")
        specs = decoder.specs
        check_growth(list(zip(self.parts, specs, strict=True)), batch, tokens, decoder.dtype, decoder.device)
        starts = [start for part in self.parts for start in part.place(tokens)]
        memory = [part.memory for part in self.parts]
        same = _same(memory, self.memory)
        if not same:
            for part, spec in zip(self.parts, specs, strict=True):
                if not part.fits(batch, spec, decoder.dtype, decoder.device):
                    raise Fallback("cache holds another shape, dtype or device")
            self.memory, self.batch = memory, batch
        elif batch != self.batch:
            raise Fallback("cache holds another shape, dtype or device")
        self._positions = [part.position for part in self.parts]
        self.starts, self.room, self.used, self.text, self.counted = starts, tokens, 0, 0, 0
        return same

    def untouched(self) -> bool:
        """Whether nothing has happened to the layers since `place` but counting tokens."""
        now = [part.position - self.counted for part in self.parts]
        return now == self._positions and _same([part.memory for part in self.parts], self.memory)

    def count(self, tokens: int) -> None:
        """`tokens` that were written are part of the cache."""
        for part in self.parts:
            part.commit(tokens)
        self.counted += tokens


def _same(new: list[tuple[torch.Tensor, ...]], old: list[tuple[torch.Tensor, ...]]) -> bool:
    return len(new) == len(old) and all(len(a) == len(b) and all(map(is_, a, b)) for a, b in zip(new, old, strict=True))


def contiguous_step(
    decoder: DecoderModel, layers: CacheLayers, ids: torch.Tensor, *, tail: Tail | None = None, **options: Any
) -> StepGraph[StepState]:
    """The step of `ids` on `layers`; options: as of `StepState`."""
    state = StepState(decoder, layers, ids, **options)
    return StepGraph(decoder, state, (*ids.shape, state.masked, bool(state.rows)), tail)


class StepState:
    """What a step of `ids` [B, L] reads besides weights. It is set before each run.

    start: int32 [layers, 2]. positions: int32 [B, L]. mask: bool [B, horizon], or None. The first two are parts of one
    tensor, so that one small kernel, or one copy, moves them on. hidden: [B, L, hidden], of an MTP head.

    masked: `mask` is read. given: positions are the caller's, and rows of the rope tables are made from them each step.
    """

    def __init__(
        self,
        decoder: DecoderModel,
        layers: CacheLayers,
        ids: torch.Tensor,
        *,
        positions: int,
        masked: bool = False,
        given: bool = False,
    ) -> None:
        batch, length = ids.shape
        self.layers, self.ids, self.length, self.masked = layers, ids, length, masked
        self.keys = max(part.capacity for part in layers.parts)
        self.sizes: Sizes = ((batch, length),)
        self.horizon = horizon_for(max(positions, self.keys))
        like = torch.empty(0, dtype=decoder.dtype, device=ids.device)
        self.rope: RopeTables | RopeRows = (
            RopeRows(decoder.rotary, batch, length, like) if given else decoder.rope_tables(self.horizon, like)
        )
        self.rows = list(range(batch * length)) if given else []
        self._learned = decoder.most_positions is not None
        self._memory, count = layers.memory, len(layers.parts)
        # not inference tensors: those could only be written to in inference mode
        with torch.inference_mode(False):
            self._overlaps = devices.of(ids.device).overlaps_copies
            self._control = torch.zeros(2 * count + batch * length, dtype=torch.int32, device=ids.device)
            self.mask = torch.ones(batch, self.horizon, dtype=torch.bool, device=ids.device) if masked else None
            self.hidden = decoder.new_hidden(batch, length)
        self.start = self._control[: 2 * count].view(count, 2)
        self.positions = self._control[2 * count :].view(batch, length)
        self._states = [
            part.captured_view(batch, length, CapturedStep(start, self.positions, self.mask))
            for part, start in zip(layers.parts, self.start, strict=True)
        ]
        self._step = [length, 0] * count + [0 if given else length] * (batch * length)
        self._delta: torch.Tensor | None = None
        self._at: list[int] | None = None  # what was uploaded last
        self._moved = 0  # how often the device has moved on since

    def is_valid(self, positions: int) -> bool:
        """See `StepInputs`."""
        return positions <= self.horizon and self._memory is self.layers.memory and self.rope.is_valid()

    def tables(self) -> Mapping[Kind, Table]:
        """See `StepInputs`."""
        return self.rope.tables

    def states(self, graph: Any = None) -> list[Any]:
        """See `StepInputs`. The device says where a step writes."""
        return self._states

    def gemm(self, graph: Any = None) -> Gemm:
        """See `StepInputs`."""
        return GEMV if graph is None else replace(GEMV, call=graph.call)

    def seek(self, starts: list[int], positions: list[int]) -> None:
        """Set what the next step reads: start of each layer (flat), and a row of the rope tables for each token."""
        wanted = starts + positions
        if self._at is not None and wanted == self._after(self._moved + 1):
            self.move_on()
        elif self._at is None or wanted != self._after(self._moved):
            self._at = None
            self._control.copy_(torch.tensor(wanted, dtype=torch.int32), non_blocking=self._overlaps)
            self._at, self._moved = wanted, 0

    def follow(self, starts: list[int], positions: torch.Tensor) -> None:
        """The same with the caller's `positions` [B or 1, L]. Learned ones stay as they are: no table is made."""
        self.rope.set(positions)  # type: ignore[union-attr]
        self.seek(starts, self.rows)
        if self._learned:
            self.positions.copy_(positions)

    def _after(self, moves: int) -> list[int]:
        assert self._at is not None
        return [a + moves * b for a, b in zip(self._at, self._step, strict=True)]

    def move_on(self) -> None:
        """Advance to the next step: one launch, nothing is uploaded."""
        if self._delta is None:
            with torch.inference_mode(False):
                self._delta = torch.empty_like(self._control)
                self._delta.copy_(torch.tensor(self._step, dtype=torch.int32), non_blocking=self._overlaps)
        self._control.add_(self._delta)
        self._moved += 1

    def set_mask(self, mask: torch.Tensor) -> None:
        """Take over `mask` [B, tokens so far]: nonzero where a token may be seen."""
        assert self.mask is not None
        self.mask[:, : mask.shape[1]].copy_(mask)
