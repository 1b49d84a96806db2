"""Large JSON files read in windows: what is large is passed over, the rest is kept.

Only sound JSON is read rightly; tokenizers refuses what is none. What it would choke on (long strings, deep nesting) is
refused here, after at most a window of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.files import File

WINDOW = 1 << 16  # bytes
DEPTH = 64  # of nesting
# A string that is passed over: 1024 characters in the longest way to write them, twice (two tokens of a merge).
_STRING = rb'"[^"\\]{0,8192}(?:\\.[^"\\]{0,8192}){0,4096}"'
_PLAIN = rb'[^"\[\]{}]*'
_FLAT = _PLAIN + rb"(?:" + _STRING + _PLAIN + rb")*"
# Everything up to a bracket that has others within it. Each byte can match in one way only: no backtracking.
_RUN = re.compile(_PLAIN + rb"(?:(?:" + _STRING + rb"|\[" + _FLAT + rb"\]|\{" + _FLAT + rb"\})" + _PLAIN + rb")*", re.S)
_TEXT = rb'"[^"\\]*(?:\\.[^"\\]*)*"'  # of any length, for what is kept
_FLAT_KEPT = _PLAIN + rb"(?:" + _TEXT + _PLAIN + rb")*"
_KEPT = re.compile(
    _PLAIN + rb"(?:(?:" + _TEXT + rb"|\[" + _FLAT_KEPT + rb"\]|\{" + _FLAT_KEPT + rb"\})" + _PLAIN + rb")*", re.S
)
_NAME = re.compile(rb'"[^"\\]{0,8192}(?:\\.[^"\\]{0,8192}){0,1024}"', re.S)
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]{1,100}")
_SPACE = re.compile(rb"[ \t\r\n]*")
_ITEM = rb"\s*(?:\{" + _FLAT + rb"\}|" + _STRING + rb"|[-+.0-9A-Za-z]{1,100})\s*,"
_ITEMS = re.compile(rb"(?:" + _ITEM + rb")*", re.S)
_PAIRS = re.compile(rb"(?:\s*" + _STRING + rb"\s*:" + _ITEM + rb")*", re.S)


class Skim:
    """A cursor in a JSON file. Whoever iterates over `members` takes each value before the next."""

    def __init__(self, file: File) -> None:
        self.file, self._data, self._at, self._read = file, b"", 0, 0

    def refuse(self, expected: str, found: str, field: str = "") -> NoReturn:
        """LoadError TOKENIZER."""
        raise LoadError("TOKENIZER", self.file.path, field or self.file.path.name, expected=expected, found=found)

    def members(self) -> Iterator[str]:
        """Names in the object at the cursor, which stands at the value of each."""
        seen: set[str] = set()
        self._expect(b"{")
        while seen or self._next() != b"}":
            name = json.loads(self._match(_NAME, "a name"))
            if name in seen:
                self.refuse("each name once in an object", repr(name))
            seen.add(name)
            self._expect(b":")
            yield name
            if self._next() == b"}":
                break
            self._expect(b",")
        self._at += 1

    def batches(self, most: int) -> Iterator[list[Any]]:
        """Values of the array at the cursor, or pairs of names and values of the object, of at most so many bytes each;
        as many at a time as a window holds.
        """
        opening = self._next()
        closing, many = (b"]", _ITEMS) if opening == b"[" else (b"}", _PAIRS)
        self._at += 1
        while self._next() != closing:
            found = many.match(self._data, self._at)
            if found and found.end() > self._at:
                self._at = found.end()
                yield self._parse(opening + found[0].rstrip()[:-1] + closing)
            elif len(self._data) - self._at >= WINDOW or not self._fill():
                name = b"" if opening == b"[" else self._match(_NAME, "a name") + b":"
                if name:
                    self._expect(b":")
                yield self._parse(opening + name + self._take(_KEPT, most) + closing)
                if self._next() != closing:
                    self._expect(b",")
        self._at += 1

    def _parse(self, text: bytes) -> Any:
        """JSON; an object as pairs, of which the values are objects as they are."""
        try:
            if text[:1] == b"[":
                return json.loads(text.decode())
            pairs = json.loads(text.decode(), object_pairs_hook=list)
            return [(name, dict(value) if isinstance(value, list) else value) for name, value in pairs]
        except (TypeError, ValueError, RecursionError) as problem:
            self.refuse("JSON", str(problem)[:120])

    def value(self, most: int) -> Any:
        """The value at the cursor, of at most so many bytes."""
        try:
            return json.loads(self._take(_KEPT, most).decode())
        except (ValueError, RecursionError) as problem:
            self.refuse("JSON", str(problem)[:120])

    def skip(self) -> None:
        """Pass over the value at the cursor."""
        self._take(_RUN, None)

    def at_container(self) -> bool:
        """Whether the value at the cursor has others within it."""
        return self._next() in (b"{", b"[")

    def _expect(self, mark: bytes) -> None:
        if (found := self._next()) != mark:
            self.refuse(f"JSON: {mark.decode()!r}", repr(found.decode("latin-1")) if found else "the end of the file")
        self._at += 1

    def _next(self) -> bytes:
        """The next byte that is no white space; b"" at the end."""
        while True:
            found = _SPACE.match(self._data, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._data) or not self._fill():
                return self._data[self._at : self._at + 1]

    def _fill(self, keep: int | None = None) -> bool:
        """Another window, behind what is left from `keep` on; False at the end of the file."""
        count = min(WINDOW, self.file.size - self._read)
        if not count:
            return False
        start = self._at if keep is None else keep
        more = bytes(self.file.read(count, self._read, self.file.path.name))
        self._data, self._at, self._read = self._data[start:] + more, self._at - start, self._read + count
        return True

    def _match(self, pattern: re.Pattern[bytes], what: str) -> bytes:
        self._next()
        while (found := pattern.match(self._data, self._at)) is None or found.end() == len(self._data):
            if len(self._data) - self._at >= WINDOW or not self._fill():
                break
        if found is None:
            self.refuse(f"JSON: {what}", "another thing, or a longer one")
        self._at = found.end()
        return found[0]

    def _take(self, run: re.Pattern[bytes], most: int | None) -> bytes:
        """A whole value, which is returned if it is limited."""
        first = self._next()
        if first == b'"' and most is None:
            return self._match(_NAME, "a string")
        if first not in (b"{", b"[", b'"'):
            return self._match(_SCALAR, "a value")
        begin, depth = self._at, 0
        while True:
            if first == b'"':  # alone: what is kept
                found = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.S).match(self._data, begin)
                self._at, ended = (found.end(), True) if found else (len(self._data), False)
            else:
                self._at, depth, ended = self._run(run, depth)
            if most is not None and self._at - begin > most:
                self.refuse(f"at most {most} bytes", "more", self.file.path.name)
            if ended:
                return self._data[begin : self._at] if most is not None else b""
            if most is None and len(self._data) - self._at > 2 * WINDOW:
                self.refuse("strings of at most 1024 characters", "a longer one")
            keep = begin if most is not None else None
            if first == b'"':
                self._at = begin
            if not self._fill(keep):
                self.refuse("JSON", "the end of the file")
            begin = 0 if most is not None else begin

    def _run(self, run: re.Pattern[bytes], depth: int) -> tuple[int, int, bool]:
        """Where the cursor gets to in the window, and how deep; whether the value ends there."""
        at = self._at
        while at < len(self._data):
            mark = self._data[at : at + 1]
            if mark in (b"{", b"["):
                depth, at = depth + 1, at + 1
                if depth > DEPTH:
                    self.refuse(f"at most {DEPTH} levels", "more")
            elif mark in (b"}", b"]"):
                depth, at = depth - 1, at + 1
                if depth == 0:
                    return at, depth, True
            found = run.match(self._data, at)
            if found is None or (found.end() == at and self._data[at : at + 1] == b'"'):
                break
            at = found.end()
        return at, depth, False
