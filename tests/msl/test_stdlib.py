"""metal_stdlib on the host: self-checking kernels, and the math library against numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.msl import host_kit

TYPES = ["layouts", "constructors", "swizzles", "operators", "half_type", "bfloat_type", "matrices"]
MATH = ["common", "integers", "geometry", "packing", "limits_and_traits"]


@pytest.fixture(params=host_kit.ORDERS)
def order(request: pytest.FixtureRequest) -> Iterator[str]:
    host_kit.runtime().configure(order=request.param, seed=11)
    yield request.param
    host_kit.runtime().configure()


def check(file: str, kernel: str, *buffers: np.ndarray, groups: int = 1, size: int = 1) -> None:
    failed = np.zeros(1, np.uint32)
    host_kit.kernels(file)[kernel](failed, *buffers, groups=(groups,), group_size=(size,))
    if line := int(failed[0]):
        text = (host_kit.KERNELS / file).read_text().splitlines()[line - 1]
        pytest.fail(f"{file}:{line}: {text.strip()}")


@pytest.mark.parametrize(
    ("file", "kernel"),
    [("stdlib_types.metal", k) for k in TYPES] + [("stdlib_math.metal", k) for k in MATH],
)
def test_self_checks(file: str, kernel: str) -> None:
    check(file, kernel)


@pytest.mark.parametrize("size", [1, 2, 7, 31, 32])
def test_reductions(order: str, size: int) -> None:
    check("stdlib_simd.metal", "reductions", size=size)


@pytest.mark.parametrize("kernel", ["shuffles", "quads"])
def test_lanes(order: str, kernel: str) -> None:
    check("stdlib_simd.metal", kernel, size=32)


def test_simdgroup_matrices(order: str) -> None:
    check("stdlib_simd.metal", "simdgroup_matrices", np.random.default_rng(0).random(400, np.float32), size=32)


def test_atomics(order: str) -> None:
    ints, floats, longs = np.zeros(5, np.int32), np.zeros(1, np.float32), np.zeros(1, np.uint64)
    check("stdlib_simd.metal", "atomics", ints, floats, longs, groups=50, size=64)
    n = 50 * 64
    assert ints.tolist() == [2 * n, n - 1, 1 - n, 0, n]
    assert floats[0] == -n / 2
    assert longs[0] == (n - 1) << 33


def test_order_of_simd_sum() -> None:
    """Halves are folded: lane i with i + 16, then + 8, 4, 2, 1. Exact, because kernels may rely on it in tests."""
    kernel = host_kit.kernels(
        """#include <metal_stdlib>
        kernel void sum(device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]) {
          x[i] = metal::simd_sum(x[i]);
        }"""
    )["sum"]
    x = (np.random.default_rng(0).standard_normal(32) * 10.0 ** np.arange(-16, 16)).astype(np.float32)
    expected = x
    while expected.size > 1:
        expected = expected[: expected.size // 2] + expected[expected.size // 2 :]
    kernel(x, groups=(1,))
    assert (x == expected[0]).all()


UNARY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float]] = {
    "acos": (np.arccos, -1, 1),
    "acosh": (np.arccosh, 1, 100),
    "asin": (np.arcsin, -1, 1),
    "asinh": (np.arcsinh, -50, 50),
    "atan": (np.arctan, -50, 50),
    "atanh": (np.arctanh, -0.99, 0.99),
    "cos": (np.cos, -100, 100),
    "cosh": (np.cosh, -20, 20),
    "cospi": (lambda x: np.cos(np.pi * np.remainder(x, 2)), -10, 10),
    "exp": (np.exp, -80, 80),
    "exp10": (lambda x: 10**x, -30, 30),
    "exp2": (np.exp2, -100, 100),
    "log": (np.log, 1e-3, 1e3),
    "log10": (np.log10, 1e-3, 1e3),
    "log2": (np.log2, 1e-3, 1e3),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1e-3, 1e3),
    "sin": (np.sin, -100, 100),
    "sinh": (np.sinh, -20, 20),
    "sinpi": (lambda x: np.sin(np.pi * np.remainder(x, 2)), -10, 10),
    "sqrt": (np.sqrt, 0, 1e6),
    "tan": (np.tan, -1.5, 1.5),
    "tanh": (np.tanh, -10, 10),
    "tanpi": (lambda x: np.tan(np.pi * x), -0.45, 0.45),
}


@pytest.fixture(scope="module")
def math_kernels() -> dict[str, host_kit.Kernel]:
    apply = "\n".join(
        f"""template <typename T> [[kernel]] void unary_{name}(device T* x [[buffer(0)]],
                uint i [[thread_position_in_grid]]) {{
              const vec<T, 2> twice = {name}(vec<T, 2>(x[i], x[i]));
              x[i] = all(twice == T(precise::{name}(x[i]))) ? twice.y : T(NAN);
            }}
            template [[host_name("{name}_float")]] [[kernel]] decltype(unary_{name}<float>) unary_{name}<float>;
            template [[host_name("{name}_half")]] [[kernel]] decltype(unary_{name}<half>) unary_{name}<half>;"""
        for name in UNARY
    )
    return host_kit.kernels(f"#include <metal_stdlib>\nusing namespace metal;\n{apply}")


@pytest.mark.parametrize("dtype", ["float", "half"])
@pytest.mark.parametrize("name", UNARY)
def test_math_function(math_kernels: dict[str, host_kit.Kernel], name: str, dtype: str) -> None:
    reference, low, high = UNARY[name]
    numpy_type = np.float32 if dtype == "float" else np.float16
    if dtype == "half":  # keep results within its range
        low, high = max(low, -9.0), min(high, 9.0)
    if name == "exp10" and dtype == "half":
        low, high = -4, 4
    x = np.random.default_rng(1).uniform(low, high, 1000).astype(numpy_type)
    y = x.copy()
    math_kernels[f"{name}_{dtype}"](y, threads=(x.size,))
    expected = reference(x.astype(np.float64))
    ulp = np.finfo(numpy_type).eps * np.maximum(np.abs(expected), float(np.finfo(numpy_type).tiny))
    # Below an absolute 2^-22 near the zeros of sin and cos: reduction of the argument in float.
    assert (np.abs(y.astype(np.float64) - expected) <= 2 * ulp + 2.0**-40).all()
