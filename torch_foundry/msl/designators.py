"""`T a[N] = {[0 ... N - 1] = v};`: a GNU range initialiser, which C++ compilers lack, becomes a loop."""

from __future__ import annotations

from .editor import Editor
from .lexer import Tokens


def expand(editor: Editor) -> None:
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
