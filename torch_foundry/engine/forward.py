"""A forward pass over tokens of many sequences, whose keys and values lie in pages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core import devices
from torch_foundry.core.errors import Fallback
from torch_foundry.core.limits import FEW_ROWS, ROWS_TOGETHER, power_of_two
from torch_foundry.engine.batch import Batch, GroupedView
from torch_foundry.engine.sequence import Parts, ScheduledSequence
from torch_foundry.generation.step_graph import SegmentedGraph, Sizes, StepGraph, of_prompts, step_bytes
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.kvcache.pooled_states import move_snapshots
from torch_foundry.kvcache.view import StateView
from torch_foundry.models.calls import LONGEST_STEP
from torch_foundry.models.decoder import DecoderModel, decoder_plan
from torch_foundry.models.outputs import check_around, logits_of
from torch_foundry.models.rope import Kind, Table, horizon_for
from torch_foundry.models.weights import EXPERT_TOKENS, ROW_BY_ROW, Gemm, Linear
from torch_foundry.nn.linear import MAX_GEMV_ROWS

TEXT = 256  # tokens of the longest text that there is room for in block tables at first; doubled as needed
PIECE = 32  # tokens of a prompt in a row
OFTEN = 4  # times that a step with prompts comes before it is captured, which takes as long as some five without


class PagedStep:
    """The tokens of a step and the pages that it writes to: what `StepGraph` captures, or `decoder.forward` runs.

    width: blocks of a row's table. batch_invariant: as of `Forward`.
    """

    def __init__(
        self, decoder: DecoderModel, cache: PagedCache, sizes: Sizes, width: int, batch_invariant: bool
    ) -> None:
        self.decoder, self.cache, self.sizes, self.batch_invariant = decoder, cache, sizes, batch_invariant
        self.batch = Batch(sizes, width, cache.manager, decoder.device)
        self.keys = self.batch.bound
        self.hidden = decoder.new_hidden(1, len(self.batch.ids))
        self._pools, self._rope = self._memory(), decoder.rotary.version()

    def fill(self, groups: Sequence[Parts], parts: Parts, hidden: Tensor | None, tokens: Tensor | None) -> None:
        """What the step computes: see `Batch.fill`, and `Forward` of hidden and tokens."""
        self.batch.fill(groups, ids=tokens is None)
        if tokens is not None:
            self.batch.ids[self.batch.tokens(parts)] = tokens
        if self.hidden is not None:
            assert hidden is not None
            self.hidden[0, self.batch.tokens(parts)] = hidden

    @property
    def ids(self) -> Tensor:
        """See `StepInputs`: all groups' tokens in one row."""
        return self.batch.ids[None]

    def _memory(self) -> list[Any]:
        return [tensor for layer in self.cache.parts for tensor in layer.memory]

    def is_valid(self, positions: int = 0) -> bool:
        """See `StepInputs`."""
        return all(map(is_, self._pools, self._memory())) and self._rope == self.decoder.rotary.version()

    def tables(self) -> Mapping[Kind, Table]:
        """See `StepInputs`: the same tensors until the model changes or needs longer ones."""
        like = torch.empty(0, dtype=self.decoder.dtype, device=self.decoder.device)
        return self.decoder.rope_tables(horizon_for(self.keys), like).tables

    def states(self, graph: SegmentedGraph | None = None) -> list[GroupedView | StateView]:
        """See `StepInputs`."""
        join = torch.cat if graph is None else graph.join
        return [self.batch.view(layer, join, exact=graph is None) for layer in self.cache.parts]

    def gemm(self, graph: SegmentedGraph | None = None) -> Gemm:
        """See `StepInputs`."""
        if self.batch_invariant or len(self.batch.ids) <= self.decoder.mixers[0].out.few:
            return ROW_BY_ROW if graph is None else replace(ROW_BY_ROW, call=graph.call)
        if graph is None:
            return Gemm(Linear.gemm, expert_tokens=EXPERT_TOKENS)
        return Gemm(graph.product, expert_tokens=EXPERT_TOKENS, call=graph.call)

    def run(self) -> Tensor:
        """The last norm's result [T, hidden], launched from Python."""
        return self.decoder.forward(self.ids, self.states(), self.tables(), self.gemm(), hidden=self.hidden)[0]


class Forward:
    """The forward pass of a patched model with a `PagedCache`. Raises Fallback for a model that it can't be taken of.

    Steps are captured by the number of requests, rounded up, and of tokens of each, and by the number of pieces that
    prompts are cut into: those without prompts when they first run, others when they come again. Padding is no request
    and writes nowhere.

    seen: called with what the last norm gave for parts that may have drafts: the parts, [T, hidden] of all their tokens
    one behind the other, and how many tokens later they are than the parts say.
    requests: at most. batch_invariant: every token's results are the same bits whatever else is in the step, by kernels
    whose rows don't depend on each other: those for few rows, or few rows at a time.
    """

    def __init__(self, model: Any, cache: PagedCache, *, requests: int, batch_invariant: bool) -> None:
        self.plan: DecoderModel = decoder_plan(model)
        self.model, self.cache, self.batch_invariant = model, cache, batch_invariant
        with torch.no_grad():
            self.plan.check()
        check_around(model)
        if not self.plan.rotary.constant:
            raise Fallback("rope depends on the length of the text")
        states = {index: mixer.state for index, mixer in self.plan.owners.items()}
        cache.prepare(states, self.plan.dtype, self.plan.device)
        self.graphs = self.plan.graphs
        self._snapshot, self._requests = self.plan.guard, requests
        self._met: Counter[Hashable] = Counter()  # steps with prompts
        self._width = TEXT // cache.manager.block_size or 1  # blocks of a table
        device = devices.of(self.plan.device)
        self._prompts, self._keys = device.prompt_tokens, device.captured_keys
        self._piece = MAX_GEMV_ROWS if batch_invariant else PIECE
        self._refused: Any = None  # the model as it was when a step could not be captured
        self._last: StepGraph[PagedStep] | None = None  # the last step, if it was captured and of single tokens
        self.seen: Callable[[Parts, Tensor, int], None] | None = None

    @torch.no_grad()
    def __call__(self, parts: Parts, hidden: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        """Logits [n, V] that are wanted, in the order of the parts and their tokens.

        hidden: [T, hidden] of all tokens of the parts, if the model is an MTP head: the last norm's result of the model
        that it belongs to, for the token before each. tokens: int64 [T] on the device, if only that knows them.

        Keys and values of all tokens are in the cache afterwards. Nothing is waited for. Images that can't be shown to
        the model end their sequence alone. Raises Fallback if the model has changed into one that it can't be done for.
        """
        self.plan.check()
        check_around(self.model)
        if self._snapshot is not self.plan.guard:
            self._change()
        move_snapshots(self.cache.manager.states, self.cache.parts)
        for part in parts:
            if part.shows_images:
                self._show(part)
        parts = [part for part in parts if not part.shows_images]
        if not parts:
            return torch.empty(0, self.plan.vocabulary, device=self.plan.device)
        x = self._captured(parts, hidden, tokens)
        return self._logits(self._eager(parts, hidden, tokens) if x is None else x)

    def _tell(self, step: PagedStep, x: Tensor, parts: Parts, ahead: int = 0) -> None:
        if self.seen is not None and (parts := [part for part in parts if part.sequence.drafting is not None]):
            self.seen(parts, x[step.batch.tokens(parts)], ahead)

    def _show(self, part: ScheduledSequence) -> None:
        try:
            part.sequence.images.read(part.id, self.model, self.plan, self.cache)
        except Exception as fault:
            part.num_accepted = -1
            why = f"its images can't be shown to the model: {type(fault).__name__}: {fault}"
            part.sequence.fault = RuntimeError(why)
            part.sequence.fault.__cause__ = fault

    @torch.no_grad()
    def go_on(self, tokens: Tensor, parts: Parts, ahead: int, hidden: Tensor | None = None) -> Tensor | None:
        """Logits [n, V] of the step behind the last one, in which each part goes on with its token of `tokens`, int64
        [n] on the device; the block manager has room for them. parts: of the last call, which was `ahead` - 1 of these
        steps ago. hidden: as of a call.

        None, and nothing has happened, if that call's step was not captured or had other parts than single tokens.
        """
        if self._last is None:
            return None
        n, step = len(tokens), self._last.inputs
        step.batch.move_on(n)
        step.batch.ids[:n].copy_(tokens)
        if step.hidden is not None and hidden is not None:
            step.hidden[0, :n].copy_(hidden)
        self._tell(step, x := self._last.run()[0], parts, ahead)
        return self._logits(x[:n])

    def _change(self) -> None:
        """The model has changed: nothing may keep what it was."""
        self.graphs.drop(self)
        self._refused = self._last = None
        for spec, layer in zip(self.plan.specs, self.cache.parts, strict=True):
            if not layer.fits(0, spec, self.plan.dtype, self.plan.device):
                raise Fallback("the model has another shape, dtype or device than its cache")
        self._snapshot = self.plan.guard

    def _captured(self, parts: Parts, hidden: Tensor | None, tokens: Tensor | None) -> Tensor | None:
        """The last norm's result [n, hidden] of the tokens that are wanted, in the order of the parts, by a captured
        step; the next one may overwrite it. None if this step is not for that."""
        self._last = None
        few = [part for part in parts if _few(part)]
        pieces = [piece for part in parts if not _few(part) for piece in part.cut(self._piece)]
        sizes = self._sizes(few, pieces)
        if self._refused is self.plan.guard or not self._worth(sizes, parts):
            return None
        graph: StepGraph[PagedStep] | None = self.graphs.of(self).find(sizes)
        fresh = graph is None
        if graph is None:
            own = PagedStep(self.plan, self.cache, sizes, self._width, self.batch_invariant)
            graph = StepGraph(self.plan, own, sizes)
        graph.inputs.fill([group for group in (few, pieces) if group], parts, hidden, tokens)
        try:
            x = graph.run()[0]
        except Fallback as fallback:
            self._refused = self.plan.guard
            self.plan.eager[f"step of an engine: {fallback}"] += 1
            return None
        if fresh:
            for dropped in self.graphs.put(self, sizes, graph):
                del self._met[dropped]
        generating = all(part.start >= part.sequence.prompt for part in parts)  # the end of a prompt is not what comes
        self._last = graph if generating and [length for _, length in sizes] == [1] else None
        return self._wanted(graph.inputs, x, parts)

    def _sizes(self, few: Parts, pieces: Parts) -> Sizes:
        sizes: Sizes = ()
        if few:
            length, rows = power_of_two(max(len(part.ids) for part in few)), len(few)
            if pieces:  # beside which some rows more cost little
                rows = max(rows, min(MAX_GEMV_ROWS // length, self._requests))
            sizes += ((rows_for(rows, self._requests), length),)
        if pieces:
            sizes += ((power_of_two(len(pieces)), self._piece),)
        return sizes

    def _worth(self, sizes: Sizes, parts: Parts) -> bool:
        """Whether to capture a step of these sizes, or to replay it."""
        tokens = sum(batch * length for batch, length in sizes)
        mixed = any(plan.layer.experts is not None for plan in self.plan.layers)
        if tokens > EXPERT_TOKENS and (mixed or any(mixer.by_heads for mixer in self.plan.mixers)):
            return False
        longest = max(len(self.cache.manager.table(part.id)) for part in parts)
        if longest > self._width:
            self._width = min(power_of_two(longest), self.cache.manager.blocks)
            self.graphs.drop(self)
        budget = self.graphs.budget(self.plan.device)
        room = budget - self._bytes(sizes)
        if room < budget // 2:
            return False
        if not of_prompts(sizes):
            return True
        padded = 2 * sum(len(part.ids) for part in parts) < tokens > self._prompts // 2
        others = sum(self._bytes(own) for own in self.graphs.of(self) if not of_prompts(own))
        if sizes[-1][0] * sizes[-1][1] > self._prompts or padded or room < others or any(map(self._by_torch, parts)):
            return False
        self._met[sizes] += 1
        return self._met[sizes] >= OFTEN

    def _by_torch(self, part: ScheduledSequence) -> bool:
        """Whether torch may compute the part's attention, if it is alone in its group and the step isn't captured."""
        keys = len(self.cache.manager.table(part.id)) * self.cache.manager.block_size
        return 0 < self._keys <= keys and len(part.ids) > FEW_ROWS

    def _bytes(self, sizes: Sizes) -> int:
        return step_bytes(self.plan, sizes, self._width * self.cache.manager.block_size)

    def _eager(self, parts: Parts, hidden: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        """As `_captured`, without a graph."""
        alike: defaultdict[tuple[int, Hashable], list[ScheduledSequence]] = defaultdict(list)
        for part in parts:
            pieces = list(part.cut(self._piece)) if self.batch_invariant else [part]
            whole = self.cache.manager.states.slots  # recurrent layers want pieces side by side
            for piece in pieces:
                alike[len((pieces[0] if whole else piece).ids), self._by_torch(piece) and piece.id].append(piece)
        sizes = tuple((len(found), length) for (length, _), found in alike.items())
        width = max(len(self.cache.manager.table(part.id)) for part in parts)
        step = PagedStep(self.plan, self.cache, sizes, width, self.batch_invariant)
        step.fill(list(alike.values()), parts, hidden, tokens)
        return self._wanted(step, step.run(), parts)

    def _wanted(self, step: PagedStep, x: Tensor, parts: Parts) -> Tensor:
        """Of the last norm's result, the tokens that are wanted. Who watches is told of all."""
        self._tell(step, x, parts)
        return x[step.batch.tokens(parts, wanted=True)]

    def _logits(self, x: Tensor) -> Tensor:
        if not len(x):
            return x.new_empty(0, self.plan.vocabulary)
        if not self.batch_invariant or len(x) <= ROWS_TOGETHER:  # which go row by row on any device
            return logits_of(self.model, x)
        return torch.cat([logits_of(self.model, rows) for rows in x.split(ROWS_TOGETHER)])


def _few(part: ScheduledSequence) -> bool:
    return part.wanted == len(part.ids) <= LONGEST_STEP


def rows_for(requests: int, max_rows: int) -> int:
    """The number of rows of a step for so many requests."""
    rows = power_of_two(requests) if requests <= MAX_GEMV_ROWS else -(-requests // MAX_GEMV_ROWS) * MAX_GEMV_ROWS
    return min(rows, max(max_rows, requests))
