"""Decode steps of a batch of sequences: handed to the device, each with the choice of its tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core import devices
from torch_foundry.core.errors import Fallback
from torch_foundry.core.interrupts import uninterruptible
from torch_foundry.generation.captured_steps import CapturedSteps
from torch_foundry.generation.draft_length import rows_of
from torch_foundry.generation.step_graph import StepGraph
from torch_foundry.generation.step_state import CacheLayers, StepState, contiguous_step
from torch_foundry.kvcache.hf_cache import reserve_hint
from torch_foundry.kvcache.snapshots import Snapshots
from torch_foundry.models.decoder import DecoderModel, decoder_plan
from torch_foundry.models.outputs import check_around, logits_of
from torch_foundry.models.rope import last_positions
from torch_foundry.models.state import ModelPlan
from torch_foundry.nn.linear import MAX_GEMV_ROWS
from torch_foundry.sampling import Sampler

ROOM = 64  # tokens for which the cache makes room at once
EXPECTED = 256  # tokens, at most, that memory is set aside for when the prompt is taken in


class DecodeRunner:
    """Steps of the rows of one generation on a growing cache, from the prompt on.

    `step` reads each row's newest token and chooses the next one, `verify` reads draft tokens of the only row as well
    and chooses one after each. Their keys and values are in the cache's memory then, but not part of the text before
    `commit`, nor of the cache before `settle`: an exception leaves it as it was. Until then nobody else may use it.
    """

    def __init__(
        self, model: Any, plan: ModelPlan, cache: DynamicCache, batch: int, model_kwargs: dict[str, Any]
    ) -> None:
        """Reads, before anything is under way, where the prompt ends. Raises Fallback for what is not usual."""
        self.model, self.plan, self.cache = model, plan, cache
        if batch > MAX_GEMV_ROWS:
            raise Fallback(f"more than {MAX_GEMV_ROWS} rows")
        decoder, mask = decoder_plan(model), model_kwargs.get("attention_mask")
        positions = decoder.rotary.sections(model_kwargs.get("position_ids"), batch)
        if mask is not None and (mask.dim() != 2 or mask.shape[0] != batch):
            raise Fallback("mask is not [batch, tokens]")
        # of each row's newest token, if the room for new ones began with it
        self._positions = [p + 1 for p in last_positions(positions, batch)]
        self.mask = mask
        self._steps = CapturedSteps()
        self._layers = CacheLayers(cache, ())  # none before the first step
        self._ready: DecoderModel | None = None  # once it is known to be as it was
        self._by_layers = False  # whether the model's own forward pass was used
        self.seen: Callable[[int, torch.Tensor], None] | None = None  # told position and last norm's result of a step

    def begin(self, sampler: Sampler, input_ids: torch.Tensor) -> None:
        """Before the first step. sampler: of the rows, whose texts are `input_ids`."""
        self._steps.samplers, self._steps.prompt = {1: sampler}, input_ids

    @property
    def sampler(self) -> Sampler:
        """Chooses the tokens of single steps, and of the prompt."""
        return self._steps.samplers[1]

    def reserve_hint(self, tokens: int) -> None:
        """Up to `tokens` tokens will follow the prompt: a cache that has memory for them need not move at once."""
        decoder = decoder_plan(self.model)
        reserve_hint(self.cache, decoder.owners, min(tokens, EXPECTED), decoder.state.kv_cache)

    def reuse(self, tokens: int) -> None:
        """Go on with what another generation has left, if it fits. To be called before the prompt, which `tokens`
        follow, is taken in: it will be stored in that memory."""
        key, decoder = self._shared()
        steps: CapturedSteps | None = decoder.graphs.take(key)
        if steps is None:
            return
        sampler, prompt = self.sampler, self._steps.prompt
        if not steps.fits(sampler, prompt.shape[1] + min(tokens, EXPECTED)) or not steps.output_is_valid(self.model):
            decoder.graphs.give(key, steps)
            return
        self._layers = CacheLayers(self.cache, decoder.owners, decoder.state.kv_cache)
        steps.begin(sampler, prompt, self.mask, self._layers)
        self._steps = steps

    def release(self) -> None:
        """Leave for the next generation what it can use; the cache, which nobody else knows, is empty then. Nothing is
        under way."""
        (key, decoder), steps, layers = self._shared(), self._steps, self._layers
        valid = steps.graphs and all(graph.is_valid() for graph in steps.graphs.values())
        if self._by_layers or not valid or not steps.output_is_valid(self.model):
            return
        for rows in steps.samplers.keys() - steps.graphs.keys() - {1}:
            del steps.samplers[rows]
        steps.memory, steps.batch, steps.capacity = layers.memory, layers.batch, layers.capacity
        if decoder.graphs.give(key, steps):
            for part in layers.parts:
                part.reset()

    def _shared(self) -> tuple[Any, DecoderModel]:
        """Under which key generations leave what others can use, and the decoder whose graph cache has it."""
        decoder = decoder_plan(self.model)
        settings = self.sampler.settings[0]
        assert settings is not None
        key = len(self._positions), self.mask is not None, settings.structure, decoder.state.kv_cache
        return key, decoder

    # ------------------------------------------------------------------------------------------------------------ steps

    def ready(self) -> DecoderModel:
        """The decoder. Raises Fallback if no captured step may run now."""
        check_around(self.model)
        decoder = decoder_plan(self.model)
        decoder.check()
        return decoder

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, V] of the last norm's result, where they are not part of a graph."""
        return logits_of(self.model, hidden)

    def seek(self, position: int) -> None:
        """Go on from the only row's token at `position`: steps that are not part of the text never were."""
        layers = self._layers
        layers.used, self._positions = layers.text, [position - layers.text]

    def rewind(self, length: int, tokens: list[int]) -> None:
        """Go on from each row's newest token, behind `length` of the text: other steps never were. Nothing is under
        way."""
        self._layers.used = self._layers.text
        self.sampler.seek([length] * len(tokens), tokens)

    @uninterruptible()
    def step(self, steps: int, remaining: int, hidden: torch.Tensor | None = None) -> bool:
        """Hand `steps` steps, of `remaining` that there may be, to the device. hidden: for an MTP head's first.

        False if the cache has to move while there are tokens that are not part of the text. Raises Fallback if no
        captured step may run. In both cases nothing has happened.
        """
        graph = self._at(1, steps, remaining)
        if graph is None:
            return False
        if graph.inputs.hidden is not None and hidden is not None:
            graph.inputs.hidden.copy_(hidden)
        self._run(graph, self._steps.samplers[1], steps)
        self._layers.used += steps
        return True

    @uninterruptible()
    def choose(
        self, newest: int, more: torch.Tensor, length: int, remaining: int, hidden: torch.Tensor | None = None
    ) -> tuple[Sampler, torch.Tensor]:
        """One step of the only row's `newest` token, of a text of `length` tokens, and those of `more` behind it: the
        sampler has the tokens chosen behind each. Also the last norm's result, [1, rows, hidden].
        more: int64 [n], on the device or not. hidden: [n + 1, hidden], for an MTP head. remaining: tokens that there
        may be yet. Raises Fallback, and nothing has happened, if no captured step may do it.
        """
        count, rows = len(more), rows_of(len(more))
        graph, sampler = self._at(rows, rows, remaining), self._steps.samplers[rows]
        assert graph is not None
        ids = graph.inputs.ids
        ids.fill_(newest)
        ids[0, 1 : 1 + count].copy_(more, non_blocking=devices.of(ids.device).overlaps_copies)
        if graph.inputs.hidden is not None and hidden is not None:
            graph.inputs.hidden[0, : 1 + count].copy_(hidden)
        sampler.seek(list(range(length, length + rows)))
        self._run(graph, sampler, 1)
        return sampler, graph.hidden

    def verify(self, newest: int, drafts: torch.Tensor, length: int, remaining: int) -> tuple[list[int], list[int]]:
        """`drafts`, and the target tokens: what the model chooses after `newest` and after each draft token. As
        `choose`, with drafts for `more`. Waits for the device, once. All is part of the text so far."""
        device = self.sampler.device
        drafts = drafts.to(device, non_blocking=devices.of(device).overlaps_copies)
        sampler, _ = self.choose(newest, drafts, length, remaining)
        values = self.read(torch.cat([drafts, sampler.token[:, 0], sampler.errors]))
        count, rows = len(drafts), len(sampler.token)
        if any(values[count + rows :]):
            # a draft token may be what gave no scores, also for the tokens before it: 0 times infinity is NaN
            sampler.errors.zero_()
            raise Fallback("no token could be chosen behind a draft")
        return values[:count], values[count : 2 * count + 1]

    def read(self, values: torch.Tensor) -> list[int]:
        """Wait for what the device has found; meanwhile look whether the next step can go the same way."""
        with contextlib.suppress(Fallback):  # that step will say so
            self._ready = self.ready()
        found: list[int] = values.tolist()
        return found

    def commit(self, tokens: int) -> None:
        """The first `tokens` that are not part of the text yet are now."""
        layers = self._layers
        layers.text += tokens
        layers.used = max(layers.used, layers.text)

    @uninterruptible()  # all layers, or none
    def settle(self) -> None:
        """The text is part of the cache, which others may change from now on, like the model."""
        self._ready = None
        layers = self._layers
        if layers.text > layers.counted:
            layers.count(layers.text - layers.counted)
            if (snapshots := Snapshots.of(self.cache)) is not None:
                snapshots.passed(self.cache)

    def step_by_layers(self) -> None:
        """One step by the model's own forward pass, part of text and cache at once, as all before it are by now."""
        self._by_layers = True
        token = self.sampler.token.clone()  # hooks may keep it
        mask, positions = self.mask, [p + self._layers.used for p in self._positions]
        if mask is not None:
            ones = mask.new_ones(len(positions), self.cache.get_seq_length() + 1 - mask.shape[1])
            mask = torch.cat([mask, ones], dim=1)
        where = torch.tensor(positions, device=token.device)[:, None]
        inputs = {"input_ids": token, "attention_mask": mask, "position_ids": where, "past_key_values": self.cache}
        outputs = self.model(**inputs, use_cache=True, return_dict=True)
        self.sampler.step(outputs.logits[:, -1])
        self._positions = [p + 1 for p in positions]
        self._layers.room = self._layers.used = self._layers.text = self._layers.counted = 0

    def _at(self, rows: int, tokens: int, remaining: int) -> StepGraph[StepState] | None:
        """The step of `rows` tokens a row, with room for `tokens`. None: not before all tokens are part of the text."""
        decoder, self._ready = self._ready or self.ready(), None
        layers, most = self._layers, decoder.most_positions
        if most is not None and max(self._positions) + layers.used + tokens > most:
            raise Fallback(f"positions beyond the {most} that the model has")
        # what is not settled, nobody else may have changed
        known = layers.text > layers.counted or (layers.belong_to(self.cache) and layers.untouched())
        if not known or layers.used + tokens > layers.room:
            if layers.used > layers.text:
                return None
            self.settle()
            self._make_room(decoder, max(tokens, min(ROOM, remaining)))
        graph = self._steps.graphs.get(rows)
        if graph is None or not graph.is_valid(self._end()) or not self._steps.output_is_valid(self.model):
            if self._layers.used > self._layers.text:
                return None
            graph = self._make_graph(decoder, rows)
        return graph

    def _run(self, graph: StepGraph[StepState], sampler: Sampler, steps: int) -> None:
        state, used, length = graph.inputs, self._layers.used, graph.inputs.length
        starts = [s if i % 2 else s + used for i, s in enumerate(self._layers.starts)]
        positions = [p + used for p in self._positions]
        if length > 1:  # of the only row
            positions = list(range(positions[0], positions[0] + length))
        state.seek(starts, positions)
        for i in range(steps):
            if i:
                state.move_on()
                if state.hidden is not None:
                    state.hidden.copy_(graph.hidden)
            result = graph.run()
            if self.seen is not None:
                self.seen(positions[0] + i, graph.hidden)
            if graph.tail is None:
                sampler.step(self.logits(result)[:, -1] if length == 1 else self.logits(result)[0])
        self.plan.leaf_modules += steps if graph.tail is not None else 0

    def _make_room(self, decoder: DecoderModel, room: int) -> None:
        layers, used = self._layers, self._layers.used
        if not layers.belong_to(self.cache):
            layers = CacheLayers(self.cache, decoder.owners, decoder.state.kv_cache)
        same = layers.place(decoder, len(self._positions), room)
        if not same or layers is not self._layers:
            self._steps.graphs = {}  # their memory may be needed for the next ones
        self._layers, self._positions = layers, [p + used for p in self._positions]

    def _end(self) -> int:
        """Positions that may occur before there has to be more room."""
        layers = self._layers
        return max(*self._positions, layers.starts[0] + layers.starts[1]) + layers.room

    def _make_graph(self, decoder: DecoderModel, rows: int) -> StepGraph[StepState]:
        steps, main = self._steps, self.sampler
        if rows not in steps.samplers:
            assert main.settings[0] is not None
            told: dict[str, Any] = {"vocab_size": main.vocab_size, "capacity": main.ids.shape[1], "seed": main.seed}
            prompt = steps.prompt.expand(rows, -1)
            steps.samplers[rows] = Sampler(main.settings[0], prompt, streams=[0] * rows, **told)
        ids = main.token  # a single step reads what the one before has chosen
        if rows > 1:
            with torch.inference_mode(False):  # inference tensors could only be written to in inference mode
                ids = torch.empty(1, rows, dtype=torch.int64, device=decoder.device)
        steps.graphs.pop(rows, None)  # its memory may be needed for the next one
        tail, masked = steps.tail(self.model, decoder, steps.samplers[rows]), self.mask is not None
        graph = contiguous_step(decoder, self._layers, ids, positions=self._end(), masked=masked, tail=tail)
        if self.mask is not None:
            graph.inputs.set_mask(self.mask)
        steps.graphs[rows] = graph
        return graph
