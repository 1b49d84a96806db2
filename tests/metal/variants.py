"""Which variants of kernels run: one device is given the choices that the tuning table has for another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from torch_foundry import quant
from torch_foundry.core import tuning

foundry = torch.ops.torch_foundry


@contextmanager
def same_variants(of: str, on: str) -> Iterator[None]:
    """Inside, kernels on the device `on` are the variants that run on the device `of`."""
    theirs, ours = foundry._family(of), foundry._family(on)
    inputs = [of << k for k in range(8, 15) for of in (2, 3)]  # a shape of each bucket of K
    shapes = [("linear", rows, 2**n, k) for rows in (1, 2, 4, 8) for n in range(8, 18) for k in inputs]
    shapes += [("norm_linear", *shape) for _, *shape in shapes]
    shapes += [("linear_routes", 1, 2**n, k) for n in range(5, 18) for k in inputs]
    shapes += [("attention", 1, head_dim, 1) for head_dim in range(32, 257, 32)]
    for op, rows, n, k in shapes:
        for format_ in ("f32", "f16", "bf16") if op == "attention" else quant.FORMATS:
            choice = tuning.choice(theirs, tuning.Key(op, format_, rows, n, k))
            tuning.use(ours, tuning.Key(op, format_, rows, n, k), choice)
    try:
        yield
    finally:
        tuning.forget()
