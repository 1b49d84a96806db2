"""MLX's matrix products on the shapes of `linear`: dense, and quantised in groups of 32 as q8_0 and q4_0 are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.cases import Case, Sizes
from benchmarks.harness import clock
from benchmarks.harness.record import Parity, Record
from benchmarks.models import DTYPES
from benchmarks.ops import cases
from benchmarks.ops.matrices import SAMPLE
from benchmarks.peers import Job, known
from torch_foundry.diagnostics.compare import LIMIT
from torch_foundry.testing import tolerance

BITS = {"q8_0": 8, "q4_0": 4}
GROUP = 32
COPIES = 64
CPU = torch.device("cpu")


def records(job: Job) -> Iterator[Record]:
    """One row for each shape, format and number of rows."""
    formats = [name for name in job.formats if name in DTYPES or name in BITS]
    for case in cases(known(job.models), ["linear"], formats, ["2d"], Sizes(rows=job.rows)):
        yield _record(case, job)


def _record(case: Case, job: Job) -> Record:
    g = torch.Generator().manual_seed(job.seed)
    dtype = DTYPES.get(case.format, torch.float16)
    x = torch.randn(case.rows, case.k, generator=g).to(dtype)
    sample = (torch.randn(min(case.n, SAMPLE), case.k, generator=g) * case.k**-0.5).to(dtype)
    order = torch.randint(0, sample.shape[0], (case.n,), generator=g)
    matrix = to_mlx(sample)
    parts = mx.quantize(matrix, group_size=GROUP, bits=BITS[case.format]) if case.format in BITS else (matrix,)
    meant = dense(parts, case.format)
    weight = [part[mx.array(order.numpy())] for part in parts]
    mx.eval(weight)
    nbytes = sum(part.nbytes for part in weight)
    copies = [weight] + [
        [part + mx.zeros_like(part) for part in weight] for _ in range(min(COPIES, job.cache_bytes // nbytes))
    ]
    vector = to_mlx(x)
    mx.eval(vector, copies)
    turns = copies * -(-16 // len(copies))

    def run() -> None:
        mx.eval([_product(vector, w, case.format) for w in turns])

    got = to_torch(_product(vector, weight, case.format)).to(dtype)
    error = tolerance.relative_error(got, F.linear(x.double(), meant.double())[:, order])
    parity = Parity(error <= LIMIT[dtype], f"float64: relative L2 error at most {LIMIT[dtype]:.0e}", error)
    return Record(
        kind="peer",
        name="linear",
        way=f"mlx {mx.__version__}",
        format=f"{BITS[case.format]} bit, group {GROUP}" if case.format in BITS else case.format,
        shape=case.shape(),
        machine=job.machine,
        times=clock.measure(CPU, run, len(turns)),  # eval waits, so the CPU's clock does
        bytes=nbytes + vector.nbytes + case.rows * case.n * vector.itemsize,
        flops=2 * case.rows * case.n * case.k,
        parity=parity,
        seed=job.seed,
        extra={"peer_device": str(mx.default_device()), "clock": "perf_counter"},
    )


def _product(x: Any, weight: list[Any], fmt: str) -> Any:
    if fmt in BITS:
        return mx.quantized_matmul(x, *weight, transpose=True, group_size=GROUP, bits=BITS[fmt])
    return x @ weight[0].T


def dense(parts: tuple[Any, ...] | list[Any], fmt: str) -> torch.Tensor:
    """What a weight stands for, float32."""
    if fmt not in BITS:
        return to_torch(parts[0])
    wide = [parts[0], *(part.astype(mx.float32) for part in parts[1:])]
    return to_torch(mx.dequantize(*wide, group_size=GROUP, bits=BITS[fmt]))


def to_mlx(x: torch.Tensor) -> Any:
    """The same numbers in the same dtype. numpy has no bfloat16, so that goes through float32."""
    wide = mx.array(x.float().numpy())
    return wide.astype({torch.float32: mx.float32, torch.float16: mx.float16, torch.bfloat16: mx.bfloat16}[x.dtype])


def to_torch(x: Any) -> torch.Tensor:
    """The same numbers, float32."""
    return torch.from_numpy(np.array(x.astype(mx.float32)))
