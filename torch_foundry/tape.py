"""Tapes: record the launches of a piece of code once, then repeat them with no Python in between."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_foundry import _ext  # noqa: F401  (loads the extension)

_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


class GraphInvalid(RuntimeError):
    """What was recorded can't be repeated: a tensor has other memory, or shaders were replaced. Record it again."""


class NotCapturable(RuntimeError):
    """An op that a replay would not repeat was called while launches were recorded.

    reason: the message without advice.
    """

    def __init__(self, op: str) -> None:
        self.reason = f"{op} can't be recorded"
        advice = "a tape repeats torch_foundry's ops only. Compute it before the tape starts, or in a kernel."
        super().__init__(f"{self.reason}: {advice}")


class Recorded(NamedTuple):
    """A launch on a tape."""

    kernel: str  # with its template arguments
    scope: str  # of the counters, in which it was recorded: "layers.3.mlp"; "" outside of all
    bytes: int  # that it must move, as its op declared


class Tape:
    """A list of launches, in order, with all tensors that they use.

    A replay repeats them on the same memory: it reads what the inputs hold at that time, and writes where the recorded
    code wrote. So whatever should differ from one replay to the next has to be in a tensor.
    """

    def __init__(self) -> None:
        self._tape: Any = torch.classes.torch_foundry.Tape()

    def replay(self) -> None:
        """Launch everything again, in stream order like the launches themselves.

        GraphInvalid, naming kernel and buffer: a recorded tensor has moved to other memory (a cache that has grown), or
        shaders were replaced since. Nothing is launched then.
        """
        if why := self._tape.replay():
            raise GraphInvalid(why)

    def launches(self) -> list[Recorded]:
        """What is on the tape, in order."""
        return [Recorded(*found) for found in self._tape.launches()]

    def part(self, indices: Sequence[int]) -> Tape:
        """A tape of some of the launches, by index into `launches()`, in the given order: to time them separately."""
        part = Tape()
        part._tape = self._tape.part(list(indices))
        return part

    def __len__(self) -> int:
        """Number of launches."""
        return int(self._tape.size())

    @property
    def bytes(self) -> int:
        """Bytes that the launches declared they must move."""
        return int(self._tape.bytes())


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
def record(*, checked: bool = True) -> Iterator[Tape]:
    """Context manager `with record() as tape:` that runs the block and records the launches that this thread makes in
    it.

    Ops run normally while they are recorded. A torch op that computes something raises NotCapturable (a RuntimeError)
    with its name, because a replay would not repeat it; views and allocations are allowed. A tensor allocated inside
    lives as long as the tape. If the block raises, don't use the tape.

    checked=False skips the check of each op, for code that has been recorded before. What a replay can't repeat is then
    left out silently.
    """
    tape = Tape()
    if getattr(_recording, "tape", None) is None:
        _recording.tape = tape  # before it starts: an interrupt may come right behind that
    try:
        tape._tape.start()
        _recording.tape = tape
        if checked:  # not by `with`, which sets flags of the whole process: other threads may be recording
            torch._C._push_on_torch_dispatch_stack(_OnlyLaunches())
        yield tape
    finally:
        try:
            _end(tape)
        finally:
            _end(tape)  # nothing is left to do, unless an interrupt came in the middle of it
    for seen in _watching:
        seen.append(tape)


def _end(tape: Tape) -> None:
    if _recording.tape is tape:  # else it was abandoned, and this comes with the garbage
        abandon()


def abandon() -> None:
    """End the recording that this thread is in, if it is in one: an interrupt may have left it behind."""
    while (depth := torch._C._len_torch_dispatch_stack()) and isinstance(
        torch._C._get_dispatch_stack_at(depth - 1), _OnlyLaunches
    ):
        torch._C._pop_torch_dispatch_stack(None)
    if (tape := getattr(_recording, "tape", None)) is not None:
        with contextlib.suppress(RuntimeError):  # it has not begun, or has ended
            tape._tape.stop()
        _recording.tape = None


_recording = threading.local()  # tape: what this thread is recording
_watching: list[list[Tape]] = []


@contextlib.contextmanager
def recordings() -> Iterator[list[Tape]]:
    """Collects all tapes that are recorded inside the block, by any code, in order."""
    seen: list[Tape] = []
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching[:] = [other for other in _watching if other is not seen]
