"""Captured decode steps: a model's forward pass over memory at fixed addresses, replayed without its Python."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from torch_foundry.core import devices, memory
from torch_foundry.core.errors import Fallback
from torch_foundry.core.graph import GraphInvalid, LaunchGraph, NotCapturable, capture
from torch_foundry.models.calls import LONGEST_STEP
from torch_foundry.models.decoder import DecoderModel, Tail
from torch_foundry.models.rope import Kind, Table
from torch_foundry.models.weights import Gemm, Linear
from torch_foundry.nn.activations import BY_TORCH
from torch_foundry.nn.linear import DEQUANT_CHUNK, MAX_GEMV_ROWS, linear_gemm

Sizes = tuple[tuple[int, int], ...]  # of each group of a step: rows, and tokens of a row


class SegmentedGraph:
    """Launches of ours, with calls of torch in between, that `capture` has run and `replay` runs again.

    Without calls it is one launch graph. With them, it is one CUDA graph made by torch, or elsewhere launch graphs and
    calls in turn.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._segments: list[Callable[[], object]] = []
        self._whole: Callable[[], object] | None = None
        self._open_graph: LaunchGraph | None = None
        self._stack = contextlib.ExitStack()
        self._checked = True

    @contextlib.contextmanager
    def capture(self, *, checked: bool = True) -> Iterator[None]:
        """Runs the block, whose ops are ours, or in a `call`. If it raises, the graph is of no use.

        checked: as of `core.graph.capture`.
        """
        self._checked = checked
        self._open()
        try:
            yield
        finally:
            self._close()
        if len(self._segments) > 1:
            self._whole = devices.of(self._device).graph(self._device, self._replay)

    def call(self, function: Callable[[], object]) -> None:
        """Run `function` now, behind what came before, and at that place at each replay."""
        self._close()
        function()
        self._segments.append(function)
        self._open()

    def product(
        self,
        linear: Linear,
        x: Tensor,
        residual: Tensor | None = None,
        scale: float = 1.0,
        activation: str | None = None,
    ) -> Tensor:
        """`linear.gemm` of x [1, T, K], by torch as a call: with the same bits, to the same memory each time."""
        if linear.by_kernel(x):
            return linear(x, residual, scale, activation)
        x = linear.ordered(x)[0]
        weight, bias, format = linear.weight, linear.parameters["bias"], linear.format
        y = x.new_empty(len(x), weight.shape[0])
        result = y[None] if residual is None else torch.empty_like(residual)

        def multiply() -> None:
            linear_gemm(x, weight, format, bias, out=y)
            if activation is not None:
                y.copy_(BY_TORCH[activation](y))
            if residual is not None:
                torch.add(residual, y[None], alpha=scale, out=result)

        self.call(multiply)
        return result

    def join(self, parts: list[Tensor]) -> Tensor:
        """torch.cat as a call."""
        result = parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:])
        self.call(lambda: torch.cat(parts, out=result))
        return result

    def replayer(self) -> Callable[[], object]:
        """What runs everything again, while this lives: a CUDA graph doesn't keep the memory that it uses.

        It raises GraphInvalid if memory or shaders were exchanged; what was done so far has no meaning then.
        """
        return self._whole or (self._segments[0] if len(self._segments) == 1 else self._replay)

    def _replay(self) -> None:
        for segment in self._segments:
            segment()

    def _open(self) -> None:
        self._open_graph = self._stack.enter_context(capture(checked=self._checked))

    def _close(self) -> None:
        self._stack.close()
        if self._open_graph is not None and len(self._open_graph):
            self._segments.append(self._open_graph.replay)
        self._open_graph = None


class StepInputs(Protocol):
    """What a step reads besides weights, and where in a cache it writes: memory that keeps its address.

    The contents may change between runs. graph: what captures the step; None: it is only run.
    """

    sizes: Sizes
    keys: int  # of a row, that attention may read
    hidden: Tensor | None  # of the tokens before, [B, L, hidden], for a decoder that takes it

    @property
    def ids(self) -> Tensor:
        """Tokens, [B, L]."""

    def is_valid(self, positions: int) -> bool:
        """Whether nothing has been exchanged since this was made, and it is good for positions < `positions`."""

    def tables(self) -> Mapping[Kind, Table]:
        """cos and sin by layer type, computed by torch if need be."""

    def states(self, graph: SegmentedGraph | None) -> Sequence[Any]:
        """What each layer's mixer is given."""

    def gemm(self, graph: SegmentedGraph | None) -> Gemm:
        """How layers multiply."""


I_co = TypeVar("I_co", bound=StepInputs, covariant=True)


class StepGraph(Generic[I_co]):
    """A model's step over `inputs`, captured when it first runs and replayed afterwards.

    tail: what follows the last norm, of our ops only. kind: steps of one kind launch the same kernels; the first of
    each is checked to launch nothing else.
    """

    def __init__(self, decoder: DecoderModel, inputs: I_co, kind: Hashable, tail: Tail | None = None) -> None:
        self.decoder: DecoderModel = weakref.proxy(decoder)  # which keeps the graphs
        self.inputs, self.tail = inputs, tail
        self.nbytes = step_bytes(decoder, inputs.sizes, inputs.keys)
        self.used = 0  # when last, by the cache's clock
        self._kind = (kind, tail is None)
        self._snapshot = decoder.guard
        self.captured = False  # whether it has run before
        self._graph: SegmentedGraph
        self._replay: Callable[[], object]
        self._result: Tensor | None = None
        self.hidden: Tensor  # the last norm's result of the newest run, [B, L, hidden]

    def is_valid(self, positions: int = 0) -> bool:
        """Whether it may run now, with positions < `positions`: nothing that it was captured from has changed."""
        return self._snapshot is self.decoder.guard and self.inputs.is_valid(positions)

    @property
    def of_prompts(self) -> bool:
        """Whether the step takes in prompts."""
        return of_prompts(self.inputs.sizes)

    def run(self) -> Tensor:
        """The last norm's result [B, L, hidden], or what `tail` makes of it. The next run overwrites it.

        Raises Fallback if the step can't be captured.
        """
        if not self.captured:
            self._capture()
        else:
            try:
                self._replay()
            except GraphInvalid:  # memory or shaders were exchanged
                self._capture()
        self.decoder.steps += 1
        self.decoder.leaf_modules += 2 + (self.decoder.most_positions is not None)  # embeddings and norm
        assert self._result is not None
        return self._result

    def _capture(self) -> None:
        decoder, inputs, proven = self.decoder, self.inputs, self.decoder.graphs.proven
        if (left := memory.free(decoder.device)) is not None and self.nbytes > left:
            raise Fallback("there is no memory for a captured step")
        graph, tables = SegmentedGraph(decoder.device), inputs.tables()

        def tail(hidden: Tensor) -> Tensor:
            self.hidden = hidden
            return hidden if self.tail is None else self.tail(hidden)

        try:
            with torch.no_grad(), graph.capture(checked=self._kind not in proven):
                self._result = decoder.forward(
                    inputs.ids,
                    inputs.states(graph),
                    tables,
                    inputs.gemm(graph),
                    hidden=inputs.hidden,
                    tail=tail,
                    scoped=True,
                )
        except NotCapturable as error:
            raise Fallback(error.reason) from None
        self._graph, self._replay, self.captured = graph, graph.replayer(), True
        proven.add(self._kind)
        decoder.captured += 1


def step_bytes(decoder: DecoderModel, sizes: Sizes, keys: int) -> int:
    """About the bytes that a captured step keeps: results of each layer's ops, of attention of few queries to each 128
    of `keys` keys, and a CUDA graph's own memory, to unpack a matrix to."""
    mixers, parts, wide = decoder.mixers, keys // 128, _layer_bytes(decoder)
    queries, few = max(mixer.queries for mixer in mixers), MAX_GEMV_ROWS
    each = [batch * length * (wide + (4 * parts * queries if length <= few else 0)) for batch, length in sizes]
    unpacked = _unpacked_bytes(decoder) if devices.of(decoder.device).step_scratch else 0
    return len(decoder.layers) * sum(each) + unpacked


def prompt_bytes(decoder: DecoderModel, tokens: int) -> int:
    """About the bytes that it takes to compute `tokens` tokens of a prompt, layer by layer."""
    return tokens * _layer_bytes(decoder) + _unpacked_bytes(decoder)


def _inner(decoder: DecoderModel) -> int:
    return max(plan.spec.inner for plan in decoder.layers)


def _layer_bytes(decoder: DecoderModel) -> int:
    """Results of a layer's ops for one token."""
    widths = 6 * decoder.config.hidden_size + max(mixer.width for mixer in decoder.mixers) + 3 * _inner(decoder)
    return widths * decoder.dtype.itemsize


def _unpacked_bytes(decoder: DecoderModel) -> int:
    """Of what a packed matrix is unpacked to."""
    packed = decoder.mixers[0].out.format is not None
    return packed * min(DEQUANT_CHUNK, decoder.config.hidden_size * _inner(decoder)) * decoder.dtype.itemsize


def of_prompts(sizes: Sizes) -> bool:
    """Whether a step of these sizes takes in prompts."""
    return sizes[-1][1] > LONGEST_STEP
