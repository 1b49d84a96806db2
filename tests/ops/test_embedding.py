"""embedding: rows of a table, bit for bit, for every weight format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, UNIT
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.testing import op_checks, weights
from torch_foundry.testing import reference as plain

PACKED = weights.samples()


@dataclass(frozen=True)
class Case(kit.Case):
    tokens: int = 5
    vocab: int = 11
    hidden: int = 64
    format: str | None = None  # None: dense, of the dtype of the result
    scale: float = 1.0
    wide_ids: bool = True
    residual: bool = False


CASES = [
    *((Case(hidden=h), F32) for h in (1, 7, 8, 9, 64, 65)),
    (Case(tokens=1, vocab=1, hidden=8), F32),
    (Case(wide_ids=False), F32),
    (Case(scale=16.0), F32),
    (Case(scale=33.941125), F16),  # sqrt(1152), no number of f16 or bf16
    (Case(scale=33.941125, hidden=31), BF16),
    (Case(format="f16"), F32),
    *((Case(hidden=h, scale=5.656854, residual=True), d) for h in (9, 64) for d in (F32, F16)),
    (Case(hidden=64, format="q8_0", scale=5.656854, residual=True), BF16),
    *((Case(hidden=3 * quant.FORMATS[name].block_size, format=name), F32) for name in PACKED),
    *((Case(hidden=quant.FORMATS[name].block_size, format=name, scale=5.656854), BF16) for name in kit.CODES),
]
BENCH = [Case(n, vocab=4096, hidden=1024, format=name) for n in (1, 64) for name in (None, *kit.CODES)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g = kit.generator(case)
    dense = kit.normal(g, case.vocab, case.hidden, dtype=F32)
    weight = dense.to(dtype) if case.format is None else weights.packed(dense, case.format)
    ids = torch.randint(0, case.vocab, (case.tokens,), generator=g, dtype=torch.int64 if case.wide_ids else torch.int32)
    ids[0] = case.vocab - 1
    residual = kit.normal(g, case.tokens, case.hidden, dtype=dtype) if case.residual else None
    given = {"ids": ids, "weight": weight, "format": case.format, "dtype": dtype, "scale": case.scale}
    return given if residual is None else {**given, "residual": residual}


run = ops.embedding
reference = plain.embedding


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    row = kit.row_bytes(case.format, case.hidden, dtype)
    return case.tokens * case.hidden, case.tokens * (row + case.hidden * dtype.itemsize + 8)


check = op_checks.embedding  # bit for bit


@kit.cases(*CASES)
def test_equals_the_table(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


# Q1_0 is a size in gguf and no more.
KNOWN_TO_GGUF = [name for name in PACKED if quant.FORMATS[name].gguf_type is not None and name != "q1_0"]


@pytest.mark.parametrize("name", KNOWN_TO_GGUF)
def test_close_to_the_truth(name: str) -> None:
    """Against float64 as well, since the reference above shares the unpacking."""
    gguf = pytest.importorskip("gguf")
    given = inputs(Case(hidden=quant.FORMATS[name].block_size, format=name, scale=3.0), F16)
    kind = gguf.GGMLQuantizationType(quant.FORMATS[name].gguf_type)
    table = torch.from_numpy(gguf.dequantize(given["weight"].numpy(), kind)).double()
    truth = 3.0 * table[given["ids"]]
    kit.assert_bound(ops.embedding(**given), truth, 2.01 * UNIT[F16] * truth.abs() + 2e-7)


def test_shapes_and_offsets() -> None:
    given = inputs(Case(tokens=6), F32)
    expected = ops.embedding(**given)
    kit.assert_equal(ops.embedding(**{**given, "ids": given["ids"].view(2, 3)}), expected.view(2, 3, 64))
    kit.assert_equal(ops.embedding(**{**given, "ids": kit.shifted(given["ids"])}), expected)
    kit.assert_equal(
        ops.embedding(**{**given, "ids": given["ids"].view(2, 3)[:, -1:]}), expected[[2, 5]].view(2, 1, 64)
    )
    kit.assert_equal(ops.embedding(**{**given, "ids": given["ids"][0]}), expected[0])
    for weight in (kit.shifted(given["weight"]), kit.spread(given["weight"]), kit.spread(given["weight"], 3)):
        kit.assert_equal(ops.embedding(**{**given, "weight": weight}), expected)


@pytest.mark.parametrize("fmt", [None, "q8_0"])
def test_unknown_ids_as_the_first_row(fmt: str | None) -> None:
    given = inputs(Case(format=fmt, scale=3.0), F32) | {"first_if_unknown": True}
    given["ids"] = torch.tensor([3, -1, 11, 10, 2**40])
    rows = ops.embedding(**given)
    kit.assert_equal(rows, reference(**given))
    kit.assert_equal(rows, ops.embedding(**{**given, "ids": torch.tensor([3, 0, 0, 10, 0]), "first_if_unknown": False}))


def test_default_dtype() -> None:
    ids, table = torch.tensor([0]), torch.randn(2, 64)
    assert ops.embedding(ids, table.half()).dtype == F16
    assert ops.embedding(ids, quant.quantize(table, PACKED[0]), format=PACKED[0]).dtype == F32


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(), F32)
    kit.in_every_lane_order(lambda: ops.embedding(**given))


def test_empty() -> None:
    assert ops.embedding(torch.zeros(0, dtype=torch.int64), torch.zeros(4, 8)).shape == (0, 8)
    assert ops.embedding(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(4, 0)).shape == (2, 3, 0)


@pytest.mark.cpu_only
def test_opcheck() -> None:
    ids, table = torch.randint(0, 9, (2, 3)), torch.randn(9, 64)
    kit.opcheck("embedding", ids, table, None, F32, 2.0)
    kit.opcheck("embedding", ids, quant.quantize(table, PACKED[0]), PACKED[0], F16, 1.0, True)
    kit.opcheck("embedding", ids, table, None, F32, 1.0, False, torch.randn(2, 3, 64))


def _ids(*values: int) -> Tensor:
    return torch.tensor(values)


@pytest.mark.cpu_only
@pytest.mark.parametrize("format, dtype", [(None, torch.bfloat16), ("q8_0", torch.uint8)], ids=str)
def test_tables_beyond_32_bits(format: str | None, dtype: torch.dtype) -> None:
    """Embeddings of layers are one table: 2.8e9 numbers in Gemma 4 E4B. Memory that isn't touched isn't taken."""
    memory, shape = torch.UntypedStorage((2**21 + 2) * 1088 * dtype.itemsize), (2**21 + 2, 1088)  # not filled by kit
    table, ids = torch.empty(0, dtype=dtype).set_(memory, 0, shape), torch.tensor([0, 2**21 + 1, 1_973_791])
    assert table.numel() > 2**31
    rows = torch.randn(3, 1024)
    table[ids] = quant.quantize(rows, "q8_0") if format else torch.nn.functional.pad(rows, (0, 64)).to(dtype)
    expected = quant.dequantize(table[ids], "q8_0") if format else table[ids].float()
    assert torch.equal(ops.embedding(ids, table, format=format, dtype=torch.float32), expected)


@pytest.mark.cpu_only
def test_bad_inputs() -> None:
    table = torch.randn(4, 64)
    for wrong in (4, -1, 2**40):
        with pytest.raises(IndexError, match=rf"ids: expected values in \[0, 4\), got {wrong}"):
            ops.embedding(_ids(0, wrong), table)
    with pytest.raises(IndexError, match="got -1"):
        ops.embedding(_ids(-1).int(), table)
    with kit.refuses(r"ids: expected dtype Long or Int, got Float"):
        ops.embedding(torch.zeros(2), table)
    with kit.refuses(r"weight: expected 2 dimensions"):
        ops.embedding(_ids(0), table[0])
    with kit.refuses(r"weight: expected dtype Byte"):
        ops.embedding(_ids(0), table, format="q8_0")
    with kit.refuses(r"output: expected dtype Float or Half or BFloat16, got Double"):
        ops.embedding(_ids(0), table, dtype=torch.float64)
    with kit.refuses(r"scale: expected a finite number"):
        ops.embedding(_ids(0), table, scale=float("inf"))
    for wrong, why in ((torch.randn(1, 64).half(), "dtype"), (torch.randn(2, 64), "the shape of the output")):
        with kit.refuses(f"residual: expected {why}"):
            ops.embedding(_ids(0), table, residual=wrong)
    with kit.refuses(r"output: expected at most 2\^31-1 elements"):
        ops.embedding(torch.zeros(2**26, dtype=torch.int32), table)
