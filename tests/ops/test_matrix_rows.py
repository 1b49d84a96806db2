"""Up to eight rows of x multiplied by matrices of 16 bits: accuracy, and the same bits for a row in any company."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import kit
import pytest
import test_linear
import test_norm_linear as behind_norm
import torch
from kit import BF16, F16, Fault

from torch_foundry import ops, quant
from torch_foundry.core import tuning
from torch_foundry.core.graph import capture
from torch_foundry.testing import op_checks
from torch_foundry.testing.tolerance import assert_norm, double

# Not on the mock of Metal, whose session has made its choices (tests/metal/session.py).
pytestmark = [pytest.mark.tier("kernels"), *([] if torch.cuda.is_available() else [pytest.mark.cpu_only])]

FORMATS = ("q8_0", "q4_0", "q4_k", None)  # None: dense
ONE = {"outputs": 16, "steps": 2, "split": 1, "simdgroups": 1, "groups": 65535}
CHOICES = {
    "one": ONE,
    "wide": {**ONE, "outputs": 32},
    "three": {**ONE, "steps": 3},
    "turns": {**ONE, "steps": 3, "groups": 1},  # all outputs by one threadgroup, whose copies are ahead
    "split": {**ONE, "split": 2, "simdgroups": 2},
    "teams": {**ONE, "simdgroups": 2, "groups": 1},
}
MEMORY = 232448  # bytes that a threadgroup may have on sm_90


@contextlib.contextmanager
def matrices(choice: dict[str, int]) -> Iterator[None]:
    """The choice of all executors here for products with and without a norm."""
    families = ["host", *([tuning.family(torch.device("cuda"))] if torch.cuda.is_available() else [])]
    with contextlib.ExitStack() as stack:
        for family, op in itertools.product(families, ("matrices", "norm_matrices")):
            stack.enter_context(kit.tuned(family, op, **choice))
        yield


def by_matrices(call: Callable[[], object]) -> bool:
    with capture() as graph:
        call()
    return all(launch.kernel.endswith(", 0>") for launch in graph.launches())


def columns(name: str | None, count: int) -> int:
    return {"q4_k": 256, None: 32}.get(name, 128) * count  # rows at multiples of 8 bytes


def given_for(m: int, n: int, k: int, name: str | None, dtype: torch.dtype = F16, **options: Any) -> dict[str, Any]:
    return test_linear.inputs(test_linear.Case(m, n, k, name, **options), dtype)


SOME = [(c, f) for c in CHOICES for f in FORMATS if f != "q8_0" or c not in ("split", "teams")]  # 32 KiB are too few


@pytest.mark.parametrize("choice, name", SOME, ids=str)
def test_linear_is_exact_but_for_its_sums(choice: str, name: str | None) -> None:
    """Steps that end within their columns, one step and more than there are places, outputs around a product's 16."""
    with matrices(CHOICES[choice]):
        for m, n, periods, dtype in ((1, 16, 1, F16), (3, 17, 5, BF16), (8, 33, 7, F16), (11, 40, 2, BF16)):
            given = given_for(m, n, columns(name, periods), name, dtype)
            assert by_matrices(lambda given=given: ops.linear(**given))
            with kit.guarded_outputs():
                op_checks.linear(given)


def test_linear_does_all_that_follows_a_sum() -> None:
    for choice in (ONE, CHOICES["turns"]):
        with matrices(choice):
            op_checks.linear(given_for(5, 24, 256, "q4_0", **test_linear.FULL))


@pytest.mark.parametrize("kind", ["llama", "gemma", "olmo"])
@pytest.mark.parametrize("name", FORMATS)
def test_norm_linear(name: str | None, kind: str) -> None:
    for choice in (ONE, CHOICES["turns"]):
        with matrices(choice):
            for m, k in ((1, 256), (8, 512)):
                case = behind_norm.Case(m, k, (24, 9, 16), (name,) * 3, (1,), kind)
                given = behind_norm.inputs(case, F16 if k == 256 else BF16)
                assert by_matrices(lambda given=given: ops.norm_linear(**given))
                behind_norm.check(given)


@pytest.mark.parametrize("name", FORMATS)
def test_glu_and_heads(name: str | None) -> None:
    for choice in (ONE, CHOICES["turns"]):
        with matrices(choice):
            behind_norm.check_glu(behind_norm.glu_inputs(behind_norm.Case(3, 256, (31, 31), (name,) * 2, (0, 1)), F16))
            heads = behind_norm.Heads(2, 2, 3, 1, 32, 16, formats=(name,) * 3, bias=(0, 2))
            behind_norm.check_qkv(behind_norm.qkv_inputs(heads, F16))


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_does_not_depend_on_its_company(name: str | None) -> None:
    """Nor on where x lies."""
    given = given_for(13, 40, columns(name, 3), name)
    normed = behind_norm.inputs(behind_norm.Case(8, 256, (40,), (name,)), F16)
    x = given["x"]
    with matrices(CHOICES["three"]):
        together, behind = ops.linear(**given), ops.norm_linear(**normed)
        for m in (1, 2, 3, 7, 8):
            kit.assert_equal(ops.linear(**{**given, "x": x[13 - m :]}), together[13 - m :])
            kit.assert_equal(ops.norm_linear(**{**normed, "x": normed["x"][8 - m :]}), behind[8 - m :])
        for moved in (kit.shifted(x), kit.spread(x), kit.spread(kit.shifted(x), 1)):
            kit.assert_equal(ops.linear(**{**given, "x": moved}), together)
        kit.assert_equal(ops.norm_linear(**{**normed, "x": kit.shifted(normed["x"])}), behind)


@pytest.mark.cpu_only
@pytest.mark.parametrize("name", FORMATS)
def test_lane_orders(name: str | None) -> None:
    normed = behind_norm.inputs(behind_norm.Case(3, 256, (40,), (name,)), F16)
    with matrices(CHOICES["turns"]):
        kit.in_every_lane_order(lambda: ops.linear(**given_for(3, 20, 512, name)))
        kit.in_every_lane_order(lambda: ops.norm_linear(**normed))


def test_rows_that_halves_hold_only_behind_their_norm() -> None:
    """x times the norm's weight would be infinite, or too small."""
    with matrices(ONE):
        given = behind_norm.inputs(behind_norm.Case(4, 256, (24,), ("q8_0",)), F16)
        given["x"][0] *= 3e3
        given["x"][1] = 0
        given["x"][2] *= 1e-4
        given["norm_weight"] *= 300
        behind_norm.check(given)
        assert not ops.norm_linear(**given)[1].any()


@pytest.mark.cpu_only
def test_which_products_go_this_way() -> None:
    """A matter of W, the dtype and the table, never of how many rows there are."""
    packed, x = quant.quantize(torch.randn(32, 512), "q4_0"), torch.randn(3, 512, dtype=F16)

    def goes(x: torch.Tensor = x, weight: torch.Tensor = packed, name: str | None = "q4_0") -> bool:
        return by_matrices(lambda: ops.linear(x, weight, format=name))

    assert not goes()  # by the host's table
    with matrices(ONE):
        assert goes() and goes(x[:1]) and goes(x.bfloat16()) and goes(torch.randn(16, 512).half())
        assert goes(weight=torch.randn(8, 512).half(), name=None)
        assert not goes(x.float())
        assert not goes(weight=torch.randn(8, 512).bfloat16(), name="bf16")  # of another dtype than x
        assert not goes(weight=quant.quantize(torch.randn(8, 512), "q5_0"), name="q5_0")
        assert not goes(weight=kit.spread(packed, 18))  # rows at multiples of 2 bytes
        assert not goes(x[:, :480].contiguous(), quant.quantize(torch.randn(8, 480), "q4_0"))  # half a period
        assert not goes(torch.randn(20, 512).half())  # linear_tiles


@pytest.mark.cpu_only
def test_every_entry_fits_into_threadgroup_memory() -> None:
    """Of an H100, for eight rows of as many inputs as the entry is for."""
    on = 0
    for op, family in itertools.product(("matrices", "norm_matrices"), ("sm_90", "sm_90-h200")):
        for key in kit.every_key(op):
            c = tuning.choice(family, key)
            fmt = quant.FORMATS[key.format]
            if not c["outputs"]:
                continue
            on += 1
            assert fmt.packed
            stride = (256 // fmt.block_size * fmt.block_bytes + 15) // 32 * 32 + 16
            stage = c["outputs"] * stride + (0 if op == "norm_matrices" else 8 * (256 * 2 + 32))
            memory = c["simdgroups"] * (32 * (1 + 2 * c["outputs"]) + c["steps"] * stage)
            memory += 8 * (key.k * 2 + 32) if op == "norm_matrices" else 0
            assert memory <= MEMORY, (key, c)
    assert on


def _fault(name: str, old: str, new: str, check: Callable[[], None], file: str = "matrix_rows.h") -> Fault:
    return Fault(f"matrix-rows-{name}", "linear.metal", old, new, check, file)


def _linear(choice: str = "three", name: str | None = "q4_0") -> Callable[[], None]:
    return lambda: test_linear_is_exact_but_for_its_sums(choice, name)


def _behind(name: str, old: str, new: str, check: Callable[[], None], file: str = "matrix_rows.h") -> Fault:
    return Fault(f"matrix-rows-{name}", "norm_linear.metal", old, new, check, file)


FAULTS = [
    _fault("half-step-dropped", "first + period * Step::columns < k", "first + (period + 1) * Step::columns < k",
           _linear()),
    _fault("rows-of-x-twice", "min(uint(own.row), rows.count - 1)", "min(uint(own.row) / 2 * 2, rows.count - 1)",
           _linear()),
    _fault("turn-forgotten", "w.first += turn;", "", _linear("turns")),
    _fault("addends-of-the-first-sum", "if (P::again && i != i0) addends =", "if (false) addends =",
           test_linear_does_all_that_follows_a_sum, "linear.metal"),
    _fault("addends-of-the-first-turn", "n0 + i0 % OUTS, bias, residual, args", "i0 % OUTS, bias, residual, args",
           test_linear_does_all_that_follows_a_sum, "linear.metal"),
    _fault("last-part-dropped", "p = 1; p < split; ++p) total", "p = 1; p + 1 < split; ++p) total", _linear("split")),
    _fault("copies-not-waited-for-in-turn", "now + stage < memory + STEPS * stage ? now + stage : memory", "now",
           _linear()),
    _fault("upper-nibbles-lower", "h == 1, 8, base, w", "h == 0, 8, base, w", _linear(), "q4_0.h"),
    _fault("scale-of-the-first", "d[1] = row[8] >> 16", "d[1] = row[0] & 0xffff", _linear(name="q8_0"), "q8_0.h"),
    _fault("offset-forgotten", "if (F::has_offset) total =", "if (false) total =", _linear(name="q4_k")),
    _behind("gains-of-gemma", "(offset + float(g[j]))", "float(g[j])", lambda: test_norm_linear("q4_0", "gemma")),
    _behind("pairs-made-twice", "if (in_pairs)", "if (false)",
            lambda: test_norm_linear("q4_0", "llama")),
    _behind("sums-of-one-row", "(rows.count * OUTS + simd_width - 1)", "(OUTS + simd_width - 1)",
            lambda: test_norm_linear("q4_0", "llama"), "products.h"),
    _behind("squares-of-one-simdgroup", "s < simdgroups; ++s) sum +=", "s < 1; ++s) sum +=",
            lambda: _teams_behind_a_norm()),
    _behind("parts-by-a-power-of-two", "simdgroup - team_in<by_matrices>(simdgroup, split) * split",
            "simdgroup & (split - 1)", lambda: _thirds(), "products.h"),
]  # fmt: skip


def _teams_behind_a_norm() -> None:
    with matrices(CHOICES["teams"]):
        given = behind_norm.inputs(behind_norm.Case(2, 512, (40,), ("q4_0",)), F16)
        assert_norm(ops.norm_linear(**given), behind_norm.reference(**double(given)), behind_norm.reference(**given))


def test_teams_behind_a_norm() -> None:
    _teams_behind_a_norm()


def _thirds() -> None:
    with matrices({**ONE, "split": 3, "simdgroups": 3, "groups": 1}):
        for m, k in ((1, 768), (3, 1280), (2, 1536)):
            given = behind_norm.inputs(behind_norm.Case(m, k, (40,), ("q4_0",)), F16)
            assert by_matrices(lambda given=given: ops.norm_linear(**given))
            exact, stock = (behind_norm.reference(**each) for each in (double(given), given))
            assert_norm(ops.norm_linear(**given), exact, stock)


def test_a_team_may_be_of_any_number() -> None:
    _thirds()
