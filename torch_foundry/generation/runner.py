"""Decode steps of a batch of sequences: handed to the device, each with the choice of its tokens."""

from __future__ import annotations

import contextlib
from typing import Any, cast

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core import devices
from torch_foundry.core.errors import Fallback
from torch_foundry.core.interrupts import uninterruptible
from torch_foundry.generation.draft_length import rows_of
from torch_foundry.generation.graph_cache import GraphCache
from torch_foundry.generation.spare import Graphs, Spare
from torch_foundry.generation.step_graph import StepGraph
from torch_foundry.generation.step_state import CacheLayers, StepState, contiguous_step
from torch_foundry.kvcache.hf_cache import reserve_hint
from torch_foundry.models.decoder import DecoderModel, Tail, decoder_plan, output_of
from torch_foundry.models.outputs import head_of, is_plain, logits_of, path_to_decoder
from torch_foundry.models.rope import last_positions
from torch_foundry.models.state import ModelPlan
from torch_foundry.models.watch import ModuleGuard
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
        self.model, self.plan, self.cache, self.batch = model, plan, cache, batch
        if batch > MAX_GEMV_ROWS:
            raise Fallback(f"more than {MAX_GEMV_ROWS} rows")
        head = head_of(model)
        assert head is not None
        self.head = head
        decoder, mask = decoder_plan(model), model_kwargs.get("attention_mask")
        positions = decoder.rotary.sections(model_kwargs.get("position_ids"), batch)
        if mask is not None and (mask.dim() != 2 or mask.shape[0] != batch):
            raise Fallback("mask is not [batch, tokens]")
        # of each row's newest token, if the room for new ones began with it
        self._positions = [p + 1 for p in last_positions(positions, batch)]
        self._prompt, self.mask = positions.shape[-1], mask
        self.sampler: Sampler  # chooses the tokens of single steps, and of the prompt
        self._samplers: dict[int, Sampler] = {}  # by tokens of a row
        self._graphs: Graphs = {}
        self._layers: CacheLayers | None = None
        self._starts: list[int] = []  # where the room begins
        # tokens that there is room for, that are in it, that are part of the text, and of the cache
        self._room = self._used = self._text = self._counted = 0
        self._end = 0  # positions that may occur before there has to be more room
        self._ready: DecoderModel | None = None  # once it is known to be as it was
        self._output: ModuleGuard | None = None
        self._by_layers = False  # whether the model's own forward pass was used
        self.captured = False  # whether the newest step had to be captured

    def begin(self, sampler: Sampler, input_ids: torch.Tensor) -> None:
        """Before the first step. sampler: of the rows, whose texts are `input_ids`."""
        self.sampler, self._ids = sampler, input_ids
        self._samplers = {1: sampler}

    def reserve_hint(self, tokens: int) -> None:
        """Up to `tokens` tokens will follow the prompt: a cache that has memory for them need not move at once."""
        decoder = decoder_plan(self.model)
        reserve_hint(self.cache, len(decoder.layers), min(tokens, EXPECTED), decoder.state.kv_cache)

    def reuse(self, tokens: int) -> None:
        """Go on with what another generation has left, if it fits. To be called before the prompt, which `tokens`
        follow, is taken in: it will be stored in that memory."""
        graphs, key, decoder = self._shared()
        spare: Spare | None = graphs.take(key)
        if spare is None:
            return
        self._output = spare.output
        if not spare.fits(self.sampler, self._prompt + min(tokens, EXPECTED)) or not self._output_is_valid():
            self._output = None
            graphs.give(key, spare)
            return
        self._layers = CacheLayers(self.cache, len(decoder.layers), decoder.state.kv_cache)
        spare.begin(self.sampler, self._ids, self.mask, self._layers)
        self._samplers, self._graphs = spare.samplers, spare.graphs
        self.sampler = spare.samplers[1]

    def release(self) -> None:
        """Leave for the next generation what it can use; the cache, which nobody else knows, is empty then. Nothing is
        under way."""
        graphs, key, _ = self._shared()
        valid = self._graphs and all(graph.is_valid() for graph in self._graphs.values())
        if self._layers is None or self._by_layers or not valid or not self._output_is_valid():
            return
        samplers = {rows: sampler for rows, sampler in self._samplers.items() if rows == 1 or rows in self._graphs}
        if graphs.give(key, Spare(samplers, self._graphs, self._output, *self._layers.kept)):
            for slot in self._layers.slots:
                slot.reset()

    def _shared(self) -> tuple[GraphCache, Any, DecoderModel]:
        """Where generations leave what others can use, and under which key."""
        decoder = decoder_plan(self.model)
        settings = self.sampler.settings[0]
        assert settings is not None
        key = self.batch, self.mask is not None, settings.structure, decoder.state.kv_cache
        return cast(GraphCache, decoder.graphs), key, decoder

    # ------------------------------------------------------------------------------------------------------------ steps

    def ready(self) -> DecoderModel:
        """The decoder. Raises Fallback if no captured step may run now."""
        *around, _ = path_to_decoder(self.model)
        for model in around:
            if model._forward_hooks or model._forward_pre_hooks or "forward" in model.__dict__:
                raise Fallback(f"hook on {type(model).__name__}")
        decoder = decoder_plan(self.model)
        decoder.check()
        return decoder

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [B, L, V] of the last norm's result, where they are not part of a graph."""
        return logits_of(self.model, self.head, hidden)

    def seek(self, position: int) -> None:
        """Go on from the only row's token at `position`: steps that are not part of the text never were."""
        self._used, self._positions = self._text, [position - self._text]

    @uninterruptible()
    def step(self, steps: int, remaining: int) -> bool:
        """Hand `steps` steps, of `remaining` that there may be, to the device.

        False if the cache has to move while there are tokens that are not part of the text. Raises Fallback if no
        captured step may run. In both cases nothing has happened.
        """
        graph = self._at(1, steps, remaining)
        if graph is None:
            return False
        self._run(graph, self.sampler, steps)
        self._used += steps
        return True

    @uninterruptible()
    def verify(self, newest: int, drafts: torch.Tensor, length: int, remaining: int) -> tuple[list[int], list[int]]:
        """`drafts`, and the target tokens: what the model chooses after `newest`, of a text of `length` tokens, and
        after each draft token.

        drafts: int64 [n], on the device or not. remaining: tokens that there may be yet. Waits for the device, once.
        All is part of the text so far. Raises Fallback, and nothing has happened, if no captured step may do it.
        """
        count, rows = len(drafts), rows_of(len(drafts))
        graph, sampler = self._at(rows, rows, remaining), self._samplers[rows]
        assert graph is not None
        ids = graph.inputs.ids
        drafts = drafts.to(ids.device, non_blocking=devices.of(ids.device).overlaps_copies)
        ids.fill_(newest)
        ids[0, 1 : 1 + count].copy_(drafts)
        sampler.seek(list(range(length, length + rows)))
        self._run(graph, sampler, 1)
        values = self.read(torch.cat([drafts, sampler.token[:, 0], sampler.errors]))
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
        self._text += tokens
        self._used = max(self._used, self._text)

    @uninterruptible()  # all layers, or none
    def settle(self) -> None:
        """The text is part of the cache, which others may change from now on, like the model."""
        self._ready = None
        new = self._text - self._counted
        if not new:
            return
        assert self._layers is not None
        self._layers.count(new)
        self._counted = self._text

    def step_by_layers(self) -> None:
        """One step by the model's own forward pass, part of text and cache at once, as all before it are by now."""
        self._by_layers = True
        token = self.sampler.token.clone()  # hooks may keep it
        mask, positions = self.mask, [p + self._used for p in self._positions]
        if mask is not None:
            ones = mask.new_ones(self.batch, self.cache.get_seq_length() + 1 - mask.shape[1])
            mask = torch.cat([mask, ones], dim=1)
        where = torch.tensor(positions, device=token.device)[:, None]
        inputs = {"input_ids": token, "attention_mask": mask, "position_ids": where, "past_key_values": self.cache}
        outputs = self.model(**inputs, use_cache=True, return_dict=True)
        self.sampler.step(outputs.logits[:, -1])
        self._positions = [p + 1 for p in positions]
        self._room = self._used = self._text = self._counted = 0

    def _at(self, rows: int, tokens: int, remaining: int) -> StepGraph[StepState] | None:
        """The step of `rows` tokens a row, with room for `tokens`. None: not before all tokens are part of the text."""
        decoder, self._ready = self._ready or self.ready(), None
        layers = self._layers
        # what is not settled, nobody else may have changed
        known = layers is not None and (self._text > self._counted or self._untouched(layers))
        if not known or self._used + tokens > self._room:
            if self._used > self._text:
                return None
            self.settle()
            self._make_room(decoder, max(tokens, min(ROOM, remaining)))
        graph = self._graphs.get(rows)
        if graph is None or not graph.is_valid(self._end) or not self._output_is_valid():
            if self._used > self._text:
                return None
            graph = self._make_graph(decoder, rows)
        self.captured = not graph.captured
        return graph

    def _run(self, graph: StepGraph[StepState], sampler: Sampler, steps: int) -> None:
        state, used, length = graph.inputs, self._used, graph.inputs.length
        starts = [s if i % 2 else s + used for i, s in enumerate(self._starts)]
        positions = [p + used for p in self._positions]
        if length > 1:  # of the only row
            positions = list(range(positions[0], positions[0] + length))
        state.seek(starts, positions)
        for i in range(steps):
            if i:
                state.move_on()
            result = graph.run()
            if graph.tail is None:
                sampler.step(self.logits(result)[:, -1] if length == 1 else self.logits(result)[0])
        self.plan.leaf_modules += steps if graph.tail is not None else 0

    def _untouched(self, layers: CacheLayers) -> bool:
        return layers.belong_to(self.cache) and layers.untouched(self._counted)

    def _make_room(self, decoder: DecoderModel, room: int) -> None:
        layers = self._layers
        if layers is None or not layers.belong_to(self.cache):
            layers = self._layers = CacheLayers(self.cache, len(decoder.layers), decoder.state.kv_cache)
            self._graphs = {}
        self._starts, same = layers.place(decoder, self.batch, room)
        if not same:
            self._graphs = {}  # their memory may be needed for the next ones
        self._positions = [p + self._used for p in self._positions]
        self._end = max(*self._positions, self._starts[0] + self._starts[1]) + room
        self._room, self._used, self._text, self._counted = room, 0, 0, 0

    def _make_graph(self, decoder: DecoderModel, rows: int) -> StepGraph[StepState]:
        main = self.sampler
        if rows not in self._samplers:
            assert main.settings[0] is not None
            prompt, capacity = self._ids.expand(rows, -1), main.ids.shape[1]
            self._samplers[rows] = Sampler(
                main.settings[0],
                prompt,
                vocab_size=main.vocab_size,
                capacity=capacity,
                seed=main.seed,
                streams=[0] * rows,
            )
        ids = main.token  # a single step reads what the one before has chosen
        if rows > 1:
            with torch.inference_mode(False):  # inference tensors could only be written to in inference mode
                ids = torch.empty(1, rows, dtype=torch.int64, device=decoder.device)
        self._graphs.pop(rows, None)  # its memory may be needed for the next one
        tail, masked = self._tail(decoder, self._samplers[rows]), self.mask is not None
        assert self._layers is not None
        graph = contiguous_step(decoder, self._layers, ids, positions=self._end, masked=masked, tail=tail)
        if self.mask is not None:
            graph.inputs.set_mask(self.mask)
        self._graphs[rows] = graph
        return graph

    def _tail(self, decoder: DecoderModel, sampler: Sampler) -> Tail | None:
        """Output layer and choice of a token, for each row or the only row's tokens, if our ops alone can do that."""
        self._output = None
        if (output := output_of(self.model, self.head, decoder)) is None:
            return None
        self._output, linear = output
        return lambda hidden: sampler.step(linear(hidden).flatten(0, 1))

    def _output_is_valid(self) -> bool:
        output, model = self._output, self.model
        return output is None or (
            output.is_valid() and model.lm_head is output.modules[0] and is_plain(self.head, model.config)
        )
