"""One case of one op: its result compared with float64, then its time beside that of stock torch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import Case, Given, Op
from benchmarks.harness import clock
from benchmarks.harness.clock import Times
from benchmarks.harness.machine import Machine
from benchmarks.harness.record import Parity, Record
from torch_foundry import quant
from torch_foundry.core import runtime
from torch_foundry.core.graph import capture
from torch_foundry.testing import tolerance

CRITERION = "float64: L2 and largest error at most twice torch's; timed results the same bits"
LAUNCHES = 16  # in a round, at least
COPIES = 512  # of a case's inputs, at most


@dataclass(frozen=True)
class Effort:
    """How much is done for one figure. cache_bytes: size of the inputs that calls use in turn."""

    cache_bytes: int
    rounds: int = 20
    budget_s: float = 0.5
    seed: int = 0


def measure(case: Case, op: Op, device: torch.device, machine: Machine, effort: Effort) -> Record:
    """The record of a case. It is invalid if the op was wrong, before or while it was timed."""
    given = op.inputs(case, torch.Generator(device).manual_seed(effort.seed))
    dense = given.pop("dense", {})
    meant = {**given, **dense}
    del dense
    stored = quant.get_format(case.format)
    flops, moved = op.cost(case, stored.row_size(case.k) * stored.dtype.itemsize)
    _, stock_moved = op.cost(case, case.k * case.dtype.itemsize)
    row = Record(
        kind="op",
        name=case.op,
        way=machine.executor,
        format=case.format,
        shape=case.shape(),
        machine=machine,
        bytes=moved,
        flops=flops or None,
        stock=f"{op.stock_is} {str(case.dtype).removeprefix('torch.')}",
        stock_bytes=stock_moved,
        seed=effort.seed,
        extra={"clock": clock.clock_name(device)},
    )
    ours, stock = partial(op.run, format=case.format), partial(op.stock, format=case.format)
    expected, parity = check(op, case, given, meant)
    found, agreed = _time_ours(ours, given, expected, device, effort)
    if parity.ok and not agreed:
        parity = Parity(False, CRITERION, parity.error, "a timed call gave another result than the checked one")
    del given, expected
    stock_times, how = _time_stock(stock, meant, device, effort)
    if how == "CUDA graph":  # as ours
        row.extra["from_python_us"] = found.pop("as_stock").as_dict()
    extra = {**row.extra, "stock_how": how}
    return dataclasses.replace(row, **found, parity=parity, stock_times=stock_times, extra=extra)


# --------------------------------------------------------------------------------------------------------------- parity


def check(op: Op, case: Case, given: Given, meant: Given) -> tuple[tuple[Tensor, ...], Parity]:
    """The op's result, and whether it is right: compared with float64 on the CPU, or on CUDA, which has float64."""
    got = _several(op.run(**_clone(given), format=case.format))
    device = got[0].device
    where = device if device.type == "cuda" else torch.device("cpu")
    wide = {name: tolerance.double(value.to(where)) for name, value in meant.items()}
    expected = _several(op.truth(**wide, format=case.format))
    del wide
    stock = _several(op.stock(**_clone(meant), format=case.format))
    error = 0.0
    try:
        for mine, right, theirs in zip(got, expected, stock, strict=True):
            error = max(error, _agree(mine.to(where), right, theirs.to(where)))
    except tolerance.Mismatch as wrong:
        return got, Parity(False, CRITERION, None, str(wrong))
    return got, Parity(True, CRITERION, error)


def _agree(got: Tensor, expected: Tensor, stock: Tensor) -> float:
    if not got.is_floating_point():
        tolerance.assert_equal(got, expected)
        return 0.0
    tolerance.assert_norm(got, expected, stock)
    allowed = 2 * (stock.double() - expected).abs().amax() + tolerance.FLOOR[got.dtype] * expected.abs().amax()
    worst = (got.double() - expected).abs().amax()
    if not bool(worst <= allowed):
        raise tolerance.Mismatch(f"largest error {worst.item():.3e}, allowed {allowed.item():.3e}")
    return tolerance.relative_error(got, expected)


def _several(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _clone(given: Given) -> Given:
    return {name: value.clone() for name, value in given.items()}


# --------------------------------------------------------------------------------------------------------------- timing


def _copies(given: Given, cache_bytes: int) -> list[Given]:
    """Equal inputs, each in memory of its own, that together are larger than `cache_bytes`."""
    nbytes = sum(value.nbytes for value in given.values())
    return [_clone(given) for _ in range(1 + min(COPIES - 1, cache_bytes // max(nbytes, 1)))]


def _turns(copies: list[Given]) -> list[Given]:
    return copies * -(-LAUNCHES // len(copies))


def _time_ours(
    run: Callable[..., Any], given: Given, expected: tuple[Tensor, ...], device: torch.device, effort: Effort
) -> tuple[dict[str, Any], bool]:
    """Times of a graph's calls and of calls from Python, launches and host time of a call; and whether all results of
    the graph are `expected`.
    """
    turns = _turns(_copies(given, effort.cache_bytes))

    def calls() -> None:
        for inputs in turns:
            run(**inputs)

    calls()
    runtime.reset_counters()
    calls()
    counts = runtime.counters()
    with capture() as graph:
        results = [_several(run(**inputs)) for inputs in turns]
    found = {
        "times": clock.measure(device, graph.replay, len(turns), rounds=effort.rounds, budget_s=effort.budget_s),
        "launches": counts.launches / len(turns),
        "host_us": round(counts.host_ns / len(turns) / 1e3, 3),
    }
    agreed = all(torch.equal(a, b) for result in results for a, b in zip(result, expected, strict=True))
    del results
    found["as_stock"] = clock.measure(device, calls, len(turns), rounds=effort.rounds, budget_s=effort.budget_s)
    return found, agreed


def _time_stock(run: Callable[..., Any], given: Given, device: torch.device, effort: Effort) -> tuple[Times, str]:
    """Times of stock torch's calls: as a CUDA graph if it can be captured, so that neither side pays for Python."""
    turns = _turns(_copies(given, effort.cache_bytes))

    def calls() -> None:
        for inputs in turns:
            run(**inputs)

    replay, how = calls, "eager"
    if device.type == "cuda":
        with contextlib.suppress(RuntimeError):
            calls()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                calls()
            replay, how = graph.replay, "CUDA graph"
    times = clock.measure(device, replay, len(turns), rounds=effort.rounds, budget_s=effort.budget_s)
    return times, how
