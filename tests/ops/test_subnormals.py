"""Packed codes as subnormal halves: right and bit for bit as in the mantissa of 1024, and only where a device keeps
such halves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kit
import pytest
import test_linear
import torch
from kit import BF16, F16, F32, Fault, within
from shader_text import edited_shaders
from test_linear import Case

from torch_foundry import ops, quant
from torch_foundry.core import environment, runtime, tuning
from torch_foundry.core.graph import capture
from torch_foundry.testing import weights as blocks

pytestmark = pytest.mark.cpu_only

HAVE = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
NONE = ["mxfp4", "affine4_g64_f16", "int4_g32", "iq4_nl", "f16"]
FLUSHED = ("subnormals.metal", "args.words[i], 0x00ff00ffu, 0, 0.0h", "args.words[i], 0u, 0, 0.0h")
OF_1024, SUBNORMAL = 1, 2  # `chains`


@pytest.fixture(autouse=True)
def choices_as_they_were() -> Iterator[None]:
    yield
    tuning.forget()
    tuning.load_environment()


@pytest.mark.tier("kernels")
@pytest.mark.parametrize("name", HAVE)
def test_both_policies(name: str) -> None:
    """For one row and several, read ahead or when used; whole numbers are exact."""
    block = quant.FORMATS[name].block_size
    for steps, rows, dtypes in ((0, 1, (F16, BF16, F32)), (1, 2, (F16,)), (0, 4, (F16,)), (0, 8, (F16,))):
        cases = [(Case(rows, 9, 9 * block, name), dtype) for dtype in dtypes]
        results = []
        for chains in (OF_1024, SUBNORMAL):
            with kit.choice("linear", chains=chains, steps=steps, outputs=2):
                for case, dtype in cases:
                    test_linear.check(test_linear.inputs(case, dtype))
                results.append([ops.linear(**test_linear.inputs(case, dtype)) for case, dtype in cases])
        for of_1024, subnormal in zip(*results, strict=True):
            kit.assert_equal(of_1024, subnormal)
    with kit.choice("linear", chains=SUBNORMAL, steps=0, outputs=2):
        test_linear.test_integers_are_exact(name, F16, 1)
        test_linear.test_one_hot_reads_every_weight_back(name, F16, 1)
        if name in kit.CODES:
            test_linear.test_a_row_does_not_depend_on_its_company(name, F16)


@pytest.mark.parametrize("name", ["q4_0", "q4_k"])
def test_behind_a_norm(name: str) -> None:
    g = kit.generator(name)
    x, gain = kit.normal(g, 1, 512, dtype=F16), kit.normal(g, 512, dtype=F16)
    weight, results = blocks.packed(kit.normal(g, 16, 512, dtype=F32), name), []
    for chains in (OF_1024, SUBNORMAL):
        with kit.choice("norm_linear", chains=chains, steps=0, outputs=2):
            results.append(ops.norm_linear(x, gain, 1e-6, [weight], formats=[name]))
    kit.assert_equal(*results)


def launched(name: str, rows: int = 1) -> str:
    """The kernel of a product with a weight of that format."""
    given = test_linear.inputs(Case(rows, 9, 2 * max(quant.FORMATS[name].block_size, 256), name), F16)
    with capture() as graph:
        ops.linear(**given)
    (launch,) = graph.launches()  # what asks the device is no part of it
    return launch.kernel


def chains_of(kernel: str) -> int:
    return int(kernel.rpartition(", ")[2].rstrip(">"))


def test_apples_lines_ask_for_them() -> None:
    for family in ("apple7", "apple10"):
        for op, rows in (("linear", 1), ("linear", 8), ("norm_linear", 1), ("moe_glu", 1), ("moe_down", 1)):
            for name in HAVE:
                assert tuning.choice(family, tuning.Key(op, name, rows, 4096, 4096))["chains"] == SUBNORMAL
            for name in NONE:
                assert tuning.choice(family, tuning.Key(op, name, rows, 4096, 4096))["chains"] == OF_1024
    for family in ("sm_90", "sm_90-h200", "sm_80", "host"):
        for key in kit.every_key("linear"):
            assert tuning.choice(family, key)["chains"] != SUBNORMAL


def test_a_format_without_them() -> None:
    with kit.choice("linear", chains=SUBNORMAL, steps=1, outputs=2):
        assert [chains_of(launched(name)) for name in ("q4_0", *NONE)] == [SUBNORMAL, *(OF_1024 for _ in NONE)]


@pytest.mark.parametrize("fault", ["flushed", "does not compile"])
def test_where_a_device_keeps_none(fault: str, tmp_path: Path) -> None:
    """The launches of the other policy; so, too, if nobody can say."""
    edit = FLUSHED if fault == "flushed" else (FLUSHED[0], "float codes[4]", "no_such_type codes[4]")
    cpu = torch.device("cpu")
    with kit.choice("linear", chains=OF_1024, steps=0, outputs=2):
        expected = {(name, rows): launched(name, rows) for name in ("q8_0", "q4_k") for rows in (1, 3)}
    with kit.choice("linear", chains=SUBNORMAL, steps=0, outputs=2):
        assert runtime.subnormal_codes(cpu)
        assert chains_of(launched("q8_0")) == SUBNORMAL
        with runtime.use_shaders(edited_shaders(tmp_path, edit)):
            tuning.load_environment()
            assert not runtime.subnormal_codes(cpu)
            assert {(name, rows): launched(name, rows) for name, rows in expected} == expected
        tuning.load_environment()
        assert runtime.subnormal_codes(cpu)
        assert chains_of(launched("q8_0")) == SUBNORMAL


def test_flushed_float32_is_no_matter() -> None:
    """As on Apple's GPUs, which keep halves alone: what becomes of a subnormal half is a normal float."""
    given, results = test_linear.inputs(Case(2, 9, 1024, "q4_0"), F16), []
    with kit.choice("linear", chains=SUBNORMAL, steps=0, outputs=2):
        for flush in (False, True):
            with runtime.host_options(flush_subnormals=flush):
                tuning.load_environment()
                assert runtime.subnormal_codes(torch.device("cpu"))
                results.append(ops.linear(**given))
    kit.assert_equal(*results)


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = environment.SUBNORMAL_CODES.name
    with kit.choice("linear", chains=SUBNORMAL, steps=1, outputs=2):
        for value, expected in (("0", OF_1024), ("1", SUBNORMAL), ("", SUBNORMAL)):
            monkeypatch.setenv(name, value)
            tuning.load_environment()
            assert chains_of(launched("q4_0")) == expected
            assert runtime.subnormal_codes(torch.device("cpu")) == (expected == SUBNORMAL)


def _fault(name: str, old: str, new: str, kind: str, file: str = "gemv.h", m: int = 1) -> Fault:
    def check() -> None:
        with kit.choice("linear", chains=SUBNORMAL, steps=0, outputs=2):
            test_linear.test_accuracy(Case(m, 9, 2560, kind), F16)

    return Fault(f"linear-subnormal-{name}", "linear.metal", old, new, check, file)


FAULTS = [
    _fault("zero-of-1024", "subnormal ? as_type<half>(ushort(zero))", "subnormal ? half(zero)", "q4_0", "format.h"),
    _fault("signs-not-flipped", "bytes ^= subnormal ? flip : 0", "bytes ^= subnormal ? 0 : 0", "q8_0", "format.h"),
    _fault("sums-not-scaled", "sum[i] *= 0x1p24f", "sum[i] *= 0x1p23f", "q4_0"),
    _fault("offsets-not-scaled", *within("offset[g] = raw[n].offset(first, g) * unit", " * unit", ""), "q4_k"),
    _fault("offsets-of-few-rows", *within("offset[n] = raw[n].offset(first, g) * unit", " * unit", ""), "q4_k", m=3),
    _fault("base-of-1024", "base = SUBNORMAL ? 0 :", "base = SUBNORMAL ? 0x04000400u :", "q4_1"),
]  # fmt: skip
