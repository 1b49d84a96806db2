"""Products of more rows by tensor operations, against float64, in many layouts; and which devices they are used on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault, within
from shader_text import edited_shaders
from test_linear import FULL, PACKED, Case, inputs

from torch_foundry import ops, quant
from torch_foundry.core import environment, runtime, tuning
from torch_foundry.core.graph import capture
from torch_foundry.nn.linear import linear_routes
from torch_foundry.testing import op_checks
from torch_foundry.testing import weights as blocks

pytestmark = pytest.mark.cpu_only  # the mock's session has made its choices: tests/metal/test_tensors.py
CPU = torch.device("cpu")
FILE = "linear_tensors.metal"
LAYOUTS = (0, 1, 2, 3, 7, 4 * 37 + 1)
OTHERS = [name for name in blocks.samples() if name not in PACKED]

# m and n around a tile (64), k around a slab (32) and, dense, a chunk (8).
CASES = [(Case(m, n, k), F16) for m, n, k in ((17, 1, 1), (63, 64, 31), (64, 65, 32), (65, 63, 40), (130, 66, 257))]
CASES += [(Case(70, 65, 104), BF16), (Case(65, 66, 96, **FULL), F16), (Case(40, 24, 4096), F16)]
CASES += [(Case(66, 65, 3 * quant.FORMATS[name].block_size, name), F16) for name in PACKED]
CASES += [(Case(33, 20, 2 * quant.FORMATS[name].block_size, name), BF16) for name in PACKED]
CASES += [(Case(33, 20, 2 * quant.FORMATS[name].block_size, name), F16) for name in OTHERS]
CASES += [(Case(70, 24, 256, "q8_0", **FULL), F16), (Case(64, 24, 256, "q4_0", **FULL), BF16)]


@pytest.fixture(autouse=True)
def by_tensors() -> Iterator[None]:
    """The host multiplies so if it is told to."""
    with kit.choice("linear_routes", matrix=0, tensors=512):
        yield
    tuning.load_environment()


def kernel(case: Case, dtype: torch.dtype) -> str:
    given = inputs(case, dtype)
    with capture() as graph:
        ops.linear(**given)
    (launch,) = graph.launches()
    return launch.kernel.split("<")[0]


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    given = inputs(case, dtype)
    with kit.guarded_outputs():
        got = ops.linear(**given)
    op_checks.assert_linear(got, given, rounded=case.format is not None)
    assert kernel(case, dtype) == "linear_tensors"


def of_any_layout(case: Case, dtype: torch.dtype) -> None:
    """The same bits however elements are spread over threads, and in which order these run."""
    given, results = inputs(case, dtype), []
    for layout in LAYOUTS:
        with runtime.host_options(tensor_layout=layout), kit.guarded_outputs():
            results.append(ops.linear(**given))
    for result in results[1:]:
        kit.assert_equal(result, results[0])
    with runtime.host_options(tensor_layout=7):
        kit.in_every_lane_order(lambda: ops.linear(**given))


@kit.cases((Case(65, 66, 96, "q8_0"), F16), (Case(70, 65, 41), BF16))
def test_layouts(case: Case, dtype: torch.dtype) -> None:
    of_any_layout(case, dtype)


@pytest.mark.parametrize("name", ["q8_0", "q4_k", "iq2_xs", None])
def test_rows_are_alone_and_may_lie_anywhere(name: str | None) -> None:
    """A row's bits don't depend on the others, on how many there are, nor on addresses."""
    given = inputs(Case(70, 24, 2 * quant.FORMATS[name or "q8_0"].block_size, name), F16)
    x, weight = given["x"], given["weight"]
    expected = ops.linear(**given)
    for rows in (slice(50, 70), slice(0, 33), slice(3, 55)):
        kit.assert_equal(ops.linear(x[rows], weight, format=name), expected[rows])
    for moved in (kit.shifted(x), kit.spread(x), kit.spread(kit.shifted(x), 1)):
        kit.assert_equal(ops.linear(moved, weight, format=name), expected)


def test_which_products_go_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """x of 16 bits alone, with packed weights or of its own type; rows between those of a vector kernel and the limit;
    packed ones as matrices first, where the table says so."""
    assert kernel(Case(17, 8, 32, "q8_0"), F16) == kernel(Case(512, 8, 32), BF16) == "linear_tensors"
    assert kernel(Case(16, 8, 32, "q8_0"), F16) == "linear_rows"
    others = ((Case(513, 8, 32, "q8_0"), F16), (Case(17, 8, 32, "q8_0"), F32), (Case(17, 8, 32, format="bf16"), F16))
    assert {kernel(*other) for other in others} == {"linear_tiles"}
    routes = linear_routes(torch.zeros(8, 34, dtype=torch.uint8), "q8_0")
    assert routes.most(True, F16) == routes.most(False, BF16) == 512 and routes.most(True, F32) == 16
    monkeypatch.setenv(environment.MATRIX_ROWS.name, "32")
    tuning.load_environment()
    assert [kernel(Case(m, 8, 32, "q8_0"), F16) for m in (32, 33)] == ["linear_matrix", "linear_tensors"]


def test_families_that_ask_for_them() -> None:
    for name in ("q4_0", "q6_k", "f16"):
        key = tuning.Key("linear_routes", name, 1, 4096, 4096)
        assert tuning.choice("apple10", key)["tensors"] == (128 if name == "f16" else 512)
        for family in ("apple7", "apple9", "sm_90", "sm_90-h200", "a GPU of tomorrow"):
            assert tuning.choice(family, key)["tensors"] == 0


# --------------------------------------------------------------------------------------------------- whether it is used


def cut(mask: str) -> tuple[str, str, str]:
    """Sums lose bits after every slab."""
    each = "for (ushort i = 0; i < sum.get_capacity(); ++i)"
    run = "product.run(x_tile, w_tile, sum);"
    return FILE, run, f"{run} {each} sum[i] = as_type<float>(as_type<uint>(float(sum[i])) & {mask});"


WRONG = {
    "sums of 17 bits": cut("0xffffff80u"),
    "sums of half": cut("0xffffe000u"),
    "K ends with whole slabs": (FILE, "k0 < args.k; k0 += BK", "k0 + BK <= args.k; k0 += BK"),
    "a row too many": (FILE, "m < args.rows && n", "m <= args.rows && n"),
    "sums that begin somewhere": (FILE, "sum[i] = 0.0f;", "sum[i] = 1.0f;"),
    "W not turned": (FILE, "false, true, false, matmul2d_descriptor", "false, false, false, matmul2d_descriptor"),
    "does not compile": (FILE, "product.run(", "product.walk("),
}


def test_what_the_host_says() -> None:
    """Some rounding of sums, far below what is allowed, in every layout; flushed float32 is no matter."""
    for layout, flush in ((0, False), (7, False), (0, True)):
        with runtime.host_options(tensor_layout=layout, flush_subnormals=flush):
            tuning.load_environment()
            found = runtime.tensor_operations(CPU)
        assert found and found.used and found.most == 2**-19 and 1e-8 < found.error < found.most / 4


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_products_are_not_used(fault: str, tmp_path: Path) -> None:
    """Neither by the op nor by modules, which ask torch again for as many rows as without."""
    case = Case(33, 8, 32, "q8_0")
    with runtime.use_shaders(edited_shaders(tmp_path, WRONG[fault])):
        tuning.load_environment()
        found = runtime.tensor_operations(CPU)
        assert found and not found.used and found.error > found.most
        assert kernel(case, F16) == "linear_tiles"
        assert linear_routes(torch.zeros(8, 34, dtype=torch.uint8), "q8_0").most(True, F16) == 16
    tuning.load_environment()
    assert kernel(case, F16) == "linear_tensors"


def test_sums_that_are_cut_off_are_good_enough(tmp_path: Path) -> None:
    """As matrix units have them: 24 bits, not rounded to nearest."""
    with runtime.use_shaders(edited_shaders(tmp_path, cut("0xfffffffeu"))):
        tuning.load_environment()
        found = runtime.tensor_operations(CPU)
        assert found and found.used


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for value, expected in (("0", "linear_tiles"), ("1", "linear_tensors"), ("", "linear_tensors")):
        monkeypatch.setenv(environment.TENSORS.name, value)
        tuning.load_environment()
        assert kernel(Case(33, 8, 32, "q8_0"), F16) == expected
    monkeypatch.setenv(environment.TENSORS.name, "1")
    with runtime.use_shaders(edited_shaders(tmp_path, WRONG["sums of half"])):
        tuning.load_environment()
        assert kernel(Case(33, 8, 32, "q8_0"), F16) == "linear_tensors"


# --------------------------------------------------------------------------------------------------------------- faults


def _fault(name: str, old: str, new: str, check: Callable[[], None], file: str = "") -> Fault:
    def check_by_tensors() -> None:
        with pytest.MonkeyPatch.context() as patch, kit.choice("linear_routes", matrix=0, tensors=512):
            patch.setenv(environment.TENSORS.name, "1")  # even though the device says that it is wrong
            tuning.load_environment()
            try:
                check()
            finally:
                patch.undo()
                tuning.load_environment()

    return Fault(f"linear-tensors-{name}", FILE, old, new, check_by_tensors, file)


def _edges() -> None:
    test_accuracy(Case(66, 65, 96, "q8_0"), F16)


def _tail() -> None:
    test_accuracy(Case(65, 63, 40), F16)


def _probe() -> None:
    """Its memory has a row more than it writes."""
    found = runtime.tensor_operations(CPU)
    assert found and found.error <= found.most


def _layouts() -> None:
    of_any_layout(Case(65, 66, 96, "q8_0"), F16)


FAULTS = [
    _fault(
        "w-not-turned", "false, true, false, matmul2d_descriptor", "false, false, false, matmul2d_descriptor", _edges
    ),
    _fault("k-tail-dropped", *within("k0 < args.k; k0 += BK", "k0 < args.k", "k0 + BK <= args.k"), _tail),
    _fault("row-out-of-range", "m < args.rows && n", "m <= args.rows && n", _probe),
    _fault("column-out-of-range", "n < args.n)", "n <= args.n)", _probe),
    _fault("layout-of-sixteen", "i < sum.get_capacity(); ++i) if", "i < 32; ++i) if", _layouts),
    _fault("places-of-no-element", "sum.is_valid_element(i) && m", "m", _layouts),
    _fault("rows-for-columns", "m0 + at[1], n = n0 + at[0]", "m0 + at[0], n = n0 + at[1]", _edges),
    _fault("sums-not-begun", "sum[i] = 0.0f;", ";", _edges),
    _fault("sums-not-kept", "mode::multiply_accumulate", "mode::multiply", _edges),
    _fault("rows-of-x-in-pairs", "m0 + r + i * turn, args.rows", "m0 + r / 2 * 2 + i * turn, args.rows", _edges),
    _fault("second-turn-of-w-as-the-first", "n0 + r + i * turn, args.n", "n0 + r, args.n", _edges),
    _fault(
        "barrier-missing",
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n    product.run",
        "product.run",
        _layouts,
    ),
]
