"""Regular expressions of strangers: those that may take exponential or cubic time are refused.

A pattern is parsed as far as that needs; what single characters an atom (a letter, a class) matches is asked of the
library itself, for characters of all kinds. Two rules bound what backtracking can cost:

- Within a loop, the next character decides what comes next. So a text has one way through a loop.
- Of loops that may share characters, at most one is followed by what can fail, and few choices are. So a match takes
  linear time, and a text at most quadratic, as with the patterns of known models (`\\s+(?!\\S)` on white space).
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from tokenizers import Regex, pre_tokenizers

LONGEST = 4096  # characters of a pattern
_LARGEST = 5000  # copies of atoms, once repetitions are written out
_LONG = 16  # repetitions from which on a bounded loop counts as one without end
_ENDLESS, _MOST_WAYS = 256, 4096  # of a loop without end: two of them are too many, or twelve choices of two
_ESCAPE = r"[pP]\{\^?[A-Za-z_ ]{1,40}\}|x\{[0-9a-fA-F]{1,6}\}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^1-9bBAzZGKkgXRQEyYON]"
_ATOM = re.compile(rf"\\(?:{_ESCAPE})|[^\\\[\](){{}}*+?|^$]", re.S)
_ZERO = re.compile(r"\\[bBAzZ]|\^|\$")
_FLAGS = r"(?P<flags>[ims]{0,3}(?:-[ims]{1,3})?)(?P<end>[:)])"
_GROUP = re.compile(rf"\((?:\?(?:{_FLAGS}|(?P<look><?[=!])|>|<[A-Za-z_]\w{{0,30}}>))?")
# Of kinds that have few characters.
_RARE = "ǅ\u0488\u2028\u2029\u202f\u200b\u2160\u203f\u00ab\u00bb\u2018\u2019\U0001f600\U000e0041\ue000"
_COUNT = re.compile(r"[*+?]|\{(?:(\d{1,5})(?:(,)(\d{0,5}))?|,(\d{1,5}))\}")


@dataclass
class _Node:
    """kind: "atom", "zero", "seq", "alt" or "rep" (of its one part, `low` to `high` times; None: without end)."""

    kind: str
    parts: list[_Node] = field(default_factory=list)
    mask: int = 0  # of an atom: the probes that it matches, as bits
    low: int = 1
    high: int | None = 1

    def all(self) -> int:
        """Probes that any atom in it matches."""
        found = self.mask
        for part in self.parts:
            found |= part.all()
        return found

    def least(self) -> int:
        """Characters that it matches at least."""
        if self.kind == "alt":
            return min(part.least() for part in self.parts)
        return self.low * sum(part.least() for part in self.parts) + (self.kind == "atom")

    def first(self) -> int:
        """Probes that may begin what it matches."""
        found = self.mask
        for part in self.parts:
            found |= part.first()
            if self.kind == "seq" and part.least():
                break
        return found

    def size(self) -> int:
        """Atoms, once repetitions are written out."""
        times = max(self.low, self.high or self.low + 1)
        return min(times * (1 + sum(part.size() for part in self.parts)), _LARGEST + 1)


def shortest_match(pattern: str) -> int:
    """How many characters the pattern matches at least. ValueError if it may take long, or is none."""
    if len(pattern) > LONGEST:
        raise ValueError(f"a pattern of {len(pattern)} characters, more than {LONGEST}")
    try:
        root, end = _Parser(pattern).alternatives(0, "", 0)
    except RecursionError:
        raise ValueError("groups nested too deep") from None
    if end < len(pattern):
        raise ValueError(f"a bracket too many at {end}")
    if root.size() > _LARGEST:
        raise ValueError(f"repetitions of more than {_LARGEST} parts")
    _check(root)
    return root.least()


@cache
def _kinds() -> str:
    """A few characters of each category, and those below U+0100."""
    found: dict[str, list[str]] = {}
    for number in (*range(0x100, 0x3000, 7), *range(0x3000, sys.maxunicode, 997), *map(ord, _RARE)):
        kind = unicodedata.category(chr(number))
        if kind != "Cs" and len(found.setdefault(kind, [])) < 8:
            found[kind].append(chr(number))
    return "".join(map(chr, range(0x100))) + "".join(map("".join, found.values())) + "一龥ぁんァン가힣ไท" + _RARE


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        spelled = re.findall(r"\\(?:u|x\{?)([0-9a-fA-F]{2,6})", pattern)
        own = {ord(letter) for letter in pattern} | {min(int(each, 16), sys.maxunicode - 1) for each in spelled}
        near = {chr(o + d) for o in own for d in (-1, 0, 1) if 0 <= o + d < 0xD800 or 0xE000 <= o + d < sys.maxunicode}
        self.probes = "".join(sorted(near | set(_kinds())))
        self._masks: dict[str, int] = {}

    def alternatives(self, at: int, flags: str, depth: int) -> tuple[_Node, int]:
        """What stands up to the end of the group or the pattern, and where that is."""
        if depth > 20:
            raise ValueError("groups nested more than 20 deep")
        found: list[_Node] = []
        parts: list[_Node] = []
        while at < len(self.pattern) and self.pattern[at] != ")":
            if self.pattern[at] == "|":
                found.append(_Node("seq", parts))
                parts, at = [], at + 1
                continue
            if (group := _GROUP.match(self.pattern, at)) and group["end"] == ")":  # (?i): for what follows
                flags, at = f"(?{group['flags']})", group.end()
                continue
            node, at = self._one(at, flags, depth)
            while count := _COUNT.match(self.pattern, at):
                node, at = self._repeated(node, count)
            parts.append(node)
        found.append(_Node("seq", parts))
        return (found[0] if len(found) == 1 else _Node("alt", found)), at

    def _repeated(self, node: _Node, count: re.Match[str]) -> tuple[_Node, int]:
        at, text = count.end(), count[0]
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(text, (0, None))
        if text[0] == "{":
            low = int(count[1] or 0)
            high = int(count[4]) if count[4] else None if count[2] and not count[3] else int(count[3] or low)
        if at < len(self.pattern) and (self.pattern[at] == "?" or (self.pattern[at] == "+" and text[0] != "{")):
            low, at = (0 if text[0] == "{" else low), at + 1  # as few as possible, or without going back
        if node.kind == "zero":
            raise ValueError(f"a repeated assertion at {count.start()}")
        return _Node("rep", [node], low=low, high=high), at

    def _one(self, at: int, flags: str, depth: int) -> tuple[_Node, int]:
        if zero := _ZERO.match(self.pattern, at):
            return _Node("zero"), zero.end()
        if self.pattern[at] == "(":
            group = _GROUP.match(self.pattern, at)
            if group is None or self.pattern.startswith("?", group.end()):
                raise ValueError(f"a group of an unknown kind at {at}")
            within = f"(?{group['flags']})" if group["flags"] else flags
            node, end = self.alternatives(group.end(), within, depth + 1)
            if end >= len(self.pattern):
                raise ValueError(f"a group without an end at {at}")
            if group["look"]:
                if node.size() > _LARGEST:
                    raise ValueError("repetitions in an assertion")
                _check(_Node("seq", [node, _Node("zero")]))
                node = _Node("zero")
            return node, end + 1
        if self.pattern[at] == "[":
            end = self._class(at)
        elif atom := _ATOM.match(self.pattern, at):
            end = atom.end()
        else:
            raise ValueError(f"what is not known here: {self.pattern[at : at + 10]!r}")
        return _Node("atom", mask=self._mask(flags + self.pattern[at:end])), end

    def _class(self, at: int) -> int:
        """Where the class that begins there ends; classes may stand in classes."""
        depth, start = 0, at
        while at < len(self.pattern):
            letter = self.pattern[at]
            if letter == "\\":
                at += 1
            elif letter == "[":
                depth += 1
                at += self.pattern.startswith("^", at + 1)
                at += self.pattern.startswith("]", at + 1)  # first in a class, it is a letter
            elif letter == "]":
                depth -= 1
                if not depth:
                    return at + 1
            at += 1
        raise ValueError(f"a class without an end at {start}")

    def _mask(self, atom: str) -> int:
        if atom not in self._masks:
            try:
                cut = pre_tokenizers.Split(Regex(atom), "removed").pre_tokenize_str(self.probes)
            except Exception as problem:  # whatever the library says of a pattern
                raise ValueError(str(problem)) from None
            matched = set(range(len(self.probes)))
            for _, (start, stop) in cut:
                matched.difference_update(range(start, stop))
            self._masks[atom] = sum(1 << each for each in matched)
        return self._masks[atom]


def _check(root: _Node) -> None:
    for loop in _outer_loops(root):
        _check_loop(loop.parts[0], loop.first())
        if not loop.parts[0].least():
            raise ValueError("a loop around what may be empty")
    _chains(root, [], False)


def _outer_loops(node: _Node) -> Iterator[_Node]:
    if node.kind == "rep" and node.high != 1:
        yield node
        return
    for part in node.parts:
        yield from _outer_loops(part)


def _check_loop(node: _Node, follow: int) -> None:
    """Whether the next character decides each step within a loop. follow: what may come behind the node."""
    if node.kind == "seq":
        for i, part in enumerate(node.parts):
            rest = _Node("seq", node.parts[i + 1 :])
            _check_loop(part, rest.first() | (0 if rest.least() else follow))
    elif node.kind == "alt":
        seen = 0
        for part in node.parts:
            first = part.first() | (0 if part.least() else follow)
            if seen & first:
                raise ValueError("alternatives in a loop that begin alike")
            seen |= first
            _check_loop(part, follow)
    elif node.kind == "rep":
        if node.low != node.high and node.first() & follow:
            raise ValueError("a loop in a loop, and what may follow it begins alike")
        _check_loop(node.parts[0], follow | (node.first() if node.high != 1 else 0))


def _chains(node: _Node, before: list[tuple[int, int]], fails: bool) -> list[tuple[int, int]]:
    """What the parts behind `node` may make go back: what each matches, and the ways that it has with those before it.

    fails: whether what follows can fail.
    """
    if node.kind == "seq":
        for i, part in enumerate(node.parts):
            before = _chains(part, before, fails or _can_fail(_Node("seq", node.parts[i + 1 :])))
        return before
    if node.kind == "alt":
        alike = sum(part.first() for part in node.parts) != node.first()
        after = [each for part in node.parts for each in _chains(part, before, fails)]
        return _chosen(node, after, len(node.parts)) if fails and alike else list(dict.fromkeys(after))
    if node.kind == "rep":
        if node.low == node.high or not fails:
            after = _chains(node.parts[0], before, fails)
            return after if node.low else list(dict.fromkeys(before + after))
        endless = node.high is None or node.high - node.low > _LONG
        return _chosen(node, before, _ENDLESS if endless or not node.high else node.high - node.low + 1)
    if node.kind == "atom":  # what does not match it ends there
        return [each for each in before if each[0] & node.mask]
    return before


def _chosen(node: _Node, before: list[tuple[int, int]], ways: int) -> list[tuple[int, int]]:
    """One more part that has several ways."""
    mask = node.all()
    ways *= max((each for other, each in before if other & mask), default=1)
    if ways > _MOST_WAYS:
        raise ValueError("loops or choices that share characters, before what may fail")
    return [*before, (mask, ways)]


def _can_fail(node: _Node) -> bool:
    if node.kind == "rep":
        return node.low > 0 and _can_fail(node.parts[0])
    if node.kind == "alt":
        return all(map(_can_fail, node.parts))
    return node.kind in ("atom", "zero") or any(map(_can_fail, node.parts))
