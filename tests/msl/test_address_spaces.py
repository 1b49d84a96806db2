"""The address-space check: each class of mistake is found in its line, the correct twin passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_foundry.msl.lint import address_spaces
from torch_foundry.msl.lint.unit import instances
from torch_foundry.msl.model import MslError

ROOT = Path(__file__).resolve().parents[2]
SHADERS = Path(__file__).parent / "shaders"

needs_clang = pytest.mark.skipif(
    address_spaces.find_clang() is None, reason="no clang++: the address-space check is optional"
)

HEAD = """#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
void write(device float* p) { p[0] = 1.0f; }
template <typename T> T first(threadgroup const T* p) { return p[0]; }
struct Box { float v; float get() const device { return v; } };
kernel void f(device float* y [[buffer(0)]], device const half4* h [[buffer(1)]], constant float4& c [[buffer(2)]],
    device float4* y4 [[buffer(3)]], constant Box& box [[buffer(4)]], device Box& mine [[buffer(5)]],
    threadgroup float* t [[threadgroup(0)]]) {
"""
# what is mixed up, mistake, correct twin
CASES = [
    ("assignment", "y = t;", "t[0] = y[0];"),
    ("argument", "write(t);", "write(y);"),
    ("template argument", "y[0] = first(y);", "y[0] = first(t);"),
    ("write through constant", "c.x = 1.0f;", "y4[0] = c;"),
    ("cast", "threadgroup half4* q = (threadgroup half4*)y;", "device half4* q = (device half4*)y;"),
    ("initialisation", "thread float* p = &y[0];", "device float* p = &y[0];"),
    ("reference", "device const float4& r = c;", "constant float4& r = c;"),
    ("method of another space", "y[0] = box.get();", "y[0] = mine.get();"),
    ("threadgroup variable", "threadgroup float s[4]; device float* p = s;",
     "threadgroup float s[4]; threadgroup float* p = s;"),
    ("matrix store", "simdgroup_float8x8 m; simdgroup_store(m, &c, 8);",
     "simdgroup_float8x8 m; simdgroup_store(m, t, 8);"),
    ("atomic", "thread atomic_uint a; atomic_store_explicit(&a, 1u, memory_order_relaxed);",
     "threadgroup atomic_uint a; atomic_store_explicit(&a, 1u, memory_order_relaxed);"),
]  # fmt: skip


TENSORS = """#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace mpp::tensor_ops;
"""
TENSOR = """typedef tensor<threadgroup float, dextents<int32_t, 2>, tensor_inline> Operand;
Operand a = Operand({}, dextents<int32_t, 2>(8, 8));
matmul2d<matmul2d_descriptor(8, 8, 8, false, true), execution_simdgroups<4>> op;
auto sum = op.get_destination_cooperative_tensor<Operand, Operand, float>(); op.run(a, a, sum); {}
"""


def check(source: str, **options) -> address_spaces.Report:
    return address_spaces.check(source, name="x.metal", **options)


@needs_clang
@pytest.mark.parametrize(("mistake", "correct"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_spaces(mistake, correct):
    report = check(f"{HEAD}{mistake}\n}}\n")
    assert {(f.file, f.line, f.rule) for f in report.findings} == {("x.metal", HEAD.count("\n") + 1, "address-space")}
    assert check(f"{HEAD}{correct}\n}}\n") == address_spaces.Report()


@needs_clang
def test_tensors():
    def lines(*given):
        report = check(TENSORS + HEAD + TENSOR.format(*given) + "}\n")
        assert not report.gaps
        return {f.line - (TENSORS + HEAD).count("\n") for f in report.findings}

    assert lines("t", "y[0] = sum[0];") == set()
    assert lines("y", "y[0] = sum[0];") == {2}
    assert lines("t", "device float* p = &sum[0];") == {4}


@needs_clang
def test_vectors_of_two_element_types_do_not_mix():
    (found,) = check(f"{HEAD}y4[0] = h[0];\n}}\n").findings
    assert found.line == HEAD.count("\n") + 1
    assert check(f"{HEAD}y4[0] = float4(h[0]);\n}}\n").findings == []


TEMPLATE = """#include <metal_stdlib>
using namespace metal;
template <typename T> kernel void f(device T* x [[buffer(0)]]) {
  threadgroup T* p = x;
}
"""


@needs_clang
@pytest.mark.parametrize(
    "instance",
    [
        'template [[host_name("a")]] kernel decltype(f<float>) f<float>;',
        'typedef decltype(f<half>) half_t;\ntemplate [[host_name("a")]] kernel half_t f<half>;',
        'template [[host_name("a")]] kernel void f<int>(device int* x [[buffer(0)]]);',
        "// foundry-lint: instance(f<float>)",
    ],
)
def test_instances_of_templates_are_checked(instance):
    assert [f.line for f in check(TEMPLATE + instance + "\n").findings] == [4]


@needs_clang
def test_entries():
    assert check(TEMPLATE) == address_spaces.Report(unchecked=["f"])
    assert [f.line for f in check(TEMPLATE, entries=["f<float>", "f<bfloat>"]).findings] == [4, 4]
    (found,) = check(TEMPLATE, entries=["g<float>"]).findings
    assert "g<float>" in found.message


TABLES = """
#define KINDS(KIND) KIND(float, 0) KIND(half, 1)
#ifndef ROW
#define ROW(name, size)
#endif
ROW(int, 4)
ROW(uint, 4)
// foundry-lint: instance(f<[KINDS]>)
// foundry-lint: instance(g<[ROW], [KINDS], [ROW]2>)
// foundry-lint: instance(f<char>)
"""


def test_instances_for_each_row_of_a_table(tmp_path):
    """A macro that calls another for each row, or one that each row calls."""
    expected = ["f<float>", "f<half>", "g<int, float, int2>", "g<int, half, int2>"]
    expected += ["g<uint, float, uint2>", "g<uint, half, uint2>", "f<char>"]
    assert sorted(instances(TABLES)) == sorted(expected)
    (tmp_path / "tables.h").write_text(TABLES.partition("//")[0])
    file = tmp_path / "f.metal"
    file.write_text('#include "tables.h"\n' + TABLES[TABLES.index("//") :])
    assert instances(file) == instances(TABLES)
    with pytest.raises(MslError, match="no table of rows: OTHER"):
        instances(TABLES.replace("[KINDS]", "[OTHER]"))


@needs_clang
def test_instances_of_a_table_are_checked():
    assert [f.line for f in check(f"{TEMPLATE}{TABLES.partition('// foundry-lint: instance(g')[0]}").findings] == [4, 4]


@needs_clang
def test_a_finding_can_be_allowed():
    allowed = TEMPLATE.replace("= x;", "= x;  // foundry-lint: allow(address-space) seeded")
    assert check(allowed, entries=["f<float>"]).findings == []


@needs_clang
def test_what_the_check_does_not_know_is_no_finding():
    report = check("kernel void f(device float* x) {\n  x[0] = made_up_function(x[1]);\n}\n")
    assert report.findings == [] and [g.line for g in report.gaps] == [2]


@needs_clang
@pytest.mark.parametrize(
    "file", [SHADERS / "breadth.metal", *sorted((ROOT / "shaders").rglob("*.metal"))], ids=lambda p: p.name
)
def test_our_shaders_pass(file):
    report = address_spaces.check(file, include_dirs=[ROOT / "shaders"])
    assert report.findings == [] and report.gaps == [] and report.skipped == ""


def test_without_clang_the_check_says_so(monkeypatch):
    monkeypatch.setattr(address_spaces, "find_clang", lambda: None)
    report = check(TEMPLATE)
    assert report.findings == [] and "no clang++ was found" in report.skipped
