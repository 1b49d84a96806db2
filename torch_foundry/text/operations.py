"""Operators and methods of chat templates; each is limited before it runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from jinja2.exceptions import SecurityError
from markupsafe import Markup

from .budget import INTEGER, OverBudget, items, metered, sized, step, text, weigh, within

Function = Callable[..., Any]


# Operators. -----------------------------------------------------------------------------------------------------


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        text((len(left) + len(right)) * (6 if isinstance(left, Markup) or isinstance(right, Markup) else 1))
    elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        items(len(left) + len(right))
    return left + right


def _multiply(left: Any, right: Any) -> Any:
    if isinstance(right, (str, list, tuple)):
        left, right = right, left
    if isinstance(left, str) and isinstance(right, int):
        text(len(left) * max(right, 0))
    elif isinstance(left, (list, tuple)) and isinstance(right, int):
        items(len(left) * max(right, 0))
    elif isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > INTEGER:
        raise OverBudget(f"an integer of more than {INTEGER} bits")
    return left * right


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > INTEGER:
        raise OverBudget(f"an integer of more than {INTEGER} bits")
    return left**right


_SPEC = re.compile(r"%(?:\(.*?\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d*))?[hlL]?(.)", re.DOTALL)


def check_format(pattern: str, values: Any) -> None:
    count, total = 0, len(pattern)
    for found in _SPEC.finditer(pattern):
        count += 1
        for field in found.group(1, 2):
            if field == "*":
                raise OverBudget("a width that is a value")
            total += within(int(field[:9])) if field else 0
    text(total + 10 * count * weigh(values))


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        check_format(left, right)
    return left % right


OPERATORS: dict[str, Function] = {
    "+": _add,
    "-": lambda left, right: left - right,
    "*": _multiply,
    "/": lambda left, right: left / right,
    "//": lambda left, right: left // right,
    "%": _modulo,
    "**": _power,
}


def concatenate(values: list[Any]) -> str:
    """The operator ~."""
    text(sum(10 * sized(v) if isinstance(v, (list, tuple, dict)) else weigh(v) for v in values))
    return "".join(map(str, values))


# Methods. -------------------------------------------------------------------------------------------------------


def _replace(value: str, old: str, new: str, count: int = -1) -> str:
    found = value.count(old) if count < 0 else min(value.count(old), count)
    text(len(value) + found * len(new))
    return value.replace(old, new, count)


def _join(value: str, values: Any) -> str:
    values = list(metered(values))
    text(sum(map(weigh, values)) + len(values) * len(value))
    return value.join(values)


def _pad(name: str) -> Function:
    def pad(value: str, size: int, *fill: str) -> str:
        text(max(len(value), within(size)))
        return getattr(value, name)(size, *fill)

    return pad


def _split(name: str) -> Function:
    def split(value: str, *args: Any, **kwargs: Any) -> list[str]:
        text(2 * len(value))
        parts = getattr(value, name)(*args, **kwargs)
        items(len(parts))
        return parts

    return split


_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])")


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    """str.format with names and numbers only: no attributes, items, conversions or nested fields."""
    total, count = len(value), 0
    for found in _FIELD.finditer(value):
        if found.group(2):
            raise SecurityError("str.format with nested fields")
        name, _, spec = (found.group(1) or "").partition(":")
        if not re.fullmatch(r"\w*", name) or not re.fullmatch(r"[<>=^+ #,_0-9.a-zA-Z%-]{0,12}", spec):
            raise SecurityError(f"str.format with {found.group()[:40]!r}")
        total += sum(within(int(digits)) for digits in re.findall(r"\d+", spec))
        count += 1
    text(total + 10 * count * sum(map(weigh, (*args, *kwargs.values()))))
    return str.format(value, *args, **kwargs)


def _plain(name: str) -> Function:
    def plain(value: Any, *args: Any, **kwargs: Any) -> Any:
        text(3 * len(value))
        return getattr(value, name)(*args, **kwargs)

    return plain


def _product(name: str) -> Function:
    """For methods that may compare each character of one text with each of another: rfind and its like, and strip."""

    def product(value: str, *args: Any, **kwargs: Any) -> Any:
        text(2 * len(value))
        step(len(value) * sum(map(weigh, (*args, *kwargs.values()))) >> 6)
        result = getattr(value, name)(*args, **kwargs)
        if isinstance(result, list):
            items(len(result))
        return result

    return product


def _listed(name: str) -> Function:
    def listed(value: dict[Any, Any]) -> list[Any]:
        items(len(value))
        return list(getattr(value, name)())

    return listed


def _copy(value: Any) -> Any:
    items(len(value))
    return value.copy()


def _compared(name: str) -> Function:
    def compared(value: Any, *args: Any) -> Any:
        step(sized(value) + sum(map(sized, args)))
        return getattr(value, name)(*args)

    return compared


_STRING = [
    "startswith",
    "endswith",
    "upper",
    "lower",
    "title",
    "capitalize",
    "casefold",
    "swapcase",
    "find",
    "index",
    "count",
    "isdigit",
    "isalpha",
    "isalnum",
    "isspace",
    "isupper",
    "islower",
    "istitle",
    "isnumeric",
    "isdecimal",
    "isascii",
    "partition",
    "removeprefix",
    "removesuffix",
]
METHODS: dict[type, dict[str, Function]] = {
    str: {
        **{name: _plain(name) for name in _STRING},
        **{name: _pad(name) for name in ("center", "ljust", "rjust", "zfill")},
        **{name: _split(name) for name in ("split", "splitlines")},
        **{name: _product(name) for name in ("strip", "lstrip", "rstrip", "rfind", "rindex", "rpartition", "rsplit")},
        "replace": _replace,
        "join": _join,
        "format": _format,
    },
    dict: {"copy": _copy, "get": _compared("get"), **{name: _listed(name) for name in ("keys", "values", "items")}},
    list: {"copy": _copy} | {name: _compared(name) for name in ("index", "count")},
    tuple: {name: _compared(name) for name in ("index", "count")},
    float: {"is_integer": lambda value: value.is_integer()},
}
