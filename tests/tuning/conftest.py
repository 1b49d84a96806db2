from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ops"))

from torch_foundry.core import tuning


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test reads or writes the user's tables, and none leaves a choice behind."""
    monkeypatch.setattr(tuning, "directory", lambda: tmp_path / "tuning")
    tuning.forget()
    yield
    tuning.forget()
