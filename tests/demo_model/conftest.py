"""The demo model and its draft in float32, loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from torch_foundry.demo_model import demo_model_path, draft_model_path


@pytest.fixture(scope="session", autouse=True)
def two_threads() -> Iterator[None]:
    """Layers this small run slower on many threads, far slower on a machine that is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(min(2, before))
    yield
    torch.set_num_threads(before)


def _load(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()


@pytest.fixture(scope="session")
def demo_model() -> Any:
    return _load(demo_model_path())


@pytest.fixture(scope="session")
def draft_model() -> Any:
    return _load(draft_model_path())


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(demo_model_path(), local_files_only=True)
