"""argmax: exact, the lowest index among equals, NaN above everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault

from torch_foundry import ops
from torch_foundry.testing import op_checks
from torch_foundry.testing import reference as plain

CHUNK = 4096  # argmax_chunk of shaders/sampling/argmax.h


@dataclass(frozen=True)
class Case(kit.Case):
    rows: int = 2
    n: int = 1000


# Around one simdgroup, one step of a threadgroup, one chunk, two chunks, and more than 32 chunks.
CASES = [
    (Case(), F32),
    (Case(), F16),
    (Case(), BF16),
    *((Case(n=n), F32) for n in (1, 31, 32, 33, 127, 128, 129, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1)),
    (Case(rows=1, n=33 * CHUNK + 5), F16),
]
BENCH = [Case(rows=1, n=4096), Case(rows=1, n=151936)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    return {"logits": kit.normal(kit.generator(case), case.rows, case.n, dtype=dtype)}


run = ops.argmax
reference = plain.argmax


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    return case.rows * case.n, case.rows * (case.n * dtype.itemsize + 8)


check = op_checks.argmax


def check_logits(logits: torch.Tensor) -> None:
    check({"logits": logits})


@kit.cases(*CASES)
def test_random(case: Case, dtype: torch.dtype) -> None:
    given = inputs(case, dtype)
    check(given)
    kit.assert_equal(ops.argmax(**given), plain.argmax(**given))


@pytest.mark.parametrize("n", [5, 64, 130, CHUNK + 40], ids=str)
def test_every_place_wins(n: int) -> None:
    """One-hot rows, at the places where lanes, simdgroups, steps and chunks meet."""
    places = sorted({p for edge in (0, 32, 64, 128, CHUNK, n) for p in (edge - 1, edge, edge + 1) if 0 <= p < n})
    for background, peak in ((-1.0, 0.0), (-2.0, -1.0), (0.0, 1.0), (float("-inf"), -3e38)):
        logits = torch.full((len(places), n), background)
        logits[torch.arange(len(places)), torch.tensor(places)] = peak
        assert ops.argmax(logits).tolist() == places


@pytest.mark.parametrize("n", [200, 2 * CHUNK + 3], ids=str)
def test_lowest_of_equals(n: int) -> None:
    g = kit.generator(n)
    check_logits(torch.zeros(3, n))
    check_logits(torch.full((1, n), float("-inf")))
    check_logits(torch.randint(0, 3, (8, n), generator=g).float())
    zeros = torch.where(torch.rand(4, n, generator=g) < 0.5, 0.0, -0.0)  # 0 and -0 are equal
    check_logits(zeros)
    tie = torch.zeros(1, n)
    tie[0, [7, n - 1, n // 2]] = 1.0
    assert ops.argmax(tie).item() == 7


@pytest.mark.parametrize("n", [40, CHUNK + 7], ids=str)
def test_nan_and_infinity(n: int) -> None:
    logits = kit.normal(kit.generator(n), 5, n, dtype=F32)
    logits[0, 3] = float("inf")
    logits[1, [n - 1, n - 2]] = float("nan")
    logits[2, 5], logits[2, n - 1] = float("inf"), float("nan")
    logits[3, n - 3] = -torch.tensor(float("nan"))
    check_logits(logits)
    kit.assert_equal(ops.argmax(logits), torch.argmax(logits, -1))


def test_shapes_and_strides() -> None:
    logits = kit.normal(kit.generator(3), 2, 3, 50, dtype=F32)
    expected = logits.argmax(-1)
    kit.assert_equal(ops.argmax(logits), expected)
    kit.assert_equal(ops.argmax(kit.spread(logits, 3)), expected)
    kit.assert_equal(ops.argmax(kit.shifted(logits)), expected)
    kit.assert_equal(ops.argmax(logits[:, -1]), expected[:, -1])  # the last position of a prefill
    assert ops.argmax(logits[0, 0]).shape == ()
    assert ops.argmax(torch.zeros(0, 5)).shape == (0,)


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    logits = torch.randint(0, 5, (3, CHUNK + 100), generator=kit.generator(1)).float()
    kit.in_every_lane_order(lambda: ops.argmax(logits))


@pytest.mark.cpu_only
def test_opcheck() -> None:
    kit.opcheck("argmax", torch.randn(2, 3, 10))


def test_bad_inputs() -> None:
    with kit.refuses(r"logits: expected dtype Float or Half or BFloat16, got Long"):
        ops.argmax(torch.zeros(2, 3, dtype=torch.int64))
    with kit.refuses(r"logits: expected at least one element in the last dimension"):
        ops.argmax(torch.zeros(2, 0))
    with kit.refuses(r"logits: expected a contiguous last dimension"):
        ops.argmax(torch.zeros(3, 2).t())
    with kit.refuses(r"logits: expected at most 2\^31-1 elements"):
        ops.argmax(torch.zeros(1, 8).expand(2**29, 8))


FAULTS = [
    Fault(
        "argmax-highest-of-equals",
        "argmax.metal",
        "other.index < best.index",
        "other.index > best.index",
        lambda: test_lowest_of_equals(200),
    ),
    Fault(
        "argmax-sign-of-negative-values",
        "argmax.metal",
        "? ~bits :",
        "? bits :",
        lambda: test_every_place_wins(5),
    ),
    Fault(
        "argmax-partial-last-chunk-read-past-its-end",
        "argmax.metal",
        "min((chunk + 1) * argmax_chunk, args.n)",
        "(chunk + 1) * argmax_chunk",
        lambda: test_shapes_and_strides(),
    ),
    Fault(
        "argmax-nan-ignored",
        "argmax.metal",
        "? 0xffffffffu : key;",
        "? 0u : key;",
        lambda: test_nan_and_infinity(40),
    ),
    Fault(
        "argmax-merge-forgets-the-last-chunk",
        "argmax.metal",
        "i < args.chunks;",
        "i + 1 < args.chunks;",
        lambda: test_every_place_wins(CHUNK + 40),
    ),
]
