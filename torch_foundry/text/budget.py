"""What a chat template may use up, counted before each operation.

Every operation that makes text or lists from others is limited here before it runs. So memory stays bounded on any
system without limits on the process, and a template fails at the same count on every machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError

STEPS = 1_000_000  # of about a microsecond or less each
TEXT = 8 << 20  # characters made altogether, at up to four bytes each
OUTPUT = 1 << 20  # characters of the result
SECONDS = 1.0  # of the thread's CPU time
SOURCE = 128 << 10  # characters of a template
TOKENS = 24 << 10  # of its words, signs and spaces between them
INTEGER = 1024  # bits
DEPTH = 50  # macros in macros, lists in lists
WIDTH = 1000  # of a padded field


class OverBudget(Exception):
    """A template that wants more than its budget; says of what."""


class Budget:
    """The means of one rendering: a fixed amount, and more for long conversations.

    size: of the inputs, in characters. share: among how many renderings the fixed amount is divided.
    """

    def __init__(self, size: int, share: int = 1) -> None:
        self.steps = STEPS // share + 8 * size
        self.left_of_text = TEXT + 8 * size
        self.output = OUTPUT + 4 * size
        self.seconds = SECONDS / share + 8e-6 * size
        self.depth = 0
        self.spans: list[tuple[int, int]] = []  # of the output, inside of {% generation %}
        self.emitted = 0
        self._deadline = time.thread_time() + self.seconds
        self._until_clock = 0

    def step(self, n: int = 1) -> None:
        self.steps -= n
        if self.steps < 0:
            raise OverBudget("more steps than a chat takes")
        self._until_clock -= n
        if self._until_clock <= 0:
            self._until_clock = 4096
            if time.thread_time() > self._deadline:
                raise OverBudget(f"more than {self.seconds:.1f} s")

    def text(self, characters: int) -> None:
        self.step(1 + (characters >> 6))
        self.left_of_text -= characters
        if self.left_of_text < 0:
            raise OverBudget("more text than a chat has")

    def items(self, n: int) -> None:
        self.text(16 * n)
        self.step(n)


current: ContextVar[Budget] = ContextVar("budget of the template that is being rendered")


def step(n: int = 1) -> None:
    current.get().step(n)


def text(characters: int) -> None:
    current.get().text(characters)


def items(n: int) -> None:
    current.get().items(n)


def within(value: Any, limit: int = WIDTH) -> int:
    """A number of characters or items that a template names."""
    if not isinstance(value, int) or abs(value) > limit:
        raise OverBudget(f"a width that isn't a number up to {limit}")
    return value


def small(value: Any) -> None:
    """Sums can still make long integers; operations that cost more than their length accept short ones only."""
    if isinstance(value, int) and value.bit_length() > INTEGER:
        raise OverBudget(f"an integer of more than {INTEGER} bits")


def number(value: Any) -> None:
    """The operand of an operation that means something else for text, as % formats it and * repeats it."""
    if not isinstance(value, (int, float)):
        raise SecurityError(f"arithmetic with a {type(value).__name__}")
    small(value)


def each(values: Any, cost: int = 1) -> Iterator[Any]:
    for value in values:
        step(cost)
        yield value


def metered(values: Any) -> Any:
    """Values that a filter is about to iterate over: counted now, or as they are taken."""
    if isinstance(values, (str, list, tuple, dict, range)):
        step(1 + len(values))
        return values
    return values if isinstance(values, Undefined) or not isinstance(values, Iterable) else each(values)


def weigh(value: Any, depth: int = 0) -> int:
    """Characters that a value takes when it is printed, at most. Shared parts count as often as they occur."""
    if isinstance(value, str):
        return len(value)
    if value is None or isinstance(value, (bool, float, Undefined)):
        return 24
    if isinstance(value, int):
        return 8 + value.bit_length() // 3
    if depth > DEPTH:
        raise OverBudget(f"lists nested deeper than {DEPTH}")
    if isinstance(value, dict):
        step(1 + len(value))
        return 4 + sum(8 + weigh(k, depth + 1) + weigh(v, depth + 1) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        step(1 + len(value))
        return 4 + sum(4 + weigh(v, depth + 1) for v in value)
    if isinstance(value, range):
        return 48
    raise SecurityError(f"a {type(value).__name__} is no value of a chat")


def sized(value: Any) -> int:
    """Pay for the `weigh` of a value that is about to be compared or printed."""
    n = weigh(value)
    step(1 + (n >> 6))
    return n
