"""What the lint rules look at and what they yield; comments to the checks, read from the original text, because the
preprocessor drops them.

`// foundry-lint: allow(rule, ..) reason` on a line, or alone on the line above it, allows the rules there; without a
reason it allows nothing. `// foundry-lint: instance(rms_norm<half, 4>)` asks to check that kernel instance, and
`instance(rms_norm<half, [KINDS]>)` one for each row of the table KINDS: a macro that is given one row's macro and calls
it for each, or a row's macro that headers call. A row's first argument takes the place of `[KINDS]`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..model import MslError
from ..syntax.declarations import Scope
from ..syntax.lexer import Tokens
from ..syntax.preprocess import Defines, preprocess
from ..syntax.resolve import is_source

_ALLOW = re.compile(r"//\s*foundry-lint:\s*allow\(([^)]*)\)\s*(.*)")
_INSTANCE = re.compile(r"//\s*foundry-lint:\s*instance\((.*)\)\s*$", re.M)
_TABLE = re.compile(r"\[(\w+)\]")
_ROW = "foundry_lint_row"


@dataclass(frozen=True)
class Finding:
    """One violation: `str()` gives `file:line: rule: message`."""

    file: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.message}"


@dataclass(frozen=True)
class Violation:
    """A rule broken at token `at`."""

    at: int
    rule: str
    message: str


@dataclass(frozen=True)
class SourceUnit:
    """A preprocessed file in tokens and declarations."""

    tokens: Tokens
    root: Scope
    metal_version: int


class Comments:
    """Comments of the files that findings name; `given` holds the text of sources that are in no file."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self._texts = dict(given or {})
        self._lines: dict[str, list[str]] = {}

    def text(self, file: str) -> str:
        if file not in self._texts:
            path = Path(file)
            self._texts[file] = path.read_text(errors="replace") if path.is_file() else ""
        return self._texts[file]

    def allows(self, file: str, line: int, rule: str) -> bool:
        """Whether a comment allows the rule on that line."""
        if file not in self._lines:
            self._lines[file] = self.text(file).split("\n")
        lines = self._lines[file]
        for number in (line, line - 1):
            text = lines[number - 1] if 0 < number <= len(lines) else ""
            m = _ALLOW.search(text)
            if m and m[2].strip() and (number == line or text.lstrip().startswith("//")):
                return rule in [name.strip() for name in m[1].split(",")]
        return False


def given_text(name: str, path_or_source: str | os.PathLike[str]) -> dict[str, str]:
    """Source that is in no file, by the name it goes by."""
    return {name: str(path_or_source)} if is_source(path_or_source) else {}


def instances(
    path_or_source: str | os.PathLike[str],
    *,
    defines: Defines | None = None,
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    metal_version: int = 310,
) -> list[str]:
    """The instances of kernel templates that a file wants checked. Raises MslError for a table that has no rows."""
    given = is_source(path_or_source)
    text = str(path_or_source) if given else Path(path_or_source).read_text(errors="replace")
    wanted = [m.strip() for m in _INSTANCE.findall(text)]
    for table in dict.fromkeys(name for entry in wanted for name in _TABLE.findall(entry)):
        whole = text if given else f'#include "{Path(path_or_source).resolve()}"\n'
        ready = preprocess(
            f"{whole}\n{table}({_ROW})\n",
            defines={**(defines or {}), table: _ROW},
            include_dirs=include_dirs,
            metal_version=metal_version,
        )
        rows = re.findall(rf"\b{_ROW}\s*\(\s*(\w+)\s*,", ready.text)
        if not rows:
            raise MslError("<source>" if given else os.fspath(path_or_source), 0, f"no table of rows: {table}")
        wanted = [
            entry.replace(f"[{table}]", row)
            for entry in wanted
            for row in (rows if f"[{table}]" in entry else rows[:1])
        ]
    return wanted


def allowed_removed(findings: Iterable[Finding], comments: Comments) -> list[Finding]:
    """Findings that no comment in the original text allows, each once, sorted."""
    kept = {f for f in findings if not comments.allows(f.file, f.line, f.rule)}
    return sorted(kept, key=lambda f: (f.file, f.line, f.rule, f.message))
