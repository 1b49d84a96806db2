"""Puts included files in their place. Apple's run-time compiler takes one text and knows no files of ours; the host and
CUDA executors get the same text, so all see the same source."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..model import MslError

ERROR = "msl: "  # begins the #error lines written here, whose text then is the message
_INCLUDE = re.compile(r'\s*#\s*include\s*(?:"(?P<near>[^"]+)"|<(?P<far>[^>]+)>|(?P<macro>[A-Za-z_]\w*))')
_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")
_DIRECTIVE = re.compile(r"\s*#\s*([a-z]+)\s*(\w*)")
_DEPTH = {"if": 1, "ifdef": 1, "ifndef": 1, "endif": -1}


@dataclass(frozen=True)
class Resolved:
    """`text`: one source without includes of files; `#line` says where each part is from. `files`: its include closure,
    absolute, the file itself first."""

    text: str
    name: str
    files: list[str]


def is_source(path_or_source: str | os.PathLike[str]) -> bool:
    """Whether the argument is shader text and not a path: no path holds a newline or a brace."""
    return isinstance(path_or_source, str) and any(c in path_or_source for c in "\n{;")


def resolve(
    path_or_source: str | os.PathLike[str],
    *,
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    name: str = "<source>",
) -> Resolved:
    """One text for a file and all that it includes, as the C preprocessor would find it.

    `#include "x.h"` is looked up beside the including file, then in `include_dirs`; `#include <x.h>` in `include_dirs`
    only, and stays as it is if it isn't there (a header of the compiler's). A file with `#pragma once`, or with an
    include guard around it, comes once, even if such texts are put one behind the other. A file that is missing, or
    that includes itself, becomes an `#error` line: it may stand where no compiler looks. Raises MslError if the main
    file is missing or a file isn't text.
    """
    work = _Work([os.fspath(directory) for directory in include_dirs])
    if is_source(path_or_source):
        work.add(str(path_or_source), name, "")
    else:
        name = os.fspath(path_or_source)
        if not os.path.isfile(name):
            raise MslError(name, 0, "no such file")
        work.add(_read(name), name, os.path.realpath(name))
    return Resolved("".join(work.out), name, list(work.files))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MslError(path, 0, f"cannot be read: {error}") from None


def _line(number: int, name: str) -> str:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line {number} "{quoted}"\n'


@dataclass
class _Work:
    """One resolution on its way."""

    include_dirs: list[str]
    out: list[str] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)  # absolute path -> place
    stack: list[str] = field(default_factory=list)  # real paths of the files that are open, names for messages
    names: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # of the include that each of them is at
    settled: set[str] = field(default_factory=set)  # real paths whose text stands where no condition can hide it
    depth: int = 0  # conditions around the current line, guards written here left out

    def add(self, text: str, name: str, real: str) -> None:
        """Write `text`, the contents of the file called `name`, with its includes resolved."""
        self.stack.append(real)
        self.names.append(name)
        self.lines.append(0)
        if real:
            self.files.setdefault(os.path.abspath(name), len(self.files))
        self.out.append(_line(1, name))
        lines = text.splitlines()
        for i, (line, code) in enumerate(zip(lines, _code_lines(lines), strict=True)):
            include = _INCLUDE.match(code)
            if include:
                self.lines[-1] = i + 1
                self._include(include, line, name, i + 1)
                continue
            if directive := _DIRECTIVE.match(code):
                self.depth += _DEPTH.get(directive[1], 0)
            self.out.append("\n" if _ONCE.match(code) else line + "\n")
        self.stack.pop()
        self.names.pop()
        self.lines.pop()

    def _include(self, include: re.Match[str], line: str, name: str, number: int) -> None:
        if include["macro"]:
            self._error("#include takes the name of a file, not a macro")
            return
        wanted = include["near"] or include["far"]
        found = self._find(wanted, name, near=bool(include["near"]))
        if found is None:
            if include["near"]:
                chain = [f"{os.path.basename(n)}:{at}" for n, at in zip(self.names, self.lines, strict=True)]
                path = f" ({' includes '.join([*chain, wanted])})" if len(chain) > 1 else ""
                self._error(f"included file '{wanted}' was not found{path}")
            else:
                self.out.append(line + "\n")
            return
        real, text = os.path.realpath(found), _read(found)
        once = _comes_once(text)
        if real in self.settled or (once and real in self.stack):
            self.out.append("\n")
            return
        if real in self.stack:
            cycle = " includes ".join(os.path.basename(n) for n in [*self.names[self.stack.index(real) :], found])
            self._error(f"a file includes itself: {cycle}")
            return
        self.files.setdefault(os.path.abspath(found), len(self.files))
        settles, before = once and self.depth == 0, self.depth
        if once:
            guard = f"MSL_FILE_{hashlib.sha1(text.encode()).hexdigest()[:16]}"
            self.out.append(f"#ifndef {guard}\n#define {guard}\n")
        self.add(text, found, real)
        self.depth = before
        if once:
            self.out.append("#endif\n")
        if settles:
            self.settled.add(real)
        self.out.append(_line(number + 1, name))

    def _find(self, wanted: str, including: str, near: bool) -> str | None:
        places = [os.path.dirname(including), *self.include_dirs] if near else self.include_dirs
        candidates = (os.path.join(place, wanted) for place in places)
        return next((candidate for candidate in candidates if os.path.isfile(candidate)), None)

    def _error(self, message: str) -> None:
        self.out.append(f"#error {ERROR}{message}\n")


def _comes_once(text: str) -> bool:
    """Whether a file has `#pragma once`, or an include guard around all of its directives."""
    lines = text.splitlines()
    code = list(_code_lines(lines))
    if any(_ONCE.match(line) for line in code):
        return True
    directives = [m for line in code if (m := _DIRECTIVE.match(line))]
    if len(directives) < 3 or directives[0][1] != "ifndef" or directives[1][1] != "define":
        return False
    depth = [0]
    for directive in directives:
        depth.append(depth[-1] + _DEPTH.get(directive[1], 0))
    return directives[0][2] == directives[1][2] and min(depth[1:-1]) > 0 and depth[-1] == 0


def _code_lines(lines: Sequence[str]) -> list[str]:
    """The lines as far as they can be directives: without comments, and empty where a line before goes on."""
    found, comment, goes_on = [], False, False
    for line in lines:
        code, i = "", 0
        while i < len(line):
            if comment:
                end = line.find("*/", i)
                comment, i = end < 0, len(line) if end < 0 else end + 2
            elif line.startswith("/*", i):
                comment, i = True, i + 2
            elif line.startswith("//", i):
                break
            elif line[i] in "\"'":
                end = i + 1
                while end < len(line) and line[end] != line[i]:
                    end += 2 if line[end] == "\\" else 1
                code, i = code + line[i : end + 1], end + 1
            else:
                code, i = code + line[i], i + 1
        found.append("" if goes_on else code)
        goes_on = line.endswith("\\")
    return found
