"""Filters, tests, methods and functions of chat templates, bounded before they run.

Here are those that make much out of little, or that take more than linear time. The others are Jinja's and Python's as
they are: what they read was bounded when it was made, and what they make is charged for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from jinja2 import pass_eval_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.filters import do_join
from jinja2.nodes import EvalContext
from jinja2.sandbox import safe_range
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Joiner, Namespace

from .budget import DEPTH, ITEM, OverBudget, current, length, look, made, read, spend

WIDTH = 999  # of a padded field
PRODUCT = 1 << 26  # comparisons of a search that may compare each character of one text with each of another
Function = Callable[..., Any]


class Refusal(TemplateError):
    """Raised by raise_exception(): the template rejects the messages."""


# Bounds: called with the arguments of what they bound, before it runs. ------------------------------------------------


def _number(value: Any, *args: Any, **kwargs: Any) -> None:
    """For arithmetic, which means something else for text: % formats it, and * repeats it."""
    if not isinstance(value, (int, float)):
        raise SecurityError(f"arithmetic with a {type(value).__name__}")


def _width(value: Any, *args: Any, **kwargs: Any) -> None:
    if any(isinstance(width, int) and abs(width) > WIDTH for width in (*args[:1], *kwargs.values())):
        raise OverBudget(f"a width of more than {WIDTH}")


def _round(value: Any, *args: Any, **kwargs: Any) -> None:
    _number(value)
    _width(value, *args, **kwargs)


def _items(value: Any, *args: Any, **kwargs: Any) -> None:
    """For what iterates over a value: the characters of a text become items."""
    spend(ITEM * len(value) if isinstance(value, str) else 0)


def _sum(value: Any, attribute: Any = None, start: Any = 0) -> None:
    _number(start)


def _slice(value: Any, *args: Any, **kwargs: Any) -> None:
    _items(value)
    _width(value, *args, **kwargs)


def _indent(value: Any, width: Any = 4, *args: Any, **kwargs: Any) -> None:
    _width(value, width)
    spend((str(value).count("\n") + 2) * (len(width) if isinstance(width, str) else width))


def _replace(value: Any, old: Any, new: Any, count: Any = None) -> None:
    spend(str(value).count(str(old)) * length(new))


def _search(value: Any, *args: Any, **kwargs: Any) -> None:
    """For what may compare each character of one text with each of another."""
    if length(value) * sum(len(each) for each in (*args, *kwargs.values()) if isinstance(each, str)) > PRODUCT:
        raise OverBudget("a search in a long text for a long text")


_PERCENT = re.compile(r"%(?:\([^()%]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d*))?[hlL]?(.)", re.DOTALL)
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|([{}])")
_FIELD = re.compile(r"\w*(?::[<>=^+ #,_0-9.a-zA-Z%-]{0,12})?")


def percent(value: Any, *args: Any, **kwargs: Any) -> None:
    """For `value % args`."""
    spend(ITEM * str(value).count("%"))
    fields = _PERCENT.findall(str(value))
    widths = ["*" if kind == "(" else width for *both, kind in fields for width in both if width or kind == "("]
    _fields(len(fields), widths, *args, *kwargs.values())


def _braces(value: str, *args: Any, **kwargs: Any) -> None:
    """For str.format: names and numbers only, no attributes, items, conversions or nested fields."""
    spend(ITEM * (value.count("{") + value.count("}")))
    fields = _BRACES.findall(value)
    for field, brace in fields:
        if brace or not _FIELD.fullmatch(field):
            raise SecurityError(f"str.format with {field[:40] or brace!r}")
    _fields(len(fields), [width for field, _ in fields for width in re.findall(r"\d+", field)], *args, *kwargs.values())


def _fields(count: int, widths: list[str], *values: Any) -> None:
    if any(width == "*" or len(width) > len(str(WIDTH)) for width in widths):
        raise OverBudget(f"a width that isn't a number up to {WIDTH}, or an odd key")
    spend(sum(map(int, widths)) + 6 * count * sum(map(length, values)))  # escaping makes six of one


SEARCHES = ("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim")
ITERATING = ("groupby", "list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort", "unique")
BOUNDS: dict[str, Function] = {
    **dict.fromkeys(SEARCHES, _search),
    **dict.fromkeys(ITERATING, _items),
    **dict.fromkeys(("batch", "slice"), _slice),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _width),
    **{"format": percent, "indent": _indent, "replace": _replace, "round": _round, "sum": _sum},
}
# Of tests; the last two make text of what they look at.
TEST_BOUNDS: dict[str, Function] = {
    "divisibleby": _number,
    "even": _number,
    "odd": _number,
    "lower": length,
    "upper": length,
}
FILTER_NAMES = """
abs batch capitalize center count d default dictsort e escape first float forceescape format groupby indent int items
join last length list lower map max min reject rejectattr replace reverse round safe select selectattr slice sort string
sum title tojson trim truncate unique upper wordcount
"""
STR_METHODS = """
capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal isdigit islower isnumeric
isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex rjust
rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill
"""
METHODS: dict[type, frozenset[str]] = {
    str: frozenset(STR_METHODS.split()),
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("copy", "count", "index")),
    tuple: frozenset(("count", "index")),
    float: frozenset(("is_integer",)),
}


def _parts(values: Any, separator: Any) -> list[Any]:
    """What is about to be joined."""
    _items(values)
    parts: list[Any] = made(list(values))
    spend(len(parts) * length(separator))
    return parts


@pass_eval_context
def join(context: EvalContext, value: Any, d: Any = "", attribute: Any = None) -> Any:
    return do_join(context, _parts(value, d), d, attribute)


def tojson(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """As transformers has it: nothing is escaped for HTML."""
    _width(x, indent)
    by = len(indent) if isinstance(indent, str) else indent or 0
    spend(current.get().weigh(x) // ITEM * (DEPTH * by + sum(map(len, separators or ()))))
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _within(function: Any, bound: Function | None, first: Function) -> Function:
    """A filter or test of Jinja's that calls `first` and `bound` with its arguments, then itself."""
    passes = getattr(function, "jinja_pass_arg", None)
    at = 0 if passes is None else 1  # the context or the like comes before the value

    def within(*args: Any, **kwargs: Any) -> Any:
        first(*args[at:], *kwargs.values())
        if bound is not None:
            bound(*args[at:], **kwargs)
        return made(function(*args, **kwargs))

    if passes is not None:
        within.jinja_pass_arg = passes  # type: ignore[attr-defined]
    return within


def method(method: Any, *args: Any, **kwargs: Any) -> Any:
    value, name = method.__self__, method.__name__
    if not any(isinstance(value, kind) and name in names for kind, names in METHODS.items()):
        raise SecurityError(f"the method {name[:40]!r} of a {type(value).__name__}")
    if name == "join":
        args = tuple(_parts(values, value) for values in args)
    read(value, *args, *kwargs.values())
    if (bound := _braces if name == "format" else BOUNDS.get(name)) is not None:
        bound(value, *args, **kwargs)
    result = method(*args, **kwargs)
    return list(result) if name in ("items", "keys", "values") else result


def raise_exception(message: Any) -> None:
    length(message)  # which is of text, or short
    raise Refusal(str(message)[:10_000])


def strftime_now(format: str) -> str:
    if len(format) > 256 or not re.fullmatch(r"(?:[^%]|%[-_0^#]?[A-Za-z%])*", format):
        raise OverBudget("a date of such a format")
    return datetime.now().strftime(format)


OWN = {**JINJA_FILTERS, "join": join, "tojson": tojson}
FILTERS = {name: _within(OWN[name], BOUNDS.get(name), read) for name in FILTER_NAMES.split()}
TESTS = {name: _within(test, TEST_BOUNDS.get(name), look) for name, test in JINJA_TESTS.items()}
FUNCTIONS: dict[str, Any] = {
    "dict": dict,
    "joiner": Joiner,
    "namespace": Namespace,
    "raise_exception": raise_exception,
    "range": safe_range,  # of at most 100,000
    "strftime_now": strftime_now,
}
