"""Exceptions that several packages raise and catch."""

from __future__ import annotations


class Fallback(Exception):
    """Stock code has to run; the text is the reason."""
