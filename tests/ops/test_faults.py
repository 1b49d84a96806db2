"""The tests are tested: each seeded mistake in a shader makes the check fail that is there to notice it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from kit import Fault

from torch_foundry import runtime

pytestmark = pytest.mark.tier("nightly")

TESTS = Path(__file__).parent
MODULES = sorted({*TESTS.glob("test_*.py"), *TESTS.glob("faults_*.py")} - {Path(__file__)})
FAULTS: list[Fault] = [f for path in MODULES for f in getattr(importlib.import_module(path.stem), "FAULTS", [])]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    fault.check()
    with runtime.use_shaders(fault.seed(tmp_path)), pytest.raises(AssertionError):
        fault.check()


def test_there_are_enough() -> None:
    claimed = re.search(r"More than (\d+) seeded faults", (TESTS.parents[1] / "docs" / "testing.md").read_text())
    assert claimed and len(FAULTS) > int(claimed[1]) and len({f.name for f in FAULTS}) == len(FAULTS)
