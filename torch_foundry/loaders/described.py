"""What a loader knows of a model before any weight is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_foundry.loaders.tensors import Weight


@dataclass(frozen=True)
class Described:
    """A model that can be assembled.

    config: of transformers. weights: by the names of its parameters. file: whom errors name. dtype: what most of its
    dense matrices are stored in, if any are. tokenizer: makes it. close: closes the files, when all weights are read.
    absent: parameters without a weight, which the caller has allowed.
    """

    config: Any
    weights: Mapping[str, Weight]
    file: Path
    dtype: torch.dtype | None
    tokenizer: Callable[[], Any]
    close: Callable[[], None]
    generation_config: Any = None
    attn_implementation: str | None = None
    absent: tuple[str, ...] = ()
