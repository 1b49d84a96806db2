"""linear against float64, for every weight format, in all its kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.testing import op_checks
from torch_foundry.testing import reference as plain
from torch_foundry.testing import weights as blocks

ROOT = Path(__file__).parents[2]
PACKED = [*kit.CODES, "q4_k"]  # in every kernel; the others, which differ in their unpacking alone, where it shows
OTHERS = [name for name in blocks.samples() if name not in PACKED]


@dataclass(frozen=True)
class Case(kit.Case):
    m: int = 1
    n: int = 24
    k: int = 256
    format: str | None = None  # None: dense, of the dtype of x
    bias: bool = False
    residual: bool = False
    scale: float = 1.0
    activation: str | None = None


FULL = {"bias": True, "residual": True, "scale": 0.22, "activation": "silu"}

# k around a chunk (8), a simdgroup's step (256) and a slab (32); n around the outputs of a simdgroup (4), a threadgroup
# (8) and a tile (64); m around each route (1, 2, 4, 8, 16) and a tile (32). The epilogue is a run-time choice.
ROWS_F32 = [(1, 1, 1), (1, 3, 7), (1, 4, 8), (1, 5, 9), (1, 7, 255), (1, 8, 256), (1, 9, 257), (1, 13, 896)]
ROWS_F32 += [
    (2, 5, 257),
    (2, 8, 264),
    (3, 9, 40),
    (4, 8, 33),
    (5, 9, 264),
    (8, 4, 31),
    (9, 9, 64),
    (15, 1, 8),
    (16, 7, 40),
]
TILES_F32 = [(17, 1, 1), (17, 63, 31), (31, 64, 32), (32, 65, 33), (33, 64, 40), (64, 128, 64), (65, 129, 96)]
CASES: list[tuple[Case, torch.dtype]] = [
    *((Case(m, n, k), F32) for m, n, k in ROWS_F32 + TILES_F32),
    (Case(), F16),
    (Case(), BF16),
    (Case(1, 9, 257), F16),
    (Case(8, 9, 264), F16),
    (Case(33, 65, 72), F16),
    (Case(33, 65, 72), BF16),
    (Case(format="f16", k=264), F32),
    (Case(33, 9, 40, format="bf16"), F16),
]
for _name in PACKED:
    _block = quant.FORMATS[_name].block_size
    CASES += [
        *((Case(1, n, k * _block, _name), F32) for n, k in ((1, 1), (9, 8), (24, 9), (5, 28))),
        *((Case(m, 9, 9 * _block, _name), F32) for m in (3, 8, 16)),
        *((Case(m, n, 3 * _block, _name), F32) for m, n in ((17, 1), (33, 65), (64, 64))),
        (Case(1, 24, 9 * _block, _name), F16),
        (Case(1, 24, 9 * _block, _name), BF16),
        (Case(33, 65, 3 * _block, _name), F16),
        (Case(33, 65, 3 * _block, _name), BF16),
    ]
CASES += [(Case(m, 9, 4 * quant.FORMATS[name].block_size, name), F32) for name in OTHERS for m in (8, 33)]
for _m in (3, 33):
    CASES += [
        (Case(_m, bias=True), F32),
        (Case(_m, residual=True, scale=0.22), F32),
        (Case(_m, scale=-3.0), F32),
        *(
            (Case(_m, bias=True, activation=a), F32)
            for a in ("silu", "gelu_tanh", "gelu", "sigmoid", "softplus", "relu", "relu2")
        ),
        (Case(_m, **FULL), F32),
    ]
CASES += [(Case(**FULL), F16), (Case(33, **FULL), BF16)]
CASES += [(Case(m, 40, 4096), F32) for m in (4, 20)]  # in one chain six times torch's error

BENCH = [Case(m, 4864, 1024, name) for m in (1, 8, 64) for name in (None, *PACKED)] + [Case(1, 1024, 4864, "q8_0")]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    x = kit.normal(g, case.m, case.k, dtype=dtype)
    dense = kit.normal(g, case.n, case.k, dtype=F32, scale=case.k**-0.5)
    weight = dense.to(dtype) if case.format is None else blocks.packed(dense, case.format)
    bias = kit.normal(g, case.n, dtype=dtype) if case.bias else None
    residual = kit.normal(g, case.m, case.n, dtype=dtype) if case.residual else None
    options = {"bias": bias, "residual": residual, "scale": case.scale, "activation": case.activation}
    return {"x": x, "weight": weight, "format": case.format, **options}


run = ops.linear
reference = plain.linear


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    others = case.m * (case.k + case.n * (1 + case.residual)) + case.n * case.bias
    return 2 * case.m * case.n * case.k, case.n * kit.row_bytes(case.format, case.k, dtype) + others * dtype.itemsize


check = op_checks.linear
dense_of = op_checks.dense_of


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


ONE_CHAIN = kit.some_nightly([("q8_0", 1, 4), ("q4_0", 2, 2)], [("q8_0", 2, 2), ("q4_0", 1, 4)])


@pytest.mark.cpu_only
@pytest.mark.parametrize("name, steps, outputs", ONE_CHAIN)
def test_by_codes(name: str, steps: int, outputs: int) -> None:
    """The inner product of GPUs, which the host has no use for: codes from 0 on, if it has any, read a step ahead."""
    block = quant.FORMATS[name].block_size
    with kit.choice("linear", chains=1, steps=steps, outputs=outputs):
        for m, n, blocks in ((1, 1, 1), (1, 9, 28), (1, 9, 35), (2, 5, 17), (3, 9, 9), (8, 6, 50), (4, 40, 128)):
            check(inputs(Case(m, n, blocks * block, name), F32))
        for dtype in (F16, BF16):
            check(inputs(Case(2, 9, 9 * block, name), dtype))
        test_a_row_does_not_depend_on_its_company(name, F32)
        test_packed_rows_of_a_view(name)
        test_integers_are_exact(name, F32, 8)
        test_one_hot_reads_every_weight_back(name, F32, 1)


@pytest.mark.parametrize("name", [*kit.CODES, "q4_k", "q6_k", "mxfp4"])
def test_codes_read_when_they_are_used(name: str) -> None:
    """As on Apple GPUs: the same bits as a step ahead."""
    for m, n, count in ((1, 9, 28), (1, 9, 35), (3, 6, 9)):
        given, results = inputs(Case(m, n, count * quant.FORMATS[name].block_size, name), F16), []
        for steps in (0, 1):
            with kit.choice("linear", chains=1, steps=steps, outputs=2):
                results.append(ops.linear(**given))
        kit.assert_equal(*results)


@pytest.mark.parametrize("name", kit.MORE_CODES)
def test_codes_of_every_format(name: str) -> None:
    """The same where codes are all that differs; with offsets, f32 rows are not multiplied by codes."""
    block = quant.FORMATS[name].block_size
    with kit.choice("linear", chains=1, steps=1, outputs=2):
        check(inputs(Case(1, 9, 9 * block, name), F16))
        test_one_hot_reads_every_weight_back(name, F16, 1)
        if not name.startswith(("affine", "int", "fp8")) and name != "nvfp4_f32":  # which are aligned to words anyway
            given = inputs(Case(1, 9, 8 * block, name), F16)
            moved = kit.shifted(given["weight"], 1 if name.startswith("mx") else 2)
            kit.assert_equal(ops.linear(**{**given, "weight": moved}), ops.linear(**given))
        if name in ("q4_k", "q6_k", "mxfp4", "fp8_g32"):  # four rows at a time
            check(inputs(Case(3, 9, 5 * block, name), F16))
            test_a_row_does_not_depend_on_its_company(name, F16)


def test_codes_that_are_nan() -> None:
    """By codes as from a table: what has one is a NaN, and nothing else is."""
    given = inputs(Case(1, 9, 256, "fp8_g32"), F16)
    given["weight"][3].view(-1)[42] = 0xFF  # of the second block, behind its scale
    with kit.choice("linear", chains=1, steps=1, outputs=2):
        by_codes = ops.linear(**given)
    assert by_codes.isnan().nonzero().tolist() == ops.linear(**given).isnan().nonzero().tolist() == [[0, 3]]


# ------------------------------------------------------------------------------------------------------- exact equality

EXACT = [(None, F32), (None, F16), (None, BF16), *((name, F32) for name in PACKED), *((name, F16) for name in PACKED)]
EXACT += [(name, F32) for name in OTHERS]
exact = pytest.mark.parametrize("format, dtype", EXACT, ids=lambda v: kit.dtype_id(v) or str(v))


def packed_or_dense(weight: Tensor, name: str | None, dtype: torch.dtype) -> dict[str, Any]:
    return {"weight": weight.to(dtype) if name is None else blocks.packed(weight, name), "format": name}


@exact
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_one_hot_reads_every_weight_back(format: str | None, dtype: torch.dtype, rows: int) -> None:
    k = 2 * quant.FORMATS[format].block_size if format else 64
    given = packed_or_dense(kit.normal(kit.generator(format), 9, k, dtype=F32), format, dtype)
    x = torch.eye(k, dtype=dtype)
    got = torch.cat([ops.linear(x[i : i + rows], **given) for i in range(0, k, rows)])
    kit.assert_equal(got, dense_of(given).T.to(dtype))


def integer_weight(g: torch.Generator, n: int, k: int, name: str | None, dtype: torch.dtype) -> dict[str, Any]:
    """Whole numbers that `name` holds exactly: the first two of each block are what makes the block's scale 1."""
    if name is None:
        return {"weight": kit.integers(g, n, k, dtype=dtype), "format": None}
    block = quant.FORMATS[name].block_size
    if blocks.has_whole_numbers(name):
        return {"weight": blocks.whole_numbers(g, n, k, name), "format": name}
    ranges = (-448, 448), (-127, 127), (-16, 15), (-8, 7), (-1, 1), (-128, 127), (-32, 31), (-4, 3), (-2, 1), (-3, 3)
    for low, high in ranges:
        most = 15 if high > 127 else high  # floats of 8 bits reach to 448, and have four digits
        weight = torch.randint(max(low, -1 - most), most + 1, (n, k), generator=g).float()
        weight[:, ::block], weight[:, 1::block] = low, high
        packed = quant.quantize(weight, name)
        if torch.equal(quant.dequantize(packed, name), weight):
            return {"weight": packed, "format": name}
    raise AssertionError(f"no whole numbers found that {name} holds exactly")


@exact
@pytest.mark.parametrize("m", [1, 8, 33])
def test_integers_are_exact(format: str | None, dtype: torch.dtype, m: int) -> None:
    """Every partial sum is a whole number below 2^24, so any order of summation gives the same bits."""
    g = kit.generator(format, m)
    k = (3 if format in PACKED else 2) * quant.FORMATS[format].block_size if format else 96
    given = integer_weight(g, 65, k, format, dtype)
    weight = dense_of(given)
    x, bias = kit.integers(g, m, k, dtype=dtype), kit.integers(g, 65, dtype=dtype)
    residual = kit.integers(g, m, 65, dtype=dtype)
    expected = residual.double() + 2 * (x.double() @ weight.T + bias.double())
    kit.assert_equal(ops.linear(x, **given, bias=bias, residual=residual, scale=2.0), expected.to(dtype))


@pytest.mark.tier("kernels")
@pytest.mark.cpu_only
@pytest.mark.parametrize("format, dtype", [(None, F32), *((name, F32) for name in PACKED)], ids=str)
def test_a_row_does_not_depend_on_its_company(format: str | None, dtype: torch.dtype) -> None:
    k = 9 * (quant.FORMATS[format].block_size if format else 33)
    given = inputs(Case(35, 9, k, format, **FULL), dtype)  # type: ignore[arg-type]
    alone = [{**given, "x": given["x"][i : i + 1], "residual": given["residual"][i : i + 1]} for i in range(35)]
    expected = torch.cat([ops.linear(**one) for one in alone])
    kit.assert_equal(ops.linear(**given, batch_invariant=True), expected)
    for m in (2, 3, 4, 5, 8, 9, 16):
        some = {**given, "x": given["x"][:m], "residual": given["residual"][:m]}
        kit.assert_equal(ops.linear(**some), expected[:m])
        kit.assert_equal(ops.linear(**some, batch_invariant=True), expected[:m])


@pytest.mark.parametrize("m", [3, 33])
def test_strides_and_offsets(m: int) -> None:
    """Unaligned addresses take the element-wise loader, which adds in the same order."""
    given = inputs(Case(m, 9, 264, **FULL), F32)  # type: ignore[arg-type]
    expected = ops.linear(**given)
    for name in ("x", "weight", "residual"):
        for moved in (kit.shifted(given[name]), kit.spread(given[name]), kit.spread(kit.shifted(given[name]), 1)):
            kit.assert_equal(ops.linear(**{**given, name: moved}), expected)
    kit.assert_equal(ops.linear(**{**given, "bias": kit.shifted(given["bias"])}), expected)


@pytest.mark.parametrize("name", PACKED)
def test_packed_rows_of_a_view(name: str) -> None:
    given = inputs(Case(2, 9, 8 * quant.FORMATS[name].block_size, name), F32)
    expected = ops.linear(**given)
    bytes_ = quant.FORMATS[name].block_bytes
    for moved in (kit.shifted(given["weight"], 2), kit.spread(given["weight"], bytes_)):
        kit.assert_equal(ops.linear(**{**given, "weight": moved}), expected)
    kit.assert_equal(ops.linear(**{**given, "x": kit.shifted(given["x"])}), expected)
    kit.assert_equal(ops.linear(**given, out_features=5), expected[:, :5].contiguous())


def test_leading_dimensions() -> None:
    given = inputs(Case(12, 9, 64, residual=True), F32)
    expected = ops.linear(**given)
    folded = {**given, "x": given["x"].view(2, 6, 64), "residual": given["residual"].view(2, 6, 9)}
    kit.assert_equal(ops.linear(**folded), expected.view(2, 6, 9))
    last = ops.linear(folded["x"][:, -1:], given["weight"])  # what an lm_head sees after a prefill
    kit.assert_equal(last, ops.linear(given["x"][[5, 11]], given["weight"]).view(2, 1, 9))
    assert ops.linear(given["x"][0], given["weight"]).shape == (9,)


@pytest.mark.cpu_only
@pytest.mark.parametrize("m, name", [(3, None), (33, None), (3, PACKED[0]), (33, PACKED[0])])
def test_lane_orders(m: int, name: str | None) -> None:
    given = inputs(Case(m, 70, 288, name, **FULL), F32)  # type: ignore[arg-type]
    kit.in_every_lane_order(lambda: ops.linear(**given))


# ---------------------------------------------------------------------------------------------------------- the surface


def test_empty() -> None:
    assert ops.linear(torch.zeros(0, 8), torch.zeros(4, 8)).shape == (0, 4)
    assert ops.linear(torch.zeros(2, 3, 8), torch.zeros(0, 8)).shape == (2, 3, 0)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    given = inputs(Case(6, 9, 64, **FULL), F32)  # type: ignore[arg-type]
    tail = (given["bias"], given["residual"], 0.5, "gelu")
    kit.opcheck("linear", given["x"], given["weight"], None, *tail)
    kit.opcheck("linear", given["x"], quant.quantize(given["weight"], PACKED[0]), PACKED[0], *tail)


def test_bad_inputs() -> None:
    x, w = torch.randn(2, 64), torch.randn(4, 64)
    packed = quant.quantize(w, "q8_0")
    with kit.refuses(r"x: expected dtype Float or Half or BFloat16, got Double"):
        ops.linear(x.double(), w)
    with kit.refuses(r"weight: expected dtype Float or Half or BFloat16, got Double"):
        ops.linear(x, w.double())
    with kit.refuses(r"x: expected \[..., in_features=64\], got \[2, 63\]"):
        ops.linear(x[:, :63], w)
    with kit.refuses(r"weight: expected 2 dimensions"):
        ops.linear(x, w[0])
    with kit.refuses(r"bias: expected \[out_features=4\], got \[3\]"):
        ops.linear(x, w, bias=torch.zeros(3))
    with kit.refuses(r"bias: expected dtype Float, got Half"):
        ops.linear(x, w, bias=torch.zeros(4).half())
    with kit.refuses(r"residual: expected the shape of the output"):
        ops.linear(x, w, residual=torch.zeros(2, 5))
    with kit.refuses(r"x: expected a contiguous last dimension"):
        ops.linear(torch.randn(64, 2).t(), w)
    with kit.refuses(r"weight: expected a contiguous last dimension"):
        ops.linear(x, torch.randn(64, 4).t())
    with kit.refuses(r"format: expected one of .*q8_0.*, got 'q9_9'"):
        ops.linear(x, packed, format="q9_9")
    with kit.refuses(r"weight: expected dtype Byte, got Float"):
        ops.linear(x, w, format="q8_0")
    with kit.refuses(r"weight: expected f16 weights, got f32"):
        ops.linear(x, w, format="f16")
    with kit.refuses(r"weight: expected rows of whole q8_0 blocks of 34 bytes, got 67 bytes"):
        ops.linear(x, packed[:, :67], format="q8_0")
    apart = torch.zeros(4, 70, dtype=torch.uint8)[:, :68]
    with kit.refuses(r"weight: expected rows of whole q8_0 blocks of 34 bytes, got 68 bytes with strides \[70, 1\]"):
        ops.linear(x, apart, format="q8_0")
    with kit.refuses(r"weight: expected rows of whole q4_k blocks of 144 bytes, got 68 bytes"):
        ops.linear(x, packed, format="q4_k")
    with kit.refuses(r"weight: expected an address that is a multiple of 2 bytes"):
        ops.linear(x, kit.shifted(packed), format="q8_0")
    with kit.refuses(r"activation: expected one of silu, gelu_tanh, gelu, .*got elu"):
        ops.linear(x, w, activation="elu")
    with kit.refuses(r"activation: expected one of a single number, got clamped_swiglu"):
        ops.linear(x, w, activation="clamped_swiglu")
    with kit.refuses(r"scale: expected a finite number"):
        ops.linear(x, w, scale=float("nan"))
    with kit.refuses(r"weight: expected at least one input feature"):
        ops.linear(torch.zeros(2, 0), torch.zeros(4, 0))
    with kit.refuses(r"x: expected at most 2\^31-1 elements"):
        ops.linear(torch.zeros(1, 64).expand(2**26, 64), w)
    with kit.refuses(r"output: expected at most 2\^31-1 elements"):
        ops.linear(torch.zeros(2**16, 1), torch.zeros(2**16, 1))


def test_no_kernel_or_op_knows_a_format() -> None:
    """Formats are policies: none is named outside shaders/quant, but for instances that the lint is asked to check.

    kv*: formats of a cache's rows, which have a table of their own there.
    """
    names = [name for f in (*PACKED, *OTHERS) for name in (f, f.upper())]
    pattern = re.compile(rf"\b({'|'.join(names)}|block_q\w*)\b")
    files = [*(ROOT / "shaders").rglob("*.*"), *(ROOT / "csrc/ops").glob("*")]
    files = [path for path in files if not path.name.startswith("kv") and path.parent.name != "quant"]
    texts = {
        path.name: re.sub(r"// foundry-lint: instance.*", "", path.read_text()) for path in files if path.is_file()
    }
    assert [name for name, text in texts.items() if pattern.search(text)] == []
