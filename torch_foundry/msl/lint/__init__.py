"""MSL's own rules, for what the host compiler and the address-space check accept and Apple's compiler does not.

A comment can allow a rule on a line: see unit.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ..syntax.declarations import parse
from ..syntax.lexer import Tokens
from ..syntax.preprocess import Defines, preprocess
from . import declarations, language, types, uniformity
from .unit import Comments, Finding, SourceUnit, allowed_removed, given_text


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
    rules = language, declarations, types, uniformity
    for rule in (rule for module in rules for rule in module.RULES):
        for violation in rule(unit):
            file, line = tokens.where(violation.at)
            found.append(Finding(file, line, violation.rule, violation.message))
    return allowed_removed(found, Comments(given_text(ready.name, path_or_source)))
