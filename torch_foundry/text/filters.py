"""Filters, tests and functions of chat templates: Jinja's, after paying for their cost, and transformers'."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2.exceptions import SecurityError, TemplateError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Namespace

from .budget import INTEGER, OverBudget, items, metered, number, sized, step, text, weigh, within
from .operations import check_format

Function = Callable[..., Any]


class Refusal(TemplateError):
    """Raised by raise_exception(): the template rejects the messages."""


def _filter(name: str, prepare: Function) -> Function:
    """Jinja's filter with a price. prepare: is called with the same arguments, pays for them, and returns the value to
    use."""
    original = JINJA_FILTERS[name]
    passes = getattr(original, "jinja_pass_arg", None)  # the context or the like comes first
    at = 0 if passes is None else 1

    def filtered(*args: Any, **kwargs: Any) -> Any:
        value = prepare(*args[at:], **kwargs)
        return original(*args[:at], value, *args[at + 1 :], **kwargs)

    if passes is not None:
        filtered.jinja_pass_arg = passes  # type: ignore[attr-defined]
    return filtered


def _free(value: Any, *args: Any, **kwargs: Any) -> Any:
    step()
    return value


def _through(value: Any, *args: Any, **kwargs: Any) -> Any:
    """For filters that iterate over the values once."""
    return metered(value)


def _copied(value: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(value, (str, list, tuple, dict, range)):
        items(len(value))
    return metered(value)


def _compared(value: Any, *args: Any, **kwargs: Any) -> Any:
    """For filters that compare the values with each other."""
    if not isinstance(value, (str, dict)):
        value = list(metered(value))
    step(20 * sized(value))
    return value


def _grows(factor: int) -> Function:
    """For filters whose result has at most `factor` times the value's characters, plus those of other arguments."""

    def grows(value: Any, *args: Any, **kwargs: Any) -> Any:
        text(factor * weigh(value) + sum(map(weigh, (*args, *kwargs.values()))))
        return value

    return grows


def _join(value: Any, d: Any = "", attribute: Any = None) -> Any:
    values = list(metered(value))
    text(
        sum(10 * weigh(v) if isinstance(v, (list, tuple, dict)) else weigh(v) for v in values) + len(values) * weigh(d)
    )
    return values


def _center(value: Any, width: Any = 80) -> Any:
    text(max(weigh(value), within(width)))
    return value


def _indent(value: Any, width: Any = 4, first: bool = False, blank: bool = False) -> Any:
    by = len(width) if isinstance(width, str) else within(width)
    text(weigh(value) + by * (str(value).count("\n") + 2))
    return value


def _replace(value: Any, old: Any, new: Any, count: Any = None) -> Any:
    long = sized(value) + sized(old) + 10 * sized(new)
    text(long + str(value).count(str(old)) * 10 * weigh(new))
    return value


def _format(value: Any, *args: Any, **kwargs: Any) -> Any:
    sized(value)
    check_format(str(value), kwargs or args)
    return value


def _int(value: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(value, str) and len(value) > INTEGER:
        raise OverBudget(f"an integer of more than {INTEGER} digits")
    return value


def _round(value: Any, precision: Any = 0, method: str = "common") -> Any:
    number(value)
    within(precision, 100)
    return value


def _trim(value: Any, chars: Any = None) -> Any:
    text(weigh(value))
    step(weigh(value) * weigh(chars) >> 6)  # strip looks for each character of the value among these
    return value


def _sum(value: Any, attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, (int, float)):
        raise SecurityError("a sum of other things than numbers")
    return metered(value)


def _batch(value: Any, linecount: Any, fill_with: Any = None) -> Any:
    items(within(linecount))
    return metered(value)


def _slice(value: Any, slices: Any, fill_with: Any = None) -> Any:
    items(within(slices))
    return metered(value)


def tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As transformers has it: nothing is escaped for HTML."""
    n = weigh(x)
    by = 0 if indent is None else len(indent) if isinstance(indent, str) else max(within(indent, 32), 0)
    text(6 * n + n * by + n * sum(map(len, separators or ())))
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


_PREPARED: dict[str, Function] = {
    **dict.fromkeys(["default", "d", "abs", "float", "length", "count"], _free),
    **dict.fromkeys(
        ["first", "last", "map", "select", "reject", "selectattr", "rejectattr", "items", "reverse"], _through
    ),
    **dict.fromkeys(["sort", "dictsort", "unique", "groupby", "min", "max"], _compared),
    **dict.fromkeys(["string", "safe", "wordcount", "truncate"], _grows(1)),
    **dict.fromkeys(["upper", "lower", "title", "capitalize"], _grows(3)),
    **dict.fromkeys(["escape", "e", "forceescape"], _grows(6)),
    "list": _copied,
    "join": _join,
    "center": _center,
    "indent": _indent,
    "replace": _replace,
    "format": _format,
    "int": _int,
    "round": _round,
    "trim": _trim,
    "sum": _sum,
    "batch": _batch,
    "slice": _slice,
}
FILTERS: dict[str, Function] = {name: _filter(name, prepare) for name, prepare in _PREPARED.items()} | {
    "tojson": tojson
}


def _test(name: str) -> Function:
    original: Any = JINJA_TESTS[name]

    def test(*args: Any) -> Any:  # of Jinja's, after what it will cost
        for value in args[-2:] if name in _COMPARING else ():
            sized(value)
        for value in args[-2:] if name in _ARITHMETIC else ():
            number(value)
        step()
        return original(*args)

    if (passes := getattr(original, "jinja_pass_arg", None)) is not None:
        test.jinja_pass_arg = passes  # type: ignore[attr-defined]
    return test


_COMPARING = {
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    ">=",
    "ge",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
    "in",
    "upper",
    "lower",
}
_ARITHMETIC = {"odd", "even", "divisibleby"}
TESTS: dict[str, Function] = {name: _test(name) for name in JINJA_TESTS}


# Functions. -------------------------------------------------------------------------------------------------------


def raise_exception(message: Any) -> None:
    raise Refusal(str(message) if weigh(message) < 10_000 else "the template refuses these messages")


def strftime_now(format: str) -> str:
    if len(format) > 256 or not re.fullmatch(r"(?:[^%]|%[-_0^#]?[A-Za-z%])*", format):
        raise OverBudget("a date of such a format")
    return datetime.now().strftime(format)


def bounded_range(*bounds: int) -> range:
    numbers = range(*bounds)
    within(max(map(abs, bounds)), 1 << 30)
    step(len(numbers))
    return numbers


def make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    for value in (*args, *kwargs.values()):
        items(sized(value))
    return dict(*args, **kwargs)


class ChatNamespace(Namespace):
    """namespace(): no names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        step()
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"{str(name)[:40]!r} as a name in a namespace")


class ChatJoiner:
    """joiner(): nothing at the first call, then the separator."""

    def __init__(self, sep: str = ", ") -> None:
        text(weigh(sep))
        self._sep, self._used = sep, False

    def __call__(self) -> str:
        first, self._used = not self._used, True
        return "" if first else self._sep


FUNCTIONS: dict[str, Any] = {
    "joiner": ChatJoiner,
    "raise_exception": raise_exception,
    "strftime_now": strftime_now,
    "range": bounded_range,
    "dict": make_dict,
    "namespace": ChatNamespace,
}
