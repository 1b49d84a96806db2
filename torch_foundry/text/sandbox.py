"""Jinja's immutable sandbox, narrowed: values are plain data, and each operation is counted (see budget.py)."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from . import budget
from .budget import DEPTH, OverBudget, current, items, metered, sized, small, step, text, weigh
from .filters import FILTERS, FUNCTIONS, TESTS, ChatJoiner
from .operations import METHODS, OPERATORS, concatenate

LOOP = {
    "index",
    "index0",
    "revindex",
    "revindex0",
    "first",
    "last",
    "length",
    "depth",
    "depth0",
    "previtem",
    "nextitem",
    "cycle",
    "changed",
}
SINGLE = (str, int, float, bool, type(None))
PLAIN = (*SINGLE, list, tuple, dict, range)


class Method:
    """A method of a value, from the table of methods that templates may call."""

    __slots__ = ("function", "value")

    def __init__(self, function: Any, value: Any) -> None:
        self.function, self.value = function, value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.value, *args, **kwargs)


class Generation(Extension):
    """The {% generation %} tag, which marks the part of the output that is the assistant's."""

    tags = {"generation"}  # noqa: RUF012 - so declared by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_span"), [], [], body).set_lineno(line)

    def _span(self, caller: Macro) -> str:
        inside, means = caller(), current.get()
        means.spans.append((means.emitted, means.emitted + len(inside)))
        return inside


class Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(OPERATORS)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants too are computed when they are counted
            finalize=printed,
            extensions=[Generation, loopcontrols],
        )
        self.filters = {**FILTERS, **COUNTING}
        self.tests = dict(TESTS)
        self.globals = dict(FUNCTIONS)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        step()
        small(left)
        small(right)
        return OPERATORS[operator](left, right)

    def getattr(self, obj: Any, attribute: str) -> Any:
        step()
        if isinstance(obj, PLAIN):
            for kind in (str, dict, list, tuple, float):
                if isinstance(obj, kind) and attribute in METHODS[kind]:
                    return Method(METHODS[kind][attribute], obj)
            if isinstance(obj, dict) and attribute in obj:
                return obj[attribute]
            if not hasattr(obj, attribute):
                return self.undefined(obj=obj, name=attribute)
        if isinstance(obj, Undefined) or (isinstance(obj, LoopContext) and attribute in LOOP):
            return getattr(obj, attribute)
        if isinstance(obj, Namespace) and not attribute.startswith("_"):
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        if isinstance(obj, Macro) and attribute == "name":
            return obj.name
        raise SecurityError(f"the attribute {attribute[:40]!r} of a {type(obj).__name__}")

    def getitem(self, obj: Any, argument: Any) -> Any:
        step()
        if isinstance(obj, Undefined):
            return obj[argument]
        if isinstance(obj, PLAIN):
            if not isinstance(argument, SINGLE):
                sized(argument)
            try:
                return obj[argument]  # type: ignore[index]
            except (TypeError, LookupError):
                pass
            if isinstance(argument, str) and not argument.startswith("_"):
                for kind in (dict, str):
                    if isinstance(obj, kind) and argument in METHODS[kind]:
                        return Method(METHODS[kind][argument], obj)
                return self.undefined(obj=obj, name=argument)
        if isinstance(argument, str):
            return self.getattr(obj, argument)
        return self.undefined(obj=obj, name=argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        step(1 + len(args) + len(kwargs))
        if isinstance(__obj, Macro):
            means = current.get()
            if means.depth >= DEPTH:
                raise OverBudget(f"macros deeper than {DEPTH}")
            means.depth += 1
            try:
                return __context.call(__obj, *args, **kwargs)
            finally:
                means.depth -= 1
        bound = isinstance(__obj, MethodType) and isinstance(__obj.__self__, (LoopContext, Generation))
        if bound and isinstance(__obj.__self__, LoopContext):  # loop.changed() compares
            sum(map(sized, args))
        ours = any(__obj is function for function in FUNCTIONS.values())
        if not (bound or ours or isinstance(__obj, (Method, ChatJoiner, Undefined))):
            raise SecurityError(f"a call of a {type(__obj).__name__}")
        return __context.call(__obj, *args, **kwargs)


@pass_context
def printed(context: Context, value: Any) -> Any:
    """Pay for what goes into the output. Printing a list may escape a character by up to ten."""
    text(len(value) if isinstance(value, str) else 10 * weigh(value))
    return value


# What `allowed.Meter` puts into templates. They take the context so that nothing is computed ahead. -------------------


@pass_context
def _each(context: Context, values: Any, cost: int) -> Any:
    if isinstance(values, Undefined):
        return values
    if isinstance(values, Namespace) or not isinstance(values, (str, list, tuple, dict, range)):
        return budget.each(values, cost)
    return Sized(values, cost)


class Sized:
    """An iterable that counts its steps and knows its length, which loops ask for."""

    def __init__(self, values: Any, cost: int) -> None:
        self.values, self.cost = values, cost

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Any:
        return budget.each(self.values, self.cost)


@pass_context
def _step(context: Context, cost: int) -> str:
    step(cost)
    return ""


@pass_context
def _text(context: Context, data: str) -> str:
    text(len(data))
    return data


@pass_context
def _concatenate(context: Context, values: list[Any]) -> str:
    return concatenate(values)


@pass_context
def _sized(context: Context, value: Any) -> Any:
    if not isinstance(value, (*PLAIN, Undefined)) and isinstance(value, Iterable):
        value = list(metered(value))
    sized(value)
    return value


@pass_context
def _made(context: Context, value: Any) -> Any:
    items(len(value))
    return value


@pass_context
def _copied(context: Context, value: Any) -> Any:
    if isinstance(value, str):
        text(len(value))
    elif isinstance(value, (list, tuple)):
        items(len(value))
    return value


COUNTING = {
    f"_{function.__name__.lstrip('_')}": function
    for function in (_each, _step, _text, _concatenate, _sized, _made, _copied)
}
