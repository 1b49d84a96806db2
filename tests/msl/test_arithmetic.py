"""What C++ leaves undefined and Apple's GPUs do not: division by zero, floating point that does not fit an integer."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.msl import host_kit
from tests.msl.test_translate import body

TYPES = {
    "char": np.int8,
    "uchar": np.uint8,
    "short": np.int16,
    "ushort": np.uint16,
    "int": np.int32,
    "uint": np.uint32,
    "long": np.int64,
    "ulong": np.uint64,
}
VALUES = [0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 127.9, 128.0, -128.9, -129.0, 255.9, 256.0, 65504.0, -65504.0, 2147483520.0]
VALUES += [2147483648.0, -2147483648.0, 4294967040.0, 4294967296.0, 9.2e18, 9.3e18, -9.3e18, 1.8446743e19, 1.9e19]
VALUES += [1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan]
WAYS = ["@(x[i])", "(@)x[i]", "static_cast<@>(x[i])", "as<@>(x[i])", "@4(float4(x[i])).w", "@2(x[i], x[i]).y"]
WAYS += ["@(metal::packed_float2(x[i]).y)", "([](float v) { @ n = v, m = n; return m; })(x[i])", "-(-(@)x[i])"]

CONVERSIONS = "#include <metal_stdlib>\nusing namespace metal;\n" + "".join(
    [
        "template <typename To, typename From> To as(From value) { return To(value); }\n",
        "template <typename To, typename From> To c_as(From value) { return (To)value; }\n",
        *(
            f"kernel void {type_}_{k}(device const {of}* x, device {type_}* y, uint i [[thread_position_in_grid]]) "
            f"{{ y[i] = {way.replace('@', type_)}; }}\n"
            for type_ in TYPES
            for k, (way, of) in enumerate(
                [(way, "float") for way in WAYS]
                + [(way, of) for of in ("half", "bfloat") for way in (WAYS[0], WAYS[1], "c_as<@>(x[i])", "@4(x[i]).z")]
            )
        ),
    ]
)


def nearest(x: np.ndarray, type_: str) -> np.ndarray:
    limits = np.iinfo(TYPES[type_])
    cut = [0 if np.isnan(v) else limits.max if v > 1e30 else limits.min if v < -1e30 else int(v) for v in x.tolist()]
    return np.array([min(max(v, limits.min), limits.max) for v in cut], TYPES[type_])


def test_numbers_that_do_not_fit_become_the_nearest_integer() -> None:
    kernels = host_kit.kernels(CONVERSIONS)
    floats = np.array(VALUES, np.float32)
    with np.errstate(over="ignore"):
        halves = floats.astype(np.float16)
    brains = (floats.view(np.uint32) >> 16).astype(np.uint16)
    inputs = [floats] * len(WAYS) + [halves] * 4 + [brains] * 4
    for type_ in TYPES:
        for k, x in enumerate(inputs):
            y = np.zeros(len(x), TYPES[type_])
            kernels[f"{type_}_{k}"](x, y, threads=(len(x),))
            numbers = (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x
            assert y.tolist() == nearest(numbers, type_).tolist(), (type_, k)


DIVISIONS = "#include <metal_stdlib>\nusing namespace metal;\n" + "".join(
    f"kernel void {type_}_{k}(device const {type_}* a, device const {type_}* b, device {type_}* q, device {type_}* r, "
    f"uint i [[thread_position_in_grid]]) {{ {text.replace('@', type_)} }}\n"
    for type_ in TYPES
    for k, text in enumerate(
        [
            "q[i] = a[i] / b[i]; r[i] = a[i] % b[i];",
            "q[i] = a[i]; q[i] /= b[i]; r[i] = a[i]; r[i] %= b[i];",
            "@2 v = @2(a[i]), w = @2(b[i]); q[i] = (v / w).y; v %= w; r[i] = v.x;",
            "@2 v = @2(a[i]); @ w = b[i]; q[i] = (v / w).y; r[i] = (@2(a[i]).yx % w).x;",
            "@2 w = @2(b[i]); q[i] = (a[i] / w).y; w.x = a[i] % w.y; r[i] = w.x;",
        ]
    )
)


@pytest.mark.parametrize("type_", TYPES)
def test_division_by_zero_and_of_the_least_integer(type_: str) -> None:
    limits = np.iinfo(TYPES[type_])
    pairs = [(7, 2), (7, 0), (0, 0), (limits.max, 0), (limits.min, 0), (limits.min, 1), (limits.max, limits.max)]
    if limits.min:
        pairs += [(limits.min, -1), (-7, 2), (7, -2), (-7, 0), (limits.max, -1), (limits.min, limits.min)]
    a, b = (np.array(side, TYPES[type_]) for side in zip(*pairs, strict=True))
    ones = -1 if limits.min or limits.bits >= 32 else -1 & limits.max
    q = [(ones if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)) for x, y in pairs]
    r = [(x if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)) for x, y in pairs]
    for k in range(5):
        quotient, remainder = np.zeros_like(a), np.zeros_like(a)
        host_kit.kernels(DIVISIONS)[f"{type_}_{k}"](a, b, quotient, remainder, threads=(len(a),))
        bits = (1 << limits.bits) - 1
        assert [int(v) & bits for v in quotient] == [v & bits for v in q], k
        assert [int(v) & bits for v in remainder] == [v & bits for v in r], k


def inside(text: str) -> str:
    return body(f"template <typename T> void f(float x, int n, T t) {{ {text} }}").partition("{ ")[2].removesuffix(" }")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n / 2 % 3u;", "n / 2 % 3u;"),
        ("a / b[n].c->d(n) * 2;", "a / msl_::divisor(b[n].c->d(n)) * 2;"),
        ("a / (n + 1) - 2;", "a / msl_::divisor((n + 1)) - 2;"),
        ("a / (int(n) + 1) - 2;", "a / msl_::divisor((msl_::convert<int>(n) + 1)) - 2;"),
        ("a / -n % sizeof(n) + 1;", "a / msl_::divisor(-n) % msl_::divisor(sizeof(n)) + 1;"),
        ("a / (float)n + 1;", "a / msl_::divisor((float)n) + 1;"),
        ("a / (int)-x + 1;", "a / msl_::divisor(msl_::convert<int>(-x)) + 1;"),
        ("a /= g<int, 2>(n) + 1;", "a /= msl_::divisor(g<int, 2>(n) + 1);"),
        ("f(a %= n < x[1] - 3, 2);", "f(a %= msl_::divisor(n < x[1] - 3), 2);"),
        ("a /= n == 4 ? m : t;", "a /= msl_::divisor(n == 4 ? m : t);"),
        ("a / ns::K<T>::size;", "a / msl_::divisor(ns::K<T>::size);"),
        ("a / T{n} > b;", "a / msl_::divisor(T{n}) > b;"),
        ("a / size<T>;", "a / msl_::divisor(size<T>);"),
        ("f(a % ns::size<U, 2>, 1) + 1;", "f(a % msl_::divisor(ns::size<U, 2>), 1) + 1;"),
        ("a / size<int> * 2;", "a / msl_::divisor(size<int>) * 2;"),
        ("a / b<c && d> e;", "a / msl_::divisor(b)<c && d> e;"),
        ("a / b<c> -d;", "a / msl_::divisor(b)<c> -d;"),
        ("int m = n;", "int m = msl_::convert<int>(n);"),
        ("int m = x, *p = &m, k = 1, j = h<int, T>(x) + 1;",
         "int m = msl_::convert<int>(x), *p = &m, k = 1, j = msl_::convert<int>(h<int, T>(x) + 1);"),
        ("for (uint i = x; i < n; ++i) {}", "for (uint i = msl_::convert<uint>(x); i < n; ++i) {}"),
        ("for (int i : list) {}", "for (int i : list) {}"),
        ("int m = n ? x : t, k = 3;", "int m = msl_::convert<int>(n ? x : t), k = 3;"),
        ("int m = {1}; int k[2] = {1, 2};", "int m = {1}; int k[2] = {1, 2};"),
        ("unsigned int m = x;", "unsigned int m = x;"),
        ("static_cast<const T>(x) + static_cast<T*>(p);", "msl_::convert<const T>(x) + static_cast<T*>(p);"),
        ("(unsigned char)x + (T)x;", "msl_::convert<unsigned char>(x) + msl_::convert<T>(x);"),
        ("y = (T)(x) * 2;", "y = msl_::convert<T>((x)) * 2;"),
        ("y = T(x) + T(1) + T() + T(x, n);", "y = msl_::convert<T>(x) + T(1) + T() + T(x, n);"),
        ("y = sizeof(int) + g(int(n));", "y = sizeof(int) + g(msl_::convert<int>(n));"),
        ("y = (int)1 + float(x) + (n) - (2);", "y = (int)1 + float(x) + (n) - (2);"),
        ("y = (int)(uint)x;", "y = msl_::convert<int>(msl_::convert<uint>(x));"),
        ("decltype(T(x)) z; F<int(float)> w; const int (&r)[2] = k;",
         "decltype(msl_::convert<T>(x)) z; F<int(float)> w; const int (&r)[2] = k;"),
    ],
)  # fmt: skip
def test_what_is_rewritten(text: str, expected: str) -> None:
    assert inside(text) == expected


def test_only_functions_are_rewritten() -> None:
    text = "const constexpr int K = 8 / W; struct S { int n = K / W; int v[K / W]; };"
    assert body(text) == text


def test_constant_expressions_stay_constant() -> None:
    source = """#include <metal_stdlib>
    constant constexpr int K = 12, W = 4;
    enum Kind { kind = 3 };
    struct Sizes { static const int rows = 6; };
    template <int N> struct Tile { float v[N]; };
    kernel void f(device int* y) {
      constexpr int per = K / W, cut = int(2.5f), odd = K % Sizes::rows;
      const int also = (int)7.5f;
      Tile<K / W> a; Tile<3>& b = a; float c[also / cut]; b.v[per - 1] = 1.0f;
      static_assert(per == 3 && sizeof(c) == 12 && K / kind == 4 && odd == 0, "");
      switch (y[0]) { case K / W: y[0] = K / Sizes::rows; break; }
    }"""
    y = np.array([3], np.int32)
    host_kit.kernels(source)["f"](y, threads=(1,))
    assert y[0] == 2


def test_conversions_of_a_classes_own() -> None:
    source = """#include <metal_stdlib>
    struct Number { float v; Number(float x) : v(x) {} operator float() const { return v; } };
    Number operator/(Number a, Number b) { return Number(a.v / b.v); }
    template <typename T> T third(T x) { return x / T(3); }
    kernel void f(device float* y, constant int& n) {
      Number a = y[0];
      int k = a;
      y[0] = float(a / Number(n)) + float(third(a)) + k / n + 1.0f / n;
      y[1] = 1.0f / (n - 4);
    }"""
    y = np.array([6.5, 0], np.float32)
    host_kit.kernels(source)["f"](y, np.array([4], np.int32), threads=(1,))
    assert np.isclose(y[0], 6.5 / 4 + 6.5 / 3 + 1 + 0.25) and np.isinf(y[1])


def test_no_name_of_the_front_end_is_left(tmp_path) -> None:
    """What the rewriting writes lies in the prelude's own namespace."""
    text = inside("n / n; int m = x; y = T(x) + (int)x;")
    assert set(re.findall(r"(\w+)::", text)) == {"msl_"}
