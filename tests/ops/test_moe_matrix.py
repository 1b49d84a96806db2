"""Experts' products for many tokens as 8x8 matrices of codes, against float64, and which go so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault
from moe_cases import Case, Given, check_many, down_inputs, many

from torch_foundry import ops, quant
from torch_foundry.core import tuning
from torch_foundry.core.graph import capture

pytestmark = pytest.mark.cpu_only  # the mock's session has made its choices; GPUs: tests/cuda/on_gpu.py

ONE = {"outputs": 16, "steps": 2, "split": 1, "simdgroups": 1, "blocks": 1}
CHOICES = {  # within Metal's 32 KiB
    "one": ONE,
    "rows": {**ONE, "blocks": 2},
    "wide": {**ONE, "outputs": 32},
    "three": {**ONE, "steps": 3},
    "teams": {**ONE, "simdgroups": 2},
    "split": {**ONE, "split": 2, "simdgroups": 2},
}
FORMATS = ("q8_0", "q4_0", "q4_k", "mxfp4")  # with fragments


@contextlib.contextmanager
def chosen(choice: str) -> Iterator[None]:
    with kit.tuned("host", "moe_matrix", **CHOICES[choice]):
        yield


def kernel(given: Given) -> str:
    with capture() as graph:
        many(given)
    (name,) = {one.kernel for one in graph.launches() if one.kernel.startswith(("moe_linear", "moe_matrix"))}
    return name


def case(name: str, k: int, **other: Any) -> Case:
    return Case(**{"tokens": 50, "hidden": k, "inner": 37, "k": 2, "experts": 3, "format": name, **other})


SOME = [(c, f) for c in CHOICES for f in FORMATS if f != "q8_0" or c not in ("split", "teams")]  # 32 KiB are too few


@pytest.mark.parametrize("choice, name", SOME, ids=str)
def test_accuracy(choice: str, name: str) -> None:
    """Tiles of all and of some rows, outputs around a threadgroup's, K that ends within a step or a turn."""
    block = max(quant.FORMATS[name].block_size, 64)
    for k, dtype, biased in ((256, F16, True), (1024 + 3 * block, BF16, False), (block, F16, False)):
        given = down_inputs(case(name, k, biased=biased), dtype)
        with chosen(choice), kit.guarded_outputs():
            assert kernel(given).startswith("moe_matrix<")
            check_many(given)


@pytest.mark.parametrize("name, k, offset, width", [
    ("mxfp4", 96, 0, 4), ("mxfp4", 96, 17, 4), ("mxfp4", 96, 2, 4), ("mxfp4", 256, 0, 8), ("mxfp4", 512, 0, 8),
    ("q4_0", 64, 0, 4), ("q4_0", 128, 0, 8), ("q4_0", 256, 0, 16), ("q8_0", 64, 0, 4), ("q8_0", 128, 4, 4),
])  # fmt: skip
def test_rows_begin_anywhere(name: str, k: int, offset: int, width: int) -> None:
    """An expert's matrix and its rows may lie at any byte of a word; what is behind the last one isn't read."""
    given = down_inputs(case(name, k, inner=19), F16)
    weight = given["weight"]
    room = torch.zeros(weight.numel() + offset, dtype=torch.uint8)
    room[offset:] = weight.flatten()
    moved = {**given, "weight": room[offset:].view(weight.shape)}
    with chosen("one"):
        assert kernel(moved).startswith(f"moe_matrix<{name.upper()}, half, {width},")
        kit.assert_equal(many(moved), many(given))
        check_many(moved)


def test_a_pair_has_its_bits_whatever_comes_with_it() -> None:
    for name in FORMATS:
        with chosen("rows"):
            given = down_inputs(case(name, 512), BF16)
            x, ids = given["x"].view(-1, 512), given["ids"]
            order, tiles = ops.moe_group(ids, 3)
            together = ops.moe_linear(x, order, tiles, given["weight"], format=name)
            for n in (1, 7, 33):
                some = ops.moe_linear(x[: 2 * n], *ops.moe_group(ids[:n], 3), given["weight"], format=name)
                kit.assert_equal(some, together[: 2 * n])


def test_strided_experts_and_pairs_of_none() -> None:
    given = down_inputs(case("mxfp4", 288), F16)
    ids = given["ids"].clone()
    ids[::3, 0] = 3
    strided = torch.zeros(3, 41, given["weight"].shape[2], dtype=torch.uint8)
    strided[:, :37] = given["weight"]
    with chosen("one"):
        expected = many({**given, "ids": ids})
        kit.assert_equal(many({**given, "ids": ids, "weight": strided[:, :37]}), expected)
        check_many({**given, "ids": ids})


def test_lane_orders() -> None:
    with chosen("split"):
        kit.in_every_lane_order(lambda: many(down_inputs(case("mxfp4", 288, tokens=9, inner=20), F16)))


def test_which_products_go_this_way() -> None:
    """Formats with fragments, x of 16 bits, rows at multiples of 4 bytes or of blocks of odd sizes."""
    usual = down_inputs(case("q4_0", 256), F16)
    assert kernel(usual).startswith("moe_linear<")  # by the host's table
    with chosen("one"):
        assert kernel(usual).startswith("moe_matrix<")
        assert kernel(down_inputs(case("q4_0", 256), F32)).startswith("moe_linear<")
        assert kernel(down_inputs(case("q4_0", 96), F16)).startswith("moe_linear<")  # half a period
        assert kernel(down_inputs(case("q5_0", 256), F16)).startswith("moe_linear<")
        shifted = kit.shifted(usual["weight"], 2)
        assert kernel({**usual, "weight": shifted}).startswith("moe_linear<")


def test_every_entry_fits_into_an_h100s_threadgroup_memory() -> None:
    on = 0
    for key in kit.every_key("moe_matrix"):
        c, fmt = tuning.choice("sm_90", key), quant.FORMATS[key.format]
        if c["outputs"] and key.format in FORMATS:
            on += 1
            stride = (256 // fmt.block_size * fmt.block_bytes + 15) // 32 * 32 + 16
            rows = 8 * c["blocks"]
            memory = c["steps"] * (c["split"] * rows * (256 * 2 + 32) + c["simdgroups"] * c["outputs"] * stride)
            assert 4 * rows + memory <= 232448, (key, c)
    assert on


def check_by_matrices() -> None:
    with chosen("rows"):
        check_many(down_inputs(case("mxfp4", 96, biased=True, tokens=70), F16))
        check_many(down_inputs(case("q4_0", 64), F16))


def check_ends() -> None:
    test_rows_begin_anywhere("mxfp4", 96, 17, 4)


def _fault(name: str, old: str, new: str, file: str = "") -> Fault:
    return Fault(f"moe-matrix-{name}", "moe_matrix.metal", old, new, check_by_matrices, file)


FAULTS = [
    _fault("pairs-of-the-first-rows", "+ group.z * Tile::rows;", ";"),
    _fault("too-few-blocks", "(count + 7) / 8", "count / 8"),
    _fault("past-of-the-first-row", "w.past(fragment_of(lane).row + 8 * i)", "w.past(8 * i)"),
    _fault("row-without-its-past", "w.matrix - past + first", "w.matrix + first"),
    _fault("last-bytes-left-out", "whole < there && i", "false && i"),
    _fault("bias-of-expert-0", "args.bias, bias, expert, n)", "args.bias, bias, 0, n)"),
    _fault("x-of-the-pair", "/ args.per_row;", "* 0;"),
    _fault("scale-of-the-next-block", "[first];", "[first + 17];", "mxfp4.h"),
    _fault("word-of-the-lane-before", "first + 1 + 4 * t;", "first + 1 + 4 * (t & 2);", "mxfp4.h"),
]
