"""Deferring Ctrl-C to the end of a step."""

from __future__ import annotations

import _signal  # the functions of `signal` look for an enum in each handler, which takes 20 times as long
import contextlib
import threading
from collections.abc import Iterator
from types import FrameType


class _Deferred(list[tuple[int, FrameType | None]]):
    """A signal handler that only notes the calls."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.append((number, frame))


@contextlib.contextmanager
def uninterruptible() -> Iterator[None]:
    """Context manager that defers Ctrl-C (SIGINT) to the end of its block, which should take milliseconds.

    The handler that is installed, whatever it is, is called then, once, however often Ctrl-C was pressed; what it
    raises replaces an exception of the block. Blocks may be nested: the outermost one counts. Python runs signal
    handlers in the main thread only, so elsewhere there is nothing to defer, as with a default or ignored SIGINT.
    """
    handler = _signal.getsignal(_signal.SIGINT)
    main = threading.get_ident() == threading.main_thread().ident
    if not main or not callable(handler) or isinstance(handler, _Deferred):
        yield
        return
    deferred = _Deferred()
    _signal.signal(_signal.SIGINT, deferred)
    try:
        yield
    finally:
        _signal.signal(_signal.SIGINT, handler)
        if deferred:
            handler(*deferred[0])
