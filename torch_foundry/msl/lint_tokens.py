"""Rules that words alone decide: what MSL's dialect of C++ lacks."""

from __future__ import annotations

from collections.abc import Iterator

from .declarations import walk
from .source_unit import SourceUnit, Violation

_CPP17_IN_METAL = 400
_LAMBDAS_IN_METAL = 320
_ABSENT = {
    **dict.fromkeys(["throw", "try", "catch"], "exceptions"),
    **dict.fromkeys(["new", "delete"], "dynamic memory"),
    **dict.fromkeys(["virtual", "dynamic_cast", "typeid"], "run-time type information and virtual functions"),
    "thread_local": "thread_local variables",
}
_OPERATORS = frozenset({"+", "-", "*", "/", "%", "&", "|", "^", "&&", "||", "<<", "==", "!=", "<=", ">="})


def double(unit: SourceUnit) -> Iterator[Violation]:
    for i, t in enumerate(unit.tokens.text):
        if t.startswith("double") and t in ("double", "double2", "double3", "double4"):
            yield Violation(i, "double", "MSL has no double precision")


def goto(unit: SourceUnit) -> Iterator[Violation]:
    for i, t in enumerate(unit.tokens.text):
        if t == "goto":
            yield Violation(i, "goto", "MSL has no goto")


def absent(unit: SourceUnit) -> Iterator[Violation]:
    text = unit.tokens.text
    for i, t in enumerate(text):
        if t in _ABSENT and not (t == "delete" and text[i - 1] == "=") and text[i - 1] not in (".", "->", "operator"):
            yield Violation(i, "absent-feature", f"'{t}': MSL has no {_ABSENT[t]}")


def lambdas(unit: SourceUnit) -> Iterator[Violation]:
    if unit.metal_version >= _LAMBDAS_IN_METAL:
        return
    tokens = unit.tokens
    for i, t in enumerate(tokens.text):
        if t != "[" or i == 0 or tokens.is_attribute(i) or tokens.text[i - 1] == "[":
            continue
        expression_before = tokens.kind[i - 1] in ("id", "str") and tokens.text[i - 1] != "return"
        if expression_before or tokens.text[i - 1] in (")", "]", ">", "&", "&&"):
            continue
        if tokens.at(tokens.match[i] + 1) in ("(", "{"):
            yield Violation(i, "lambda", "lambdas need MSL 3.2")


def cpp17_statements(unit: SourceUnit) -> Iterator[Violation]:
    if unit.metal_version >= _CPP17_IN_METAL:
        return
    tokens = unit.tokens
    for i, t in enumerate(tokens.text):
        following = tokens.at(i + 1)
        if t == "if" and following == "constexpr":
            yield Violation(i, "if-constexpr", "`if constexpr` is C++17: MSL before 4.0 has C++14")
        elif t in ("if", "switch") and following == "(" and _has_semicolon(unit, i + 1):
            yield Violation(i, "if-initializer", f"an initializer in `{t}` is C++17: MSL before 4.0 has C++14")
        elif t == "auto":
            j = i + 1
            while tokens.at(j) in ("const", "&", "&&"):
                j += 1
            if tokens.at(j) == "[" and not tokens.is_attribute(j):
                yield Violation(i, "structured-binding", "structured bindings are C++17: MSL before 4.0 has C++14")
        elif t == "..." and _is_fold(unit, i):
            yield Violation(i, "fold-expression", "fold expressions are C++17: MSL before 4.0 has C++14")


def cpp17_declarations(unit: SourceUnit) -> Iterator[Violation]:
    if unit.metal_version >= _CPP17_IN_METAL:
        return
    tokens = unit.tokens
    for declaration in walk(unit.root):
        if declaration.kind == "namespace" and declaration.members and "::" in declaration.members.name:
            message = "`namespace a::b` is C++17: MSL before 4.0 has C++14"
            yield Violation(declaration.head, "nested-namespace", message)
        elif declaration.kind == "other":
            words = tokens.text[declaration.head : declaration.end]
            words = words[: words.index("=")] if "=" in words else words
            if "inline" in words and words[0] not in ("using", "typedef"):
                message = "inline variables are C++17: MSL before 4.0 has C++14"
                yield Violation(declaration.head, "inline-variable", message)


def _has_semicolon(unit: SourceUnit, paren: int) -> bool:
    i, close = paren + 1, unit.tokens.match[paren]
    while i < close:
        if unit.tokens.text[i] == ";":
            return True
        i = unit.tokens.match[i] + 1 if unit.tokens.text[i] in "([{" else i + 1
    return False


def _is_fold(unit: SourceUnit, i: int) -> bool:
    before, after = unit.tokens.at(i - 1), unit.tokens.at(i + 1)
    if before == "(" and after in _OPERATORS | {",", "<", ">"}:
        return True
    return (before in _OPERATORS and after in ("+", "-", "*", ")")) or (before == "," and after == ")")


RULES = (double, goto, absent, lambdas, cpp17_statements, cpp17_declarations)
