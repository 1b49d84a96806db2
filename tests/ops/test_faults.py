"""The tests are tested: each seeded mistake in a shader makes the check fail that is there to notice it."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest
from kit import Fault

from torch_foundry import runtime

SHADERS = Path(__file__).parents[2] / "shaders"
TESTS = Path(__file__).parent
MODULES = sorted({*TESTS.glob("test_*.py"), *TESTS.glob("faults_*.py")} - {Path(__file__)})
FAULTS: list[Fault] = [f for path in MODULES for f in getattr(importlib.import_module(path.stem), "FAULTS", [])]


def faulty_shaders(fault: Fault, tmp_path: Path) -> Path:
    """A copy of the headers and of the one kernel file, with the fault in it."""
    shutil.copytree(SHADERS, tmp_path / "shaders", ignore=shutil.ignore_patterns("*.metal"))
    shutil.copy(SHADERS / fault.kernel, tmp_path / "shaders")
    edited = tmp_path / "shaders" / fault.edited
    text = edited.read_text()
    assert text.count(fault.old) == 1, f"{fault.edited} has this {text.count(fault.old)} times: {fault.old}"
    edited.write_text(text.replace(fault.old, fault.new))
    return tmp_path / "shaders"


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    directory = faulty_shaders(fault, tmp_path)
    fault.check()
    with runtime.use_shaders(directory), pytest.raises(AssertionError):
        fault.check()


def test_there_are_enough() -> None:
    assert len(FAULTS) >= 20 and len({f.name for f in FAULTS}) == len(FAULTS)
