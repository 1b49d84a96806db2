"""Every rule catches its seeded mistake, and lets the correct twin pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_foundry.msl.lint import Finding, lint

ROOT = Path(__file__).resolve().parents[2]
SHADERS = Path(__file__).parent / "shaders"

# rule, mistake (the line of it marked with //!), correct twin
RULES = [
    ("unqualified-pointer", "float f(float* p) { return *p; } //!", "float f(thread float* p) { return *p; }"),
    (
        "unqualified-pointer",
        "float f(const float4& p) { return p.x; } //!",
        "float f(const device float4& p) { return p.x; }",
    ),
    (
        "unqualified-pointer",
        "kernel void f(int* x [[buffer(0)]]) {} //!",
        "kernel void f(device int* x [[buffer(0)]]) {}",
    ),
    ("unqualified-pointer", "float* f(device float* p); //!", "device float* f(device float* p);"),
    ("unqualified-pointer", "struct S { float* p; }; //!", "struct S { device float* p; };"),
    (
        "unqualified-pointer",
        "void f(device float* x) {\n  float* p = x; //!\n}",
        "void f(device float* x) {\n  device float* p = x;\n  int a = 2, b = 3;\n  int c = a * b;\n}",
    ),
    (
        "unqualified-pointer",
        "void f(device float* x) {\n  float y = *(float4*)x; //!\n}",
        "void f(device float* x) {\n  float y = ((device float4*)x)[0].x * (x[0]) * x[1];\n}",
    ),
    ("double", "void f() {\n  double x = 1; //!\n}", "void f() {\n  float doubled = 1;\n}"),
    ("goto", "void f() {\n  goto end; //!\nend:;\n}", "void f() {\n  for (;;) break;\n}"),
    ("absent-feature", "void f() {\n  throw 1; //!\n}", "struct S { S() = delete; };"),
    ("absent-feature", "struct S { virtual int f(); }; //!", "struct S { int f(); };"),
    (
        "lambda",
        "void f() {\n  auto g = [](int x) { return x; }; //!\n}",
        "void f(thread int* a) {\n  int g[2] = {[0 ... 1] = a[0]};\n  g[a[1]] = (a[0]);\n}",
    ),
    (
        "if-constexpr",
        "template <int N> int f() {\n  if constexpr (N > 1) return 1; //!\n  return 0;\n}",
        "template <int N> int f() {\n  constexpr bool big = N > 1;\n  if (big) return 1;\n  return 0;\n}",
    ),
    (
        "if-initializer",
        "void f() {\n  if (int x = 1; x > 0) {} //!\n}",
        "void f() {\n  for (int x = 1; x > 0; --x) {}\n}",
    ),
    (
        "structured-binding",
        "struct P { int a, b; };\nvoid f(P p) {\n  auto [a, b] = p; //!\n}",
        "struct P { int a, b; };\nvoid f(P p) {\n  auto a = p.a;\n}",
    ),
    (
        "fold-expression",
        "template <typename... T> int f(T... v) {\n  return (v + ...); //!\n}",
        "template <typename... T> int f(T... v) {\n  return g(v...) + int(sizeof...(T));\n}",
    ),
    ("inline-variable", "inline constant int x = 1; //!", "constant int x = 1;\ninline int f() { return x; }"),
    (
        "nested-namespace",
        "namespace a::b { constant int x = 1; } //!",
        "namespace a { namespace b { constant int x = 1; } }",
    ),
    ("program-scope", "constexpr int x = 1; //!", "constant constexpr int x = 1;\nusing T = int;\nint f(int x);"),
    (
        "program-scope",
        "struct S {\n  static constexpr int x = 1; //!\n};",
        "struct S {\n  static constant constexpr int x = 1;\n};",
    ),
    (
        "threadgroup-variable",
        "void f() {\n  threadgroup float x[4]; //!\n}",
        "kernel void f() {\n  threadgroup float x[4];\n  threadgroup float* p = x;\n}",
    ),
    (
        "threadgroup-variable",
        "kernel void f() {\n  threadgroup float x[4] = {0}; //!\n}",
        "kernel void f() {\n  threadgroup float x[4];\n}",
    ),
    (
        "buffer-index",
        "kernel void f(device int* x [[buffer(31)]]) {} //!",
        "kernel void f(device int* x [[buffer(30)]]) {}",
    ),
    (
        "duplicate-index",
        "kernel void f(device int* x [[buffer(1)]],\n  device int* y [[buffer(1)]]) {} //!",
        "constant bool a [[function_constant(0)]];\nconstant bool b = !a;\n"
        "kernel void f(device int* x [[buffer(1), function_constant(a)]],\n"
        "  device int* y [[buffer(1), function_constant(b)]], threadgroup int* z [[threadgroup(1)]]) {}",
    ),
    (
        "argument-type",
        "kernel void f(constant size_t& n [[buffer(0)]]) {} //!",
        "kernel void f(constant long& n [[buffer(0)]]) {}",
    ),
    (
        "argument-type",
        "kernel void f(constant bool& n [[buffer(0)]]) {} //!",
        "kernel void f(device const bool* mask [[buffer(0)]]) {}",
    ),
    (
        "argument-type",
        "kernel void f(constant long long& n [[buffer(0)]]) {} //!",
        "kernel void f(constant int& n [[buffer(0)]]) {}",
    ),
    (
        "builtin-type",
        "kernel void f(int i [[thread_position_in_grid]]) {} //!",
        "kernel void f(uint i [[thread_position_in_grid]]) {}",
    ),
    (
        "mixed-grid-types",
        "kernel void f(uint2 i [[thread_position_in_grid]],\n  uint n [[threads_per_grid]]) {} //!",
        "kernel void f(uint2 i [[thread_position_in_grid]],\n  uint t [[thread_index_in_threadgroup]]) {}",
    ),
    ("kernel-parameter", "kernel void f(uint i) {} //!", "kernel void f(uint i [[thread_position_in_grid]]) {}"),
    (
        "derived-class",
        "struct A { int x; };\nstruct B : A { int y; }; //!",
        "struct A { int x; };\nstruct B { A a; int y; };\nenum class E : uint { x };",
    ),
    (
        "derived-class",
        "struct A { int x; };\ntemplate <bool X> struct B : public A {}; //!\nkernel void f(constant B<true>& b) {}",
        "struct A { int x; };\ntemplate <bool X> using B = A;\nkernel void f(constant B<true>& b) {}",
    ),
    (
        "threadgroup-memory",
        "kernel void f() { //!\n  threadgroup float x[8192];\n  threadgroup int n;\n}",
        "constant constexpr int n = 1024;\nkernel void f() {\n  threadgroup float4 x[2 * n];\n}",
    ),
    (
        "too-many-threads",
        "[[kernel, max_total_threads_per_threadgroup(2048)]] void f() {} //!",
        "[[kernel, max_total_threads_per_threadgroup(1024)]] void f() {}",
    ),
    (
        "simd-type",
        "kernel void f(device ulong* x [[buffer(0)]]) {\n  const ulong v = x[0];\n  x[0] = simd_sum(v); //!\n}",
        "kernel void f(device ulong* x [[buffer(0)]]) {\n  const uint v = uint(x[0]);\n  x[0] = simd_sum(v);\n}",
    ),
    (
        "simd-type",
        "kernel void f(device long* x [[buffer(0)]]) {\n  x[0] = simd_shuffle(x[1], 3); //!\n}",
        "kernel void f(device long* x [[buffer(0)]]) {\n  x[0] = simd_shuffle(int(x[1]), 3);\n}",
    ),
    (
        "simd-type",
        "kernel void f(device int* x [[buffer(0)]]) {\n  x[0] = simd_broadcast(bool(x[1]), 0); //!\n}",
        "kernel void f(device int* x [[buffer(0)]]) {\n  bool b = x[1];\n  x[0] = simd_any(b) || simd_all(b);\n}",
    ),
    (
        "wide-atomic",
        "kernel void f(device atomic_ulong* x [[buffer(0)]]) {\n"
        "  atomic_fetch_add_explicit(x, 1ul, memory_order_relaxed); //!\n}",
        "kernel void f(device atomic_ulong* x [[buffer(0)]], device atomic_uint* y [[buffer(1)]]) {\n"
        "  atomic_max_explicit(x, 1ul, memory_order_relaxed);\n"
        "  atomic_fetch_add_explicit(y, 1u, memory_order_relaxed);\n}",
    ),
    (
        "wide-atomic",
        "kernel void f(device atomic<long>* x [[buffer(0)]]) {\n"
        "  atomic_store_explicit(&x[1], 1l, memory_order_relaxed); //!\n}",
        "kernel void f(device atomic<int>* x [[buffer(0)]]) {\n"
        "  atomic_store_explicit(&x[1], 1, memory_order_relaxed);\n}",
    ),
    (
        "threadgroup-atomic",
        "kernel void f() {\n  threadgroup atomic_float x; //!\n}",
        "kernel void f(device atomic_float* y [[buffer(0)]]) {\n  threadgroup atomic_int x;\n}",
    ),
    (
        "threadgroup-atomic",
        "void f(threadgroup atomic<float>* x) {} //!",
        "void f(device atomic<float>* x, threadgroup atomic<int>* y) {}",
    ),
    (
        "memory-order",
        "void f(device atomic_int* x) {\n  atomic_store_explicit(x, 1, memory_order_seq_cst); //!\n}",
        "void f(device atomic_int* x) {\n  atomic_store_explicit(x, 1, memory_order_relaxed);\n}",
    ),
    (
        "memory-order",
        "void f() {\n  atomic_thread_fence(mem_flags::mem_device); //!\n}",
        "void f() {\n  threadgroup_barrier(mem_flags::mem_device);\n}",
    ),
    (
        "implicit-conversion",
        "void f(device const bfloat* x) {\n  bfloat a = x[0];\n  bfloat b = fma(a, a, a); //!\n}",
        "void f(device const bfloat* x) {\n  bfloat a = x[0];\n  bfloat b = bfloat(fma(float(a), float(a), 1.0f));\n}",
    ),
    (
        "implicit-conversion",
        "void f(bfloat a) {\n  half b = a; //!\n}",
        "void f(bfloat a) {\n  half b = half(a);\n  float c = a;\n}",
    ),
    (
        "implicit-conversion",
        "void f(half a) {\n  bfloat b = a; //!\n}",
        "void f(half a) {\n  bfloat b = bfloat(a);\n}",
    ),
    (
        "simdgroup-matrix",
        "void f() {\n  simdgroup_matrix<int, 8, 8> x; //!\n}",
        "template <typename T> void f() {\n  simdgroup_matrix<T, 8, 8> x;\n  simdgroup_matrix<bfloat, 8, 8> y;\n}",
    ),
    (
        "simdgroup-matrix",
        "void f() {\n  simdgroup_matrix<float, 4, 4> x; //!\n}",
        "void f() {\n  simdgroup_matrix<float, 8, 8> x;\n}",
    ),
    (
        "recursion",
        "int f(int n) { return n > 0 ? f(n - 1) : 0; } //!",
        "int f(int n, int m) { return n + m; }\nint f(int n) { return f(n, 1); }\n"
        "template <int N> int g(int n) { return g<N - 1>(n); }",
    ),
    (
        "local-static",
        "int f() {\n  static constexpr int x = 1; //!\n  return x;\n}",
        "int f() {\n  static constant constexpr int x = 1;\n  return x;\n}",
    ),
    (
        "static-assert",
        "template <int N> int f() {\n  static_assert(N > 1); //!\n  return N;\n}",
        'template <int N> int f() {\n  static_assert(N > 1, "more than one");\n  return N;\n}',
    ),
    (
        "deduced-class",
        "template <typename T> struct P { T a; };\nvoid f() {\n  P p{1}; //!\n}",
        "template <typename T> struct P { T a; thread P& self() thread { return *this; } };\n"
        "void f() {\n  P<int> p{1};\n}",
    ),
    (
        "template-auto",
        "template <auto N> int f() { return N; } //!",
        "template <int N> int f() { auto n = N; return n; }",
    ),
    ("absent-feature", "int f() noexcept { return 1; } //!", "int f() { return 1; }"),
    ("double", "float f() {\n  return float(long double(1)); //!\n}", "float f() {\n  return float(long(1));\n}"),
    (
        "kernel-overload",
        "kernel void f(device int* x [[buffer(0)]]) {}\nkernel void f(device half* x [[buffer(0)]]) {} //!",
        "namespace a { kernel void f(device int* x [[buffer(0)]]) {} }\n"
        "namespace b { kernel void f(device half* x [[buffer(0)]]) {} }",
    ),
    (
        "pointer-to-pointer",
        "kernel void f(device int* device* x [[buffer(0)]]) {} //!",
        "kernel void f(device int* x [[buffer(0)]]) {}\nvoid g(device int* thread* x) {}",
    ),
    (
        "threadgroup-variable",
        "struct S { int x; S() : x(1) {} };\nkernel void f() {\n  threadgroup S s; //!\n}",
        "struct S { int x; S() = default; };\nkernel void f() {\n  threadgroup S s;\n}",
    ),
    (
        "reserved-name",
        "int f() {\n  int fragment = 1; return 2; //!\n}",
        "int f() {\n  int fragment_ = 1;\n  return fragment_;\n}",
    ),
    ("reserved-name", "int f(int vertex) { return 1; } //!", "int f(int vertices) { return 1; }"),
    (
        "absent-function",
        "float f(float x) { return erf(x); } //!",
        "float erf(float x);\nfloat f(float x) { return erf(x); }",
    ),
    ("absent-function", "float f(float x) { return expm1(x); } //!", "float f(float x) { return exp(x) - 1.0f; }"),
    (
        "absent-function",
        "float f(float x) { return std::exp(x); } //!",
        "float f(float x) { return metal::exp(x); }",
    ),
]

HEAD = """#include <metal_stdlib>
using namespace metal;
"""
KERNEL = """kernel void f(device float* x, constant uint& n, uint tid [[thread_index_in_threadgroup]],
    uint row [[threadgroup_position_in_grid]], uint sg [[simdgroup_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
"""
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"

# rule, body of a kernel with a mistake, body of its correct twin
FLOW = [
    ("return-before-barrier", f"if (tid >= n) return; //!\n{BARRIER}", f"if (row >= n) return;\n{BARRIER}"),
    (
        "return-before-barrier",
        f"const uint i = row * threads + tid;\nif (i >= n) {{\n  return; //!\n}}\n{BARRIER}",
        f"const uint i = row * threads;\nif (i >= n) {{\n  return;\n}}\n{BARRIER}\nif (tid > 0) return;",
    ),
    (
        "return-before-barrier",
        "if (tid >= n) return; //!\nx[0] = simd_sum(x[0]);",
        "if (row + sg >= n) return;\nx[0] = simd_sum(x[0]);",
    ),
    ("return-before-barrier", f"if (sg > 0) return; //!\n{BARRIER}", f"if (n > 3) return;\n{BARRIER}"),
    (
        "return-before-barrier",
        f"uint last = 0;\nfor (uint i = tid; i < n; i += threads) last = i;\nif (last > 3) return; //!\n{BARRIER}",
        f"uint last = 0;\nfor (uint i = 0; i < n; i += threads) last = i;\nif (last > 3) return;\n{BARRIER}",
    ),
    (
        "return-before-barrier",
        f"float most = x[tid];\nif (most == 0.0f) return; //!\n{BARRIER}",
        f"float most = x[row];\nif (most == 0.0f) return;\n{BARRIER}",
    ),
    ("divergent-barrier", f"if (tid < n) {{\n  {BARRIER} //!\n}}", f"if (row < n) {{\n  {BARRIER}\n}}"),
    (
        "divergent-barrier",
        "matmul2d<d, s> op;\nif (sg < n) {\n  op.run(x, x, x); //!\n}",
        "matmul2d<d, s> op;\nif (row < n) {\n  op.run(x, x, x);\n}\nother.walk(x);",
    ),
    (
        "divergent-barrier",
        f"for (uint i = tid; i < n; i += threads) {{\n  {BARRIER} //!\n}}",
        f"for (uint i = 0; i < n; i += threads) {{\n  {BARRIER}\n  if (i + tid < n) x[i + tid] = 1;\n}}",
    ),
    (
        "divergent-barrier",
        f"for (uint i = 0; i < n; ++i) {{\n  if (x[tid] > 0) break; //!\n  {BARRIER}\n}}",
        f"for (uint i = 0; i < n; ++i) {{\n  if (x[row] > 0) break;\n  {BARRIER}\n}}",
    ),
]

HELPERS = f"""
METAL_FUNC void meet(uint count) {{
  if (count > 3) return; //@
  {BARRIER}
}}
"""


def findings(source: str, **options) -> list[Finding]:
    return lint(source + "\n", name="x.metal", **options)


def marked(source: str, mark: str = "//!") -> int:
    return next(i for i, line in enumerate(source.splitlines(), 1) if mark in line)


@pytest.mark.parametrize(("rule", "mistake", "correct"), RULES)
def test_rules(rule, mistake, correct):
    (found,) = findings(mistake)
    assert (found.file, found.line, found.rule) == ("x.metal", marked(mistake), rule)
    assert str(found).startswith(f"x.metal:{found.line}: {rule}: ")
    assert findings(correct) == []


@pytest.mark.parametrize(("rule", "mistake", "correct"), FLOW)
def test_control_flow(rule, mistake, correct):
    mistake, correct = (HEAD + KERNEL + text + "\n}" for text in (mistake, correct))
    (found,) = findings(mistake)
    assert (found.line, found.rule) == (marked(mistake), rule)
    assert findings(correct) == []


def test_helpers_are_followed_with_their_arguments():
    wrong = HEAD + HELPERS + KERNEL + "meet(tid);\n}"
    assert [(f.line, f.rule) for f in findings(wrong)] == [(marked(wrong, "//@"), "return-before-barrier")]
    divergent = HEAD + HELPERS + KERNEL + "if (tid > 1) meet(n); //!\n}"
    assert marked(divergent) in [f.line for f in findings(divergent) if f.rule == "divergent-barrier"]
    assert findings(HEAD + HELPERS + KERNEL + "meet(row * n);\nif (tid > 0) return;\n}") == []


def test_a_loop_variable_is_its_loops_own():
    source = (
        HEAD + KERNEL + f"for (uint i = tid; i < n; ++i) x[i] = 0;\nfor (uint i = 0; i < n; ++i) {{ {BARRIER} }}\n}}"
    )
    assert findings(source) == []


def test_versions():
    lambda_ = "void f() { auto g = [](int x) { return x; }; }"
    assert findings(lambda_, metal_version=320) == []
    cpp17 = "namespace a::b { template <int N> int f() { if constexpr (N > 1) return 1; return 0; } }"
    assert {f.rule for f in findings(cpp17, metal_version=320)} == {"if-constexpr", "nested-namespace"}
    assert findings(cpp17, metal_version=400) == []


@pytest.mark.parametrize(
    ("comment", "allowed"),
    [
        ("// foundry-lint: allow(double) the host checks it", True),
        ("// foundry-lint: allow(goto, double) the host checks it", True),
        ("// foundry-lint: allow(double)", False),
        ("// foundry-lint: allow(goto) wrong rule", False),
    ],
)
def test_allow_comments(comment, allowed, tmp_path):
    file = tmp_path / "a.metal"
    for text in (f"void f() {{\n  double x = 1;  {comment}\n}}\n", f"void f() {{\n  {comment}\n  double x = 1;\n}}\n"):
        file.write_text(text)
        assert (lint(file) == []) is allowed
        assert (findings(text) == []) is allowed


def test_an_allow_comment_reaches_one_line():
    source = "void f() {\n  double x = 1;  // foundry-lint: allow(double) here only\n  double y = 1;\n}"
    assert [f.line for f in findings(source)] == [3]


def test_findings_in_headers_name_the_header(tmp_path):
    (tmp_path / "a.h").write_text("\nvoid f() { double x = 1; }\n")
    (tmp_path / "a.metal").write_text('#include "a.h"\n')
    (found,) = lint(tmp_path / "a.metal")
    assert (found.file, found.line) == (str(tmp_path / "a.h"), 2)


@pytest.mark.parametrize(
    "file", [SHADERS / "breadth.metal", *sorted((ROOT / "shaders").rglob("*.metal"))], ids=lambda p: p.name
)
def test_our_shaders_keep_the_rules(file):
    assert lint(file, include_dirs=[ROOT / "shaders"]) == []
