"""Metal 4's tensors and products of them on the host, in many layouts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.msl import host_kit
from torch_foundry.msl import translate

M, N, K, PLACES = 16, 32, 24, 12
LAYOUTS = (0, 1, 2, 3, 4, 7, 13, 4 * 37 + 3)


@pytest.fixture(autouse=True)
def layout_of_others() -> Iterator[None]:
    yield
    host_kit.runtime().library.msl_rt_tensor_layout(0)


def launch(kernel: str, layout: int, dtype: type = np.float16) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-8, 9, size).astype(np.float32) for size in (M * K, K * N))
    y, places = np.full(M * N, np.nan, np.float32), np.full((64, PLACES, 3), -1, np.int32)
    half = dtype is np.float16  # else the upper halves of floats
    stored = [x.astype(dtype) if half else (x.view(np.uint32) >> 16).astype(dtype) for x in (a, b)]
    host_kit.runtime().library.msl_rt_tensor_layout(layout)
    host_kit.kernels("tensors.metal")[kernel](*stored, y, places, groups=(1,), group_size=(64,))
    return a, b, y.reshape(M, N), places


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", ["plain", "turned", "right"])
def test_product(kernel: str, layout: int) -> None:
    """Exact, as all are small whole numbers; what lies outside of an operand counts as zero."""
    a, b, y, _ = launch(kernel, layout, np.uint16 if kernel == "right" else np.float16)
    left = np.zeros((M, K), np.float32)
    if kernel == "turned":
        left[:, : K - 1] = a[: M * (K - 1)].reshape(K - 1, M).T
    else:
        left[: M - 1] = a[: (M - 1) * K].reshape(M - 1, K)
    right = np.zeros((K, N), np.float32)
    if kernel == "plain":
        right[:] = b.reshape(K, N)
    else:
        right[:, : N - 1] = b[: (N - 1) * K].reshape(N - 1, K).T
    expected = left @ right
    assert (y == (expected if kernel == "plain" else 0.5 + 2 * expected)).all()


def test_layouts() -> None:
    """Each element has one place, in any layout; padded ones have others, which lie outside of the matrix."""
    seen = set()
    for layout in LAYOUTS:
        *_, places = launch("plain", layout)
        there = places[:, : 12 if layout & 1 else 8].reshape(-1, 3)
        assert (places.reshape(-1, 3)[:, 2] == -1).sum() == 64 * PLACES - len(there)
        valid = there[there[:, 2] == 1]
        assert sorted(map(tuple, valid[:, 1::-1])) == [(row, column) for row in range(M) for column in range(N)]
        outside = there[there[:, 2] == 0]
        assert len(outside) == len(there) - M * N and (outside[:, 1] >= M).all()
        seen.add(places.tobytes())
    assert len(seen) == len(LAYOUTS)


def test_another_number_of_simdgroups() -> None:
    with pytest.raises(host_kit.LaunchError, match="a product by another number of simdgroups than"):
        host_kit.kernels("tensors.metal")["too_few"](np.zeros(1, np.float32), groups=(1,), group_size=(32,))


def test_names_are_there_for_those_who_ask() -> None:
    """Other sources may call something of their own so."""
    text = "#include <metal_stdlib>\nusing namespace metal;\nstruct tensor { int x; };\nstruct matmul2d {};\n"
    text += "kernel void k(device int* y [[buffer(0)]]) { tensor t{3}; y[0] = t.x; }\n"
    assert "metal_tensor.h" not in translate(text).source
    y = np.zeros(1, np.int32)
    host_kit.kernels(text)["k"](y, groups=(1,), group_size=(1,))
    assert y[0] == 3
