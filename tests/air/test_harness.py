"""The comparison itself, on a kernel of our own in AIR's words: what it must find equal, and what it must notice."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

llvm = pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed: make air")

from tests.air import container, execute, intrinsics, module, mutations, source, toolchain  # noqa: E402
from tests.air.case import EPS, Buffer, Case, Wanted, to_bfloat  # noqa: E402
from tests.air.metallib import MetalLib  # noqa: E402

THREADS = 64
# out[i] = the sum of a threadgroup's x, by simdgroups; fold is `air.fast_exp` of what a thread found
AIR = """target triple = "air64_v26-apple-macosx14.0.0"
@parts = internal unnamed_addr addrspace(3) global [2 x float] undef, align 4
@_ZL5shift = internal unnamed_addr addrspace(2) global i32 undef, align 4
@_Z5shift.MTL_FC_INIT_7_i = internal unnamed_addr addrspace(2) externally_initialized constant i32 undef, section \
"air.fc_initializer", align 4
@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } { i32 65535, ptr @start, ptr null }]
define internal void @start() section "air.static_init" {
  %v = load i32, ptr addrspace(2) @_Z5shift.MTL_FC_INIT_7_i, align 4
  store i32 %v, ptr addrspace(2) @_ZL5shift, align 4
  ret void
}
define void @total(ptr addrspace(1) noundef %0, ptr addrspace(1) noundef %1, i32 noundef %2, i32 noundef %3, \
i32 noundef %4) {
  %6 = zext i32 %2 to i64
  %7 = getelementptr inbounds float, ptr addrspace(1) %0, i64 %6
  %8 = load float, ptr addrspace(1) %7, align 4
  %9 = tail call float @air.simd_sum.f32(float %8) #1
  %10 = icmp eq i32 %3, 0
  br i1 %10, label %11, label %14
11:
  %12 = zext i32 %4 to i64
  %13 = getelementptr inbounds [2 x float], ptr addrspace(3) @parts, i64 0, i64 %12
  store float %9, ptr addrspace(3) %13, align 4
  br label %14
14:
  tail call void @air.wg.barrier(i32 2, i32 1) #1
  %15 = load float, ptr addrspace(3) @parts, align 4
  %16 = load float, ptr addrspace(3) getelementptr ([2 x float], ptr addrspace(3) @parts, i64 0, i64 1), align 4
  %17 = load i32, ptr addrspace(2) @_ZL5shift, align 4
  %18 = tail call float @air.convert.f.f32.s.i32(i32 %17)
  %19 = tail call float @llvm.fmuladd.f32(float %15, float %16, float %18)
  %20 = tail call fast float @air.exp.f32(float %19)
  %21 = getelementptr inbounds float, ptr addrspace(1) %1, i64 %6
  store float %20, ptr addrspace(1) %21, align 4
  ret void
}
declare float @air.simd_sum.f32(float)
declare void @air.wg.barrier(i32, i32)
declare float @air.convert.f.f32.s.i32(i32)
declare float @air.exp.f32(float)
declare float @llvm.fmuladd.f32(float, float, float)
!air.kernel = !{!0}
!0 = !{ptr @total, !1, !2}
!1 = !{}
!2 = !{!3, !4, !5, !6, !7}
!3 = !{i32 0, !"air.buffer", !"air.location_index", i32 0, i32 1, !"air.read", !"air.address_space", i32 1}
!4 = !{i32 1, !"air.buffer", !"air.location_index", i32 1, i32 1, !"air.read_write", !"air.address_space", i32 1}
!5 = !{i32 2, !"air.thread_position_in_grid", !"air.arg_type_name", !"uint", !"air.arg_name", !"i"}
!6 = !{i32 3, !"air.thread_index_in_simdgroup", !"air.arg_type_name", !"uint", !"air.arg_name", !"lane"}
!7 = !{i32 4, !"air.simdgroup_index_in_threadgroup", !"air.arg_type_name", !"uint", !"air.arg_name", !"simd"}
"""
MSL = """#include <metal_stdlib>
using namespace metal;
constant int shift [[function_constant(7)]];
kernel void total(device const float* x [[buffer(0)]], device float* out [[buffer(1)]],
                  uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                  uint simd [[simdgroup_index_in_threadgroup]]) {
  threadgroup float parts[2];
  float sum = simd_sum(x[i]);
  if (lane == 0) parts[simd] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = exp(parts[0] * parts[1] + float(shift));
}
"""


def buffers() -> dict[int, Buffer]:
    x = np.random.default_rng(0).standard_normal(2 * THREADS).astype(np.float32) / 8
    return {0: Buffer(x, "float32"), 1: Buffer.poisoned("float32", 2 * THREADS)}


CASE = Case("total", "total", "", buffers, (2 * THREADS,), (THREADS,), constants={7: 3}, constant_types={7: "int"})


@pytest.fixture(scope="module")
def runtime() -> execute.Runtime:
    return execute.Runtime(toolchain.runtime())


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """As it comes back from a metallib."""
    place = tmp_path_factory.mktemp("air") / "total.metallib"
    lib = MetalLib(container.write(place, {"total": llvm.parse_assembly(AIR).as_bitcode()}))
    return module.disassembled(lib.bitcode("total"))


@pytest.fixture(scope="module")
def glue(text: str) -> ctypes.CDLL:
    found = {intrinsics.symbol(name): intrinsics.body(name, *rest).cpp for name, *rest in module.declared(text)}
    return ctypes.CDLL(str(toolchain.glue({symbol: cpp for symbol, cpp in found.items() if cpp})))


@pytest.fixture(scope="module")
def wanted(runtime: execute.Runtime) -> np.ndarray:
    library = toolchain.kernels("total", MSL, {7: "3"}, ["total"], Path(__file__).parent)
    return runtime.launch(execute.from_source(ctypes.CDLL(str(library)), "total"), CASE, buffers())[1]


def air(runtime: execute.Runtime, text: str, glue: ctypes.CDLL, contract: bool = False, **how) -> np.ndarray:
    entry, kept = execute.from_air(CASE, text, glue, contract, **how)
    result = runtime.launch(entry, CASE, buffers())[1]
    del kept
    return result


def test_air_and_source_agree(runtime, text, glue, wanted) -> None:
    x = buffers()[0].array.astype(np.float64).reshape(2, 2, 32).sum(-1)
    np.testing.assert_allclose(wanted.reshape(2, THREADS), np.exp(x.prod(1) + 3)[:, None].repeat(THREADS, 1), rtol=1e-5)
    assert air(runtime, text, glue).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("mutation", ["max for sum", "no barriers"])
def test_a_fault_in_air_is_noticed(runtime, text, glue, wanted, mutation) -> None:
    changed = mutations.ALL[mutation](text)
    assert changed != text
    functions = {intrinsics.symbol(n): intrinsics.body(n, *rest).cpp for n, *rest in module.declared(changed)}
    other = ctypes.CDLL(str(toolchain.glue({symbol: cpp for symbol, cpp in functions.items() if cpp})))
    got = air(runtime, text, other, mutate=mutations.ALL[mutation])
    assert got.tobytes() != wanted.tobytes()
    if mutation == "no barriers":  # what nobody had written yet is poison, not the zeros of a new process
        assert np.isnan(got).any()


def test_contraction_is_a_mode(runtime, text, glue, wanted) -> None:
    fused = module.prepared("total", text, {7: 3}, contract=True).text
    assert "@llvm.fma.f32" in fused and "@llvm.fmuladd" not in fused
    np.testing.assert_allclose(air(runtime, text, glue, contract=True), wanted, rtol=1e-6)


def test_a_write_past_a_buffer_is_said(runtime, text, glue) -> None:
    entry, _kept = execute.from_air(CASE, text, glue)
    short = buffers() | {1: Buffer.poisoned("float32", 2 * THREADS - 1)}
    with pytest.raises(execute.WrittenOutside, match="buffer 1"):
        runtime.launch(entry, CASE, short)


def test_barriers_that_not_all_reach_are_said(runtime, text, glue) -> None:
    early = text.replace("br i1 %10, label %11, label %14", "br i1 %10, label %11, label %early")
    early = early.replace("\n  ret void\n}\n\ndeclare", "\n  ret void\n\nearly:\n  ret void\n}\n\ndeclare", 1)
    assert "early:" in early
    entry, _kept = execute.from_air(CASE, early, glue)
    with pytest.raises(execute.LaunchFailed, match="barrier at AIR, call:2 is reached by 2 of 64 threads"):
        runtime.launch(entry, CASE, buffers())


def test_a_reference_is_held_by_its_bound() -> None:
    values = np.array([1.0, -3.0, 1e-30])
    got = np.array([1 + 3e-6, -3, 1e-30], np.float32)
    buffers = {0: Buffer(np.arange(4, dtype=np.int32), "int32"), 1: Buffer.poisoned("float32", 3)}

    def found(bound: object, first: int = 0) -> dict[str, object]:
        left = np.arange(first, first + 4, dtype=np.int32)
        return execute.against({0: left, 1: got}, {1: Wanted(values, bound)}, buffers)

    assert found(3e-6)["differ"] == 0 and found(np.array([3e-6, 0, 0]))["differ"] == 0
    assert found(1e-6)["differ"] == 1 and "AIR 1.00000298" in found(1e-6)["first"]
    assert found(3e-6, first=1)["differ"] == 4  # a buffer that the reference says nothing of
    half_way = Wanted(np.array([1 + EPS["bfloat16"]]))
    for made, count in ((1.0, 0), (1 + 2 * EPS["bfloat16"], 0), (1 - EPS["bfloat16"], 1)):
        result = {0: to_bfloat(np.float32([made]))}
        assert execute.against(result, {0: half_way}, {0: Buffer.poisoned("bfloat16", 1)})["differ"] == count


def test_bits_of_an_exact_reference_count() -> None:
    wanted = {0: Wanted(np.float32([0.0, 1.0]))}
    for made, count in ((0.0, 0), (-0.0, 1)):
        result = {0: np.float32([made, 1.0])}
        assert execute.against(result, wanted, {0: Buffer.poisoned("float32", 2)})["differ"] == count


def test_what_nothing_stands_for_is_said(text) -> None:
    with pytest.raises(intrinsics.UnknownInAir, match=r"air\.write_texture"):
        module.prepared("total", text.replace("declare void @air.wg", "declare void @air.write_texture.x(ptr)\n"
                                              "declare void @air.wg"), {7: 3})  # fmt: skip
    with pytest.raises(KeyError, match="no function constants"):
        module.prepared("total", text, {8: 1})


@pytest.mark.parametrize(
    ("name", "returns", "args", "cpp", "wanted"),
    [
        ("air.convert.s.i32.f.f32", "i32", ["float"], np.float32([3e9, -3e9, np.nan, 2.9]), [2**31 - 1, 2**31, 0, 2]),
        ("air.convert.u.i8.f.f32", "i8", ["float"], np.float32([300, -1, np.nan, 2.9]), [255, 0, 0, 2]),
        ("air.clz.i32", "i32", ["i32"], np.uint32([0, 1, 2**31, 255]), [32, 31, 0, 24]),
        ("air.abs.s.i32", "i32", ["i32"], np.uint32([5, 2**32 - 5, 0, 2**31]), [5, 5, 0, 2**31]),
        ("air.max.s.i32", "i32", ["i32", "i32"], np.uint32([2**32 - 1, 7, 0, 3]), [2**32 - 1, 7, 0, 3]),
        ("air.popcount.i32", "i32", ["i32"], np.uint32([0, 255, 2**32 - 1, 5]), [0, 8, 32, 2]),
        ("air.reverse_bits.i32", "i32", ["i32"], np.uint32([1, 2, 0, 2**31]), [2**31, 2**30, 0, 1]),
    ],
)  # fmt: skip
def test_functions_with_an_exact_meaning(name, returns, args, cpp, wanted) -> None:
    made = intrinsics.body(name, returns, args)
    assert not made.cpp
    lines = "\n ".join(made.lines)
    named = ", ".join(f"{kind} %{i}" for i, kind in enumerate(args))
    given = ", ".join(f"{kind} %v" for kind in args)
    text = f"""{chr(10).join(made.declared)}
define internal {returns} @it({named}) {{
 {lines}
}}
define void @each(ptr %from, ptr %to) {{
 %v = load {args[0]}, ptr %from
 %r = call {returns} @it({given})
 store {returns} %r, ptr %to
 ret void
}}
"""
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address("each"))
    out = np.zeros(4, {"i8": np.uint8, "i32": np.uint32}[returns])
    for i in range(4):
        call(cpp.ctypes.data + 4 * i, out.ctypes.data + out.itemsize * i)
    assert out.tolist() == [v % 2 ** (8 * out.itemsize) for v in wanted]


def test_torchs_functors_and_instances_are_written_once() -> None:
    cases = [Case(name, "c10/metal/indexing.h", "REGISTER(f);", dict, (1,), (1,), needs="struct f {};", project="torch")
             for name in "ab"]  # fmt: skip
    text = source.text(cases)
    assert text.count("struct f {};") == text.count("REGISTER(f);") == 1
    assert text.index("#include <c10/metal/indexing.h>") < text.index("struct f {};") < text.index("REGISTER(f);")


def test_instances_of_a_file_are_named_as_in_the_metallib() -> None:
    case = Case("v_Absfloat32float32", "unary_ops unary", "unary_v<float, float, Abs, 1>", dict, (1,), (1,))
    assert 'template [[host_name("v_Absfloat32float32")]] [[kernel]] decltype(unary_v<float, float, Abs, 1>)' in (
        source.text([case])
    )
