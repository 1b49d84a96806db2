"""The workflows and the issue forms are valid, and what they call exists."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github").rglob("*.yml"))
WORKFLOWS = [path for path in FILES if path.parent.name == "workflows"]


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        assert job["timeout-minutes"] <= 120
        yield from job["steps"]


def commands(path: Path) -> list[list[str]]:
    """The words of each command."""
    found = []
    for step in steps(path):
        words = shlex.shlex(step.get("run", ""), posix=True, punctuation_chars="\n|>")
        words.whitespace, words.whitespace_split = " \t", True
        for separator, group in itertools.groupby(words, lambda word: set(word) <= set("\n|>")):
            if not separator:
                found.append(list(group))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_registry_and_no_other_host_is_named(path: Path) -> None:
    assert yaml.safe_load(path.read_text())
    assert "://" not in path.read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_rights_are_few(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert True in workflow  # `on`, as YAML 1.1 reads it
    for step in steps(path):
        assert ("uses" in step) != ("run" in step)
        assert "uses" not in step or re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", step["uses"]), step


def test_what_they_call_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    called = set()
    for words in (words for path in WORKFLOWS for words in commands(path)):
        program = next(Path(word).name if word.startswith(".venv") else word for word in words if allowed(word))
        called.add(program)
        rest = words[[Path(word).name if word.startswith(".venv") else word for word in words].index(program) + 1 :]
        if program == "make":
            assert {word for word in rest if "=" not in word} <= targets
        elif program == ".ci/run":
            assert os.access(ROOT / program, os.X_OK)
        elif program == "torch-foundry":
            known = subprocess.run(
                [sys.executable, "-m", "torch_foundry", rest[0], "--help"], capture_output=True, text=True, check=True
            ).stdout
            assert all(word in known for word in rest if word.startswith("--"))
        elif program == "python" and rest[:2] == ["-m", "pytest"]:
            check_pytest(rest[2:])
        elif program == "python" and rest[:2] == ["-m", "pip"]:
            named = [rest[i + 1] for i, word in enumerate(rest) if word == "-r"]
            assert all((ROOT / name).is_file() for name in named)
    assert {"make", ".ci/run", "torch-foundry", "python"} <= called


def allowed(word: str) -> bool:
    """Whether this word is the program, rather than what runs it (`sudo env A=b program`)."""
    return word not in ("sudo", "env") and "=" not in word


def check_pytest(arguments: list[str]) -> None:
    plugin = ROOT / (arguments[arguments.index("-p") + 1].replace(".", "/") + ".py")
    for option in (word for word in arguments if word.startswith("--")):
        name, _, value = option.partition("=")
        assert (name == "--ignore" and (ROOT / value).exists()) or f'"{name}"' in plugin.read_text()
    assert (ROOT / next(word for word in arguments if word.startswith("tests/"))).exists()


def test_wheels_are_built_for_every_torch_that_check_macos_knows() -> None:
    matrix = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]["macos-arm64"]["strategy"]
    known = re.findall(r'"(2\.\d+)": "', (ROOT / "tests/metal/macos/wheels.py").read_text())
    assert matrix["matrix"]["torch"] == known


def test_the_issue_form_asks_for_doctors_report() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/mac.yml").read_text())
    fields = {part["id"]: part for part in form["body"] if "id" in part}
    assert fields["doctor"]["validations"]["required"]
    assert "torch-foundry doctor --json" in fields["doctor"]["attributes"]["description"]


def test_a_fresh_clone_is_told_to_run_check_macos(tmp_path: Path) -> None:
    """Without what it downloads, its tests are skipped, for a reason that CI accepts. They need no built extension."""
    arguments = ["-q", "-rs", "-p", "no:cacheprovider", "--skips-allowed=.ci/allowed-skips"]
    code = (
        "import sys; from pathlib import Path; import pytest; sys.path.insert(0, 'tests/metal/macos'); import wheels\n"
        f"wheels.CACHE = Path({str(tmp_path)!r})\n"
        "sys.modules['torch_foundry._C'] = None  # as where it is not built\n"
        f"sys.exit(pytest.main([*{arguments!r}, 'tests/metal/test_macos_check.py']))"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert "run `make check-macos` first: " in result.stdout and " passed" not in result.stdout


def test_make_builds_again_after_a_change_of_what_the_build_reads() -> None:
    """Everything below the folders that setup.py imports or compiles."""
    database = subprocess.run(["make", "-pn", "build"], cwd=ROOT, capture_output=True, text=True).stdout
    known = next(line for line in database.splitlines() if line.startswith("SOURCES := ")).split()
    read = ("csrc", "shaders", "torch_foundry/aot", "torch_foundry/core", "torch_foundry/msl")
    found = itertools.chain.from_iterable((ROOT / folder).rglob("*.[chmp]*") for folder in read)
    files = [path for path in found if path.parent.name != "__pycache__"]
    assert len(files) > 100 and {str(path.relative_to(ROOT)) for path in files if path.is_file()} <= set(known)
