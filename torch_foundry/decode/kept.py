"""What a generation leaves for the next one, so that its step need not be recorded again: memory at the same addresses.

A model keeps one tape, sampler and cache memory, if they are small and nobody else can see the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.decode.tape import CacheLayers, StepTape
from torch_foundry.decode.watch import Snapshot
from torch_foundry.kvcache.adopt import lend
from torch_foundry.kvcache.formats import Formats
from torch_foundry.sampling import Sampler, Settings

LARGEST = 256 << 20  # bytes of keys and values that are kept between calls


@dataclass
class Kept:
    """Of a generation that is over."""

    sampler: Sampler
    tape: StepTape
    output: Snapshot | None  # of the output layer, if it's on the tape
    buffers: list[torch.Tensor]  # keys and values of each layer in turn
    formats: Formats

    @classmethod
    def of(cls, sampler: Sampler, tape: StepTape, output: Snapshot | None, layers: CacheLayers) -> Kept | None:
        """Take the memory out of the cache, which is empty then; None, and it stays, if there is too much of it."""
        buffers = layers.buffers
        if sum(b.nbytes for b in buffers) > LARGEST:
            return None
        for slot in layers.slots:
            slot.reset()
        return cls(sampler, tape, output, buffers, tape.plan.state.kv_cache)

    def fits(self, sampler: Sampler, masked: bool, room: int) -> bool:
        """Whether a generation that starts with `sampler`, with a cache of `room` tokens, could go on with this."""
        tape = self.tape
        return (
            tape.masked == masked
            and tape.plan.state.kv_cache == self.formats
            and tape.fits(room)
            and min(b.shape[2] for b in self.buffers) >= room
            and (torch.is_inference_mode_enabled() or not any(t.is_inference() for t in self.buffers))
            and _refillable(self.sampler, sampler)
        )

    def begin(self, sampler: Sampler, cache: DynamicCache) -> CacheLayers:
        """Let the kept sampler be like `sampler`, and the empty `cache` use the kept memory."""
        for name, new in _tensors(sampler).items():
            vars(self.sampler)[name].copy_(new)
        self.sampler.settings, self.sampler.seed = sampler.settings, sampler.seed
        layers = self.tape.layers = CacheLayers(cache, len(self.buffers) // 2, self.formats)
        layers.buffers = self.buffers
        for i, slot in enumerate(layers.slots):
            lend(slot, self.buffers[2 * i], self.buffers[2 * i + 1])
        if self.tape.state.mask is not None:
            self.tape.state.mask.fill_(True)
        return layers


@dataclass
class KeptGuesses:
    """Of a generation with guesses: steps of several lengths, and their samplers, by the number of tokens in a step."""

    samplers: dict[int, Sampler]
    tapes: dict[int, StepTape]
    output: Snapshot | None
    buffers: list[torch.Tensor]
    formats: Any  # of keys and values, as the model had them then

    @classmethod
    def of(
        cls, samplers: dict[int, Sampler], tapes: dict[int, StepTape], output: Snapshot | None, layers: CacheLayers
    ) -> KeptGuesses | None:
        """As `Kept.of`."""
        buffers = layers.buffers
        if not tapes or sum(b.nbytes for b in buffers) > LARGEST or not all(tape.fits() for tape in tapes.values()):
            return None
        for slot in layers.slots:
            slot.reset()
        formats = next(iter(tapes.values())).plan.state.kv_cache
        return cls({rows: samplers[rows] for rows in tapes}, tapes, output, buffers, formats)

    def fits(self, settings: Settings, capacity: int, masked: bool, room: int) -> bool:
        """Whether a generation with these settings, a sampler of `capacity` and a cache of `room` tokens can go on."""
        inside = torch.is_inference_mode_enabled()
        return (
            all(tape.masked == masked and tape.fits(room) for tape in self.tapes.values())
            and all(tape.plan.state.kv_cache == self.formats for tape in self.tapes.values())
            and min(b.shape[2] for b in self.buffers) >= room
            and all(s.settings.structure == settings.structure for s in self.samplers.values())
            and all(s.ids.shape[1] == capacity for s in self.samplers.values())
            and (inside or not any(t.is_inference() for t in self.buffers))
            and (inside or not any(t.is_inference() for s in self.samplers.values() for t in _tensors(s).values()))
        )

    def begin(self, cache: DynamicCache) -> CacheLayers:
        """Let the empty `cache` use the kept memory."""
        layers = CacheLayers(cache, len(self.buffers) // 2, self.formats)
        layers.buffers = self.buffers
        for i, slot in enumerate(layers.slots):
            lend(slot, self.buffers[2 * i], self.buffers[2 * i + 1])
        for tape in self.tapes.values():
            tape.layers = layers
            if tape.state.mask is not None:
                tape.state.mask.fill_(True)
        return layers


def _tensors(sampler: Sampler) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(sampler).items() if isinstance(value, torch.Tensor)}


def _refillable(old: Sampler, new: Sampler) -> bool:
    """Whether the tensors of `old` can take the values of `new`'s, under a tape that was recorded with `old`."""
    ours, theirs = _tensors(old), _tensors(new)
    if old.settings.structure != new.settings.structure or ours.keys() != theirs.keys():
        return False
    return all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.device == b.device
        and (torch.is_inference_mode_enabled() or not a.is_inference())
        for a, b in zip(ours.values(), theirs.values(), strict=True)
    )
