"""Signatures of kernels, as the executors and `compile_shader` see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_foundry.msl import Argument, FunctionConstant, Kernel, Translation, translate
from torch_foundry.msl.syntax.vocabulary import BUILTINS

SHADERS = Path(__file__).parent / "shaders"


@pytest.fixture(scope="module")
def breadth() -> Translation:
    return translate(SHADERS / "breadth.metal")


def kernel(translation: Translation, name: str) -> Kernel:
    return next(k for k in translation.kernels if k.name == name)


def arguments(parameters: str, before: str = "") -> list[Argument]:
    return translate(f"{before}\nkernel void f({parameters}) {{}}\n").kernels[0].args


def test_kernels_by_all_spellings(breadth):
    assert {k.name: k.entry for k in breadth.kernels} == {
        "inner::clear": "inner::clear",
        "ids": "all_ids",
        "literals": "literals",
        "ranges": "ranges",
        "spaces": "spaces",
        "scale_f32": "scale<float>",
        "scale_f16": "scale<half>",
        "transpose_f32_8": "transpose_msl_1<float, 8>",  # transpose is a library function, too
        "add_i32": "add<int>",
        "add_u8": kernel(breadth, "add_u8").entry,
        "map_twice": kernel(breadth, "map_twice").entry,
        "choose_bf16": "choose<bfloat>",
        "choose_f16": "choose<half>",
        "choose_f32": "choose<float>",
    }
    assert kernel(breadth, "map_twice").entry.startswith("inner::msl_instance_")
    assert [t.name for t in breadth.templates] == ["scale", "transpose", "add", "map", "choose"]
    assert [t.entry for t in breadth.templates] == ["scale", "transpose_msl_1", "add", "inner::map", "choose"]
    assert kernel(breadth, "map_twice").signature == "inner::map_msl_args"


def test_arguments(breadth):
    x, bias, y, args, i = kernel(breadth, "scale_f16").args
    assert x == Argument("x", "buffer", "device const T*", 0, None, "device", False, None)
    assert (bias.index, bias.optional_on) == (1, "has_bias")
    assert (y.index, y.writable) == (2, True)
    assert (args.index, args.type, args.address_space, args.writable) == (3, "constant ScaleArgs&", "constant", False)
    assert (i.kind, i.builtin, i.index) == ("builtin", "thread_position_in_grid", None)


def test_places(breadth):
    lines = (SHADERS / "breadth.metal").read_text().splitlines()
    k = kernel(breadth, "ids")
    assert k.file.endswith("breadth.metal") and "all_ids" in lines[k.line - 1] and lines[k.end_line - 1] == "}"
    assert "transpose_f32_8" in lines[kernel(breadth, "transpose_f32_8").line - 1]


def test_function_constants(breadth):
    assert breadth.function_constants == [
        FunctionConstant("has_bias", 10, "bool", True),
        FunctionConstant("unroll", 11, "int", False),
        FunctionConstant("corner", 12, "float2", True),
    ]


def test_closure(breadth):
    assert [Path(f).name for f in breadth.files] == ["breadth.metal", "scale.h"]
    assert all(Path(f).is_absolute() for f in breadth.files)


def test_buffers_without_attribute_are_numbered_in_order():
    args = arguments(
        "device int* a, constant int& b, threadgroup int* s, device int* c [[buffer(1)]], threadgroup int* t"
    )
    assert [(a.kind, a.index) for a in args] == [
        ("buffer", 0),
        ("buffer", 2),
        ("threadgroup", 0),
        ("buffer", 1),
        ("threadgroup", 1),
    ]


@pytest.mark.parametrize("attribute", sorted(BUILTINS))
def test_every_builtin(attribute):
    (argument,) = arguments(f"uint x [[{attribute}]]")
    assert (argument.kind, argument.builtin) == ("builtin", attribute)


@pytest.mark.parametrize(
    ("parameter", "type_", "name", "writable"),
    [
        ("device const half* x", "device const half*", "x", False),
        ("const device half *x", "const device half*", "x", False),
        ("device half* const x", "device half* const", "x", True),
        ("device float const * x", "device float const*", "x", False),
        ("device metal::packed_float3& x", "device metal::packed_float3&", "x", True),
        ("constant array<uint, 4>& x", "constant array<uint, 4>&", "x", False),
        ("constant float (&x)[4]", "constant float (&)[4]", "x", False),
        ("device unsigned int*", "device unsigned int*", "", True),
    ],
)
def test_types_as_written(parameter, type_, name, writable):
    (argument,) = arguments(f"{parameter} [[buffer(0)]]")
    assert (argument.type, argument.name, argument.writable) == (type_, name, writable)


@pytest.mark.parametrize(
    ("index", "before"),
    [
        ("5", ""),
        ("2 + 3", ""),
        ("(0x10 >> 1) - 3", ""),
        ("K", "constant constexpr int K = 5;"),
        ("B::C", "enum class B { A = 4, C };"),
        ("K + 1", "enum { J = 3, K };"),
    ],
)
def test_indices_are_constant_expressions(index, before):
    assert arguments(f"device int* x [[buffer({index})]]", before)[0].index == 5


def test_json_round_trip(breadth):
    assert Translation.from_json(breadth.to_json()) == breadth
