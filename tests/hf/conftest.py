"""Fixtures of the patch tests. Models are tiny: more threads than one only cost time."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest
import torch
from transformers import PreTrainedModel

from tests.hf.tiny_models import shared
from torch_foundry.core import runtime
from torch_foundry.hf.api import patch
from torch_foundry.models.state import FallbackWarning


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with runtime.host_options(threads=1):
        yield
    torch.set_num_threads(before)


@pytest.fixture
def pair() -> tuple[PreTrainedModel, PreTrainedModel]:
    """A stock model and a patched copy of it."""
    stock = copy.deepcopy(shared("llama"))
    return stock, patch(copy.deepcopy(stock))


@pytest.fixture
def quiet() -> Iterator[None]:
    """No warnings of fallbacks, for tests in which they are meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield
