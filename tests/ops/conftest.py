from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit import poisoned_outputs


@pytest.fixture(autouse=True)
def _poisoned_outputs() -> Iterator[None]:
    with poisoned_outputs():
        yield
