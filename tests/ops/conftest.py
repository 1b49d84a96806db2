from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from kit import guarded_outputs

torch.set_num_threads(1)  # tensors are small, and ThreadSanitizer takes torch's own pool for a race


@pytest.fixture(autouse=True)
def _guarded_outputs() -> Iterator[None]:
    with guarded_outputs():
        yield
