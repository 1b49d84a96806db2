"""What a kernel uses of its file, by name, directly or through what it calls: function constants, a line of text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from .model import FunctionConstant, Kernel, Translation
from .syntax.lexer import Tokens

_NOT_NAMES = frozenset({"decltype", "static_assert", "alignas", "sizeof", "__attribute__", "operator"})


def constants_used(translation: Translation, kernel: Kernel) -> list[FunctionConstant]:
    """The function constants that `kernel` may read.

    As Metal asks a value only for those that a pipeline's function uses. Names are followed without regard to scopes
    and overloads, so the answer may hold one too many, never one too few.
    """
    reached = _reached(translation, kernel)
    return [constant for constant in translation.function_constants if constant.name in reached]


def users(translation: Translation, file: str, line: int) -> set[str]:
    """Signatures of the kernels that use what is declared at a line of the source, followed as above."""
    declared: set[str] = set()
    for names, first, last in _places(translation.source):
        if first[0] == last[0] == file and first[1] <= line <= last[1]:
            declared |= names
    return {kernel.signature for kernel in translation.kernels if declared & _reached(translation, kernel)}


def _reached(translation: Translation, kernel: Kernel) -> set[str]:
    references = _references(translation.source)
    reached: set[str] = set()
    open_names = [kernel.entry.partition("<")[0].rpartition("::")[2], kernel.signature.rpartition("::")[2]]
    while open_names:
        name = open_names.pop()
        if name not in reached:
            reached.add(name)
            open_names += references.get(name, ())
    return reached


@lru_cache(maxsize=8)
def _references(source: str) -> dict[str, set[str]]:
    """For each name declared at namespace scope, all names in its declarations."""
    tokens = Tokens(source)
    references: dict[str, set[str]] = {}
    for declared, lo, hi in _declarations(tokens):
        names = {tokens.text[i] for i in range(lo, hi) if tokens.kind[i] == "id"}
        for name in declared:
            references.setdefault(name, set()).update(names)
    return references


@lru_cache(maxsize=8)
def _places(source: str) -> list[tuple[set[str], tuple[str, int], tuple[str, int]]]:
    """The names of each declaration at namespace scope, and where it begins and ends."""
    tokens = Tokens(source)
    return [(names, tokens.where(lo), tokens.where(hi - 1)) for names, lo, hi in _declarations(tokens)]


def _declarations(tokens: Tokens) -> Iterator[tuple[set[str], int, int]]:
    """Declarations at namespace scope: names, first token, one past the last."""
    begin = i = 0
    declared: set[str] = set()
    initialiser = False  # what stands after "=" declares nothing
    while i < len(tokens):
        text = tokens.text[i]
        following = tokens.text[i + 1] if i + 1 < len(tokens) else ""
        end = False
        if text == "namespace" or (text == "extern" and following.startswith('"')):
            while i < len(tokens) and tokens.text[i] not in ("{", ";"):
                i += 1
            begin = i + 1
        elif text == "using":  # an alias has commas in its type
            declared.add(following)
            while tokens.text[i] != ";":
                i += 1
            end = True
        elif text == "template" and following == "<":
            i = _after_angles(tokens, i + 1) - 1
        elif text in ("(", "["):
            i = tokens.match[i]
        elif text == "{":
            i = tokens.match[i]
            end = i + 1 >= len(tokens) or tokens.text[i + 1] not in (";", ",")  # a function's body ends it
        elif text in (";", "}"):  # "}": of a namespace
            end = True
        elif text in ("=", ","):
            initialiser = text == "="
        elif (
            tokens.kind[i] == "id"
            and not initialiser
            and text not in _NOT_NAMES
            and following in ("(", "=", ";", "[", "{", ":")
        ):
            declared.add(text)
        i += 1
        if end:
            yield declared, begin, i
            begin, declared, initialiser = i, set(), False


def _after_angles(tokens: Tokens, i: int) -> int:
    """One past the ">" that closes the "<" at `i`."""
    depth = 0
    while i < len(tokens):
        text = tokens.text[i]
        if text in ("(", "[", "{"):
            i = tokens.match[i]
        depth += {"<": 1, ">": -1, ">>": -2}.get(text, 0)
        i += 1
        if depth <= 0:
            break
    return i
