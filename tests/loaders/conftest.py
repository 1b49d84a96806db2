"""Fixtures of the loaders' tests. Models are tiny: more threads than one only cost time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torch_foundry import runtime


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with runtime.host_options(threads=1):
        yield
    torch.set_num_threads(before)
