"""Shapes of results for torch.compile and torch.export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates the function that makes the op's results without computing them.

    ImportError if the extension has no such op: it is older than these sources, as after a pull.
    """
    if not hasattr(torch.ops.torch_foundry, name):
        raise ImportError(f"torch_foundry was built from other sources ({name} is missing): run `make build`")
    return torch.library.register_fake(f"torch_foundry::{name}")
