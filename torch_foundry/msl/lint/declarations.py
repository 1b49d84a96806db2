"""Rules about declarations: address spaces of pointers and variables, kernel parameters."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from ..model import Argument, MslError
from ..reflect import is_kernel, kernel_arguments, parameter_end
from ..rewrite import threadgroup
from ..syntax.declarations import Declaration, walk
from ..syntax.integers import Integers
from ..syntax.vocabulary import ADDRESS_SPACES
from .unit import SourceUnit, Violation

_MAX_BUFFER_INDEX = 30
_NOT_A_TYPE = frozenset(
    {"return", "else", "case", "goto", "delete", "new", "throw", "typedef", "using", "auto", "operator", "friend"}
    | {"template", "static_assert", "public", "private", "protected", "do", "if", "for", "while", "switch"}
)
_LEADING = frozenset({"const", "constexpr", "static", "volatile", "inline", "unsigned", "signed", "struct", "typename"})
_TYPE_WORDS = frozenset({"unsigned", "signed"})
_NO_VARIABLE = frozenset(
    {"using", "typedef", "static_assert", "struct", "class", "union", "enum", "friend", "template"}
)
_INDICES = ("thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup")
_GRID = re.compile(
    r"^(thread_position_in_\w+|threadgroup_position_in_grid|threads_per_(grid|threadgroup)|threadgroups_per_grid)$"
)
_GRID_TYPE = re.compile(r"^(?:u?short|uint|ushort|uint32_t|uint16_t|unsigned(?: int| short)?)[23]?$")
_INDEX_TYPE = re.compile(r"^(?:uint|ushort|uint32_t|uint16_t|unsigned(?: int| short)?)$")


def unqualified_pointers(unit: SourceUnit) -> Iterator[Violation]:
    tokens = unit.tokens
    for declaration in walk(unit.root):
        if declaration.kind == "function":
            yield from _parameters(unit, declaration)
        if declaration.kind in ("function", "other"):
            at = _pointer_declaration(unit, declaration.head)
            if at >= 0:
                yield _unqualified(at, tokens.text[at])
    for body in threadgroup.function_bodies(unit.root):
        yield from _local_pointers(unit, body)


def _unqualified(at: int, what: str) -> Violation:
    kind = "pointer" if what == "*" else "reference"
    return Violation(at, "unqualified-pointer", f"this {kind} needs an address space (device, constant, ..)")


def _parameters(unit: SourceUnit, declaration: Declaration) -> Iterator[Violation]:
    tokens = unit.tokens
    for lo, hi in tokens.split(declaration.params + 1, tokens.match[declaration.params]):
        end = parameter_end(tokens, lo, hi)
        pointer, i = -1, lo
        while i < end:
            t = tokens.text[i]
            if t in ADDRESS_SPACES:
                pointer = -1
                break
            if pointer < 0 and t in ("*", "&", "&&") and tokens.text[i - 1] != "(":  # (*f)(..) points to a function
                pointer = i
            if t == "<" and tokens.kind[i - 1] == "id":
                i = max(i, tokens.angle(i))
            elif t in ("[", "{"):
                i = tokens.match[i]
            i += 1
        if pointer >= 0:
            yield _unqualified(pointer, tokens.text[pointer])


def _pointer_declaration(unit: SourceUnit, i: int) -> int:
    """The `*` or `&` of `type *name` at token `i` without address space, or -1."""
    tokens = unit.tokens
    if tokens.at(i) in _NOT_A_TYPE:
        return -1
    typed = False
    while tokens.at(i) in _LEADING:
        typed = typed or tokens.text[i] in _TYPE_WORDS
        i += 1
    if not typed or (i < len(tokens) and tokens.kind[i] == "id"):
        i = _type_name(unit, i)
        if i < 0:
            return -1
    while tokens.at(i) == "const":
        i += 1
    star = i
    while tokens.at(i) in ("*", "&", "&&", "const"):
        i += 1
    if i == star or i >= len(tokens) or tokens.kind[i] != "id" or tokens.text[i] in ADDRESS_SPACES:
        return -1
    if tokens.text[i] == "operator":
        return star
    return star if tokens.at(i + 1) in ("=", ";", "[", ",", "(", "{", ":") else -1


def _type_name(unit: SourceUnit, i: int) -> int:
    """The token after the (qualified) type name at `i`, or -1."""
    tokens = unit.tokens
    while i < len(tokens) and tokens.kind[i] == "id" and tokens.text[i] not in ADDRESS_SPACES | _NOT_A_TYPE:
        i += 1
        if tokens.at(i) == "<":
            close = tokens.angle(i)
            if close < 0:
                return -1
            i = close + 1
        if tokens.at(i) != "::":
            return i
        i += 1
    return -1


def _local_pointers(unit: SourceUnit, body: int) -> Iterator[Violation]:
    """Local variables and casts in a function body."""
    tokens, text = unit.tokens, unit.tokens.text
    for i in range(body + 1, tokens.match[body]):
        before = text[i - 1]
        if before in (";", "{", "}") or (before == "(" and text[i - 2] == "for"):
            at = _pointer_declaration(unit, i)
            if at >= 0:
                yield _unqualified(at, text[at])
        cast = before == "(" and tokens.kind[i - 2] == "op" and text[i - 2] not in (">", ")", "]")
        named = before == "<" and text[i - 2] in ("reinterpret_cast", "static_cast", "const_cast")
        if not (cast or named) or text[i] in _NOT_A_TYPE:
            continue
        start = i
        while text[start] in _LEADING:
            start += 1
        after = _type_name(unit, start)
        while after > 0 and tokens.at(after) == "const":
            after += 1
        if after > 0 and text[after] in ("*", "&"):
            last = after
            while text[last] in ("*", "&", "const"):
                last += 1
            closes = text[last] == (")" if cast else ">")
            if closes and (named or tokens.kind[last + 1] in ("id", "num") or text[last + 1] in ("(", "&", "*")):
                yield _unqualified(after, text[after])


def variables(unit: SourceUnit) -> Iterator[Violation]:
    """Variables of the program and of classes live in constant memory, threadgroup variables in kernels."""
    tokens = unit.tokens
    functions = [d for d in walk(unit.root) if d.kind == "function" and d.body >= 0]
    bodies = [d.body for d in functions]
    for declaration in walk(unit.root):
        if declaration.kind != "other" or tokens.text[declaration.head] in _NO_VARIABLE:
            continue
        words = tokens.text[declaration.head : declaration.end]
        words = words[: words.index("=")] if "=" in words else words
        static = "static" in words if declaration.scope.kind == "class" else "extern" not in words
        if static and "constant" not in words and len(words) > 1:
            where = "static member" if declaration.scope.kind == "class" else "program-scope variable"
            yield Violation(declaration.head, "program-scope", f"a {where} needs the address space `constant`")
    for start, qualifier, end in threadgroup.variables(tokens, unit.root):
        names = threadgroup.declarators(tokens, qualifier + 1, end)
        if not names:
            continue
        function = functions[bisect_right(bodies, start) - 1]
        name = tokens.text[names[0]]
        if not is_kernel(tokens, function):
            message = f"threadgroup variable '{name}' outside a kernel: declare it in the kernel and pass a pointer"
            yield Violation(qualifier, "threadgroup-variable", message)
        if any(tokens.text[i] in ("=", "{") for i in range(names[0], end)):
            message = f"threadgroup variable '{name}': threadgroup memory cannot be initialized"
            yield Violation(qualifier, "threadgroup-variable", message)


def kernel_parameters(unit: SourceUnit) -> Iterator[Violation]:
    integers = Integers(unit.tokens, unit.root)
    for declaration in walk(unit.root):
        if declaration.kind == "function" and declaration.body >= 0 and is_kernel(unit.tokens, declaration):
            try:
                args = kernel_arguments(unit.tokens, declaration.params, integers)
            except MslError as error:
                yield Violation(declaration.params, "kernel-parameter", error.message)
                continue
            parts = unit.tokens.split(declaration.params + 1, unit.tokens.match[declaration.params])
            places = [lo for lo, _ in parts]
            yield from _indices(places, args)
            yield from _types(places, args)


def _indices(places: list[int], args: list[Argument]) -> Iterator[Violation]:
    seen: dict[tuple[str, int | None], Argument] = {}
    for at, a in zip(places, args, strict=False):
        if a.kind == "builtin":
            continue
        if a.kind == "buffer" and a.index is not None and a.index > _MAX_BUFFER_INDEX:
            message = f"buffer index {a.index} of '{a.name}': the last one is {_MAX_BUFFER_INDEX}"
            yield Violation(at, "buffer-index", message)
        first = seen.setdefault((a.kind, a.index), a)
        if first is not a and not (first.optional_on and a.optional_on):
            message = f"{a.kind} index {a.index} is taken twice, by '{first.name}' and '{a.name}'"
            yield Violation(at, "duplicate-index", message)


def _types(places: list[int], args: list[Argument]) -> Iterator[Violation]:
    shapes: dict[str, str] = {}
    for at, a in zip(places, args, strict=False):
        words = a.type.replace("*", " ").replace("&", " ").split()
        value = " ".join(w for w in words if w not in ADDRESS_SPACES | {"const", "volatile"}).removeprefix("metal::")
        if a.kind == "buffer":
            by_value = a.address_space == "constant" and "*" not in a.type
            if value in ("size_t", "ptrdiff_t") or "long long" in value or (value == "bool" and by_value):
                message = f"'{a.name}' is {value}: its size differs between host and GPU code; use int, uint or long"
                yield Violation(at, "argument-type", message)
        elif a.builtin and _GRID.match(a.builtin):
            if not _GRID_TYPE.match(value):
                yield Violation(at, "builtin-type", f"[[{a.builtin}]] is uint, ushort or a vector of them, not {value}")
            shapes.setdefault(value[-1] if value[-1] in "23" else "1", a.name)
            if len(shapes) > 1:
                other = next(iter(shapes.values()))
                message = f"'{a.name}' and '{other}': grid positions and sizes of a kernel have one shape"
                yield Violation(at, "mixed-grid-types", message)
                shapes = {}
        elif a.builtin in _INDICES and not _INDEX_TYPE.match(value):
            yield Violation(at, "builtin-type", f"[[{a.builtin}]] is uint or ushort, not {value}")


RULES = (unqualified_pointers, variables, kernel_parameters)
