"""pytest plugin (`-p tests.other_blas`): products of matrices on the CPU are numpy's, in pieces of the sum.

They round as they might on another CPU: BLAS_SEED (a number, 0) chooses the pieces. A test that fails for it holds
against us what is rounding.
"""

from __future__ import annotations

import itertools
import os
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

SEED = int(os.environ.get("BLAS_SEED", "0"))
LIBRARY = torch.library.Library("aten", "IMPL")  # as long as it lives
called = 0


def product(a: Tensor, b: Tensor) -> Tensor:
    """[..., M, K] @ [..., K, N], in float32 for narrower dtypes; the same for the same inputs."""
    global called
    called += 1
    k, dtype = a.shape[-1], a.dtype
    chosen = random.Random(SEED * 7919 + k)
    places = sorted({0, k, *(chosen.randrange(k + 1) for _ in range(2))})
    pieces = [slice(*ends) for ends in itertools.pairwise(places)]
    chosen.shuffle(pieces)
    x, y = ((t.float() if dtype in (torch.float16, torch.bfloat16) else t).detach().numpy() for t in (a, b))
    total = np.zeros((*x.shape[:-1], y.shape[-1]), x.dtype)
    for piece in pieces:
        total += x[..., piece] @ y[..., piece, :]
    return torch.from_numpy(total).to(dtype)


def sum_and_product(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    found = alpha * product(a, b) if alpha != 1 else product(a, b)
    return (found + beta * c if beta != 1 else found + c) if beta else found


def into(compute: Any) -> Any:
    return lambda *given, out, **factors: out.copy_(compute(*given, **factors))


def pytest_configure(config: pytest.Config) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels of torch's are replaced
        for name in ("mm", "bmm", "addmm", "baddbmm"):
            compute = sum_and_product if "add" in name else product
            LIBRARY.impl(name, compute, "CPU")
            LIBRARY.impl(f"{name}.out", into(compute), "CPU")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.line(f"{called} products of matrices by numpy")
