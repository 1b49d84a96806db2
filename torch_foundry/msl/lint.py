"""MSL's own rules, for what the host compiler and the address-space check accept and Apple's compiler does not.

A comment can allow a rule on a line: see directives.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from . import lint_declarations, lint_language, lint_tokens, lint_types, uniformity
from .declarations import parse
from .directives import Comments
from .lexer import Tokens
from .preprocess import Defines, preprocess
from .resolve import is_source
from .source_unit import SourceUnit, Violation

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
    found: list[Finding] = []
    rules = lint_tokens, lint_language, lint_declarations, lint_types
    for rule in (*(rule for module in rules for rule in module.RULES), _control_flow):
        for violation in rule(unit):
            file, line = tokens.where(violation.at)
            found.append(Finding(file, line, violation.rule, violation.message))
    return allowed_removed(found, Comments(given_text(ready.name, path_or_source)))


def given_text(name: str, path_or_source: str | os.PathLike[str]) -> dict[str, str]:
    """Source that is in no file, by the name it goes by."""
    return {name: str(path_or_source)} if is_source(path_or_source) else {}


def allowed_removed(findings: Iterable[Finding], comments: Comments) -> list[Finding]:
    """Findings that no comment in the original text allows, each once, sorted."""
    kept = {f for f in findings if not comments.allows(f.file, f.line, f.rule)}
    return sorted(kept, key=lambda f: (f.file, f.line, f.rule, f.message))


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
