"""Finds up to how many rows of x each kernel, and then torch's product, is the fastest here: `linear_routes`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.core import devices, runtime, tuning
from torch_foundry.diagnostics.tune_workloads import copies, drawn, outputs
from torch_foundry.generation.step_graph import SegmentedGraph
from torch_foundry.nn.linear import linear_gemm, linear_gemm_backward
from torch_foundry.testing import reference, timing
from torch_foundry.testing import tolerance as truth

TORCH = "torch"  # the route beyond the last limit
ROUND_S = 0.02  # seconds of a measurement
ROWS_OF_ROUND = 128  # about: that many rows in all, of one call or of several
Product = Callable[[Tensor, Tensor], Tensor]  # x or its gradient [rows, ..] and W to a result
Times = Mapping[str, Mapping[int, float]]  # of each route, by rows: microseconds of a call; infinite for a wrong result


def tune(key: tuning.Key, device: torch.device) -> tuning.Entry:
    """Use the limits with which products take least: the times in the entry are geometric means over numbers of rows.

    Every route is held against float64 at every number of rows that may be a limit of it. The limits are then in use.
    """
    family, space = tuning.family(device), tuning.parameters(key.op)
    first = tuning.choice(family, key)
    if devices.of(device).emulated:  # whose rows take long
        space = {name: tuple(rows for rows in values if rows <= 32) for name, values in space.items()}
    try:
        forward, *others = _times(key, family, device, space)
    finally:
        tuning.use(family, key, first)
    best = first
    for times in (forward, *others):
        best = best | least(times, space, first)
    tuning.use(family, key, best)
    return tuning.Entry(key, best, mean(forward, best), mean(forward, first))


def route_of(routes: Sequence[str], limits: Mapping[str, int], rows: int) -> str:
    """Which of `routes`, in their order, serves so many rows."""
    return next((name for name in routes if rows <= limits.get(name, -1)), TORCH)


def mean(times: Times, limits: Mapping[str, int]) -> float:
    """The geometric mean, over all numbers of rows, of the times of the routes that `limits` choose."""
    chosen = [times[route_of(list(times), limits, rows)][rows] for rows in times[TORCH]]
    return math.inf if math.inf in chosen else math.exp(sum(map(math.log, chosen)) / len(chosen))


def least(times: Times, space: Mapping[str, tuple[int, ...]], first: Mapping[str, int]) -> dict[str, int]:
    """The limits, each of its space, with the least mean; those of `first` unless others are 2 % better."""
    names = [name for name in times if name != TORCH]
    every = [dict(zip(names, values, strict=True)) for values in product(*(space[name] for name in names))]
    best, now = min(every, key=partial(mean, times)), {name: first[name] for name in names}
    return best if mean(times, best) < 0.98 * mean(times, now) else now


def _times(key: tuning.Key, family: str, device: torch.device, space: Mapping[str, tuple[int, ...]]) -> list[Times]:
    """Forward, and of packed weights as an expert and backward. Leaves some choice in use."""
    packed = quant.get_format(key.format).packed
    name = key.format if packed else None
    x, stored, dense = drawn(truth.generator(key), key, device, max(max(values) for values in space.values()))
    weights = copies(stored, key.n, device)

    def by_op(limits: dict[str, int], a: Tensor, weight: Tensor) -> Tensor:
        tuning.use(family, key, limits)
        return ops.linear(a, weight, format=name)

    routes: dict[str, Product] = {
        each: partial(by_op, {other: max(space[each]) if other == each else min(space[other]) for other in space})
        for each in _ways(packed, x.dtype, device)
    }
    routes[TORCH] = lambda a, weight: linear_gemm(a, weight, name, None)
    exact, stock = (outputs(reference.linear(a, dense.to(a.dtype)), key.n) for a in (x.double(), x))
    forward = _measured(routes, space, x, weights, exact, stock)
    if not packed:
        return [forward]
    ids = torch.zeros(len(x), 1, dtype=torch.int32, device=device)

    def of_expert(a: Tensor, weight: Tensor) -> Tensor:
        return ops.moe_linear(a, *ops.moe_group(ids[: len(a)], 1), weight[None], format=key.format)

    experts = _measured({"experts": of_expert, TORCH: routes[TORCH]}, space, x, weights, exact, stock)
    routes = {
        "backward": partial(ops.linear_backward_input, format=key.format),
        TORCH: lambda grad, weight: linear_gemm_backward(grad, weight, key.format),
    }
    grad = truth.normal(truth.generator(key), len(x), key.n, dtype=x.dtype)
    whole = outputs(dense.T, key.n)
    exact, stock = grad.double() @ whole.T.double(), grad @ whole.T.to(grad.dtype)
    return [forward, experts, _measured(routes, space, grad, weights[:1], exact, stock)]


def _ways(packed: bool, dtype: torch.dtype, device: torch.device) -> Iterator[str]:
    """Those of `ops.linear`, in their order."""
    yield "rows"
    if packed and dtype.itemsize == 2:
        yield "matrix"
    if dtype.itemsize == 2 and (tensors := runtime.tensor_operations(device)) and tensors.used:
        yield "tensors"
    yield "tiles"


def _measured(
    routes: Mapping[str, Product],
    space: Mapping[str, tuple[int, ...]],
    x: Tensor,
    weights: list[Tensor],
    exact: Tensor,
    stock: Tensor,
) -> Times:
    """Of each route: at the rows that may be its limits; elsewhere it takes for ever."""
    limits = {name: space[name] for name in routes if name != TORCH}
    every = sorted(set().union(*limits.values()) - {0})
    times = {name: dict.fromkeys(every, math.inf) for name in routes}
    for name, rows in product(routes, every):
        if name == TORCH or rows <= max(limits[name]):
            call = partial(routes[name], x[:rows].to(weights[0].device))
            right = _right(call, weights[0], exact[:rows], stock[:rows])
            calls = [partial(call, weights[i % len(weights)]) for i in range(max(2, ROWS_OF_ROUND // rows))]
            times[name][rows] = _time(weights[0].device, calls, name != TORCH) if right else math.inf
    return times


def _right(call: Callable[[Tensor], Tensor], weight: Tensor, exact: Tensor, stock: Tensor) -> bool:
    """Whether it can be launched and gives the right result, and the same when it is called again."""
    try:
        got = call(weight)
        truth.assert_norm(got.cpu(), exact, stock)
        return torch.equal(got, call(weight))
    except (RuntimeError, truth.Mismatch):
        return False


def _time(device: torch.device, calls: Sequence[Callable[[], Tensor]], ours: bool) -> float:
    """Microseconds of a call in a captured step: of our launches, or of torch's beside them."""
    graph = SegmentedGraph(device)
    with torch.no_grad(), graph.capture():
        for call in calls:
            if ours:
                call()
            else:
                graph.call(call)
    return 1e6 * timing.seconds(device, graph.replayer(), round_s=ROUND_S) / len(calls)
