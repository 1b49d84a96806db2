"""Each op beside stock torch, on the cases, inputs, references and costs of the op's own test: `make bench`.
For the shapes of real models see bench_ops.

A row is measured only after the op's result agreed with float64 as its test demands. Ratios within one run mean
something; absolute times on a shared machine don't.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import kit
import pytest
import torch

from torch_foundry.core import runtime

MODULES = ("rms_norm", "linear", "embedding", "rope_kv", "attention", "glu")


def _rows() -> Iterator[Any]:
    for name in MODULES:
        module = importlib.import_module(f"test_{name}")
        for entry in module.BENCH:
            case, dtype = entry if isinstance(entry, tuple) else (entry, torch.float32)
            yield pytest.param(module, case, dtype, id=f"{name}-{case}-{kit.dtype_id(dtype)}")


@pytest.mark.parametrize("who", ["foundry", "stock"])
@pytest.mark.parametrize("module, case, dtype", _rows())
def test_op(benchmark: Any, module: Any, case: Any, dtype: torch.dtype, who: str) -> None:
    given = module.inputs(case, dtype)
    module.check(given)
    flops, moved = module.cost(case, dtype)
    call = module.run if who == "foundry" else module.reference
    benchmark.group = f"{module.__name__.removeprefix('test_')} {case} {kit.dtype_id(dtype)}"
    benchmark.extra_info |= {
        "executor": runtime.executor("cpu"),
        "torch": torch.__version__,
        "flops": flops,
        "bytes": moved,
    }
    benchmark.pedantic(call, kwargs=given, rounds=10, iterations=1, warmup_rounds=2)
    benchmark.extra_info["GB/s"] = round(moved / benchmark.stats.stats.median / 1e9, 3)
