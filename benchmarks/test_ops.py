"""Each op beside stock torch, on the cases, inputs, references and costs of the op's own test: `make bench`.
For the shapes of real models see bench_ops.

A row is measured only after the op's result agreed with float64 as its test demands. Ratios within one run mean
something; absolute times on a shared machine don't.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kit
import pytest
import torch

from torch_foundry.core import runtime

TESTS = Path(__file__).parents[1] / "tests" / "ops"


def benches() -> Iterator[tuple[str, Any]]:
    """Names, and what has what `kit.Bench` has: the modules of the ops' tests, and what they list in `BENCHES`."""
    for name in [*(path.stem for path in sorted(TESTS.glob("test_*.py"))), "tests.sampling.test_replay"]:
        module = importlib.import_module(name)
        if hasattr(module, "BENCH"):
            yield name.removeprefix("test_"), module
        yield from ((bench.name, bench) for bench in getattr(module, "BENCHES", []))


def cases(bench: Any) -> list[tuple[Any, torch.dtype]]:
    """What a benchmark measures: a case that names no dtype in all of them."""
    return [pair for entry in bench.BENCH for pair in ([entry] if isinstance(entry, tuple) else _in_all(entry))]


def _in_all(case: Any) -> list[tuple[Any, torch.dtype]]:
    return [(case, dtype) for dtype in kit.DTYPES]


def _rows() -> Iterator[Any]:
    for name, bench in benches():
        for case, dtype in cases(bench):
            yield pytest.param(name, bench, case, dtype, id=f"{name}-{case}-{kit.dtype_id(dtype)}")


@pytest.mark.parametrize("who", ["foundry", "stock"])
@pytest.mark.parametrize("name, bench, case, dtype", _rows())
def test_op(benchmark: Any, name: str, bench: Any, case: Any, dtype: torch.dtype, who: str) -> None:
    given = bench.inputs(case, dtype)
    bench.check(given)
    flops, moved = bench.cost(case, dtype)
    call = bench.run if who == "foundry" else bench.reference
    benchmark.group = f"{name} {case} {kit.dtype_id(dtype)}"
    benchmark.extra_info |= {
        "executor": runtime.executor("cpu"),
        "torch": torch.__version__,
        "flops": flops,
        "bytes": moved,
    }
    benchmark.pedantic(call, kwargs=given, rounds=10, iterations=1, warmup_rounds=2)
    benchmark.extra_info["GB/s"] = round(moved / benchmark.stats.stats.median / 1e9, 3)
