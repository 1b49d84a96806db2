"""Handing decode steps to the device, each with the choice of its token."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core.errors import Fallback
from torch_foundry.decode.decoder import DecoderMixin
from torch_foundry.decode.kept import Kept
from torch_foundry.decode.models import head_of, is_plain, logits_of
from torch_foundry.decode.plan import DecoderPlan
from torch_foundry.decode.tape import CacheLayers, StepTape, Tail
from torch_foundry.decode.watch import Snapshot
from torch_foundry.kvcache.adopt import expect
from torch_foundry.kvcache.undo import Undo
from torch_foundry.nn import FoundryLinear
from torch_foundry.nn.linear import FEW
from torch_foundry.patch.leaves import LinearMixin
from torch_foundry.patch.state import ModelPlan
from torch_foundry.patch.weights import Linear, weight_reason
from torch_foundry.sampling import Sampler

ROOM = 64  # tokens for which the cache makes room at once
EXPECTED = 256  # tokens, at most, that memory is set aside for when the prompt is taken in


class Steps:
    """The steps of one generation, from the prompt on.

    Until `count`, new tokens are in the cache's memory but not part of the cache, so an exception leaves it as it was.
    """

    sampler: Sampler  # given before the first step

    def __init__(self, model: Any, plan: ModelPlan, batch: int, model_kwargs: dict[str, Any]) -> None:
        """Reads, before anything is under way, where the prompt ends. Raises Fallback for what is not usual."""
        self.model, self.plan, self.batch = model, plan, batch
        self.decoder: DecoderMixin = model.model
        if self.batch > FEW:
            raise Fallback(f"more than {FEW} rows")
        head = head_of(model)
        assert head is not None
        self.head = head
        positions, mask = model_kwargs.get("position_ids"), model_kwargs.get("attention_mask")
        if positions is None or positions.dim() != 2 or positions.shape[0] not in (1, self.batch):
            raise Fallback("positions are not [batch, tokens]")
        if mask is not None and (mask.dim() != 2 or mask.shape[0] != self.batch):
            raise Fallback("mask is not [batch, tokens]")
        last = positions[:, -1].tolist()
        self._next = [p + 1 for p in (last if len(last) == self.batch else last * self.batch)]  # of each row's newest
        self.mask = mask
        self._tape: StepTape | None = None
        self._cache: DynamicCache | None = None
        self._layers: CacheLayers | None = None
        self._starts: list[int] = []  # where the room begins
        self._room = self._used = self._counted = 0  # tokens that there is room for, that are in it, that count
        self.output: Snapshot | None = None
        self._by_layers = False  # whether the model's own forward pass was used

    def expect(self, cache: DynamicCache, tokens: int) -> None:
        """Up to `tokens` tokens will follow the prompt: a cache that has memory for them need not move at once."""
        plan = self.decoder.decoder_plan()
        expect(cache, len(plan.layers), min(tokens, EXPECTED), plan.state.kv_cache)

    def resume(self, kept: Kept | None, cache: DynamicCache, prompt: int, tokens: int) -> bool:
        """Go on with what an earlier generation has left, if it fits, which is the result: the prompt will be stored in
        its memory."""
        masked = self.mask is not None
        room = prompt + min(tokens, EXPECTED)
        if kept is None or not kept.fits(self.sampler, masked, room):
            return False
        self.output = kept.output
        if not self.output_holds():
            self.output = None
            return False
        self._layers, self._tape, self._cache = kept.begin(self.sampler, cache), kept.tape, cache
        self.sampler = kept.sampler
        if self.mask is not None:
            kept.tape.state.set_mask(self.mask)
        return True

    def leave(self) -> Kept | None:
        """What the next generation can use; the cache, which nobody else knows, is empty then. Nothing is under way."""
        if self._tape is None or self._layers is None or self._by_layers or not self._tape.fits():
            return None
        return Kept.of(self.sampler, self._tape, self.output, self._layers)

    def ready(self) -> DecoderPlan:
        """The decoder's plan. Raises Fallback if a tape may not run now."""
        model: Any = self.model
        if model._forward_hooks or model._forward_pre_hooks or "forward" in model.__dict__:
            raise Fallback(f"hook on {type(model).__name__}")
        plan = self.decoder.decoder_plan()
        plan.check()
        return plan

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, V] of the last norm's result, for tapes without a tail."""
        return logits_of(self.model, self.head, hidden)

    @property
    def position(self) -> int:
        """Of the only row's newest token, which the next step reads."""
        return self._next[0]

    @position.setter
    def position(self, position: int) -> None:
        """Steps that don't count yet never were."""
        self._used, self._next = self._counted, [position]

    def submit(self, cache: DynamicCache, steps: int, remaining: int) -> bool:
        """Hand `steps` steps, of `remaining` that there may be, to the device.

        False if the cache has to move while there are tokens that don't count yet. Raises Fallback if no tape may.
        In both cases nothing has happened.
        """
        plan = self.ready()
        tape = self._tape if self._used + steps <= self._room else None
        if tape is None or not self._unchanged(cache, tape):
            if self._used > self._counted:
                return False
            tape = self._prepare(plan, cache, max(steps, min(ROOM, remaining)))
        tape.state.seek([s if i % 2 else s + self._used for i, s in enumerate(self._starts)], self._next)
        for i in range(steps):
            if i:
                tape.state.move_on()
            result = tape.run()
            if tape.tail is None:
                self.sampler.step(self.logits(result)[:, -1])
        self._used += steps
        self._next = [p + steps for p in self._next]
        self.plan.leaves += steps if tape.tail is not None else 0
        return True

    def count(self, steps: int) -> None:
        """Of the steps that don't count yet, the first `steps` are part of the text."""
        if not steps:
            return
        assert self._layers is not None and self._cache is not None
        undo = Undo(self._cache)
        try:
            self._layers.count(steps)
        except BaseException:  # an interrupt: all layers or none
            undo.run()
            raise
        self._counted += steps

    def step_by_layers(self, cache: DynamicCache) -> None:
        """One step by the model's own forward pass, which counts at once. All others have to count by now."""
        self._by_layers = True
        token = self.sampler.token.clone()  # hooks may keep it
        mask = self.mask
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(self.batch, cache.get_seq_length() + 1 - mask.shape[1])], dim=1)
        positions = torch.tensor(self._next, device=token.device)[:, None]
        inputs = {"input_ids": token, "attention_mask": mask, "position_ids": positions, "past_key_values": cache}
        outputs = self.model(**inputs, use_cache=True, return_dict=True)
        self.sampler.step(outputs.logits[:, -1])
        self._next = [p + 1 for p in self._next]
        self._room = self._used = self._counted = 0

    def _unchanged(self, cache: DynamicCache, tape: StepTape) -> bool:
        layers = self._layers
        assert layers is not None
        return layers.belong_to(cache) and layers.untouched(self._counted) and tape.fits() and self.output_holds()

    def _prepare(self, plan: DecoderPlan, cache: DynamicCache, room: int) -> StepTape:
        """A tape that may take `room` steps."""
        layers, tape = self._layers, self._tape
        if layers is None or not layers.belong_to(cache):
            layers, tape = CacheLayers(cache, len(plan.layers), plan.state.kv_cache), None
        starts, same = layers.place(plan, self.batch, room)
        positions = max(max(self._next), starts[0] + starts[1]) + room
        if tape is None or not same or not tape.fits(positions) or not self.output_holds():
            self._tape = None  # its memory may be needed for the next one
            tail, masked = self.tail(plan, self.sampler), self.mask is not None
            tape = StepTape(plan, layers, self.sampler.token, positions=positions, masked=masked, tail=tail)
            if self.mask is not None:
                tape.state.set_mask(self.mask)
        self._cache, self._layers, self._tape, self._starts = cache, layers, tape, starts
        self._room, self._used, self._counted = room, 0, 0
        return tape

    def tail(self, plan: DecoderPlan, sampler: Sampler) -> Tail | None:
        """Output layer and choice of a token, for each row or the first row's tokens, if our ops alone can do that."""
        model: Any = self.model
        output, self.output = model.lm_head, None
        if not is_plain(self.head, model.config):
            return None
        if not issubclass(type(output), LinearMixin | FoundryLinear):
            return None
        snapshot = Snapshot([output])
        if snapshot.reason() or any(t.device != plan.device for t in snapshot.tensors):
            return None
        if weight_reason((output._parameters,), plan.dtype):
            return None
        self.output, linear = snapshot, Linear(output)
        return lambda hidden: sampler.step(linear(hidden).flatten(0, 1))

    def output_holds(self) -> bool:
        output, model = self.output, self.model
        return output is None or (
            output.holds() and model.lm_head is output.modules[0] and is_plain(self.head, model.config)
        )
