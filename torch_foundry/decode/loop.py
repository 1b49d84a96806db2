"""The generation loop: blocks of tokens are handed to the device, then read at once."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.decode.decoder import WIDEST, DecoderMixin
from torch_foundry.decode.models import head_of, is_plain, logits_of
from torch_foundry.decode.plan import DecoderPlan
from torch_foundry.decode.stops import Stops
from torch_foundry.decode.tape import CacheLayers, StepTape, Tail
from torch_foundry.decode.watch import Snapshot
from torch_foundry.nn import FoundryLinear
from torch_foundry.patch.leaves import LinearMixin
from torch_foundry.patch.state import Blocked, ModelPlan
from torch_foundry.patch.weights import Linear, weight_reason
from torch_foundry.sampling import Sampler, Settings


class Loop:
    """One call of generate()."""

    def __init__(
        self,
        model: Any,
        plan: ModelPlan,
        input_ids: torch.Tensor,
        settings: Settings,
        stops: Stops,
        every: int,
        streamer: Any,
    ) -> None:
        self.model, self.plan, self.stops, self.every, self.streamer = model, plan, stops, every, streamer
        self.batch, self.prompt = input_ids.shape
        if self.batch > WIDEST:
            raise Blocked(f"more than {WIDEST} rows")
        assert stops.max_length is not None
        self.decoder: DecoderMixin = model.model
        self.head = head_of(model)
        assert self.head is not None
        capacity = max(stops.max_length, self.prompt + 1)
        self.sampler = Sampler(settings, input_ids, vocab_size=model.lm_head.out_features, capacity=capacity)
        self.next: list[int] = []  # of each row, the position of the newest token
        self.mask: torch.Tensor | None = None
        self.tape: StepTape | None = None
        self.layers: CacheLayers | None = None
        self._head: Snapshot | None = None

    def locate(self, model_kwargs: dict[str, Any]) -> None:
        """Read, before anything is under way, where the prompt ends. Raises Blocked for what is not usual."""
        positions, mask = model_kwargs.get("position_ids"), model_kwargs.get("attention_mask")
        if positions is None or positions.dim() != 2 or positions.shape[0] not in (1, self.batch):
            raise Blocked("positions are not [batch, tokens]")
        if mask is not None and (mask.dim() != 2 or mask.shape[0] != self.batch):
            raise Blocked("mask is not [batch, tokens]")
        last = positions[:, -1].tolist()
        self.next = [p + 1 for p in (last if len(last) == self.batch else last * self.batch)]
        self.mask = mask

    def run(self, logits: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """Generate, from the prompt's last logits [B, V] on; returns the new tokens, int64 [B, n], in host memory.

        The cache counts what was read: an exception leaves it as it was at the last read.
        """
        self.sampler.step(logits)
        unread, fed = 1, 0  # tokens chosen; tokens that went into the cache since the last read
        while True:
            steps = min(self.every, self.stops.remaining) - unread
            if steps > 0:
                try:
                    self._submit(cache, steps)
                    unread, fed = unread + steps, steps
                except Blocked as blocked:
                    self.plan.eager[f"step of generate: {blocked}"] += 1
                    self._step_by_layers(cache)
                    unread += 1
            kept = self._read(unread)
            if fed:
                assert self.layers is not None
                self.layers.count(fed - (unread - kept))
            self._stream(kept)
            if all(self.stops.done):
                return torch.tensor(self.stops.tokens)
            unread = fed = 0

    def _submit(self, cache: DynamicCache, steps: int) -> None:
        """Hand `steps` tokens to the device. Raises Blocked, before anything has happened, if no tape may do that."""
        model = self.model
        if model._forward_hooks or model._forward_pre_hooks or "forward" in model.__dict__:
            raise Blocked(f"hook on {type(model).__name__}")
        plan = self.decoder.decoder_plan()
        plan.check()
        if self.layers is None or not self.layers.belong_to(cache):
            self.layers, self.tape = CacheLayers(cache, len(plan.layers)), None
        starts, same = self.layers.place(plan, self.batch, steps)
        positions = max(max(self.next), starts[0] + starts[1]) + steps
        if not same or self.tape is None or not self.tape.fits(positions) or not self._tail_holds():
            self.tape = StepTape(
                plan,
                self.layers,
                self.sampler.token,
                positions=positions,
                masked=self.mask is not None,
                tail=self._make_tail(plan),
            )
            if self.mask is not None:
                self.tape.state.set_mask(self.mask)
        tape = self.tape
        tape.state.seek(starts, self.next)
        for i in range(steps):
            if i:
                tape.state.move_on()
            result = tape.run()
            if tape.tail is None:
                assert self.head is not None
                self.sampler.step(logits_of(model, self.head, result)[:, -1])
        self.plan.leaves += steps if tape.tail is not None else 0
        self.next = [p + steps for p in self.next]

    def _make_tail(self, plan: DecoderPlan) -> Tail | None:
        """Logits and choice, if our ops alone make them."""
        model: Any = self.model
        head, self._head = model.lm_head, None
        assert self.head is not None
        if not is_plain(self.head, model.config):
            return None
        if not issubclass(type(head), LinearMixin | FoundryLinear) or weight_reason((head._parameters,), plan.dtype):
            return None
        snapshot = Snapshot([head])
        if snapshot.reason() or any(t.device != plan.device for t in snapshot.tensors):
            return None
        self._head, linear, sampler = snapshot, Linear(head), self.sampler
        return lambda hidden: sampler.step(linear(hidden)[:, 0])

    def _tail_holds(self) -> bool:
        return self._head is None or (self._head.holds() and self.model.lm_head is self._head.modules[0])

    def _step_by_layers(self, cache: DynamicCache) -> None:
        """One token by the model's own forward pass."""
        token = self.sampler.token.clone()  # hooks may keep it
        mask = self.mask
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(self.batch, cache.get_seq_length() + 1 - mask.shape[1])], dim=1)
        positions = torch.tensor(self.next, device=token.device)[:, None]
        inputs = {"input_ids": token, "attention_mask": mask, "position_ids": positions, "past_key_values": cache}
        outputs = self.model(**inputs, use_cache=True, return_dict=True)
        self.sampler.step(outputs.logits[:, -1])
        self.next = [p + 1 for p in self.next]

    def _read(self, tokens: int) -> int:
        """Wait for the newest `tokens` of each row; returns how many of them are part of the text."""
        start = self.prompt + len(self.stops.tokens[0])
        sampler = self.sampler
        found = torch.cat([sampler.ids[:, start : start + tokens], sampler.errors[:, None]], dim=1).tolist()
        self.plan.reads += 1
        if any(row[-1] for row in found):
            sampler.check()
        kept = self.stops.take([row[:-1] for row in found])
        self.plan.tokens += kept
        return kept

    def _stream(self, tokens: int) -> None:
        if self.streamer is not None:
            for column in list(zip(*self.stops.tokens, strict=True))[-tokens:]:
                self.streamer.put(torch.tensor(column))
