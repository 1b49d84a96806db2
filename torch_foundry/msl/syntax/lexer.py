"""Tokens of preprocessed source: flat lists with bracket partners and `file:line` of every token, built in one pass.

White space and line markers stay with the token that they precede, so text can be put together again, with some
tokens replaced, and keep every line number.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from ..model import MslError

_TOKEN = re.compile(
    r"""(?P<trivia>(?:[ \t\r\f\v\n]+|\\\n|\#[^\n]*|//[^\n]*|/\*.*?\*/)+)
      | (?P<id>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<num>\.?[0-9](?:[eEpP][+-]|[A-Za-z0-9_.'])*)
      | (?P<str>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<op>::|->|\+\+|--|&&|\|\||<<=|<<|[-+*/%&|^=!<>]=|\.\.\.|.)""",
    re.S | re.X,
)
_UNROLL = re.compile(r"\s*#\s*pragma\s+unroll\s*")
_MARKER = re.compile(r'#\s*(?:line\s+)?(\d+)\s+"((?:[^"\\]|\\.)*)"')
_CLOSER = {"(": ")", "[": "]", "{": "}"}
_STOP = frozenset({";", "return"})
_OPENER = {v: k for k, v in _CLOSER.items()}


class Tokens:
    """`text[i]`, `kind[i]` ("id", "num", "str", "op"), `lead[i]` (what precedes it), `match[i]` (bracket partner)."""

    def __init__(self, source: str, file: str = "<source>") -> None:
        self.text: list[str] = []
        self.kind: list[str] = []
        self.lead: list[str] = []
        self.match: list[int] = []
        self._row: list[int] = []  # row of the preprocessed text
        self._marker_rows: list[int] = [0]
        self._markers: list[tuple[str, int]] = [(file, 1)]
        self.tail = self._scan(source)
        self._pair_brackets()

    def __len__(self) -> int:
        return len(self.text)

    def _scan(self, source: str) -> str:
        row = 0
        lead = ""
        for m in _TOKEN.finditer(source):
            kind = m.lastgroup or "op"
            text = m.group()
            if kind == "trivia":
                lead = self._trivia(text, row) if "#" in text else text
                row += text.count("\n")
                continue
            self.text.append(text)
            self.kind.append(kind)
            self.lead.append(lead)
            self._row.append(row)
            lead = ""
        return lead

    def _trivia(self, text: str, row: int) -> str:
        """Notes line markers and drops every other directive but `#pragma unroll`, keeping the rows."""
        rows = text.split("\n")
        for k, part in enumerate(rows):
            if "#" not in part or part.lstrip().startswith("//"):
                continue
            m = _MARKER.match(part.lstrip())
            rows[k] = "#pragma unroll" if _UNROLL.fullmatch(part) else ""
            if m:
                file, line = m.group(2), int(m.group(1))
                self._marker_rows.append(row + k + 1)
                self._markers.append((file, line))
                if not file.startswith("<built-in") and not file.startswith("<command"):
                    rows[k] = f'# {max(line, 1)} "{file}"'
        return "\n".join(rows)

    def _pair_brackets(self) -> None:
        self.match = [-1] * len(self.text)
        open_at: list[int] = []
        for i, t in enumerate(self.text):
            if t in _CLOSER:
                open_at.append(i)
            elif t in _OPENER:
                if not open_at or self.text[open_at[-1]] != _OPENER[t]:
                    raise self.error(i, f"unbalanced '{t}'")
                j = open_at.pop()
                self.match[i], self.match[j] = j, i
        if open_at:
            raise self.error(open_at[-1], f"'{self.text[open_at[-1]]}' is never closed")

    def where(self, i: int) -> tuple[str, int]:
        """File and line of token `i`."""
        row = self._row[i] if i < len(self._row) else (self._row[-1] if self._row else 0)
        k = bisect_right(self._marker_rows, row) - 1
        file, line = self._markers[k]
        return file, line + row - self._marker_rows[k]

    def error(self, i: int, message: str) -> MslError:
        """An error that names the place of token `i`."""
        return MslError(*self.where(i), message)

    def at(self, i: int) -> str:
        """Text of token `i`, empty outside the file."""
        return self.text[i] if 0 <= i < len(self.text) else ""

    def angle(self, i: int) -> int:
        """The `>` that closes the template bracket at `i`, or -1 if it is a comparison."""
        close = self._angle(i, strict=True)
        return close if close >= 0 else self._angle(i, strict=False)

    def angle_back(self, i: int) -> int:
        """The `<` that opens the template bracket closed at `i`, or -1."""
        open_ = self._angle_back(i, strict=True)
        return open_ if open_ >= 0 else self._angle_back(i, strict=False)

    def _opens(self, i: int, strict: bool) -> bool:
        """Whether the `<` at `i` opens template arguments: names tell, and if strict the spacing, not types."""
        return not strict or (i > 0 and self.kind[i - 1] == "id" and not self.lead[i])

    def _angle(self, i: int, strict: bool) -> int:
        depth = 0
        j = i
        while j < len(self.text):
            t = self.text[j]
            if t == "<":
                depth += j == i or self._opens(j, strict)
            elif t == ">":
                depth -= 1
                if depth == 0:
                    return j
            elif t in _CLOSER:
                j = self.match[j]
            elif t in _STOP or t in _OPENER:
                return -1
            j += 1
        return -1

    def _angle_back(self, i: int, strict: bool) -> int:
        depth = 0
        j = i
        while j >= 0:
            t = self.text[j]
            if t == ">":
                depth += 1
            elif t == "<":
                depth -= self._opens(j, strict)
                if depth == 0:
                    return j
            elif t in _OPENER:
                j = self.match[j]
            elif t in _STOP or t in _CLOSER:
                return -1
            j -= 1
        return -1

    def is_attribute(self, i: int) -> bool:
        """Whether `[[` starts at token `i`."""
        return self.text[i] == "[" and self.at(i + 1) == "[" and self.match[i + 1] == self.match[i] - 1

    def split(self, lo: int, hi: int) -> list[tuple[int, int]]:
        """Comma-separated, non-empty parts of [lo, hi), brackets and template arguments kept whole."""
        parts: list[tuple[int, int]] = []
        start = j = lo
        while j < hi:
            t = self.text[j]
            if t in "([{":
                j = self.match[j]
            elif t == "<" and j > lo and self.kind[j - 1] == "id":
                close = self.angle(j)
                if 0 <= close < hi:
                    j = close
            elif t == ",":
                parts.append((start, j))
                start = j + 1
            j += 1
        if start < hi:
            parts.append((start, hi))
        return parts

    def join(self, lo: int, hi: int) -> str:
        """Text of [lo, hi) on one line."""
        out = []
        for i in range(lo, hi):
            if i > lo and self.lead[i]:
                out.append(" ")
            out.append(self.text[i])
        return "".join(out)
