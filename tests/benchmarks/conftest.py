"""A machine that nobody measured, and records of it."""

from __future__ import annotations

import pytest

from benchmarks.harness.machine import Machine
from tests.hf.conftest import _one_thread  # noqa: F401


@pytest.fixture
def machine() -> Machine:
    return Machine("cpu", "a machine", "host", "2.13.0", "5.23.0", "Linux", "abc", read_gb_s=100.0, copy_gb_s=80.0)
