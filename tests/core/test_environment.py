"""Every environment variable is stated once, and means what the documents say."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from torch_foundry.core import environment
from torch_foundry.core.environment import VARIABLES, Choice, Count, Variable

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "torch_foundry"
PREFIX = "TORCH_FOUNDRY_"
CHOICES = [each for each in VARIABLES if isinstance(each, Choice)]
COUNTS = [each for each in VARIABLES if isinstance(each, Count)]


def texts() -> dict[Path, str]:
    """What is written about or read by the package, its build and its documents."""
    paths = [ROOT / name for name in ("setup.py", "Makefile", "README.md", "ARCHITECTURE.md", "CHANGELOG.md")]
    paths += [*(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    for folder in ("torch_foundry", "csrc", "shaders", "benchmarks"):
        paths += [p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".cpp", ".h", ".mm", ".metal")]
    return {path: path.read_text() for path in paths if "_built" not in path.parts}


def test_the_table_of_the_documents() -> None:
    table = environment.table()
    assert table in (ROOT / "ARCHITECTURE.md").read_text(), f"python -m torch_foundry.core.environment prints:\n{table}"


def test_no_other_variable_is_mentioned() -> None:
    known = {each.name for each in VARIABLES}
    found = {(path.name, name) for path, text in texts().items() for name in re.findall(rf"{PREFIX}\w*[A-Z]\b", text)}
    assert found and not {(path, name) for path, name in found if name not in known}


def test_they_are_read_in_one_place() -> None:
    for path, text in texts().items():
        if path.suffix == ".py" and PACKAGE in path.parents and path.name != "environment.py":
            strings = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
            assert not [s for s in strings if isinstance(s, str) and re.fullmatch(rf"{PREFIX}\w+", s)], path


@pytest.mark.parametrize("each", CHOICES, ids=lambda each: each.name)
def test_choices(each: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(each.name, raising=False)
    assert each.value() == each.allowed[0]
    for text in ("", *each.allowed):
        monkeypatch.setenv(each.name, text)
        assert each.value() == (text or each.allowed[0]) and each.on() == (each.value() == "1")
    for text in ("yes", "01", f"{each.allowed[1]} "):
        monkeypatch.setenv(each.name, text)
        with pytest.raises(ValueError, match=f"{each.name}='{text}': expected one of {each.allowed[0]!r}, ") as caught:
            each.value()
        assert all(repr(value) in str(caught.value) for value in each.allowed)


@pytest.mark.parametrize("each", COUNTS, ids=lambda each: each.name)
def test_counts(each: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(each.name, raising=False)
    assert each.value() is None
    for text, value in (("", None), ("0", 0), ("17", 17), (str(2**31 - 1), 2**31 - 1)):
        monkeypatch.setenv(each.name, text)
        assert each.value() == value
    for text in ("-1", "1.5", "a few", str(2**31)):
        monkeypatch.setenv(each.name, text)
        with pytest.raises(ValueError, match=rf"{each.name}='{text}': expected 0 \(.*\) or a number of {each.unit}"):
            each.value()


def test_each_says_what_it_is() -> None:
    assert all(type(each) is not Variable and each.values() and each.meaning for each in VARIABLES)
    assert len({each.name for each in VARIABLES}) == len(VARIABLES)
