"""The mock's stand-in for Apple's compiler: names, messages, function constants, instantiations, metallibs."""

from __future__ import annotations

import pytest
import torch

mock = torch.ops.mock_metal

SOURCE = """#include <metal_stdlib>
using namespace metal;
constant bool negate [[function_constant(0)]];
template <typename T> kernel void scale(device const T* x [[buffer(0)]], device T* y [[buffer(1)]],
                                        uint i [[thread_position_in_grid]]) {
  y[i] = negate ? -2 * x[i] : 2 * x[i];
}
kernel void copy(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                 uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
"""
INSTANCE = 'template [[host_name("scale_float")]] [[kernel]] decltype(scale<float>) scale<float>;\n'


def run(source: str, kernel: str, constants: dict[int, float] | None = None, type_: str = "bool") -> list[float]:
    x = torch.arange(4.0).to("mps")
    y = torch.empty_like(x)
    mock.run(source, kernel, [x, y], constants or {}, type_)
    del x  # its memory stays until the GPU has read it
    return y.tolist()


def test_functions_and_instances_have_names() -> None:
    assert mock.compile(SOURCE) == ["copy"]
    assert mock.compile(SOURCE + INSTANCE) == ["copy", "scale_float"]
    half = INSTANCE.replace("float", "half")
    assert mock.compile(SOURCE + half + INSTANCE) == ["copy", "scale_float", "scale_half"]


def test_kernels_run() -> None:
    assert run(SOURCE, "copy") == [0, 1, 2, 3]
    assert run(SOURCE + INSTANCE, "scale_float", {0: False}) == [0, 2, 4, 6]
    assert run(SOURCE + INSTANCE, "scale_float", {0: True}) == [0, -2, -4, -6]


def test_function_constants_are_checked() -> None:
    with pytest.raises(RuntimeError, match=r"scale_float: function constant negate \(index 0\) has no value"):
        run(SOURCE + INSTANCE, "scale_float")
    with pytest.raises(RuntimeError, match=r"negate \(index 0\) has type bool, the value given is int"):
        run(SOURCE + INSTANCE, "scale_float", {0: 1}, "int")
    assert run(SOURCE, "copy") == [0, 1, 2, 3], "copy doesn't read it"


def test_unknown_names() -> None:
    with pytest.raises(RuntimeError, match="Function nothing was not found in the library"):
        run(SOURCE, "nothing")
    with pytest.raises(RuntimeError, match=r"program_source:10:.*error: .*unknown kernel template 'other'"):
        mock.compile(SOURCE + INSTANCE.replace("scale<", "other<"))


def test_errors_name_the_line() -> None:
    with pytest.raises(RuntimeError, match=r"program_source:9:\d+: error: .*undeclared_name"):
        mock.compile(SOURCE.replace("y[i] = x[i]", "y[i] = undeclared_name"))
    with pytest.raises(RuntimeError, match=r"program_source:1:\d+: error: .*'missing.h'"):
        mock.compile('#include "missing.h"\n' + SOURCE)
    with pytest.raises(RuntimeError, match=r"rows.h:31:\d+: error: .*nowhere"):
        mock.compile(SOURCE + '#line 30 "rows.h"\n\nkernel void k(device float* y [[buffer(0)]]) { *y = nowhere; }\n')


def test_metallib_of_the_mock() -> None:
    assert mock.load("MockMetallib 310\n" + SOURCE + INSTANCE) == ["copy", "scale_float"]
    two = "MockMetallib 320\n" + SOURCE + INSTANCE + "MockMetallib 320\n" + SOURCE.replace("copy", "move")
    assert mock.load(two) == ["copy", "scale_float", "move"]
    with pytest.raises(RuntimeError, match="Invalid library file"):
        mock.load("MTLB")
