"""Exceptions that several packages raise and catch."""

from __future__ import annotations


class Fallback(Exception):
    """Stock code has to run; the text is the reason."""


class OutOfBlocks(RuntimeError):
    """A call needs more blocks, or states, than there are. Nothing has changed."""
