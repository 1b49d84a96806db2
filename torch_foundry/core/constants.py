"""Small tensors that many calls read and none writes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def kept(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`make`, whose last results are kept by its arguments: making them costs launches, and a copy makes a GPU wait.

    Not what is made under a dispatch mode, which may be a fake tensor.
    """

    def fresh(*arguments: Any) -> Tensor:
        with torch.inference_mode(False):
            return make(*arguments)

    once = functools.lru_cache(maxsize=256)(fresh)

    @functools.wraps(make)
    def constant(*arguments: Any) -> Tensor:
        return (fresh if torch._C._len_torch_dispatch_stack() else once)(*arguments)

    return constant
