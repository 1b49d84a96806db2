"""Expressions that C++ compilers lack or read otherwise, in C++.

`c ? x : 0` where x is half or bfloat: MSL converts between numbers of any kinds, but to C++ a 16-bit float may be a
class, which converts both ways, so that neither arm of the conditional wins. An integer literal takes the type of the
other arm; beside a floating-point literal the other arm becomes float.

`T a[N] = {[0 ... N - 1] = v};`, a GNU range initialiser, becomes a loop.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from ..syntax.declarations import Scope
from ..syntax.lexer import Tokens
from .editor import Editor
from .threadgroup import function_bodies

_ENDS = frozenset({";", ",", ")", "]", "}"})


def rewrite_conditionals(editor: Editor, root: Scope) -> None:
    """Rewrites conditionals with one literal arm in functions, with the prelude's help (conditional.h)."""
    tokens = editor.tokens
    bodies = function_bodies(root)
    for i in reversed(range(len(tokens))):  # inner conditionals first: an outer one repeats them
        if tokens.text[i] != "?" or not _computes(tokens, bodies, i):
            continue
        colon = _colon(tokens, i + 1)
        end = _end(tokens, colon + 1) if colon >= 0 else -1
        if end < 0:
            continue
        arms = (i + 1, colon), (colon + 1, end)
        literals = [_literal(tokens, *arm) for arm in arms]
        if (literals[0] >= 0) == (literals[1] >= 0):
            continue
        other = arms[0] if literals[1] >= 0 else arms[1]
        _rewrite(editor, max(literals), *other)


def _computes(tokens: Tokens, bodies: list[int], i: int) -> bool:
    """Whether token `i` stands in a function, outside constant expressions, which deal in integers."""
    k = bisect_right(bodies, i) - 1
    if k < 0 or i > tokens.match[bodies[k]]:
        return False
    while tokens.text[i] not in ";{}":
        if tokens.text[i] in ("constexpr", "static_assert"):
            return False
        i = tokens.match[i] if tokens.text[i] in ")]" else i
        i -= 1
    return True


def _rewrite(editor: Editor, literal: int, lo: int, hi: int) -> None:
    """Fits the literal and the arm [lo, hi) to each other."""
    text = editor.text(literal)
    if "{" in editor.tokens.text[lo:hi]:
        return
    if re.fullmatch(r"(?:0[xX][0-9a-fA-F]+|\d+)[uUlL]*", text):
        editor.before(literal, f"(msl_::arm<decltype({editor.join(lo, hi)}), decltype({text})>)")
    elif text.endswith("f") and not text.startswith("bfloat"):
        editor.before(lo, "msl_::widen(")
        editor.after(hi - 1, ")")


def _literal(tokens: Tokens, lo: int, hi: int) -> int:
    """The number that is all of the arm [lo, hi), a sign aside, or -1."""
    last = hi - 1
    if tokens.kind[last] != "num" or hi - lo > 2 or (hi - lo == 2 and tokens.text[lo] not in "+-"):
        return -1
    return last


def _colon(tokens: Tokens, i: int) -> int:
    depth = 0
    while i < len(tokens) and tokens.text[i] not in _ENDS - {","}:
        t = tokens.text[i]
        if t == "?":
            depth += 1
        elif t == ":":
            if depth == 0:
                return i
            depth -= 1
        i = tokens.match[i] + 1 if t in "([{" else i + 1
    return -1


def _end(tokens: Tokens, i: int) -> int:
    depth = 0
    while i < len(tokens):
        t = tokens.text[i]
        if t in _ENDS or (t == ":" and depth == 0):
            return i
        depth += (t == "?") - (t == ":")
        i = tokens.match[i] + 1 if t in "([{" else i + 1
    return -1


def expand_designators(editor: Editor) -> None:
    """Rewrites every range initialiser."""
    tokens = editor.tokens
    for i, t in enumerate(tokens.text):
        if t == "..." and tokens.kind[i - 1] in ("num", "id", "op") and tokens.text[i - 1] != ",":
            bracket = _bracket(tokens, i)
            if bracket >= 0 and tokens.at(bracket - 1) == "{" and tokens.at(bracket - 2) == "=":
                _loop(editor, bracket - 1)


def _bracket(tokens: Tokens, i: int) -> int:
    """The `[` of the designator around the `...` at `i`, or -1."""
    j = i - 1
    while j >= 0 and tokens.text[j] not in ("[", ";", "{", "}"):
        j = tokens.match[j] - 1 if tokens.text[j] in ")]" else j - 1
    closes = j >= 0 and tokens.text[j] == "[" and tokens.at(tokens.match[j] + 1) == "="
    return j if closes else -1


def _loop(editor: Editor, brace: int) -> None:
    tokens = editor.tokens
    close = tokens.match[brace]
    name = brace - 2
    while tokens.at(name) == "]":
        name = tokens.match[name] - 1
    array = tokens.text[name]
    loops = []
    for lo, hi in tokens.split(brace + 1, close):
        bracket_end = tokens.match[lo]
        dots = next((k for k in range(lo, bracket_end) if tokens.text[k] == "..."), -1)
        if dots < 0 or any(t == "..." for t in tokens.text[bracket_end:hi]):
            raise tokens.error(lo, "this mix of designators in an initialiser is not supported")
        first, last = editor.join(lo + 1, dots), editor.join(dots + 1, bracket_end)
        value = editor.join(bracket_end + 2, hi)
        loops.append(f" for (int msl_i = ({first}); msl_i <= ({last}); ++msl_i) {array}[msl_i] = {value};")
    end = close + 1
    while end < len(tokens) and tokens.text[end] != ";":
        end = tokens.match[end] + 1 if tokens.text[end] in "([{" else end + 1
    editor.blank(brace + 1, close)
    editor.after(end, "".join(loops))
