"""Products of packed weights and more rows than eight as 8x8 matrices, against float64, and which go so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault
from test_linear import FULL, PACKED, Case, inputs
from torch import Tensor, nn

from torch_foundry import ops, quant
from torch_foundry.core import limits, tuning
from torch_foundry.core.environment import LINEAR_ROWS, MATRIX_ROWS
from torch_foundry.core.graph import capture
from torch_foundry.generation.step_graph import SegmentedGraph
from torch_foundry.models.weights import Linear
from torch_foundry.nn.linear import FoundryLinear, linear_routes
from torch_foundry.testing import op_checks
from torch_foundry.testing import weights as blocks

DEVICE = torch.device("cpu")
OTHERS = [name for name in blocks.samples() if name not in PACKED]

# m around a threadgroup's rows (32, 64), n around its outputs (16); k of one unit and of more than all simdgroups have.
SHAPES = ((17, 1, 1), (32, 16, 8), (33, 15, 5), (64, 17, 40), (63, 33, 9))
CASES = [(Case(m, n, k * quant.FORMATS[name].block_size, name), F16) for name in PACKED for m, n, k in SHAPES]
CASES += [(Case(40, 24, 2 * quant.FORMATS[name].block_size, name), BF16) for name in PACKED]
CASES += [(Case(33, 20, 2 * quant.FORMATS[name].block_size, name), F16) for name in OTHERS]
CASES += [(Case(33, 24, 256, "q8_0", **FULL), F16), (Case(64, 24, 256, "q4_0", **FULL), BF16)]


@pytest.fixture(autouse=True)
def by_matrices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The host multiplies so if it is told to; a GPU whose table says so does anyway."""
    monkeypatch.setenv(LINEAR_ROWS.name, "16")  # whatever the device's table has
    monkeypatch.setenv(MATRIX_ROWS.name, "64")
    tuning.load_environment()
    yield
    monkeypatch.undo()
    tuning.load_environment()


def run(case: Case, dtype: torch.dtype) -> Tensor:
    return ops.linear(**inputs(case, dtype))


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    given = inputs(case, dtype)
    with kit.poisoned_outputs():
        got = ops.linear(**given)
    op_checks.assert_linear(got, given, rounded=case.format is not None)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_k", "iq2_xs"])
def test_rows_are_alone_and_may_lie_anywhere(name: str) -> None:
    """A row's bits don't depend on the others, on how many there are, nor on addresses."""
    with ahead("none"):
        given = inputs(Case(64, 24, 2 * quant.FORMATS[name].block_size, name), F16)
        x, weight = given["x"], given["weight"]
        expected = ops.linear(**given)
        for rows in (slice(47, 64), slice(0, 33), slice(3, 55)):
            kit.assert_equal(ops.linear(x[rows], weight, format=name), expected[rows])
        for moved in (kit.shifted(x), kit.spread(x), kit.spread(kit.shifted(x), 1)):
            kit.assert_equal(ops.linear(moved, weight, format=name), expected)
        step = quant.FORMATS[name].block_bytes
        for moved in (kit.shifted(weight, min(step, 2)), kit.spread(weight, step)):
            kit.assert_equal(ops.linear(x, moved, format=name), expected)


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    kit.in_every_lane_order(lambda: run(Case(33, 40, 192, "q4_0"), F16))


@pytest.mark.cpu_only
def test_which_products_go_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed weights and 16 bits alone, and rows between those of a vector kernel and the limit."""

    def kernel(x: Tensor, weight: Tensor, name: str | None, batch_invariant: bool = False) -> str:
        with capture() as graph:
            ops.linear(x, weight, format=name, batch_invariant=batch_invariant)
        (launch,) = graph.launches()
        return launch.kernel.split("<")[0]

    packed, dense = quant.quantize(torch.randn(16, 64), "q8_0"), torch.randn(16, 64)
    rows = {m: torch.randn(m, 64) for m in (16, 17, 64, 65)}
    assert kernel(rows[17].half(), packed, "q8_0") == kernel(rows[64].bfloat16(), packed, "q8_0") == "linear_matrix"
    assert kernel(rows[16].half(), packed, "q8_0") == "linear_rows"
    assert kernel(rows[17].half(), packed, "q8_0", True) == "linear_rows"
    assert kernel(rows[65].half(), packed, "q8_0") == kernel(rows[17], packed, "q8_0") == "linear_tiles"
    assert kernel(rows[17].half(), dense.half(), None) == "linear_tiles"
    routes = linear_routes(packed, "q8_0")
    assert routes.most(True, F16) == 64 and routes.most(True, F32) == limits.FEW_ROWS
    assert linear_routes(dense, None).most(False, F16) == 16
    monkeypatch.delenv(MATRIX_ROWS.name)
    tuning.load_environment()
    assert kernel(rows[17].half(), packed, "q8_0") == "linear_tiles"
    routes = linear_routes(packed, "q8_0")
    assert routes.most(True, F16) == limits.FEW_ROWS and routes.matrix == 0


@pytest.mark.cpu_only  # on the mock every call is watched, so no step is captured
def test_modules_and_captured_steps_take_it() -> None:
    """What asked torch for the product asks the kernel, so a step is one graph, without a segment for it."""
    layer = nn.Linear(64, 24).half()
    packed = FoundryLinear.from_linear(layer, "q8_0")
    linear, graph = Linear(packed), SegmentedGraph(DEVICE)
    x, residual = torch.randn(1, 40, 64).half(), torch.randn(1, 40, 24).half()
    expected = ops.linear(x, packed.weight, format="q8_0", bias=packed.bias, residual=residual)
    with torch.no_grad():
        kit.assert_equal(packed(x), ops.linear(x, packed.weight, format="q8_0", bias=packed.bias))
        kit.assert_equal(linear.gemm(x, residual), expected)
        with graph.capture():
            y = graph.product(linear, x, residual)
    y.zero_()
    graph.replayer()()
    kit.assert_equal(y, expected)
    assert len(graph._segments) == 1 and linear.by_kernel(x) and not linear.by_kernel(torch.zeros(65, 64).half())


AHEAD = ("q8_0", "q4_0", "q4_k", "mxfp4")  # formats with fragments
WHOLE = ("q4_k", "mxfp4")  # whose rows have whole steps: blocks of 256, and rows at multiples of 8 bytes
ONE = {"outputs": 16, "steps": 2, "split": 1, "simdgroups": 1, "blocks": 1}
CHOICES = {  # within Metal's 32 KiB
    "rows": {**ONE, "blocks": 2},
    "wide": {**ONE, "outputs": 32},
    "three": {**ONE, "steps": 3},
    "teams": {**ONE, "simdgroups": 2},
    "split": {**ONE, "split": 2, "simdgroups": 2},
    "none": {**ONE, "outputs": 0},
}


@contextlib.contextmanager
def ahead(choice: str) -> Iterator[None]:
    """The choice of all executors here for what is copied ahead."""
    with contextlib.ExitStack() as stack:
        for family in {"host", tuning.family("cuda") if torch.cuda.is_available() else "host"}:
            stack.enter_context(kit.tuned(family, "linear_matrix", **CHOICES[choice]))
        yield


def kernels(given: dict[str, Any]) -> list[str]:
    with capture() as graph:
        ops.linear(**given)
    return [launch.kernel.split("<")[0] for launch in graph.launches()]


SOME = [(c, f) for c in CHOICES for f in AHEAD if c != "none" and (f != "q8_0" or c != "split")]  # 32 KiB are too few


@pytest.mark.cpu_only  # the mock's session has made its choices; GPUs: tests/cuda/on_gpu.py
@pytest.mark.parametrize("choice, name", SOME, ids=str)
def test_copied_ahead(choice: str, name: str) -> None:
    """Exact but for its sums: rows and outputs around a threadgroup's, K that ends within a step or a turn."""
    with ahead(choice):
        for m, n, k, dtype in ((17, 16, 256, F16), (33, 33, 1280, BF16), (24, 40, 2816, F16)):
            given = inputs(Case(m, n, k if name in WHOLE else k + 128, name), dtype)
            assert kernels(given) == ["linear_matrix_ahead"]
            with kit.guarded_outputs():
                op_checks.linear(given, rounded=False)
        op_checks.linear(inputs(Case(19, 24, 512, name, **FULL), F16), rounded=False)


@pytest.mark.cpu_only
@pytest.mark.parametrize("name", AHEAD)
def test_copied_ahead_a_row_has_the_bits_of_one_alone(name: str) -> None:
    """Those that few rows have by matrices, if K is split alike; wherever x lies."""
    given = inputs(Case(37, 40, 1280, name), F16)
    few = {"outputs": 16, "steps": 2, "split": 1, "simdgroups": 1, "groups": 65535}
    with ahead("teams" if name != "q8_0" else "rows"), kit.tuned("host", "matrices", **few):
        together = ops.linear(**given)
        for moved in (kit.shifted(given["x"]), kit.spread(given["x"]), kit.spread(kit.shifted(given["x"]), 1)):
            kit.assert_equal(ops.linear(**{**given, "x": moved}), together)
        kit.assert_equal(ops.linear(**{**given, "x": given["x"][19:]}), together[19:])
        kit.assert_equal(ops.linear(**{**given, "x": given["x"][30:]}), together[30:])
        kit.assert_equal(ops.linear(**{**given, "x": given["x"][36:]}), together[36:])


@pytest.mark.cpu_only
def test_copied_ahead_in_every_lane_order() -> None:
    with ahead("split"):
        kit.in_every_lane_order(lambda: run(Case(19, 20, 768, "q4_0"), F16))


@pytest.mark.cpu_only
def test_which_products_go_this_way_ahead() -> None:
    """Formats with fragments whose rows lie at multiples of 8 bytes."""
    packed = inputs(Case(20, 24, 512, "q4_0"), F16)
    assert kernels(packed) == ["linear_matrix"]  # by the host's table
    with ahead("rows"):
        assert kernels(packed) == ["linear_matrix_ahead"]
        assert kernels({**packed, "weight": kit.spread(packed["weight"], 18)}) == ["linear_matrix"]
        assert kernels(inputs(Case(20, 24, 480, "q4_0"), F16)) == ["linear_matrix"]  # half a period
        assert kernels(inputs(Case(20, 24, 512, "q5_0"), F16)) == ["linear_matrix"]


@pytest.mark.cpu_only
def test_every_entry_fits_into_an_h100s_threadgroup_memory() -> None:
    on = 0
    for key in kit.every_key("linear_matrix"):
        c, fmt = tuning.choice("sm_90", key), quant.FORMATS[key.format]
        if not c["outputs"] or key.format not in AHEAD:
            continue
        on += 1
        rows = 8 * min(c["blocks"], max(4, key.rows))
        stride = (256 // fmt.block_size * fmt.block_bytes + 15) // 32 * 32 + 16
        memory = c["steps"] * (c["split"] * rows * (256 * 2 + 32) + c["simdgroups"] * c["outputs"] * stride)
        assert 4 * rows + memory <= 232448, (key, c)
    assert on


def _fault(name: str, old: str, new: str, check: Callable[[], None], file: str = "") -> Fault:
    def check_by_matrices() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(LINEAR_ROWS.name, "16")
            patch.setenv(MATRIX_ROWS.name, "64")
            tuning.load_environment()
            try:
                check()
            finally:
                patch.undo()
                tuning.load_environment()

    return Fault(f"linear-matrix-{name}", "linear_matrix.metal", old, new, check_by_matrices, file)


def _one(case: Case) -> Callable[[], None]:
    return lambda: test_accuracy(case, F16)


def _ahead(choice: str) -> Callable[[], None]:
    return lambda: test_copied_ahead(choice, "q4_0")


WIDE = _one(Case(33, 24, 2560, "q4_0"))
FAULTS = [
    _fault("last-unit-dropped", "if (unit + step < units)", "if (unit + 2 * step < units)", WIDE),
    _fault("second-row-of-w-twice", "n0 + own.row + 8 * i, args.n - 1", "n0 + own.row, args.n - 1", WIDE),
    _fault("rows-of-x-in-pairs", "m0 + 8 * b + own.row, args", "m0 + 8 * b + own.row / 2 * 2, args", WIDE),
    _fault("half-of-a-chunk-twice", "own_x[4 * h + 2 * f + e]", "own_x[2 * f + e]", WIDE),
    _fault("last-part-dropped", "partial[p * rows * outputs + i]", "0.0f", WIDE),
    _fault("offset-forgotten", "fma(scale, w[j], offset)", "scale * w[j]", _one(Case(33, 24, 1024, "q4_k"))),
    _fault("ratio-forgotten", "raw.scale(k, group) * Raw::ratio(c)", "raw.scale(k, group)", WIDE),
    _fault(
        "ahead-half-step-dropped",
        "from + period * Step::columns < k",
        "from + (period + 1) * Step::columns < k",
        _ahead("teams"),
        "matrix_tile.h",
    ),
    _fault("ahead-row-of-x-twice", "ulong(memory[m])", "ulong(memory[m / 2 * 2])", _ahead("rows"), "matrix_tile.h"),
    _fault("ahead-eights-alike", "uint2*)(x_row + b * x_block", "uint2*)(x_row", _ahead("rows"), file="matrix_rows.h"),
    _fault(
        "ahead-a-step-too-early",
        "now = (turn + 1) % STEPS",
        "now = (turn + 2) % STEPS",
        _ahead("three"),
        "matrix_tile.h",
    ),
    _fault("ahead-part-dropped", "own[p * rows * sum_stride]", "0.0f", _ahead("split"), "matrix_tile.h"),
    _fault("ahead-teams-alike", "column / OUTS * split * rows", "0", _ahead("teams"), "matrix_tile.h"),
    _fault("columns-not-turned", "column % 2 == 0 ? other.x", "column % 2 != 0 ? other.x", WIDE, "matrix_pairs.h"),
]
