"""The C++ text: what is rewritten, what is refused, and that all of it compiles."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.msl.effort import lines_run
from torch_foundry.msl import MslError, Translation, translate
from torch_foundry.msl.lint.host import check, find_prelude

SHADERS = Path(__file__).parent / "shaders"
BREADTH = SHADERS / "breadth.metal"


def body(source: str, **options) -> str:
    """The translated text without includes and line markers, blanks squeezed."""
    text = translate(source, **options).source
    kept = [line for line in text.splitlines() if not re.match(r"#( \d+|include)", line)]
    return " ".join(" ".join(kept).split())


def test_a_plain_kernel():
    text = body("kernel void f(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = 1.0; }")
    assert text == (
        "static void f( float* x , uint i ) { x[i] = 1.0f; } "
        "using f_msl_args = msl_::args<msl_::buffer<0>, msl_::thread_position_in_grid>;"
    )


def test_qualifiers_and_const():
    assert body("constant float a = 1;\n") == "const float a = 1;"
    assert body("constant const float a = 1;\n") == "const float a = 1;"
    assert body("static constexpr constant int a = 1;\n") == "static constexpr const int a = 1;"
    assert (
        body("float f(const constant float* x, device const T<int>* y);\n")
        == "float f(const float* x, const T<int>* y);"
    )
    assert body("struct S { float f() const constant; float g() constant; };\n") == (
        "struct S { float f() const ; float g() const; };"
    )


def test_function_constants_are_macros():
    text = translate(
        "constant bool a [[function_constant(3)]];\nconstant int b [[function_constant(FC)]];\n"
        "constant int c = is_function_constant_defined(b) ? b : 2;\n",
        defines={"FC": 4},
    )
    assert "#ifdef MSL_FC_3\nstatic constexpr bool a = bool(MSL_FC_3);" in text.source
    assert "const int c = (b_msl_defined) ? b : 2;" in re.sub(r" +", " ", text.source)
    assert [(f.name, f.index, f.type, f.required) for f in text.function_constants] == [
        ("a", 3, "bool", True),
        ("b", 4, "int", False),
    ]


def test_threadgroup_variables():
    text = body("kernel void f() { threadgroup float a[4][2], b; threadgroup float* p = a[0]; }")
    assert "typedef float a_msl_t[4][2], b_msl_t; MSL_THREADGROUP(a); MSL_THREADGROUP(b);" in text
    assert "float* p = a[0];" in text and "MSL_THREADGROUP(p)" not in text


def test_range_initialisers():
    text = body("void f() { int a[4] = {[0 ... 3] = 7}; }")
    assert text == "void f() { int a[4] = { }; for (int msl_i = (0); msl_i <= (3); ++msl_i) a[msl_i] = 7; }"


def test_overloads_by_address_space_collapse():
    text = body(
        "float f(device float* a) { return *a; }\nfloat f(threadgroup float* b) { return *b; }\n"
        "float f(constant float* c) { return *c; }\n"
    )
    assert text.count("float f(") == 2 and text.count("const float* c") == 1


def test_overloads_that_differ_stay():
    text = body("float f(device float* a) { return *a; }\nfloat f(device int* a) { return *a; }\n")
    assert text.count("float f(") == 2


def test_methods_of_two_classes_stay():
    source = (
        "struct Up { int step(int x) thread; };\nstruct Down { int step(int x) thread; };\n"
        "template <typename T> struct Far { T step(T x) thread; };\n"
        "int Up::step(int x) thread { return x + 1; }\nint Down::step(int x) thread { return x - 1; }\n"
        "int Up::step(int x) device { return x + 1; }\n"
        "template <typename T> T Far<T>::step(T x) thread { return x + 9; }\n"
    )
    text = body(source)
    for definition in ("Up::step(int x) {", "Down::step(int x) {", "Far<T>::step(T x) {"):
        assert text.count(definition) == 1


def test_kernels_of_one_name_get_aliases_of_their_own():
    ready = translate(
        "template <typename T> kernel void f(device T* x) { x[0] = 1; }\n"
        "template <typename T> kernel void f(device T* x, device T* y) { x[0] = y[0]; }\n"
        'template [[host_name("one")]] kernel void f<int>(device int* x);\n'
        'template [[host_name("two")]] kernel void f<int>(device int* x, device int* y);\n'
    )
    assert [(k.name, k.entry, k.signature) for k in ready.kernels] == [
        ("one", "f<int>", "f_msl_args"),
        ("two", "f_msl_2<int>", "f_2_msl_args"),
    ]


def test_loops_that_must_be_unrolled_say_so_to_every_compiler():
    source = "#pragma once\nvoid f() {\n  #pragma unroll\n  for (int i = 0; i < 2; ++i) {}\n  #pragma mark x\n}\n"
    assert body(source) == "void f() { #pragma unroll for (int i = 0; i < 2; ++i) {} }"


def test_lines_are_kept():
    source = (
        "constant bool a [[function_constant(0)]];\n"
        "template <typename T> kernel void f(device T* x) {\n  threadgroup T s[4];\n  x[0] = s[0];\n}\n"
        'template [[host_name("f_i")]] kernel\n  decltype(f<int>)\n  f<int>;\nint last;\n'
    )
    line = 0
    for text in translate(source, name="n.metal").source.splitlines():
        marker = re.match(r'# (\d+) "n.metal"', text)
        if marker:
            line = int(marker[1]) - 1
            continue
        line += 1
        if "int last;" in text:
            assert line == 9
        if "x[0] = s[0]" in text:
            assert line == 4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("kernel void f(texture2d<float> t [[texture(0)]]) {}", r"x.metal:1: textures are not supported"),
        ("\nvoid f(sampler s) {}", r"x.metal:2: samplers are not supported"),
        ("\n\nvertex float4 f(uint i [[vertex_id]]) { return 0; }", r"x.metal:3: vertex functions are not supported"),
        ("[[fragment]] half4 f() { return 0; }", r"x.metal:1: fragment functions are not supported"),
        ("kernel void f(uint i) {}", r"x.metal:1: kernel argument 'i' has neither"),
        ("kernel void f(device int* a [[buffer(N)]]) {}", r"x.metal:1: the index of \[\[buffer\(N\)\]\]"),
        ("kernel void f(uint i [[amplification_id]]) {}", r"x.metal:1: unknown attribute \[\[amplification_id\]\]"),
        ('template [[host_name("g")]] kernel decltype(g<int>) g<int>;', r"x.metal:1: .* unknown kernel template 'g'"),
        (
            'namespace a { [[host_name("f")]] kernel void f() {} }\nkernel void f() {}',
            r"x.metal:2: a kernel named 'f' exists already, from x.metal:1",
        ),
        ("kernel void f(", r"x.metal:1: '\(' is never closed"),
    ],
)
def test_what_is_refused_is_named(source, message):
    with pytest.raises(MslError, match=message):
        translate(source + "\n", name="x.metal")


@pytest.mark.parametrize("metal_version", [310, 400])
def test_everything_compiles(metal_version):
    prelude = find_prelude()
    assert prelude is not None
    ready = translate(BREADTH, metal_version=metal_version)
    assert {v.kernel.name: v.errors for v in check(ready, prelude) if v.errors} == {}
    assert [k.name for k in ready.kernels if k.name.startswith("scale")] == ["scale_f32", "scale_f16"]


def test_function_constants_compile_with_values():
    ready = translate(BREADTH)
    prelude = find_prelude()
    assert prelude is not None
    values = "#define MSL_FC_10 (true)\n#define MSL_FC_11 (3)\n#define MSL_FC_12 (float2(1.0f, 2.0f))\n"
    text = f"{ready.source}\nstatic_assert(has_bias && doubled && steps == 3);\n"
    assert all(v.compiles for v in check(Translation(values + text, ready.kernels), prelude))


def test_shaders_may_use_any_name_that_msl_has_not():
    """Names that the prelude uses itself, or once did; no function is found by the type of what it is called with."""
    source = """
    #include <metal_stdlib>
    using namespace metal;
    namespace detail { template <class T> T most(T a, T b) { return a > b ? a : b; } constant float kPi = 3; }
    namespace msl { template <class T> struct args { T v; }; }
    template <class T> struct swizzle { T v; };
    struct storage { int x; };
    struct vector_traits { int n; };
    struct operand_pair { int a, b; };
    struct float16_limits { float most; };
    struct bfloat16_t { ushort bits; };
    struct Divisor { int d; };
    typedef half float16_t;
    typedef char schar;
    template <class T> using bare = T;
    template <class T> constexpr bool is_vector = false;
    template <class T> T element(T v, int i) { return v; }
    template <class T> T append(T a, T b) { return a + b; }
    template <class V> V divisor(V v) { return v; }
    template <class T> T convert(T x) { return x; }
    template <class T> T slot(T v, uint l) { return v; }
    template <class T> T fold(T v) { return v; }
    template <class T> T shuffle(T v, uint i) { return v; }
    int greatest(int a, int b) { return a > b ? a : b; }
    float quotient(float a, float b) { return a / b; }
    bool isgreater(float a, float b) { return a > b; }
    namespace ops {
    template <class A, class B> A max(A a, B b) { return a; }
    template <class T> T exp(T x) { return x + 1; }
    template <class T> T both(T v, T w) { return max(exp(v), w); }
    }
    kernel void k(device float4* y, uint i [[thread_position_in_grid]]) {
      float4 v = y[i];
      half4 h = half4(v);
      bfloat b = bfloat(v.x);
      swizzle<float> s{detail::most(v.x, v.y)};
      storage st{1};
      vector_traits t{2};
      operand_pair p{1, 2};
      msl::args<int> a{4};
      Divisor d{st.x};
      v = append(element(v, 0), element(float4(v.wzyx), 1)) + greatest(1, 2) + divisor(v) + quotient(1, 2);
      v = convert(v) + slot(v, 1u) + fold(v) + shuffle(v, 0u);
      h = append(element(h, 0), h);
      b = append(element(b, 0), divisor(b));
      b = slot(b, 0u) + fold(b);
      y[i] = ops::both(v, v) + s.v + float4(h) + float(b) + p.a + t.n + d.d + a.v + detail::kPi + isgreater(1, 2);
    }
    """
    prelude = find_prelude()
    assert prelude is not None
    assert [verdict.errors for verdict in check(translate(source), prelude)] == [[]]


def test_an_error_is_blamed_on_its_kernel():
    prelude = find_prelude()
    assert prelude is not None
    ready = translate(
        "template <typename T> T helper(T v) { return v.missing; }\n"
        "template <typename T> kernel void good(device T* x) { x[0] = 1; }\n"
        "template <typename T> kernel void bad(device T* x) { x[0] = helper(x[1]); }\n"
        'template [[host_name("good_i")]] kernel decltype(good<int>) good<int>;\n'
        'template [[host_name("bad_i")]] kernel decltype(bad<int>) bad<int>;\n'
        'template [[host_name("bad_f")]] kernel decltype(bad<float>) bad<float>;\n'
        "template <typename T> kernel void worse(device T* x) { x[0] = helper(x[2]); }\n"
        'template [[host_name("worse_i")]] kernel decltype(worse<int>) worse<int>;\n'
        "kernel void wrong(device int* x) { x[0] = nowhere; }\n"
        "kernel void fine(device int* x) { x[0] = 1; }\n",
        name="blame.metal",
    )
    verdicts = {v.kernel.name: v for v in check(ready, prelude)}
    assert {name for name, v in verdicts.items() if v.compiles} == {"good_i", "fine"}
    assert verdicts["wrong"].errors[0].startswith("blame.metal:9: ")
    assert verdicts["worse_i"].errors[0].startswith("blame.metal:1: ")


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("helper", ["", "template <typename T> "])
def test_an_error_in_a_helper_is_blamed_on_those_who_call_it(monkeypatch, compiler, helper):
    if not shutil.which(compiler):
        pytest.skip(f"needs a {compiler}")
    monkeypatch.setenv("CXX", compiler)
    prelude = find_prelude()
    assert prelude is not None
    type_ = "T" if helper else "int"
    ready = translate(
        "kernel void first(device int* x) { x[0] = 1; }\n"
        f"{helper}{type_} inner({type_} v) {{ return missing(v); }}\n"
        f"{helper}{type_} outer({type_} v) {{ return inner(v) + 1; }}\n"
        "kernel void faulty(device int* x) {\n  x[0] = outer(x[0]);\n}\n"
        "kernel void last(device int* x) { x[0] = 2; }\n",
        name="helper.metal",
    )
    verdicts = {v.kernel.name: v.errors for v in check(ready, prelude)}
    assert verdicts["first"] == verdicts["last"] == []
    assert verdicts["faulty"][0].startswith("helper.metal:2: ")


def test_work_is_linear_in_the_size_of_the_file():
    kernel = (
        "template <typename T> kernel void k@(device const T* x [[buffer(0)]], device T* y [[buffer(1)]],\n"
        "    constant int& n [[buffer(2)]], uint i [[thread_position_in_grid]]) {\n"
        "  threadgroup T s[32];\n  if (int(i) < n)\n    y[i] = x[i] * T(0.5) + s[i % 32];\n}\n"
        'template [[host_name("k@_f")]] kernel decltype(k@<float>) k@<float>;\n'
    )

    def translated(count: int) -> None:
        source = "#include <metal_stdlib>\n" + "".join(kernel.replace("@", str(i)) for i in range(count))
        assert len(translate(source).kernels) == count

    assert lines_run(lambda: translated(400)) < 9 * lines_run(lambda: translated(50))
