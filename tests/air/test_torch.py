"""torch's kernels as Apple compiled them: a few that are equal, and faults in them, which must be noticed.

`make air` downloads the wheel, and compares many more of its kernels than these.
"""

from __future__ import annotations

import pytest

pytest.importorskip("llvmlite.binding", reason="llvmlite is not installed: make air")

from tests.air import compare, wheels

pytestmark = [
    pytest.mark.tier("nightly"),
    pytest.mark.skipif(not wheels.TORCH.there(), reason="run `make air` first"),
]
DECODE, PREFILL = (
    "sdpa_vector_bfloat_64_64_masknone_causal",
    "prefill_attention_float16_bq32_bk32_bd72_wm4_wn1_hm0_dc1_maskfloat16",
)
SORT, MERGE, DIGITS = (
    "sort_block_float_tptg64_stable",
    "mb_merge_final_topk_half_tptg32",
    "radix_scatter_fused_float_8bit",
)
COUNT, BESSEL, CAST = (
    "radix_count_scan_char_4bit_mb4",
    "bessel_j0_forward_dense_float_float",
    "mul_dense_cast_bfloat_bfloat",
)
# which have a reference, no source
NORM, PRODUCT, INT8, ARGMAX = "rms_norm_half", "matmul_float", "int8pack_mv_half", "argmax_reduction_float_long"
EQUAL = [DECODE, PREFILL, SORT, MERGE, DIGITS, COUNT, BESSEL, CAST, NORM, PRODUCT, INT8, ARGMAX]
NOTICED = [
    ("no barriers", DECODE),
    ("no barriers", PREFILL),
    ("no barriers", SORT),
    ("no barriers", MERGE),
    ("no barriers", COUNT),
    ("max for sum", DECODE),
    ("min for max", DECODE),
    ("e for 2", PREFILL),
    ("lane for lane xor", PREFILL),
    ("lane for lane xor", SORT),
    ("max for min", MERGE),
    ("inclusive for exclusive", COUNT),
    ("cos for sin", BESSEL),
    ("max for sum", NORM),
    ("no barriers", NORM),
    ("no barriers", PRODUCT),
    ("max for sum", INT8),
    ("no barriers", ARGMAX),
    ("cut for rounded", DECODE),
    ("cut for rounded", CAST),
]


def test_kernels_are_equal() -> None:
    assert set(compare.verdicts("torch", EQUAL)) == {"equal"}


@pytest.mark.parametrize(("mutation", "name"), NOTICED)
def test_a_fault_is_noticed(mutation: str, name: str) -> None:
    (verdict,) = compare.verdicts("torch", [name], mutation)
    assert "differ" in verdict
