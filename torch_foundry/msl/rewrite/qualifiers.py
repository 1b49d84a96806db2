"""The pass over all tokens: what MSL has and C++ has not is erased or respelled in place."""

from __future__ import annotations

import re

from ..syntax.lexer import Tokens
from ..syntax.vocabulary import UNSUPPORTED_TYPES, VECTOR_TYPES
from .editor import Editor

_DECIMAL = r"(?:\d[\d']*\.?[\d']*|\.\d[\d']*)(?:[eE][+-]?\d+)?"
_HEX_FLOAT = r"0[xX][0-9a-fA-F']*\.?[0-9a-fA-F']*[pP][+-]?\d+"
_HALF = re.compile(rf"({_HEX_FLOAT}|{_DECIMAL})(h|H|bf|BF)")
_UNSUFFIXED = re.compile(rf"{_HEX_FLOAT}|(?=.*[.eE]){_DECIMAL}")
_DECLARATION_START = frozenset(";{}>:")
_DECLARATION_END = frozenset("*&(),;=[]{}")


def literal(text: str) -> str:
    """A numeric literal in C++: half and bfloat by constructor, floating point without suffix as float."""
    if text[0] == "0" and text[1:2] in ("x", "X") and "p" not in text and "P" not in text:
        return text
    m = _HALF.fullmatch(text)
    if m:
        digits = m[1] if re.search(r"[.eEpP]", m[1]) else m[1] + ".0"
        return f"{'half' if m[2] in 'hH' else 'bfloat'}({digits}f)"
    return text + "f" if _UNSUFFIXED.fullmatch(text) else text


def rewrite_qualifiers(editor: Editor) -> None:
    """Edits qualifiers, attributes and literals of the whole file."""
    tokens = editor.tokens
    text, kind, edits = tokens.text, tokens.kind, editor.edits
    i, n = 0, len(tokens)
    while i < n:
        t, k = text[i], kind[i]
        if k == "num":
            edits[i] = literal(t)
        elif k == "id":
            if t in ("device", "thread", "threadgroup"):
                if tokens.at(i - 1) not in (".", "->"):
                    edits[i] = ""
            elif t == "constant":
                if tokens.at(i - 1) not in (".", "->"):
                    edits[i] = "" if _already_const(tokens, i) else "const"
            elif t == "coherent":
                i = _coherent(editor, i)
            elif t in UNSUPPORTED_TYPES and _names_type(tokens, i):
                raise tokens.error(i, f"{UNSUPPORTED_TYPES[t]} are not supported ('{t}')")
            elif t == "_Pragma" and tokens.at(i + 1) == "(":
                editor.blank(i, tokens.match[i + 1] + 1)
                i = tokens.match[i + 1]
        elif t == "[" and tokens.is_attribute(i):
            editor.blank(i, tokens.match[i] + 1)
            i = tokens.match[i]
        i += 1


def vector_constants(editor: Editor) -> None:
    """Vectors are no literal types in C++17: their constants become const, their functions inline."""
    for i, t in enumerate(editor.tokens.text):
        if t == "constexpr":
            _constexpr(editor, i)


def _already_const(tokens: Tokens, i: int) -> bool:
    """Whether the declaration's specifiers around `constant` at `i` say const themselves."""
    text = tokens.text
    j = i - 1
    while j >= 0 and (tokens.kind[j] == "id" or text[j] == "::"):
        if text[j] == "const":
            return True
        j -= 1
    if tokens.at(j) == ">" and text[j + 1 : i] and tokens.at(tokens.angle_back(j) - 2) == "const":
        return True
    j = i + 1
    while j < len(text) and text[j] not in _DECLARATION_END:
        if text[j] == "const":
            return True
        if text[j] == "<":
            close = tokens.angle(j)
            if close < 0:
                return False
            j = close
        elif text[j] in (">", "<<"):
            return False
        j += 1
    return False


def _constexpr(editor: Editor, i: int) -> None:
    tokens = editor.tokens
    j = i + 1
    while tokens.at(j) in ("static", "const", "constant", "inline", "metal", "::"):
        j += 1
    if tokens.at(j) not in VECTOR_TYPES and not (tokens.at(j) == "vec" and tokens.at(j + 1) == "<"):
        return
    after = tokens.angle(j + 1) + 1 if tokens.at(j + 1) == "<" else j + 1
    start = i
    while start > 0 and tokens.text[start - 1] not in _DECLARATION_START:
        start -= 1
    specifiers = set(tokens.text[start:j])
    if tokens.at(after + 1) == "(":
        editor.edits[i] = "" if "inline" in specifiers else "inline"
    else:
        editor.edits[i] = "" if specifiers & {"const", "constant"} else "const"


def _coherent(editor: Editor, i: int) -> int:
    """`coherent` and `coherent(device)` qualify a memory access; on the host all memory is coherent."""
    tokens = editor.tokens
    if tokens.at(i + 1) == "(" and tokens.at(i + 3) == ")":
        editor.blank(i, i + 4)
        return i + 3
    if tokens.kind[i + 1] == "id":
        editor.edits[i] = ""
    return i


def _names_type(tokens: Tokens, i: int) -> bool:
    """A type in use: `texture2d<..>`, `sampler s`, not a variable of that name."""
    following = tokens.at(i + 1)
    if tokens.at(i - 1) in (".", "->") or (i > 0 and tokens.kind[i - 1] == "id" and tokens.text[i - 1] in VECTOR_TYPES):
        return False
    return following == "<" or (i + 1 < len(tokens) and tokens.kind[i + 1] == "id")
