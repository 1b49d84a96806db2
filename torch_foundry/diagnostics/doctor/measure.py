"""What the device can do: memory bandwidth, cost of a launch, matrix-vector products. Results are always checked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.core import devices, runtime
from torch_foundry.core.graph import capture
from torch_foundry.core.shader import compile_shader
from torch_foundry.diagnostics.doctor.privacy import scrub
from torch_foundry.testing import op_checks, tolerance
from torch_foundry.testing.timing import seconds, synchronize

Row = dict[str, Any]

# Every thread reads (or copies) every n-th vector, so that neighbours read neighbours: as wide as memory gets.
STREAM = """
#include <metal_stdlib>
using namespace metal;

kernel void read_all(device const float4* x [[buffer(0)]], device float* sums [[buffer(1)]],
                     constant uint& n [[buffer(2)]], uint i [[thread_position_in_grid]],
                     uint threads [[threads_per_grid]]) {
  float4 sum = float4(0.0f);
  for (uint k = i; k < n; k += threads) sum += x[k];
  sums[i] = sum.x + sum.y + sum.z + sum.w;
}

kernel void copy_all(device const float4* x [[buffer(0)]], device float4* y [[buffer(1)]],
                     constant uint& n [[buffer(2)]], uint i [[thread_position_in_grid]],
                     uint threads [[threads_per_grid]]) {
  for (uint k = i; k < n; k += threads) y[k] = x[k];
}
"""


@dataclass(frozen=True)
class Scale:
    """How much work a measurement does: a GPU needs more than its caches hold, the host executor gets less."""

    stream_bytes: int
    weight_bytes: int  # of the copies of a weight that a GEMV goes through
    launches: int
    rounds: int

    @classmethod
    def of(cls, device: torch.device, emulated: bool, quick: bool) -> Scale:
        """The scale for `device`."""
        rounds = 3 if quick else 5
        return cls(4 << 20, 0, 200, 3) if emulated else cls(256 << 20, 256 << 20, 1000, rounds)


# ------------------------------------------------------------------------------------------------------------ bandwidth


def bandwidth(device: torch.device, scale: Scale) -> Row:
    """GB/s of reading and of copying (bytes read plus bytes written), by kernels and by torch's own copy."""
    library = compile_shader(STREAM)
    x = torch.ones(scale.stream_bytes // 4, device=device)
    y, vectors = torch.empty_like(x), x.numel() // 4
    threads = min(vectors, 256 * 1024)
    sums = torch.empty(threads, device=device)
    nbytes = x.nbytes

    def rate(moved: int, call: Callable[[], object]) -> float:
        return moved / seconds(device, call, rounds=scale.rounds) / 1e9

    row = {
        "bytes": nbytes,
        "read_gb_s": rate(nbytes, lambda: library.read_all(x, sums, vectors, threads=threads)),
        "copy_gb_s": rate(2 * nbytes, lambda: library.copy_all(x, y, vectors, threads=threads)),
    }
    tolerance.assert_equal(sums.cpu().double().sum(), torch.tensor(float(x.numel()), dtype=torch.float64))
    tolerance.assert_equal(y.cpu(), x.cpu())
    return {**row, "torch_copy_gb_s": rate(2 * nbytes, lambda: y.copy_(x))}


# ------------------------------------------------------------------------------------------------------------- dispatch


def dispatch(device: torch.device, scale: Scale) -> Row:
    """Microseconds for a launch that does nothing; each launch depends on the one before.

    one_by_one_us: launch and wait (a command buffer each). from_python_us: launch many, then wait. encode_us: the part
    of that spent below Python (on the host executor this includes the kernel). replayed_us: many, from a graph that is
    encoded again.
    """
    x, chain = _chain(device)
    n = scale.launches

    def alone() -> None:
        chain(1)
        synchronize(device)

    one = seconds(device, alone, rounds=scale.rounds)
    many = seconds(device, lambda: chain(n), round_s=0.0, rounds=scale.rounds) / n
    runtime.reset_counters()
    tolerance.assert_equal(chain(n).cpu(), x.cpu())
    counts = runtime.counters()

    device_ = devices.of(device)
    replayed = {}
    for how in (how for how in device_.replays if how != "indirect"):
        with device_.replaying(how):
            replayed[how] = _replayed(device, scale)
    return {
        "launches": n,
        "one_by_one_us": one * 1e6,
        "from_python_us": many * 1e6,
        "encode_us": counts.host_ns / counts.launches / 1e3,
        "replayed_us": replayed["serial"],
        "concurrent_us": replayed.get("concurrent"),
    }


def indirect(device: torch.device, scale: Scale, asked: bool) -> Row:
    """indirect_us: microseconds for a launch from a graph as an indirect command buffer; None, with the reason, if
    there is none or nobody has asked: a GPU that fails on one runs nothing more in this process.
    """
    if "indirect" not in devices.of(device).replays:
        return {"indirect_us": None, "no_indirect": "this executor has no indirect command buffers"}
    if not asked:
        return {"indirect_us": None, "no_indirect": "indirect command buffers not measured: --icb does so, last"}
    with devices.of(device).replaying("indirect"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        measured = _replayed(device, scale)
    if refused := [str(w.message) for w in said if "graphs are encoded again" in str(w.message)]:
        return {"indirect_us": None, "no_indirect": scrub(refused[0])}
    return {"indirect_us": measured, "no_indirect": None}


def _chain(device: torch.device) -> tuple[Tensor, Callable[[int], Tensor]]:
    """A tensor, and what makes `n` launches of it, each of what the one before wrote; the values stay."""
    x, weight = torch.ones(1, 64, device=device), torch.ones(64, device=device)

    def chain(n: int) -> Tensor:
        y = x
        for _ in range(n):
            y = ops.rms_norm(y, weight, 0.0)
        return y

    return x, chain


def _replayed(device: torch.device, scale: Scale) -> float:
    x, chain = _chain(device)
    with capture() as graph:
        last = chain(scale.launches)
    last.zero_()
    once = seconds(device, graph.replay, round_s=0.0, rounds=scale.rounds) / scale.launches
    tolerance.assert_equal(last.cpu(), x.cpu())
    return once * 1e6


# ----------------------------------------------------------------------------------------------------------------- gemv

SHAPES = [  # out_features, in_features
    ("o_proj, 0.5 B", 896, 896),
    ("gate_proj, 0.5 B", 4864, 896),
    ("down_proj, 0.5 B", 896, 4864),
    ("q_proj, 7 B", 4096, 4096),
    ("lm_head, 0.5 B", 151936, 896),
]
QUICK_FORMATS = ("f16", "q8_0", "q4_0")
FORMATS = ("f32", "bf16", *QUICK_FORMATS)
CHUNK = 1 << 22  # weights that are held in float64 at a time


def gemv_jobs(quick: bool, emulated: bool) -> list[tuple[str, int, int, str]]:
    """(name, N, K, format) of what `gemv` measures. The largest shape is smaller on the host executor."""
    shapes = [(name, min(n, 16384) if emulated else n, k) for name, n, k in (SHAPES[:4] if quick else SHAPES)]
    formats = QUICK_FORMATS if quick else FORMATS
    return [(name, n, k, fmt) for name, n, k in shapes for fmt in formats]


def gemv(device: torch.device, scale: Scale, job: tuple[str, int, int, str]) -> Row:
    """One row of float16 times a weight [N, K]: GB/s of what must be moved, for us and (dense weights) for stock torch.

    Replays a graph over several copies of the weight that together exceed every cache, as a decoder's layers do. Every
    output of the timed calls is checked afterwards; `valid` says whether the figures can be trusted.
    """
    name, n, k, fmt = job
    g = tolerance.generator(n, k)
    dense = torch.randn(n, k, generator=g) * k**-0.5
    weight = quant.quantize(dense, fmt)
    del dense
    x = tolerance.normal(g, 1, k, dtype=torch.float16)
    copies = max(1, min(64, scale.weight_bytes // weight.nbytes))
    weights, placed = [weight.to(device, copy=True) for _ in range(copies)], x.to(device)
    with capture() as graph:
        outputs = [ops.linear(placed, w, format=fmt) for w in weights]
    moved = (weight.nbytes + x.nbytes + 2 * n) * copies
    row = {"name": name, "n": n, "k": k, "format": fmt, "copies": copies, "bytes": moved // copies}
    row["gb_s"] = moved / seconds(device, graph.replay, rounds=scale.rounds) / 1e9
    row["stock_gb_s"] = None
    if not quant.FORMATS[fmt].packed:
        cast = placed.to(weight.dtype)
        stock = seconds(device, lambda: [F.linear(cast, w) for w in weights], rounds=scale.rounds)
        row["stock_gb_s"] = moved / stock / 1e9
    try:
        for chunk in _row_chunks(n, k):
            _check_gemv(x, weight[chunk], fmt, outputs[0].cpu()[:, chunk])
        for other in outputs[1:]:
            tolerance.assert_equal(other.cpu(), outputs[0].cpu())
    except tolerance.Mismatch as wrong:
        return {**row, "valid": False, "error": str(wrong)}
    return {**row, "valid": True}


def _row_chunks(n: int, k: int) -> Iterator[slice]:
    step = max(1, CHUNK // k)
    return (slice(first, min(first + step, n)) for first in range(0, n, step))


def _check_gemv(x: Tensor, weight: Tensor, fmt: str, got: Tensor) -> None:
    given = {"x": x, "weight": weight, "format": fmt, "bias": None, "residual": None, "scale": 1.0, "activation": None}
    wide = op_checks.dense_of(given)
    expected, stock = x.double() @ wide.T, F.linear(x.float(), wide.float()).to(got.dtype)
    tolerance.assert_norm(got, expected, stock)
    tolerance.assert_bound(got, expected, op_checks.linear_bound(given, expected))
