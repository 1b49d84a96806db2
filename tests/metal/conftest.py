"""Tests of the Metal executor run where a mock stands for Metal, in a process of their own.

In the ordinary suite each `test_*.py` here is one test, which runs the file's tests in such a process (tests/metal/
session.py looks at the rules after each). To run them one by one:

    TORCH_FOUNDRY_EXTENSION=$(python tests/metal/build.py) python -m pytest -p tests.metal.session tests/metal/test_x.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import build  # noqa: E402

IN_SESSION = "TORCH_FOUNDRY_EXTENSION" in os.environ
HERE_WITHOUT_MOCK = {"test_suites.py"}  # they need no mock, or start it themselves

_built: list[Path | str] = []  # the mock's library, or why there is none


def mock_library() -> Path:
    """Builds the mock once; skips where that is not possible."""
    if not _built:
        _built.append(build.unavailable() or build.build())
    if isinstance(_built[0], str):
        pytest.skip(_built[0])
    return _built[0]


def run_on_mock(config: pytest.Config, arguments: Sequence[str]) -> str:
    """Runs pytest with the mock; returns the last lines of its output, or fails with all of it."""
    allowed = config.getoption("--skips-allowed")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=short",
        "-p",
        "tests.metal.session",
        "-p",
        "no:cacheprovider",
    ]
    command += [f"--skips-allowed={allowed}"] if allowed else []
    environment = {**os.environ, "TORCH_FOUNDRY_EXTENSION": str(mock_library())}
    result = subprocess.run([*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = result.stdout.strip().splitlines()
    if result.returncode:
        pytest.fail("\n".join([*lines[-150:], *result.stderr.splitlines()[-30:]]), pytrace=False)
    return "\n".join(lines[-2:])


class OnMock(pytest.Module):
    """A test file of this folder, as one test."""

    def collect(self) -> Iterator[pytest.Item]:
        yield OnMockItem.from_parent(self, name="on_the_mock")


class OnMockItem(pytest.Item):
    def runtest(self) -> None:
        self.add_report_section("call", "mock", run_on_mock(self.config, [str(self.path)]))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.path.name} on the mock of Metal"


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if IN_SESSION or module_path.parent != HERE or module_path.name in HERE_WITHOUT_MOCK or "macos" in module_path.name:
        return None
    return OnMock.from_parent(parent, path=module_path)
