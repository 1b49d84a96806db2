"""Shapes of results for torch.compile and torch.export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates the function that makes the op's results without computing them."""
    return torch.library.register_fake(f"torch_foundry::{name}")
