"""MLX's kernels as Apple compiled them: a few that are equal, and faults in them, which must be noticed.

`make air` downloads the wheel, and compares many more of its kernels than these.
"""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed: make air")

from tests.air import compare, wheels

pytestmark = [
    pytest.mark.tier("nightly"),
    pytest.mark.skipif(not wheels.MLX.there(), reason="run `make air` first"),
]
SOFTMAX, GEMM = (
    "block_softmax_float32",
    "steel_gemm_splitk_nn_float16_float32_bm16_bn16_bk16_wm2_wn2_MN_taligned_K_taligned",
)
SORT, QMV = "c_block_sort_float32_float32_bn32_tn4", "affine_qmv_fast_bfloat16_t_gs_64_b_4_batch_0"
SCAN = "contig_scan_inclusive_sum_int32_int32"
NOTICED = [
    ("no barriers", SOFTMAX),
    ("no barriers", GEMM),
    ("no barriers", SORT),
    ("max for sum", SOFTMAX),
    ("max for sum", QMV),
    ("min for max", SOFTMAX),
    ("cut for rounded", QMV),
    ("3 for 4", SOFTMAX),
    ("no barriers", SCAN),
]


def verdicts(names: list[str], mutation: str = "") -> list[str]:
    return compare.verdicts("mlx", names, mutation)


def test_kernels_are_equal() -> None:
    assert set(verdicts([SOFTMAX, GEMM, SORT, QMV, SCAN])) == {"equal"}


@pytest.mark.parametrize(("mutation", "name"), NOTICED)
def test_a_fault_is_noticed(mutation: str, name: str) -> None:
    (verdict,) = verdicts([name], mutation)
    assert "differ" in verdict


def test_a_crash_and_an_endless_kernel_are_results(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the process ended with -11" in verdicts([SOFTMAX], "crash")[0]
    monkeypatch.setattr(compare, "LIMIT", 5)
    assert "no answer in time" in verdicts([SOFTMAX], "endless")[0]
