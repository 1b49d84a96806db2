"""MLX's products by an M5's matrix units, as Apple compiled them, beside NumPy's: what a descriptor's fields mean, and
that the lanes of a tensor lie as MLX takes them to."""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed: make air")

from tests.air import compare, wheels

pytestmark = [
    pytest.mark.tier("nightly"),
    pytest.mark.skipif(not wheels.M5.there(), reason="run `make air` first"),
]
NAMES = [
    f"steel_gemm_fused_nax_{turned}_{kind}_{kind}_bm64_bn64_bk256_wm2_wn2"
    for turned in ("nn", "nt", "tn", "tt")
    for kind in ("float16", "bfloat16")
]


def test_products_are_right() -> None:
    assert compare.verdicts("m5", NAMES) == ["equal"] * len(NAMES)


@pytest.mark.parametrize("name", NAMES[:4])
def test_a_fault_is_noticed(name: str) -> None:
    (verdict,) = compare.verdicts("m5", [name], "right turned")
    assert "differ" in verdict
