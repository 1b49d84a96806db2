"""Finds the fastest variant of a kernel for a shape on the present machine. A candidate that is wrong never wins."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from torch_foundry import ops, quant
from torch_foundry.core import devices, tuning
from torch_foundry.core.ahead import KernelList
from torch_foundry.core.graph import capture
from torch_foundry.diagnostics import tune_routes
from torch_foundry.diagnostics.tune_workloads import DTYPES, Workload, workload
from torch_foundry.hf.first_token import record_first_token
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
TUNED = ("linear", "norm_linear", "moe_glu", "moe_down", "attention")
AS_MATRICES = {"linear": "matrices", "norm_linear": "norm_matrices"}  # the same products, any number of rows
ORDER = ("split", "chains")  # what rows share, as the order of their sums depends on it: found for one row
Choice = dict[str, int]


def saved(device: torch.device) -> tuning.Table:
    """What was found on this machine, with these kernels and this torch, for the family of `device`; empty if nothing
    was. TuningError or OSError for a file that can't be used."""
    empty = tuning.new_table(tuning.family(device), devices.of(device).name(device))
    path = tuning.path_of(empty)
    return tuning.read(path) if path.is_file() else empty


def keys(
    formats: list[str], shapes: list[tuple[int, int]], rows: list[int], by_matrices: bool = False
) -> list[tuning.Key]:
    """What to tune: one key per bucket. Keys of one row come first, because the other rows take their order of sums
    from it. by_matrices: also whether few rows are multiplied so, and how.

    Each format leaves out the shapes whose rows are not whole blocks of it: `left_out`.
    """
    found: dict[tuple[object, ...], tuning.Key] = {}
    for name in formats:
        for op, of_op in _shapes(shapes).items():
            for n, k in (shape for shape in of_op if _fits(name, shape)):
                every = [tuning.Key(op, name, m, n, k) for m in (sorted({1, *rows}) if op in AS_MATRICES else [1])]
                if by_matrices and op in AS_MATRICES and _asks_for_matrices(name, k):
                    every.append(tuning.Key(AS_MATRICES[op], name, 1, n, k))
                for key in every:
                    found.setdefault((key.op, name, key.rows, *tuning.bucket(key)), key)
    for name in formats:
        if name in DTYPES:
            for d in TUNED_HEAD_DIMS:
                found[(name, d)] = tuning.Key("attention", name, 1, d, 1)
    return list(found.values())


def keys_of(model: nn.Module, device: torch.device, by_matrices: bool = False) -> list[tuning.Key]:
    """What to tune for a patched language model on `device`: a key for each bucket that a prompt or a step of one
    sequence asks for. ValueError if that can't be found out.

    by_matrices: as in `keys`.
    """
    kernels, problems = record_first_token(model, device)
    found: dict[tuple[object, ...], tuning.Key] = {}
    for key in itertools.starmap(tuning.Key, kernels.asked()):
        if key.op in (*TUNED, *(AS_MATRICES.values() if by_matrices else ())):
            found.setdefault((key.op, key.format, key.rows, *tuning.bucket(key)), key)
        if key.op == "linear" and key.rows > 1 and key.n <= MOST_OUTPUTS:  # what a prompt multiplies by
            route = tuning.Key("linear_routes", key.format, 1, key.n, key.k)
            found.setdefault((route.op, key.format, *tuning.bucket(route)), route)
    if not found:
        raise ValueError("; ".join(["no kernel of the model is chosen by shape", *map(str, problems)]))
    return sorted(found.values(), key=lambda key: (key.rows, key.op in AS_MATRICES.values()))


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


def _asks_for_matrices(name: str, k: int) -> bool:
    """Whether `ops.linear` may multiply few rows by matrices with weights of that format and width."""
    fmt, kernels = quant.get_format(name), KernelList(torch.device("cpu"))
    x = torch.empty(1, k, dtype=DTYPES.get(name, torch.float16), device="meta")
    columns, dtype = (fmt.row_size(k), torch.uint8) if fmt.packed else (k, x.dtype)
    with kernels.record():
        ops.linear(x, torch.empty(64, columns, dtype=dtype, device="meta"), format=name if fmt.packed else None)
    return any(op == "matrices" for op, *_ in kernels.asked())


def _fits(name: str, shape: tuple[int, int]) -> bool:
    return shape[1] % quant.get_format(name).block_size == 0


def candidates(key: tuning.Key, current: Choice) -> Iterator[Choice]:
    """The neighbours of a choice: one parameter changed, or the two that make a threadgroup's shape."""
    space = {name: list(values) for name, values in tuning.parameters(key.op).items()}
    if key.op in AS_MATRICES.values():
        space["outputs"].remove(0)  # not by matrices
    elif "steps" in space and not quant.get_format(key.format).packed:
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

    matrices, norm_matrices: products go so if one row, with the choice found, takes no longer than without; more rows
    then take little longer than one. linear_routes: as `tune_routes.tune`.
    """
    if key.op == "linear_routes":
        return tune_routes.tune(key, device)
    family, work = tuning.family(device), workload(key, device)
    first = tuning.choice(family, key)
    times: dict[tuple[int, ...], float] = {}

    def measure(choice: Choice) -> float:
        at = tuple(choice.values())
        if at not in times:
            times[at] = _time(key, family, device, work, choice)
        return times[at]

    def compile(choices: list[Choice]) -> None:
        _compile(key, family, device, work, [c for c in choices if tuple(c.values()) not in times])

    if key.op not in AS_MATRICES.values():
        with _without_matrices(family, key):
            best, default_us = _descend(key, first, measure, compile), measure(first)
    else:
        without = {**first, "outputs": 0}
        starts = [{**first, "outputs": outputs} for outputs in tuning.parameters(key.op)["outputs"] if outputs]
        best = _descend(key, first if first["outputs"] else min(starts, key=measure), measure, compile)
        best, default_us = min(best, without, key=measure), measure(first)
    tuning.use(family, key, best)
    return tuning.Entry(key, best, measure(best), default_us)


def _descend(
    key: tuning.Key, best: Choice, measure: Callable[[Choice], float], compile: Callable[[list[Choice]], None]
) -> Choice:
    while True:
        near = list(candidates(key, best))
        compile(near)
        better = min(near, key=measure, default=best)
        if measure(better) >= 0.98 * measure(best):  # less is noise
            return best
        best = better


@contextlib.contextmanager
def _without_matrices(family: str, key: tuning.Key) -> Iterator[None]:
    """Inside, few rows of `key`'s shape are multiplied by lanes, whatever the table says."""
    if key.op not in AS_MATRICES:
        yield
        return
    other = tuning.Key(AS_MATRICES[key.op], key.format, 1, key.n, key.k)
    before = tuning.choice(family, other)
    tuning.use(family, other, {**before, "outputs": 0})
    try:
        yield
    finally:
        tuning.use(family, other, before)


def _compile(key: tuning.Key, family: str, device: torch.device, work: Workload, choices: list[Choice]) -> None:
    """Compile side by side what `choices` would launch."""
    call, kernels = work.calls[0], KernelList(device)
    args, options = tree_map_only(Tensor, lambda t: t.to("meta"), (call.args, call.keywords))
    with kernels.record():
        for choice in choices:
            with contextlib.suppress(RuntimeError):  # measured as infinite
                tuning.use(family, key, choice)
                call.func(*args, **options)
    kernels.compile()


def _time(key: tuning.Key, family: str, device: torch.device, work: Workload, choice: Choice) -> float:
    """Microseconds of a call; infinite for a choice that breaks a limit, can't be launched or gives a wrong result."""
    try:
        tuning.use(family, key, choice)
        work.check()
    except (RuntimeError, truth.Mismatch):
        return float("inf")
    with capture() as graph:  # no Python between the launches
        results = [call() for call in work.calls * -(-LAUNCHES // len(work.calls))]
    return 1e6 * timing.seconds(device, graph.replay, round_s=ROUND_S) / len(results)
