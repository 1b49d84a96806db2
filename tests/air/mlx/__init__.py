"""MLX's kernels: for the name of each, what its source is and a launch, by family."""

from __future__ import annotations

from tests.air.mlx import attention, elementwise, gemm, gemv, norms, quantized, reductions, rows, sorts

FAMILIES = (elementwise, reductions, rows, gemv, quantized, attention, gemm, sorts, norms)
