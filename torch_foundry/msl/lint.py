"""MSL's own rules, for what the host compiler and the address-space check accept and Apple's compiler does not.

A comment `// foundry-lint: allow(rule, ..) reason` on a line, or alone on the line above it, allows the rule there;
without a reason it allows nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import lint_declarations, lint_tokens, uniformity
from .declarations import parse
from .lexer import Tokens
from .preprocess import Defines, is_source, preprocess
from .source_unit import SourceUnit, Violation

_ALLOW = re.compile(r"//\s*foundry-lint:\s*allow\(([^)]*)\)\s*(.*)")

Rule = Callable[[SourceUnit], Iterator[Violation]]


@dataclass(frozen=True)
class Finding:
    """One violation: `str()` gives `file:line: rule: message`."""

    file: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.message}"


def lint(
    path_or_source: str | os.PathLike[str],
    *,
    defines: Defines | None = None,
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    metal_version: int = 310,
    name: str = "<source>",
) -> list[Finding]:
    """Findings in a file and what it includes, by file and line; raises MslError for source that cannot be read."""
    ready = preprocess(
        path_or_source, defines=defines, include_dirs=include_dirs, metal_version=metal_version, name=name
    )
    tokens = Tokens(ready.text, ready.name)
    unit = SourceUnit(tokens, parse(tokens), metal_version)
    found: dict[Finding, None] = {}
    for rule in (*lint_tokens.RULES, *lint_declarations.RULES, _control_flow):
        for violation in rule(unit):
            file, line = tokens.where(violation.at)
            found[Finding(file, line, violation.rule, violation.message)] = None
    given = {ready.name: str(path_or_source)} if is_source(path_or_source) else {}
    return allowed_removed(found, given)


def allowed_removed(findings: Sequence[Finding] | dict[Finding, None], given: dict[str, str]) -> list[Finding]:
    """Findings that no comment in the original text allows, sorted; `given` holds source that is in no file."""
    texts: dict[str, list[str]] = {}
    kept = []
    for finding in findings:
        if finding.file not in texts:
            texts[finding.file] = _lines(finding.file, given)
        if not _allowed(texts[finding.file], finding):
            kept.append(finding)
    return sorted(kept, key=lambda f: (f.file, f.line, f.rule))


def _lines(file: str, given: dict[str, str]) -> list[str]:
    if file in given:
        return given[file].split("\n")
    path = Path(file)
    return path.read_text(errors="replace").split("\n") if path.is_file() else []


def _allowed(lines: list[str], finding: Finding) -> bool:
    for number in (finding.line, finding.line - 1):
        text = lines[number - 1] if 0 < number <= len(lines) else ""
        m = _ALLOW.search(text)
        alone = text.lstrip().startswith("//")
        if m and m[2].strip() and (number == finding.line or alone):
            return finding.rule in [rule.strip() for rule in m[1].split(",")]
    return False


def _control_flow(unit: SourceUnit) -> Iterator[Violation]:
    for hazard in uniformity.hazards(unit.tokens, unit.root):
        name = unit.tokens.text[hazard.sync]
        line = unit.tokens.where(hazard.sync)[1]
        if hazard.kind == "return":
            message = (
                f"threads that return here never reach '{name}' on line {line}; the condition may differ between them"
            )
            yield Violation(hazard.at, "return-before-barrier", message)
        elif hazard.kind == "leave":
            message = f"threads that leave the loop's round here miss '{name}' on line {line}"
            yield Violation(hazard.at, "divergent-barrier", message)
        else:
            yield Violation(
                hazard.at, "divergent-barrier", f"'{name}' stands under a condition that may differ between threads"
            )
