"""Code that is repeated without its Python: launches of ours on tapes, with calls of torch in between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torch_foundry.nn.linear import linear_of_many
from torch_foundry.patch.weights import Linear
from torch_foundry.tape import Tape, record


class Script:
    """What `record` runs, to be run again on the same memory.

    Without calls of torch it is one tape. With them, it is one CUDA graph made by torch, or elsewhere tapes and calls
    in turn.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: list[Callable[[], object]] = []
        self._graph: Any = None
        self._tape: Tape | None = None
        self._stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Runs the block, whose ops are ours, or in a `call`. If it raises, the script is of no use."""
        self._open()
        try:
            yield
        finally:
            self._close()
        if self._device.type == "cuda" and len(self._steps) > 1:
            self._capture()

    def call(self, function: Callable[[], object]) -> None:
        """Run `function` now, behind what came before, and at that place whenever the script is repeated."""
        self._close()
        function()
        self._steps.append(function)
        self._open()

    def product(self, linear: Linear, x: Tensor, residual: Tensor | None = None, scale: float = 1.0) -> Tensor:
        """`linear.of_many` of x [1, T, K] as a call: with the same bits, to the same memory each time."""
        x = linear.ordered(x)[0]
        weight, bias, format = linear.weights["weight"], linear.parameters["bias"], linear.format
        y = x.new_empty(len(x), weight.shape[0])
        result = y[None] if residual is None else torch.empty_like(residual)

        def multiply() -> None:
            linear_of_many(x, weight, format, bias, out=y)
            if residual is not None:
                torch.add(residual, y[None], alpha=scale, out=result)

        self.call(multiply)
        return result

    def join(self, parts: list[Tensor]) -> Tensor:
        """torch.cat as a call."""
        result = parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:])
        self.call(lambda: torch.cat(parts, out=result))
        return result

    def replay(self) -> None:
        """Everything again. GraphInvalid as of `Tape.replay`; then what was done so far has no meaning."""
        if self._graph is not None:
            self._graph.replay()
            return
        for step in self._steps:
            step()

    def _open(self) -> None:
        self._tape = self._stack.enter_context(record())

    def _close(self) -> None:
        self._stack.close()
        if self._tape is not None and len(self._tape):
            self._steps.append(self._tape.replay)
        self._tape = None

    def _capture(self) -> None:
        """As torch.cuda.graph does, but without collecting garbage and waiting for the device."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._device)
        current = torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self.replay()
            finally:
                graph.capture_end()
        current.wait_stream(stream)
        self._graph = graph
