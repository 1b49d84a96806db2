"""Graphs: capture the launches of a piece of code once, then repeat them with no Python in between."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_foundry.core import extension  # noqa: F401  (loads the extension)
from torch_foundry.core.interrupts import uninterruptible

_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


class GraphInvalid(RuntimeError):
    """What was captured can't be repeated: a tensor has other memory, or shaders were replaced. Capture it again."""


class NotCapturable(RuntimeError):
    """An op that a replay would not repeat was called while launches were captured.

    reason: the message without advice.
    """

    def __init__(self, op: str) -> None:
        self.reason = f"{op} can't be captured"
        advice = "a graph repeats torch_foundry's ops only. Compute it before the graph starts, or in a kernel."
        super().__init__(f"{self.reason}: {advice}")


class CapturedLaunch(NamedTuple):
    """A launch on a graph."""

    kernel: str  # with its template arguments
    scope: str  # of the counters, in which it was captured: "layers.3.mlp"; "" outside of all
    bytes: int  # that it must move, as its op declared


class LaunchGraph:
    """A list of launches, in order, with all tensors that they use.

    A replay repeats them on the same memory: it reads what the inputs hold at that time, and writes where the captured
    code wrote. So whatever should differ from one replay to the next has to be in a tensor.
    """

    def __init__(self) -> None:
        self._graph: Any = torch.classes.torch_foundry.LaunchGraph()

    def replay(self) -> None:
        """Launch everything again, in stream order like the launches themselves.

        GraphInvalid, naming kernel and buffer: a captured tensor has moved to other memory (a cache that has grown), or
        shaders were replaced since. Nothing is launched then.
        """
        if why := self._graph.replay():
            raise GraphInvalid(why)

    def launches(self) -> list[CapturedLaunch]:
        """What is on the graph, in order."""
        return [CapturedLaunch(*found) for found in self._graph.launches()]

    def part(self, indices: Sequence[int]) -> LaunchGraph:
        """A graph of some of the launches, by index into `launches()`, in the given order: to time them separately."""
        part = LaunchGraph()
        part._graph = self._graph.part(list(indices))
        return part

    def __len__(self) -> int:
        """Number of launches."""
        return int(self._graph.size())

    @property
    def bytes(self) -> int:
        """Bytes that the launches declared they must move."""
        return int(self._graph.bytes())


class _OnlyLaunches(TorchDispatchMode):
    """Refuses ops whose effect a replay would not repeat."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _repeats(func):
            raise NotCapturable(func.name())
        return func(*args, **(kwargs or {}))


@functools.cache
def _repeats(func: Any) -> bool:
    """Whether `func` launches our kernels, or only allocates or views memory."""
    if func.namespace == "torch_foundry":
        return func._schema.name.removeprefix("torch_foundry::") not in ("pack_weight", "unpack_weight")
    name = func._schema.name.removeprefix("aten::")
    return name in _ALLOCATIONS or _is_view(func)


def _is_view(func: Any) -> bool:
    """Whether every tensor that `func` returns is a view of an argument, which it leaves as it is."""
    schema = func._schema
    written = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    return not written and bool(schema.returns) and all(r.alias_info is not None for r in schema.returns)


@contextlib.contextmanager
def capture(*, checked: bool = True) -> Iterator[LaunchGraph]:
    """Context manager `with capture() as graph:` that runs the block and captures the launches of this thread in it.

    Ops run normally while they are captured. A torch op that computes something raises NotCapturable (a RuntimeError)
    with its name, because a replay would not repeat it; views and allocations are allowed. A tensor allocated inside
    lives as long as the graph. If the block raises, don't use the graph.

    Ctrl-C waits for the end of the block. checked=False skips the check of each op, for code that has been captured
    before. What a replay can't repeat is then left out silently.
    """
    graph = LaunchGraph()
    with uninterruptible():
        graph._graph.start()
        if checked:  # not by `with`, which sets flags of the whole process: other threads may be capturing
            torch._C._push_on_torch_dispatch_stack(_OnlyLaunches())
        try:
            yield graph
        finally:
            if checked:
                torch._C._pop_torch_dispatch_stack(None)
            graph._graph.stop()
    for seen in _watching:
        seen.append(graph)


_watching: list[list[LaunchGraph]] = []


@contextlib.contextmanager
def captures() -> Iterator[list[LaunchGraph]]:
    """Collects all graphs that are captured inside the block, by any code, in order."""
    seen: list[LaunchGraph] = []
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching[:] = [other for other in _watching if other is not seen]
