"""Variables in threadgroup memory: each becomes what the platform's MSL_THREADGROUP makes of its type."""

from __future__ import annotations

from bisect import bisect_right

from ..syntax.declarations import Scope, walk
from ..syntax.lexer import Tokens
from .editor import Editor

_SPECIFIERS = frozenset({"static", "const", "volatile", "alignas"})


def function_bodies(root: Scope) -> list[int]:
    """Opening braces of all function bodies, in order."""
    return [d.body for d in walk(root) if d.kind == "function" and d.body >= 0]


def variables(tokens: Tokens, root: Scope) -> list[tuple[int, int, int]]:
    """(start of the statement, token `threadgroup`, closing `;`) of each declaration in a function."""
    bodies = function_bodies(root)
    found = []
    for i, t in enumerate(tokens.text):
        if t != "threadgroup":
            continue
        k = bisect_right(bodies, i) - 1
        if k < 0 or i > tokens.match[bodies[k]]:
            continue
        start = _statement_start(tokens, i)
        end = _statement_end(tokens, i) if start >= 0 else -1
        if end >= 0:
            found.append((start, i, end))
    return found


def declarators(tokens: Tokens, lo: int, end: int) -> list[int]:
    """Name tokens of the variables declared in [lo, end); empty if the first one is a pointer or reference."""
    names = []
    for k, (a, b) in enumerate(tokens.split(lo, end)):
        i, name = a, -1
        while i < b:
            t = tokens.text[i]
            if t in "*&(" and k == 0:
                return []
            if t in "[=" or t == "{":
                break
            if t == "<" and tokens.kind[i - 1] == "id":
                i = max(i, tokens.angle(i))
            elif tokens.kind[i] == "id":
                name = i
            i += 1
        if name >= 0 and (k > 0 or name > a):
            names.append(name)
    return names


def hoist(editor: Editor, root: Scope) -> None:
    """Rewrites the declarations: `threadgroup T a[4];` to `typedef T a_msl_t[4]; MSL_THREADGROUP(a);`."""
    tokens = editor.tokens
    for start, qualifier, end in variables(tokens, root):
        names = declarators(tokens, qualifier + 1, end)
        if not names:
            continue
        drop_initialisers(editor, names[0], end)
        i = start
        while i < names[0]:
            if tokens.text[i] == "static":
                editor.replace(i, "")
            elif tokens.text[i] == "alignas":
                editor.blank(i, tokens.match[i + 1] + 1)
                i = tokens.match[i + 1]
            i += 1
        editor.before(start, "typedef ")
        for i in names:
            name = tokens.text[i]
            editor.replace(i, f"{name}_msl_t")
            editor.after(end, f" MSL_THREADGROUP({name});")


def drop_initialisers(editor: Editor, lo: int, end: int) -> None:
    """Threadgroup memory starts undefined, whatever an initialiser says."""
    tokens = editor.tokens
    for a, b in tokens.split(lo, end):
        equals = next((i for i in range(a, b) if tokens.text[i] in ("=", "{")), b)
        editor.blank(equals, b)


def _statement_start(tokens: Tokens, i: int) -> int:
    """First token of the declaration statement with `threadgroup` at `i`, or -1 if it stands elsewhere."""
    while True:
        before = tokens.at(i - 1)
        if before in _SPECIFIERS:
            i -= 1
        elif before == ")" and tokens.at(tokens.match[i - 1] - 1) == "alignas":
            i = tokens.match[i - 1] - 1
        elif before == "]" and tokens.is_attribute(tokens.match[i - 1]):
            i = tokens.match[i - 1]
        else:
            return i if before in ("{", "}", ";", ":") else -1


def _statement_end(tokens: Tokens, i: int) -> int:
    while i < len(tokens):
        t = tokens.text[i]
        if t == ";":
            return i
        if t in "([{":
            i = tokens.match[i]
        elif t in ")]}":
            return -1
        i += 1
    return -1
