"""compile_shader: the public way to run Metal kernels of one's own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_foundry
from torch_foundry.core import runtime
from torch_foundry.msl import MslError

SOURCE = """
#include <metal_stdlib>
using namespace metal;

constant bool negate [[function_constant(0)]];
constant float offset [[function_constant(7)]];
constant float used_offset = is_function_constant_defined(offset) ? offset : 0.0f;

struct Args { uint n; float factor; };

kernel void scale(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  constant float& factor [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = (negate ? -factor : factor) * x[i] + used_offset;
}

kernel void with_struct(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                        constant Args& args [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  if (i < args.n) y[i] = x[i] * args.factor;
}

template <typename T>
kernel void row_sum(device const T* x [[buffer(0)]], device float* y [[buffer(3)]], constant uint3& shape [[buffer(1)]],
                    threadgroup float* scratch [[threadgroup(0)]], uint row [[threadgroup_position_in_grid]],
                    uint tid [[thread_index_in_threadgroup]], uint size [[threads_per_threadgroup]]) {
  float sum = 0.0f;
  for (uint i = tid; i < shape.x; i += size) sum += float(x[row * shape.x + i]);
  scratch[tid] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) {
    float total = 0.0f;
    for (uint i = 0; i < size; ++i) total += scratch[i];
    y[row] = total;
  }
}
template [[host_name("row_sum_f32")]] kernel decltype(row_sum<float>) row_sum<float>;
template [[host_name("row_sum_f16")]] kernel decltype(row_sum<half>) row_sum<half>;
"""


@pytest.fixture(scope="module")
def lib() -> torch_foundry.core.shader.ShaderLibrary:
    return torch_foundry.compile_shader(SOURCE, constants={"negate": False})


def test_names_are_those_that_metal_would_show(lib) -> None:
    assert lib.names == ["scale", "with_struct", "row_sum_f32", "row_sum_f16"]


def test_signature_reflects_the_arguments(lib) -> None:
    arguments = {a.name: a for a in lib.signature("row_sum_f16").args}
    assert (arguments["x"].kind, arguments["x"].index, arguments["x"].writable) == ("buffer", 0, False)
    assert (arguments["y"].index, arguments["y"].writable, arguments["y"].address_space) == (3, True, "device")
    assert (arguments["scratch"].kind, arguments["scratch"].index) == ("threadgroup", 0)
    assert arguments["row"].builtin == "threadgroup_position_in_grid"


def test_launch_by_threads_with_a_scalar(lib) -> None:
    x = torch.randn(1000)
    y = torch.full((1010,), -7.0)
    lib.scale(x, y, 2.5, threads=1000, group_size=64)
    assert torch.equal(y[:1000], 2.5 * x)
    assert (y[1000:] == -7.0).all()


def test_views_bind_at_their_storage_offset(lib) -> None:
    base = torch.arange(20.0)
    y = torch.zeros(5)
    lib.scale(base[7:12], y, 1.0, threads=5)
    assert torch.equal(y, base[7:12])


def test_function_constants_by_name_and_index_per_call(lib) -> None:
    x, y = torch.ones(4), torch.zeros(4)
    lib.scale(x, y, 2.0, threads=4, constants={"negate": True, 7: 0.5})
    assert y.tolist() == [-1.5] * 4
    lib.scale(x, y, 2.0, threads=4)  # the library's own value again
    assert y.tolist() == [2.0] * 4


@pytest.mark.parametrize("dtype, name", [(torch.float32, "row_sum_f32"), (torch.float16, "row_sum_f16")])
def test_threadgroups_memory_and_a_vector_by_value(lib, dtype: torch.dtype, name: str) -> None:
    x = torch.randint(-4, 5, (3, 100)).to(dtype)
    y = torch.zeros(3)
    getattr(lib, name)(x, (100, 1, 1), y, threadgroups=3, group_size=32, threadgroup_memory=[128])
    assert torch.equal(y, x.float().sum(1))


def test_struct_by_bytes(lib) -> None:
    import struct

    x, y = torch.ones(8), torch.zeros(8)
    lib.with_struct(x, y, struct.pack("<If", 5, 3.0), threads=8)
    assert y.tolist() == [3.0] * 5 + [0.0] * 3


def test_source_from_a_path_with_includes_and_defines(tmp_path: Path) -> None:
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "value.h").write_text("#pragma once\nconstant float value = VALUE;\n")
    shader = tmp_path / "fill.metal"
    shader.write_text(
        '#include <metal_stdlib>\n#include "value.h"\n'
        "kernel void fill(device float* y, uint i [[thread_position_in_grid]]) { y[i] = value; }\n"
    )
    lib = torch_foundry.compile_shader(shader, defines={"VALUE": "4.25"}, include_dirs=[tmp_path / "inc"])
    y = torch.zeros(3)
    lib.fill(y)
    assert y.tolist() == [4.25] * 3


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda lib: lib.nothing, "no kernel named 'nothing'; this library has: scale"),
        (lambda lib: lib.scale(torch.ones(4)), r"scale: expected 3 arguments \(x, y, factor\), got 1"),
        (lambda lib: lib.scale(torch.ones(4), torch.ones(4), "two"), r"argument factor \(.*float"),
        (lambda lib: lib.scale(torch.ones(4), torch.ones(4), (1.0, 2.0)), "expected 1 number"),
        (lambda lib: lib.scale(None, None, 1.0), "expected tensors of one device"),
        (lambda lib: lib.scale(torch.ones(4), torch.ones(4), 1.0, threads=4, threadgroups=1), "not both"),
        (lambda lib: lib.scale(torch.ones(4), torch.ones(4), 1.0, threads=(1, 1, 1, 1)), "1 to 3 sizes"),
        (
            lambda lib: lib.scale(torch.ones(4), torch.ones(4), 1.0, constants={"neagte": True}),
            "unknown function const",
        ),
        (lambda lib: lib.scale(torch.ones(4), None, 1.0, threads=4), "y|buffer 1|index 1"),
        (lambda lib: lib.scale(torch.ones(4), torch.ones(4), 1.0, threads=4, group_size=2048), "1024"),
        (
            lambda lib: lib.row_sum_f32(
                torch.ones(4), (4, 1, 1), torch.ones(1), threadgroups=1, threadgroup_memory=[40000]
            ),
            "32768|32 KiB",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(lib, call, message: str) -> None:
    with pytest.raises((AttributeError, TypeError, ValueError, RuntimeError)) as error:
        call(lib)
    assert re.search(message, str(error.value)), str(error.value)


def test_a_required_function_constant_must_be_given() -> None:
    lib = torch_foundry.compile_shader(SOURCE)
    with pytest.raises(ValueError, match=r"negate \(index 0, bool\)"):
        lib.scale(torch.ones(1), torch.ones(1), 1.0)


def test_compile_errors_name_the_metal_line(tmp_path: Path) -> None:
    shader = tmp_path / "broken.metal"
    shader.write_text("#include <metal_stdlib>\nkernel void k(device float* y) {\n  y[0] = undeclared_name;\n}\n")
    lib = torch_foundry.compile_shader(shader)
    with pytest.raises(RuntimeError, match=r"broken\.metal:3.*undeclared_name"):
        lib.k(torch.ones(1))


def test_missing_file_and_unsupported_feature() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.metal"):
        torch_foundry.compile_shader("nowhere.metal")
    with pytest.raises(MslError, match="texture"):
        torch_foundry.compile_shader(
            "#include <metal_stdlib>\nusing namespace metal;\n"
            "kernel void k(texture2d<float> t [[texture(0)]], device float* y) { y[0] = 0; }\n"
        )


NAMED_AS_THE_LIBRARY = """
#include <metal_stdlib>
using namespace metal;
kernel void dot(device const float4* x, device float* y, uint i [[thread_position_in_grid]]) {
  y[i] = metal::dot(x[i], x[i]);
}
template <typename T>
kernel void transpose(device const T* x, device T* y, uint2 at [[thread_position_in_grid]],
                      uint2 shape [[threads_per_grid]]) {
  y[at.x * shape.y + at.y] = x[at.y * shape.x + at.x];
}
typedef decltype(transpose<half>) transpose_t;
template [[host_name("transpose_f16")]] kernel transpose_t transpose<half>;
namespace inner {
kernel void select(device float* y, constant float& limit, uint i [[thread_position_in_grid]]) {
  y[i] = metal::select(exp(y[i]), 0.0f, y[i] > limit);
}
}
"""


def test_kernels_may_be_named_like_library_functions() -> None:
    lib = torch_foundry.compile_shader(NAMED_AS_THE_LIBRARY)
    assert lib.names == ["dot", "inner::select", "transpose_f16"]
    x, y = torch.arange(8.0), torch.zeros(2)
    lib.dot(x, y, threads=2)
    assert y.tolist() == [14.0, 126.0]
    turned = torch.zeros(4, 2, dtype=torch.float16)
    lib.transpose_f16(x.half(), turned, threads=(4, 2))
    assert turned.tolist() == x.view(2, 4).t().tolist()
    z = torch.tensor([0.0, 3.0])
    getattr(lib, "inner::select")(z, 2.0)
    assert z.tolist() == [1.0, 0.0]


UNREAD = """
#include <metal_stdlib>
using namespace metal;
constant bool masked [[function_constant(0)]];
static float under(device const float* mask, float x, uint i) { return masked ? x * mask[i] : x; }
template <typename T>
kernel void k(device T* y, device const T* x, device const float* mask, constant float& scale, device T* never,
              constant uint2& size, threadgroup float* scratch, uint i [[thread_position_in_grid]]) {
  y[i] = T(under(mask, float(x[i]), i));
  if (masked)
    y[i] *= scale;
}
template [[host_name("k_f32")]] kernel decltype(k<float>) k<float>;
"""


def test_what_the_text_never_names_need_not_be_bound() -> None:
    lib = torch_foundry.compile_shader(UNREAD)
    x, y, mask = torch.tensor([3.0, 4.0]), torch.zeros(2), torch.tensor([0.0, 1.0])
    on: dict[str, Any] = {"threadgroup_memory": [16], "constants": {"masked": True}}
    lib.k_f32(y, x, mask, 2.0, None, None, **on)
    assert y.tolist() == [0.0, 8.0]
    for index, given in ((2, (None, 2.0)), (3, (mask, None))):
        with pytest.raises(RuntimeError, match=f"buffer {index} is not bound"):
            lib.k_f32(y, x, *given, None, None, **on)


CARRIED = """
#include <metal_stdlib>
using namespace metal;
constant bool second [[function_constant(0)]];
struct Both { device const float *a, *b; };
__attribute__((noinline)) float of(thread const Both& from, uint i) { return second ? from.b[i] : from.a[i]; }
kernel void k(device float* y [[buffer(0)]], device const float* a [[buffer(1)]],
              device const float* b [[buffer(2), function_constant(second)]], uint i [[thread_position_in_grid]]) {
  const Both from = {a, b};
  y[i] = of(from, i);
}
"""


def test_what_a_false_constant_switches_off_need_not_be_bound_though_it_is_carried_along() -> None:
    lib = torch_foundry.compile_shader(CARRIED)
    x, y = torch.tensor([3.0, 4.0]), torch.zeros(2)
    lib.k(y, x, None, constants={"second": False})
    assert y.tolist() == [3.0, 4.0]
    with pytest.raises(RuntimeError, match="buffer 2 is not bound"):
        lib.k(y, x, None, constants={"second": True})
    lib.k(y, x, 2 * x, constants={"second": True})
    assert y.tolist() == [6.0, 8.0]


def test_what_only_a_false_constant_leaves_unread_need_not_be_bound() -> None:
    """CUDA's compiler doesn't tell: an argument there is what the text names."""
    lib = torch_foundry.compile_shader(UNREAD)
    x, y = torch.tensor([3.0, 4.0]), torch.zeros(2)
    lib.k_f32(y, x, None, None, None, None, threadgroup_memory=[16], constants={"masked": False})
    assert y.tolist() == [3.0, 4.0]


def test_a_view_is_as_long_as_what_is_left_of_its_storage() -> None:
    lib = torch_foundry.compile_shader(
        "#include <metal_stdlib>\nkernel void k(device float* y, constant metal::float4& x) { y[0] = x.w; }\n"
    )
    y, x = torch.zeros(1), torch.arange(8.0)
    lib.k(y, x[4:])
    assert y.item() == 7.0
    with pytest.raises(RuntimeError, match="buffer 1 has 8 bytes"):
        lib.k(y, torch.arange(6.0)[4:])


def test_constants_of_one_value_are_told_apart_by_their_index() -> None:
    lib = torch_foundry.compile_shader(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "constant short first [[function_constant(0)]];\nconstant short second [[function_constant(1)]];\n"
        "kernel void k(device float* y) {\n"
        "  y[0] = is_function_constant_defined(first) ? first : is_function_constant_defined(second) ? -second : 0;\n"
        "}\n"
    )
    y = torch.zeros(1)
    for constants, expected in (({"first": 3}, 3.0), ({"second": 3}, -3.0), ({}, 0.0)):
        lib.k(y, constants=constants)
        assert y.item() == expected


@pytest.mark.parametrize("threads", [(0, 2, 2), (2, 0, 2), (2, 2, 0)], ids=str)
def test_a_grid_without_threads_launches_nothing(threads: tuple[int, int, int]) -> None:
    lib = torch_foundry.compile_shader(
        "kernel void k(device float* y, uint3 i [[thread_position_in_grid]]) { y[0] = 1; }\n"
    )
    y = torch.zeros(1)
    before = runtime.counters().launches
    lib.k(y, threads=threads, group_size=1)
    assert y.item() == 0.0 and runtime.counters().launches == before


def test_integer_division_by_zero_ends_no_process() -> None:
    lib = torch_foundry.compile_shader(
        "#include <metal_stdlib>\n"
        "kernel void k(device int* y, device const int* n, uint i [[thread_position_in_grid]]) {\n"
        "  y[i] = y[i] / n[i] + 10 * (y[i] % n[i]);\n}\n"
    )
    y = torch.tensor([7, -(2**31)], dtype=torch.int32)
    lib.k(y, torch.tensor([0, -1], dtype=torch.int32))
    assert y.tolist() == [69, -(2**31)]


def test_barrier_divergence_fails_the_launch_with_its_line(tmp_path: Path) -> None:
    shader = tmp_path / "divergent.metal"
    shader.write_text(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "kernel void k(device float* y, uint t [[thread_index_in_threadgroup]]) {\n"
        "  if (t < 40)\n"
        "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "  y[t] = 1;\n}\n"
    )
    lib = torch_foundry.compile_shader(shader)
    with pytest.raises(RuntimeError, match=r"divergent\.metal:5"):
        lib.k(torch.zeros(64), threadgroups=1, group_size=64)


USES = """
#include <metal_stdlib>
using namespace metal;
constant short width [[function_constant(0)]];
constant short height [[function_constant(1)]];
constant float gain [[function_constant(2)]];
constant float doubled = 2.0f * gain;
struct Shape { short height; };
static float scaled(float x) { return doubled * x; }
template <typename T, short N = 4>
kernel void by_width(device T* y, uint i [[thread_position_in_grid]]) { y[i] = T(width * N); }
template [[host_name("wide")]] kernel decltype(by_width<float>) by_width<float>;
kernel void tall(device float* y, uint i [[thread_position_in_grid]]) { y[i] = float(height); }
kernel void loud(device float* y, uint i [[thread_position_in_grid]]) { y[i] = scaled(y[i]); }
kernel void plain(device float* y, uint i [[thread_position_in_grid]]) { y[i] = 1.0f; }
"""


def test_arguments_that_constants_switch_on_are_the_kernels_own() -> None:
    """The constant that switches an argument on is needed, whether or not the body reads it; other kernels' are not."""
    lib = torch_foundry.compile_shader(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "constant bool a [[function_constant(0)]];\nconstant bool b [[function_constant(1)]];\n"
        "kernel void with_a(device float* y, device float* x [[buffer(1), function_constant(a)]]) { y[0] = 1; }\n"
        "kernel void with_b(device float* y, device float* x [[buffer(1), function_constant(b)]]) {\n"
        "  y[0] = bool(b) ? 2 : 3;\n}\n"
    )
    y = torch.zeros(1)
    for name, constant, value in (("with_a", "a", 1.0), ("with_b", "b", 3.0)):
        kernel = getattr(lib, name)
        with pytest.raises(ValueError, match=rf"{name}: function constants without a value: {constant} \("):
            kernel(y, None)
        kernel(y, None, constants={constant: False})
        assert y.item() == value


@pytest.mark.parametrize("name, constant", [("wide", "width"), ("tall", "height"), ("loud", "gain"), ("plain", None)])
def test_a_kernel_needs_only_the_constants_that_it_reads(name: str, constant: str | None) -> None:
    lib = torch_foundry.compile_shader(USES)
    y = torch.full((2,), 1.5)
    if constant is None:
        lib.plain(y)
        assert y.tolist() == [1.0, 1.0]
        return
    others = {"width": 3, "height": 5, "gain": 0.25}
    value = others.pop(constant)
    with pytest.raises(ValueError, match=rf"{name}: function constants without a value: {constant} \("):
        getattr(lib, name)(y, constants=others)
    getattr(lib, name)(y, constants={constant: value})
    assert y.tolist() == [{"width": 12.0, "height": 5.0, "gain": 0.75}[constant]] * 2


def test_it_may_be_the_first_thing_that_a_process_asks_for() -> None:
    code = f"import torch, torch_foundry\nprint(torch_foundry.compile_shader({SOURCE!r}).names)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "scale" in result.stdout, result.stderr
