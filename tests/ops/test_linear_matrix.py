"""Products of packed weights and 17 to 64 rows as 8x8 matrices, against float64, and which products go that way."""

from __future__ import annotations

from collections.abc import Iterator

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
from torch_foundry.testing import reference as plain
from torch_foundry.testing import weights as blocks
from torch_foundry.testing.tolerance import UNIT, assert_bound, assert_norm

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
    """As ops.linear, but that weights are rounded to x's dtype, as those of a dense model are."""
    given = inputs(case, dtype)
    truth = plain.linear(**op_checks.double(given))
    with kit.poisoned_outputs():
        got = ops.linear(**given)
    assert_norm(got, truth, plain.linear(**given))
    weights = given["x"].double().abs() @ op_checks.dense_of(given).abs().T * UNIT[dtype]
    slope = abs(given["scale"]) * (1.13 if given["activation"] else 1.0)
    assert_bound(got, truth, op_checks.linear_bound(given, truth) + 1.01 * slope * weights)


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_k", "iq2_xs"])
def test_rows_are_alone_and_may_lie_anywhere(name: str) -> None:
    """A row's bits don't depend on the others, on how many there are, nor on addresses."""
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


def _fault(name: str, old: str, new: str, case: Case, file: str = "") -> Fault:
    def check() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(MATRIX_ROWS.name, "64")
            tuning.load_environment()
            try:
                test_accuracy(case, F16)
            finally:
                patch.undo()
                tuning.load_environment()

    return Fault(f"linear-matrix-{name}", "linear_matrix.metal", old, new, check, file)


WIDE = Case(33, 24, 2560, "q4_0")
FAULTS = [
    _fault("last-unit-dropped", "if (unit + step < units)", "if (unit + 2 * step < units)", WIDE),
    _fault("second-row-of-w-twice", "n0 + own.row + 8 * i, args.n - 1", "n0 + own.row, args.n - 1", WIDE),
    _fault("rows-of-x-in-pairs", "m0 + 8 * b + own.row, args", "m0 + 8 * b + own.row / 2 * 2, args", WIDE),
    _fault("half-of-a-chunk-twice", "own_x[4 * h + 2 * f + e]", "own_x[2 * f + e]", WIDE),
    _fault("last-part-dropped", "p = 1; p < args.split", "p = 1; p + 1 < args.split", WIDE),
    _fault("offset-forgotten", "fma(scale, w[j], offset)", "scale * w[j]", Case(33, 24, 1024, "q4_k")),
    _fault("ratio-forgotten", "raw.scale(k, group) * Raw::ratio(c)", "raw.scale(k, group)", WIDE),
    _fault("columns-not-turned", "column % 2 == 0 ? other.x", "column % 2 != 0 ? other.x", WIDE, "matrix_pairs.h"),
]
