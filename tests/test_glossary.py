"""The code speaks the glossary's words: names that were given up stay gone."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("torch_foundry", "csrc", "shaders", "tests", "benchmarks")
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
IDENTIFIERS = ("id", "name", "attr", "arg", "asname", "module", "rest")  # where nodes of a syntax tree have them
NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)  # comments, strings


def table(heading: str) -> list[tuple[str, str, str]]:
    """Names of a table of the glossary, one a row: name, where, word to use."""
    section = GLOSSARY.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", section, re.M)]
    return [(name.removesuffix("()"), row[1], row[2]) for row in rows[2:] for name in re.findall(r"`([^`]+)`", row[0])]


@cache
def names() -> dict[Path, frozenset[str]]:
    """The identifiers of each file of code, and its own name."""
    found = {}
    for path in (path for folder in CODE for path in (ROOT / folder).rglob("*") if "_built" not in path.parts):
        if path.suffix == ".py":
            nodes = [vars(node) for node in ast.walk(ast.parse(path.read_bytes()))]
            found[path] = frozenset(x for node in nodes for key in IDENTIFIERS if isinstance(x := node.get(key), str))
            found[path] |= {path.stem}
        elif path.suffix in {".cpp", ".h", ".mm", ".metal"}:
            found[path] = frozenset(re.findall(r"[A-Za-z_]\w*", NOT_CODE.sub(" ", path.read_text()))) | {path.stem}
    return found


def files(where: str) -> list[Path]:
    """The files that the second column of a table means: folders of the package or of the repository."""
    if where == "everywhere":
        return list(names())
    parts = [part.strip(" `") for part in where.split(",")]
    folders = [ROOT / part if part.split("/")[0] in CODE else ROOT / "torch_foundry" / part for part in parts]
    missing = [str(folder.relative_to(ROOT)) for folder in folders if not folder.is_dir()]
    assert not missing, f"docs/glossary.md: no such folder: {missing}"
    return [path for path in names() if any(folder in path.parents for folder in folders)]


def is_named(name: str, identifiers: frozenset[str]) -> list[str]:
    """The identifiers that are called `name`, or have it as one of their words where it is a plain word."""
    if not name.isalpha() or not name.islower():
        return sorted(identifiers & {name})
    word = re.compile(rf"{name}(s|es|d|ed|r|er|ing)?")
    parts = {each: re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", each) for each in identifiers}
    return sorted(each for each, words in parts.items() if any(word.fullmatch(part.lower()) for part in words))


@pytest.mark.parametrize(("name", "where", "word"), table("Gone"))
def test_what_was_renamed_does_not_come_back(name: str, where: str, word: str) -> None:
    back = {str(path.relative_to(ROOT)): used for path in files(where) if (used := is_named(name, names()[path]))}
    assert not back, f"{name!r} was renamed (docs/glossary.md, 'Gone'): say {word!r} in {back}"


def test_the_table_is_read() -> None:
    assert len(table("Gone")) > 30
    assert is_named("tape", frozenset({"step_tapes", "StepTape", "staples", "Taped"})) == [
        "StepTape",
        "Taped",
        "step_tapes",
    ]
    assert is_named("Pace", frozenset({"Pace", "pace", "PaceMaker"})) == ["Pace"]
