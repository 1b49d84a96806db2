"""Rules about the types of what functions are given: as far as names and casts tell, without a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..reflect import is_kernel
from ..rewrite import threadgroup
from ..syntax.declarations import Declaration, walk
from ..syntax.integers import Integers
from ..syntax.vocabulary import SCALARS
from .unit import SourceUnit, Violation

_THREADGROUP_BYTES = 32768
_BYTES = {"bool": 1, "char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "bfloat": 2, "int": 4, "uint": 4}
_BYTES |= {"float": 4, "long": 8, "ulong": 8, "int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4}
_BYTES |= {"uint32_t": 4, "int64_t": 8, "uint64_t": 8, "size_t": 8}
_BYTES |= {f"{t}{n}": _BYTES[t] * (n if n != 3 else 4) for t in SCALARS for n in (2, 3, 4)}
_BYTES |= {f"packed_{t}3": _BYTES[t] * 3 for t in SCALARS}
_BYTES |= {"atomic_int": 4, "atomic_uint": 4, "atomic_float": 4, "atomic_bool": 4}

_WIDE = frozenset({"long", "ulong", "int64_t", "uint64_t", "size_t", "ptrdiff_t"})
_NOT_SHUFFLED = _WIDE | {"bool"} | {f"{t}{n}" for t in ("long", "ulong", "bool") for n in (2, 3, 4)}
_TAKE_BOOL = frozenset({"simd_all", "simd_any", "simd_ballot", "quad_all", "quad_any", "quad_ballot"})
_WIDE_ATOMIC = frozenset({"atomic_long", "atomic_ulong"})
_WIDE_ATOMIC_FUNCTIONS = frozenset({"atomic_max_explicit", "atomic_min_explicit"})
_MATRIX_TYPES = frozenset({"float", "half", "bfloat"})
_TYPES = frozenset(SCALARS) | _NOT_SHUFFLED | _WIDE_ATOMIC
_MATH = frozenset({"fma", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "pow", "floor", "rint"})


@dataclass(frozen=True)
class _Types:
    """Declarations of names: token, name, type."""

    declared: list[tuple[int, str, str]]

    def of(self, name: str, at: int) -> str:
        """The type of the last `name` that is declared before token `at`; empty if it isn't known."""
        return next((t for k, n, t in reversed(self.declared) if n == name and k < at), "")


def calls_by_type(unit: SourceUnit) -> Iterator[Violation]:
    tokens, text = unit.tokens, unit.tokens.text
    own = {d.name(tokens) for d in walk(unit.root) if d.kind == "function"}
    for function in _functions(unit):
        types = _types(unit, function)
        for i in range(function.body, tokens.match[function.body]):
            if tokens.at(i + 1) != "(" or text[i] in own:
                continue
            if text[i].startswith("atomic_"):
                first = next(k for k in range(i + 2, tokens.match[i + 1] + 1) if text[k] not in ("&", "("))
                if types.of(text[first], first) in _WIDE_ATOMIC and text[i] not in _WIDE_ATOMIC_FUNCTIONS:
                    yield Violation(i, "wide-atomic", f"'{text[i]}': Metal has max and min only for 64-bit atomics")
            elif text[i].startswith(("simd_", "quad_")) and text[i] not in _TAKE_BOOL:
                given = _argument_type(unit, i + 2, tokens.match[i + 1], types)
                if given in _NOT_SHUFFLED:
                    message = f"'{text[i]}' of {given}: simd functions take no 64-bit integers and no bool"
                    yield Violation(i, "simd-type", message)


def sixteen_bits(unit: SourceUnit) -> Iterator[Violation]:
    """half and bfloat become each other, and a float becomes bfloat, by a conversion that is written."""
    tokens, text = unit.tokens, unit.tokens.text
    for function in _functions(unit):
        types = _types(unit, function)
        for i in range(function.body, tokens.match[function.body]):
            if text[i] not in ("half", "bfloat") or tokens.at(i + 2) != "=" or tokens.kind[i + 1] != "id":
                continue
            value = text[i + 3]
            other = "bfloat" if text[i] == "half" else "half"
            if types.of(value, i) == other and tokens.at(i + 4) in (";", ","):
                yield Violation(i, "implicit-conversion", f"{other} doesn't become {text[i]} unless it is written so")
            elif text[i] == "bfloat" and value in _MATH and tokens.at(i + 4) == "(":
                message = f"{value} is a float here, which doesn't become bfloat unless it is written so"
                yield Violation(i, "implicit-conversion", message)


def matrices(unit: SourceUnit) -> Iterator[Violation]:
    tokens, text = unit.tokens, unit.tokens.text
    for i, t in enumerate(text):
        if t in ("simdgroup_int8x8", "simdgroup_uint8x8", "simdgroup_float4x4", "simdgroup_half4x4"):
            yield Violation(i, "simdgroup-matrix", f"'{t}': simdgroup matrices are 8x8, of float, half or bfloat")
        if t != "simdgroup_matrix" or tokens.at(i + 1) != "<":
            continue
        close = tokens.angle(i + 1)
        if close < 0:
            continue
        parts = [tokens.join(lo, hi).strip() for lo, hi in tokens.split(i + 2, close)]
        scalar = parts[0] in SCALARS and parts[0] not in _MATRIX_TYPES
        if scalar or any(part.isdigit() and part != "8" for part in parts[1:]):
            message = f"simdgroup_matrix<{', '.join(parts)}>: simdgroup matrices are 8x8, of float, half or bfloat"
            yield Violation(i, "simdgroup-matrix", message)


def atomics_in_threadgroup_memory(unit: SourceUnit) -> Iterator[Violation]:
    tokens = unit.tokens
    for i, t in enumerate(tokens.text):
        if t != "threadgroup":
            continue
        k = i + 1
        while tokens.at(k) in ("const", "volatile", "metal", "::"):
            k += 1
        generic = tokens.at(k) == "atomic" and tokens.at(k + 1) == "<" and tokens.at(k + 2) == "float"
        if tokens.at(k) == "atomic_float" or generic:
            yield Violation(i, "threadgroup-atomic", "atomic_float lives in device memory only")


def threadgroup_memory(unit: SourceUnit) -> Iterator[Violation]:
    """Of each kernel, as far as sizes are known here; and constructors, which nobody would call."""
    tokens, integers = unit.tokens, Integers(unit.tokens, unit.root)
    constructed = {
        d.members.name
        for d in walk(unit.root)
        if d.kind == "class" and d.members and any(_is_constructor(unit, m, d.members.name) for m in walk(d.members))
    }
    kernels = [d for d in _functions(unit) if is_kernel(tokens, d)]
    totals: dict[int, int] = {}
    for start, qualifier, end in threadgroup.variables(tokens, unit.root):
        kernel = next((d for d in kernels if d.body < start < tokens.match[d.body]), None)
        if kernel is None or not (names := threadgroup.declarators(tokens, qualifier + 1, end)):
            continue
        type_ = next((tokens.text[i] for i in range(qualifier + 1, names[0]) if tokens.text[i] != "const"), "")
        if type_ in constructed:
            message = f"'{type_}' has a constructor: threadgroup memory cannot be initialized"
            yield Violation(qualifier, "threadgroup-variable", message)
        for name in names:
            elements = _elements(unit, integers, name)
            totals[kernel.head] = totals.get(kernel.head, 0) + _BYTES.get(type_, 0) * elements
    for head, total in totals.items():
        if total > _THREADGROUP_BYTES:
            message = f"{total} bytes of threadgroup memory: a GPU has {_THREADGROUP_BYTES}"
            yield Violation(head, "threadgroup-memory", message)


def _functions(unit: SourceUnit) -> list[Declaration]:
    return [d for d in walk(unit.root) if d.kind == "function" and d.body >= 0]


def _types(unit: SourceUnit, function: Declaration) -> _Types:
    """What the names in the function stand for, if known: pointers and arrays by the type of their elements."""
    tokens = unit.tokens
    found: list[tuple[int, str, str]] = []
    for i in range(function.params, tokens.match[function.body]):
        type_ = tokens.text[i]
        k = i + 1
        if type_ == "atomic" and tokens.at(i + 1) == "<" and tokens.at(i + 3) == ">":
            type_, k = f"atomic_{tokens.text[i + 2]}", i + 4
        if type_ not in _TYPES:
            continue
        while tokens.at(k) in ("const", "*", "&"):
            k += 1
        while k < len(tokens) and tokens.kind[k] == "id" and tokens.at(k + 1) in ("=", ";", ",", ")", "[", "{", ":"):
            found.append((k, tokens.text[k], type_))
            if tokens.at(k + 1) != "," or tokens.at(k + 3) not in ("=", ";", ","):
                break
            k += 2
    return _Types(found)


def _argument_type(unit: SourceUnit, lo: int, close: int, types: _Types) -> str:
    """Type of a call's first argument if that is a name, an element of it, or a conversion; else nothing."""
    tokens, text = unit.tokens, unit.tokens.text
    end = tokens.split(lo, close)[0][1]
    if end == lo:
        return ""
    if text[lo] in _TYPES and tokens.at(lo + 1) == "(" and tokens.match[lo + 1] == end - 1:
        return text[lo]
    alone = end == lo + 1 or (tokens.at(lo + 1) == "[" and tokens.match[lo + 1] == end - 1)
    return types.of(text[lo], lo) if alone else ""


def _is_constructor(unit: SourceUnit, member: Declaration, name: str) -> bool:
    tokens = unit.tokens
    if member.kind != "function" or tokens.text[member.params - 1] != name:
        return False
    return "default" not in tokens.text[member.params : member.end + 1]


def _elements(unit: SourceUnit, integers: Integers, name: int) -> int:
    """Elements of the array declared at token `name`; 0 if they aren't known."""
    tokens, count, i = unit.tokens, 1, name + 1
    while tokens.at(i) == "[":
        size = integers.value(i + 1, tokens.match[i])
        count *= size or 0
        i = tokens.match[i] + 1
    return count


RULES = (calls_by_type, sixteen_bits, matrices, atomics_in_threadgroup_memory, threadgroup_memory)
