"""torch's kernels: for the name of each, what its source is and a launch, by family."""

from __future__ import annotations

from tests.air.aten import attention, elementwise, matrices, moves, norms, reductions, sorts

FAMILIES = (attention, elementwise, sorts, matrices, norms, reductions, moves)
