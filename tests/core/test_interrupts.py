"""Ctrl-C waits for the end of a step."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from torch_foundry.core.interrupts import uninterruptible


@pytest.fixture(autouse=True)
def python_s_own_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_comes_at_the_end_of_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterruptible():
        press()
        press()  # however often
        done.append(1)
    assert done == [1]
    with pytest.raises(KeyboardInterrupt):
        press()


def test_blocks_in_blocks() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterruptible():
        for i in range(3):
            with uninterruptible():
                press()
            done.append(i)
    assert done == [0, 1, 2]


def test_without_ctrl_c_nothing_happens() -> None:
    with uninterruptible():
        pass
    with pytest.raises(ValueError, match="own"), uninterruptible():
        raise ValueError("own")


def test_an_error_of_the_block_is_the_context() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, uninterruptible():
        press()
        raise ValueError("own")
    assert isinstance(caught.value.__context__, ValueError)


def test_the_installed_handler_runs() -> None:
    """Whatever it is, with the frame that was interrupted, and once."""
    calls: list[tuple[int, str]] = []

    def handler(number: int, frame: FrameType | None) -> None:
        assert frame is not None
        calls.append((number, frame.f_code.co_name))

    for own in (handler, Handler(calls)):
        calls.clear()
        before = signal.signal(signal.SIGINT, own)
        try:
            with uninterruptible():
                press()
                press()
                assert not calls
            assert calls == [(signal.SIGINT, "press")]
            assert signal.getsignal(signal.SIGINT) is own
        finally:
            signal.signal(signal.SIGINT, before)


class Handler:
    def __init__(self, calls: list[tuple[int, str]]) -> None:
        self.calls = calls

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.calls.append((number, frame.f_code.co_name if frame else ""))


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_signal_that_python_does_not_handle_is_left_alone(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with uninterruptible():
            assert signal.getsignal(signal.SIGINT) is handler
            if handler is signal.SIG_IGN:
                press()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_defer_nothing() -> None:
    seen = []

    def work() -> None:
        with uninterruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def at_line(lines: int, call: Callable[[], None]) -> Callable[..., Any]:
    """For sys.settrace: Ctrl-C at the n-th line of `contextlib` and of this package's file."""
    left = [lines]

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        return line if frame.f_code.co_filename.endswith(("contextlib.py", "interrupts.py")) else None

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        left[0] -= event == "line"
        if not left[0]:
            sys.settrace(None)
            call()
        return line

    return trace


@pytest.mark.parametrize("lines", range(1, 40))
def test_ctrl_c_while_a_block_begins_or_ends(lines: int) -> None:
    """Then the block has not begun, or has ended; the handler is back in both cases."""
    steps, before = [], sys.gettrace()
    sys.settrace(at_line(lines, press))
    try:
        with uninterruptible():
            steps.append("begun")
            steps.append("ended")
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    assert steps in ([], ["begun", "ended"])
