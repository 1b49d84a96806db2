"""Finds the fastest variant of a kernel for a shape on the present machine. A candidate that is wrong never wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.core import devices, tuning
from torch_foundry.core.graph import capture
from torch_foundry.testing import reference, timing
from torch_foundry.testing import tolerance as truth
from torch_foundry.testing import weights as blocks

ROWS = (1, 2, 4, 8)
TUNED_HEAD_DIMS = (64, 96, 128, 256)
# Outputs and inputs of the linear layers of Qwen2.5-0.5B, Llama-3.2-1B, Qwen3-4B and Llama-3-8B.
SHAPES = (
    *((128, 896), (896, 896), (4864, 896), (9728, 896), (896, 4864), (151936, 896)),
    *((512, 2048), (2048, 2048), (8192, 2048), (2048, 8192), (128256, 2048)),
    *((1024, 2560), (4096, 2560), (2560, 4096), (9728, 2560), (2560, 9728), (151936, 2560)),
    *((1024, 4096), (4096, 4096), (14336, 4096), (4096, 14336), (128256, 4096)),
)
NORM_SHAPES = (  # q, k and v together, and gate and up: they follow a norm
    *((1152, 896), (9728, 896), (3072, 2048), (16384, 2048)),
    *((6144, 2560), (19456, 2560), (6144, 4096), (28672, 4096)),
)
# Outputs and inputs of the experts of Qwen3-30B-A3B, Qwen1.5-MoE-A2.7B and Mixtral-8x7B: gate and up, down.
EXPERT_SHAPES = {
    "moe_glu": ((1536, 2048), (2816, 2048), (28672, 4096)),
    "moe_down": ((2048, 768), (2048, 1408), (4096, 14336)),
}
EXPERTS, CHOSEN = 8, 4  # of a workload
ROUND_S = 0.02  # seconds of a measurement
LAUNCHES = 16  # in a graph, at least
CACHE_BYTES = 128 << 20  # weights are used in turn, so that they come from memory as in a model
ORDER = ("split", "chains")  # what rows share, as the order of their sums depends on it: found for one row
EPS = 1e-5  # of norms
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def keys(formats: list[str], shapes: list[tuple[int, int]], rows: list[int]) -> list[tuning.Key]:
    """What to tune: one key per bucket. Keys of one row come first, because the other rows take their order of sums
    from it.

    Each format leaves out the shapes whose rows are not whole blocks of it: `left_out`.
    """
    found: dict[tuple[object, ...], tuning.Key] = {}
    for name in formats:
        for op, of_op in _shapes(shapes).items():
            for n, k in (shape for shape in of_op if _fits(name, shape)):
                for m in [1] if op in EXPERT_SHAPES else sorted({1, *rows}):
                    key = tuning.Key(op, name, m, n, k)
                    found.setdefault((op, name, m, *tuning.bucket(key)), key)
    for name in formats:
        if name in DTYPES:
            for d in TUNED_HEAD_DIMS:
                found[(name, d)] = tuning.Key("attention", name, 1, d, 1)
    return list(found.values())


def left_out(formats: list[str], shapes: list[tuple[int, int]]) -> dict[str, list[tuple[int, int]]]:
    """Of each format, the shapes that `keys` leaves out; formats without any are not in it."""
    every = list(dict.fromkeys(shape for of_op in _shapes(shapes).values() for shape in of_op))
    found = {name: [shape for shape in every if not _fits(name, shape)] for name in formats}
    return {name: left for name, left in found.items() if left}


def _shapes(shapes: list[tuple[int, int]]) -> dict[str, Sequence[tuple[int, int]]]:
    """The shapes of each op: `shapes`, or where these are the usual ones, the op's own."""
    if shapes != list(SHAPES):
        return {"linear": shapes, "norm_linear": shapes}
    return {"linear": shapes, "norm_linear": NORM_SHAPES, **EXPERT_SHAPES}


def _fits(name: str, shape: tuple[int, int]) -> bool:
    return shape[1] % quant.get_format(name).block_size == 0


@dataclass
class Workload:
    """Calls of an op on inputs of their own, and the result that the first of them must have."""

    calls: list[Callable[[], Tensor]]
    truth: Tensor
    stock: Tensor

    def check(self) -> None:
        """Raise truth.Disagreement unless the first call's result is right, and the same when it is called again."""
        got = self.calls[0]()
        truth.assert_norm(got.cpu(), self.truth, self.stock)
        if not torch.equal(got, self.calls[0]()):
            raise truth.Mismatch("two calls gave different results")


def workload(key: tuning.Key, device: torch.device) -> Workload:
    """What `key` is timed and checked with."""
    if key.op == "attention":
        return _attention(key, device)
    return _experts(key, device) if key.op in EXPERT_SHAPES else _linear(key, device)


def _linear(key: tuning.Key, device: torch.device) -> Workload:
    g = truth.generator(key)
    fmt = quant.get_format(key.format)
    dtype = DTYPES.get(key.format, torch.float16 if devices.of(device).half else torch.float32)
    x = truth.normal(g, key.rows, key.k, dtype=dtype)
    sample = min(key.n, 4096)  # rows of W that are random; the others repeat them
    drawn = truth.normal(g, sample, key.k, dtype=torch.float32, scale=key.k**-0.5)
    weight = blocks.packed(drawn, key.format) if fmt.packed else drawn.to(dtype)
    dense = quant.dequantize(weight, key.format) if fmt.packed else weight
    gain = truth.normal(g, key.k, dtype=dtype)
    if normed := key.op == "norm_linear":
        rows, rounded = (reference.rms_norm(t, gain.to(t.dtype), EPS) for t in (x.double(), x))
    else:
        rows, rounded = x.double(), x
    exact, stock = reference.linear(rows, dense.double()), reference.linear(rounded, dense.to(dtype))
    whole = weight.repeat(-(-key.n // sample), 1)[: key.n].to(device)
    copies = [whole] + [whole.clone() for _ in range(min(64, CACHE_BYTES // whole.nbytes))]
    x, gain = x.to(device), gain.to(device)
    name = key.format if fmt.packed else None
    calls: list[Callable[[], Tensor]] = [
        partial(ops.norm_linear, x, gain, EPS, [w], formats=[name])
        if normed
        else partial(ops.linear, x, w, format=name)
        for w in copies
    ]
    repeats = -(-key.n // sample)
    return Workload(calls, exact.repeat(1, repeats)[:, : key.n], stock.repeat(1, repeats)[:, : key.n])


def _experts(key: tuning.Key, device: torch.device) -> Workload:
    """A token and its experts, whose rows are a few in random order: the right products are taken from those."""
    g, fmt = truth.generator(key), quant.get_format(key.format)
    dtype = DTYPES.get(key.format, torch.float16 if devices.of(device).half else torch.float32)
    drawn = truth.normal(g, min(key.n, 1024), key.k, dtype=torch.float32, scale=key.k**-0.5)
    few = blocks.packed(drawn, key.format) if fmt.packed else drawn.to(dtype)
    dense = quant.dequantize(few, key.format) if fmt.packed else few
    rows = torch.randint(0, few.shape[0], (EXPERTS, key.n), generator=g)
    ids = torch.randperm(EXPERTS, generator=g)[None, :CHOSEN].int()
    weights = torch.rand(1, CHOSEN, generator=g)
    whole, name = few.to(device)[rows.to(device)], key.format if fmt.packed else None
    copies = [whole] + [whole.clone() for _ in range(min(64, CACHE_BYTES // whole.nbytes))]
    glu, half = key.op == "moe_glu", key.n // 2
    x = truth.normal(g, 1, *(() if glu else (CHOSEN,)), key.k, dtype=dtype)

    def plain(of: torch.dtype) -> Tensor:
        products = reference.linear(x.to(of), dense.to(of)).expand(1, CHOSEN, -1).gather(2, rows[ids.long()])
        if glu:
            return reference.glu(products[..., :half], products[..., half:], "silu")
        return (products * weights.to(of)[..., None]).sum(1)

    exact, stock, x, ids, weights = plain(torch.float64), plain(dtype), *(t.to(device) for t in (x, ids, weights))
    calls: list[Callable[[], Tensor]] = [
        partial(ops.moe_glu, x, ids, w[:, :half], w[:, half:], format=name)
        if glu
        else partial(ops.moe_down, x, ids, weights, w, format=name)
        for w in copies
    ]
    return Workload(calls, exact, stock)


def _attention(key: tuning.Key, device: torch.device) -> Workload:
    """Decode with grouped-query heads over a long cache, which is what the choice matters for."""
    g, dtype, d = truth.generator(key), DTYPES[key.format], key.n
    heads, kv_heads, length = 8, 2, 1024 if devices.of(device).emulated else 16384
    q = truth.normal(g, 1, heads, 1, d, dtype=dtype)
    k, v = (truth.normal(g, 1, kv_heads, length, d, dtype=dtype) for _ in "kv")
    scale = d**-0.5
    exact = reference.attention(q.double(), k.double(), v.double(), length, scale=scale)
    stock = reference.attention(q, k, v, length, scale=scale)
    q, k, v = q.to(device), k.to(device), v.to(device)
    copies = [(k, v)] + [(k.clone(), v.clone()) for _ in range(min(16, CACHE_BYTES // (2 * k.nbytes)))]
    calls: list[Callable[[], Tensor]] = [
        partial(ops.attention, q, keys, values, length, scale=scale) for keys, values in copies
    ]
    return Workload(calls, exact, stock)


def candidates(key: tuning.Key, current: dict[str, int]) -> Iterator[dict[str, int]]:
    """The neighbours of a choice: one parameter changed, or the two that make a threadgroup's shape."""
    space = tuning.parameters(key.op)
    if "steps" in space and not quant.get_format(key.format).packed:
        space["steps"].remove(0)  # of packed codes
    free = [name for name in space if key.rows == 1 or name not in ORDER]
    for name in free:
        for value in space[name]:
            if value != current[name]:
                yield {**current, name: value}
    if "split" in free:
        for split in space["split"]:
            for simdgroups in space["simdgroups"]:
                if split != current["split"] and simdgroups != current["simdgroups"]:
                    yield {**current, "split": split, "simdgroups": simdgroups}


def tune(key: tuning.Key, device: torch.device) -> tuning.Entry:
    """Move from the choice in use to a faster neighbour until there is none; the last one is then in use."""
    family, work = tuning.family(device), workload(key, device)
    first = tuning.choice(family, key)
    times: dict[tuple[int, ...], float] = {}

    def measure(choice: dict[str, int]) -> float:
        at = tuple(choice.values())
        if at not in times:
            times[at] = _time(key, family, device, work, choice)
        return times[at]

    best, default_us = first, measure(first)
    while True:
        better = min(candidates(key, best), key=measure, default=best)
        if measure(better) >= 0.98 * measure(best):  # less is noise
            break
        best = better
    tuning.use(family, key, best)
    return tuning.Entry(key, best, measure(best), default_us)


def _time(key: tuning.Key, family: str, device: torch.device, work: Workload, choice: dict[str, int]) -> float:
    """Microseconds of a call; infinite for a choice that breaks a limit, can't be launched or gives a wrong result."""
    try:
        tuning.use(family, key, choice)
        work.check()
    except (RuntimeError, truth.Mismatch):
        return float("inf")
    with capture() as graph:  # no Python between the launches
        results = [call() for call in work.calls * -(-LAUNCHES // len(work.calls))]
    return 1e6 * timing.seconds(device, graph.replay, round_s=ROUND_S) / len(results)
