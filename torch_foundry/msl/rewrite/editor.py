"""Replacement texts for tokens; what is not replaced prints as it was, line markers included."""

from __future__ import annotations

from ..syntax.lexer import Tokens


class Editor:
    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.edits: dict[int, str] = {}
        self._before: dict[int, str] = {}
        self._after: dict[int, str] = {}

    def replace(self, i: int, text: str) -> None:
        self.edits[i] = text

    def blank(self, lo: int, hi: int) -> None:
        """Removes tokens [lo, hi); rows and markers between them stay."""
        for i in range(lo, hi):
            self.edits[i] = ""
            self._before.pop(i, None)
            self._after.pop(i, None)
        if lo < hi:
            self.edits[lo] = " "

    def before(self, i: int, text: str) -> None:
        self._before[i] = self._before.get(i, "") + text

    def after(self, i: int, text: str) -> None:
        self._after[i] = self._after.get(i, "") + text

    def text(self, i: int) -> str:
        """Token `i` as it will print."""
        return self._before.get(i, "") + self.edits.get(i, self.tokens.text[i]) + self._after.get(i, "")

    def join(self, lo: int, hi: int) -> str:
        """Edited text of [lo, hi) on one line."""
        tokens = self.tokens
        parts = [(" " if i > lo and tokens.lead[i] else "") + self.text(i) for i in range(lo, hi)]
        return " ".join("".join(parts).split())

    def marker(self, i: int) -> str:
        """A line marker that says that the next row is the one of token `i`."""
        file, line = self.tokens.where(i)
        return f'\n# {line} "{file}"\n'

    def render(self) -> str:
        tokens = self.tokens
        out: list[str] = []
        for i, lead in enumerate(tokens.lead):
            out.append(lead)
            out.append(self.text(i))
        out.append(tokens.tail)
        return "".join(out)
