"""Finds the fastest variant of a kernel for a shape on the present machine. A candidate that is wrong never wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from torch_foundry import quant
from torch_foundry.core import tuning
from torch_foundry.core.graph import capture
from torch_foundry.diagnostics import tune_routes
from torch_foundry.diagnostics.tune_workloads import DTYPES, Workload, workload
from torch_foundry.testing import timing
from torch_foundry.testing import tolerance as truth

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
MOST_OUTPUTS = 1 << 15  # of matrices that many rows are multiplied by: beyond are those of vocabularies
ROUND_S = 0.02  # seconds of a measurement
LAUNCHES = 16  # in a graph, at least
ORDER = ("split", "chains")  # what rows share, as the order of their sums depends on it: found for one row


def keys(formats: list[str], shapes: list[tuple[int, int]], rows: list[int]) -> list[tuning.Key]:
    """What to tune: one key per bucket. Keys of one row come first, because the other rows take their order of sums
    from it.

    Each format leaves out the shapes whose rows are not whole blocks of it: `left_out`.
    """
    found: dict[tuple[object, ...], tuning.Key] = {}
    for name in formats:
        for op, of_op in _shapes(shapes).items():
            for n, k in (shape for shape in of_op if _fits(name, shape)):
                for m in sorted({1, *rows}) if op in ("linear", "norm_linear") else [1]:
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
    routes = {"linear_routes": [(n, k) for n, k in shapes if n <= MOST_OUTPUTS]}
    if shapes != list(SHAPES):
        return {"linear": shapes, "norm_linear": shapes, **routes}
    return {"linear": shapes, "norm_linear": NORM_SHAPES, **EXPERT_SHAPES, **routes}


def _fits(name: str, shape: tuple[int, int]) -> bool:
    return shape[1] % quant.get_format(name).block_size == 0


def candidates(key: tuning.Key, current: dict[str, int]) -> Iterator[dict[str, int]]:
    """The neighbours of a choice: one parameter changed, or the two that make a threadgroup's shape."""
    space = {name: list(values) for name, values in tuning.parameters(key.op).items()}
    if "steps" in space and not quant.get_format(key.format).packed:
        space["steps"].remove(0)  # of packed codes
    if "chains" in space and current["chains"] != 2:
        space["chains"].remove(2)  # of devices whose built-in choice it is
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
    """Move from the choice in use to a faster neighbour until there is none; the last one is then in use.

    linear_routes: as `tune_routes.tune`.
    """
    if key.op == "linear_routes":
        return tune_routes.tune(key, device)
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
