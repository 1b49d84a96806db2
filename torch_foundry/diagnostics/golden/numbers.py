"""Numbers that look random and are the same everywhere, whatever torch draws."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch


def numbers(name: str, shape: torch.Size) -> torch.Tensor:
    """float32: whole numbers from -127 to 127, of 1/128, by a hash of `name` (splitmix64 of their index)."""
    start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    with np.errstate(over="ignore"):
        x = (np.arange(math.prod(shape), dtype=np.uint64) + np.uint64(start)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    whole = ((x ^ (x >> np.uint64(31))) % np.uint64(255)).astype(np.float32) - 127
    return torch.from_numpy(whole).div_(128).view(shape)
