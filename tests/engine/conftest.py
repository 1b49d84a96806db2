"""Fixtures of the engine tests: those of the patch, and steps that all take as long."""

import pytest

from tests.engine.test_drafting import steps_of_a_second
from tests.hf.conftest import _one_thread, pair, quiet  # noqa: F401


@pytest.fixture
def even_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many tokens are drafted doesn't depend on how fast this machine is."""
    steps_of_a_second(monkeypatch)
