"""The captured steps of a generation, which it leaves for the next one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from torch_foundry.generation.step_graph import StepGraph
from torch_foundry.generation.step_state import CacheLayers, StepState
from torch_foundry.models.decoder import DecoderModel, Tail
from torch_foundry.models.guards import weight_reason
from torch_foundry.models.outputs import head_of, is_plain
from torch_foundry.models.swap import is_swapped
from torch_foundry.models.watch import ModuleGuard
from torch_foundry.models.weights import Linear
from torch_foundry.nn import FoundryLinear
from torch_foundry.sampling import Sampler


@dataclass
class CapturedSteps:
    """Captured steps, and the memory that they read and write, which nobody else can see."""

    prompt: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0))  # what samplers begin with, int64 [B, n]
    samplers: dict[int, Sampler] = field(default_factory=dict)  # by tokens of a row
    graphs: dict[int, StepGraph[StepState]] = field(default_factory=dict)  # by tokens of a row
    output: ModuleGuard | None = None  # of the output layer, if it's part of the graphs
    memory: list[tuple[torch.Tensor, ...]] = field(default_factory=list)  # of each layer, once they are left
    batch: int = 0
    capacity: int = 0  # tokens of a row that there is room for
    used: int = 0  # when last, by the clock of `GraphCache`
    of_prompts: bool = False

    @property
    def nbytes(self) -> int:
        """Of the graphs and the cache's memory."""
        return sum(graph.nbytes for graph in self.graphs.values()) + sum(
            tensor.nbytes for own in self.memory for tensor in own
        )

    def fits(self, sampler: Sampler, room: int) -> bool:
        """Whether a generation that starts with `sampler`, with a cache of `room` tokens, can go on with this."""
        tensors = [t for own in self.samplers.values() for t in _tensors(own).values()]
        tensors += [tensor for own in self.memory for tensor in own]
        return (
            all(graph.is_valid(room) for graph in self.graphs.values())
            and self.capacity >= room
            and (torch.is_inference_mode_enabled() or not any(t.is_inference() for t in tensors))
            and _refillable(self.samplers[1], sampler)
        )

    def tail(self, model: Any, decoder: DecoderModel, sampler: Sampler) -> Tail | None:
        """Output layer and choice of a token, for each row or the only row's tokens, if its product alone gives the
        logits and our ops can compute it."""
        self.output, output = None, model.lm_head
        if not _is_plain(model) or not (is_swapped(output) or isinstance(output, FoundryLinear)):
            return None
        guard, linear = ModuleGuard([output]), Linear(output)
        if guard.reason() or any(t.device != decoder.device for t in guard.tensors):
            return None
        if weight_reason((output._parameters,), decoder.dtype):
            return None
        self.output = guard
        return lambda hidden: sampler.step(linear(hidden).flatten(0, 1))

    def output_is_valid(self, model: Any) -> bool:
        """Whether `model` has the output layer that is part of the graphs."""
        output = self.output
        return output is None or (output.is_valid() and model.lm_head is output.modules[0] and _is_plain(model))

    def begin(self, sampler: Sampler, input_ids: torch.Tensor, mask: torch.Tensor | None, layers: CacheLayers) -> None:
        """Let an empty cache, of `layers`, use this memory, and the first sampler be like `sampler`."""
        for name, tensor in _tensors(sampler).items():
            vars(self.samplers[1])[name].copy_(tensor)
        self.prompt = input_ids
        self.samplers[1].settings, self.samplers[1].seed = list(sampler.settings), sampler.seed
        for rows, own in self.samplers.items():
            if rows > 1:
                prompt, streams = input_ids.expand(rows, -1), [0] * rows
                own.begin(prompt, settings=sampler.settings[0], seed=sampler.seed, streams=streams)
        layers.memory, layers.batch = self.memory, self.batch
        for part, memory in zip(layers.parts, self.memory, strict=True):
            part.use_buffer(memory)
        for graph in self.graphs.values():
            graph.inputs.layers = layers
            if mask is not None and graph.inputs.mask is not None:
                graph.inputs.mask.fill_(True)
                graph.inputs.set_mask(mask)


def _is_plain(model: Any) -> bool:
    head = head_of(model)
    return head is not None and is_plain(head, model.config)


def _tensors(sampler: Sampler) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(sampler).items() if isinstance(value, torch.Tensor)}


def _refillable(old: Sampler, new: Sampler) -> bool:
    """Whether the tensors of `old` can take the values of `new`'s, under a graph that was captured with `old`."""
    a, b = _tensors(old), _tensors(new)
    same = old.suits(new.settings[0]) and a.keys() == b.keys()
    return same and all((t.shape, t.dtype, t.device) == (b[n].shape, b[n].dtype, b[n].device) for n, t in a.items())
