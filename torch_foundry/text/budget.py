"""What a chat template may use up: characters that it reads and makes, and CPU time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError

TEXT = 8 << 20  # characters read and made altogether, at up to four bytes each
LIST = 1 << 20  # characters of a list or dict, as often as they occur in it
OUTPUT = 1 << 20  # characters of the result
SECONDS = 1.0  # of the thread's CPU time
ITEM = 16  # characters that an item of a list counts for
INTEGER = 1024  # bits
DEPTH = 50  # macros in macros, lists in lists
CLOCK = 4096  # characters' worth of work between two looks at the clock
PARTS = (list, tuple, dict)
VALUES = (str, int, float, type(None), range, Undefined, *PARTS)


class OverBudget(Exception):
    """A template that wants more than its budget; says of what."""


class Budget:
    """What one rendering may use: a fixed amount, and more for long conversations.

    size: of the inputs, in characters. share: among how many renderings the fixed amount of time is divided.
    """

    def __init__(self, size: int, share: int = 1) -> None:
        self.left = TEXT + 16 * size
        self.list, self.output = LIST + 16 * size, OUTPUT + 4 * size
        self.seconds = SECONDS / share + 8e-6 * size
        self.deadline = time.thread_time() + self.seconds
        self.work = self.depth = self.emitted = 0
        self.spans: list[tuple[int, int]] = []  # of the output, inside of {% generation %}

    def spend(self, characters: int = 0, work: int = 16) -> None:
        """Charge for characters, and for `work` that takes as long as so many more."""
        characters = max(characters, 0)
        self.left -= characters
        if self.left < 0:
            raise OverBudget("more text than a chat has")
        self.work += characters + work
        if self.work >= CLOCK:
            self.work = 0
            if time.thread_time() > self.deadline:
                raise OverBudget(f"more than {self.seconds:.1f} s")

    def weigh(self, value: Any, depth: int = 0) -> int:
        """Characters of a value, and some for each part. Shared parts count as often as they occur."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, VALUES):
            raise SecurityError(f"a {type(value).__name__} is no value of a chat")
        if not isinstance(value, PARTS):
            return ITEM
        if depth > DEPTH:
            raise OverBudget(f"lists nested deeper than {DEPTH}")
        total = ITEM * len(value)
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            total += self.weigh(part, depth + 1)
            if total > self.list:
                raise OverBudget("a longer list than a chat has")
        return total


current: ContextVar[Budget] = ContextVar("budget of the template that is being rendered")


def spend(characters: int = 0, work: int = 16) -> None:
    current.get().spend(characters, work)


def look(*values: Any) -> None:
    """Is there time for what reads these once? Lists are short, or they would not have been made."""
    work = 16
    for value in values:
        if isinstance(value, PARTS):
            work = CLOCK
    spend(work=work)


def read(*values: Any) -> None:
    """Charge for the operands of what makes text or lists of them."""
    look(*values)
    for value in values:
        if not isinstance(value, (*VALUES, Iterator)):
            raise SecurityError(f"a {type(value).__name__} is no value of a chat")
        spend(len(value) if isinstance(value, str) else 0)


def made(value: Any) -> Any:
    """Charge for what an operation made, and return it."""
    budget = current.get()
    if isinstance(value, str):
        budget.spend(len(value))
    elif isinstance(value, PARTS):
        budget.spend(ITEM * len(value), budget.weigh(value))
    elif isinstance(value, int) and value.bit_length() > INTEGER:
        raise OverBudget(f"an integer of more than {INTEGER} bits")
    return value


def length(value: Any) -> int:
    """Characters that a value is printed as."""
    if not isinstance(value, VALUES):
        raise SecurityError(f"a {type(value).__name__} is no value of a chat")
    return len(value) if isinstance(value, str) else len(str(value))
