"""A machine that nobody measured, and records of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from benchmarks.harness.machine import Machine


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are small, and on a busy machine torch's threads would wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def machine() -> Machine:
    return Machine("cpu", "a machine", "host", "2.13.0", "5.23.0", "Linux", "abc", read_gb_s=100.0, copy_gb_s=80.0)
