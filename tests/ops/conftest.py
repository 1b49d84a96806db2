from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from kit import poisoned_outputs

from torch_foundry.core import environment, runtime

torch.set_num_threads(1)  # tensors are small, and ThreadSanitizer takes torch's own pool for a race


@pytest.fixture(autouse=True)
def _guarded_outputs() -> Iterator[None]:
    """What a kernel leaves out of its outputs shows, and what it writes outside them."""
    sees_more = environment.SANITIZE.value() == "address"  # reads too, but not past guard bytes
    with poisoned_outputs(), runtime.host_options(guard_memory=not sees_more):
        yield
