"""Registration of fake implementations: shapes of results, for torch.compile and torch.export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator for the function that allocates an op's results without computing them.

    ImportError if the extension has no such op, because it was built from older sources.
    """
    if not hasattr(torch.ops.torch_foundry, name):
        raise ImportError(f"torch_foundry was built from other sources ({name} is missing): run `make build`")
    return torch.library.register_fake(f"torch_foundry::{name}")
