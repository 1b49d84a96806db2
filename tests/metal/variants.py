"""Which variants of kernels run: one device is given the choices that the tuning table has for another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

import torch_foundry.core.extension  # noqa: F401
from torch_foundry import quant

foundry = torch.ops.torch_foundry


@contextmanager
def same_variants(of: str, on: str) -> Iterator[None]:
    """Inside, kernels on the device `on` are the variants that run on the device `of`."""
    theirs, ours = foundry._family(of), foundry._family(on)
    shapes = [("linear", rows, 2**n, 2**k) for rows in (1, 2, 4, 8) for n in range(8, 18) for k in range(9, 16)]
    shapes += [("norm_linear", *shape) for _, *shape in shapes]
    shapes += [("attention", 1, head_dim, 1) for head_dim in range(32, 257, 32)]
    for op, rows, n, k in shapes:
        for format_ in ("f32", "f16", "bf16") if op == "attention" else quant.FORMATS:
            choice = foundry._tuning_choice(theirs, op, format_, rows, n, k)
            foundry._tuning_add(ours, op, format_, rows, n, k, choice)
    try:
        yield
    finally:
        foundry._tuning_clear()
