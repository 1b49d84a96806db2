"""What the lint rules look at and what they yield."""

from __future__ import annotations

from dataclasses import dataclass

from .declarations import Scope
from .lexer import Tokens


@dataclass(frozen=True)
class Violation:
    """A rule broken at token `at`."""

    at: int
    rule: str
    message: str


@dataclass(frozen=True)
class SourceUnit:
    """A preprocessed file in tokens and declarations."""

    tokens: Tokens
    root: Scope
    metal_version: int
