"""Exceptions that several packages raise and catch."""

from __future__ import annotations


class Fallback(Exception):
    """Stock code has to run; the text is the reason."""


class OutOfBlocks(RuntimeError):
    """A call needs more blocks, or states, than there are. Nothing has changed."""


def first_line(error: BaseException) -> str:
    """The first line of an error that says anything."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
