"""Where AIR and the source may differ, and why: every difference of a run is explained by one line, or is a fault.

What can't differ, as both sides take it from the prelude (intrinsics.py): fast against precise functions, the order of
simd_sum and of products of matrices. What is made alike before they run: a product and a sum that Apple may fuse are
two roundings (module.prepared's `contract`), as -ffp-contract=off makes the source's; conversions of numbers that don't
fit give the nearest integer; subnormals are kept, and taken for zero, on both sides (each case runs in both modes, as
AIR is compiled for zero, denorms_disable).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple


class Decision(NamedTuple):
    """A difference that is no fault."""

    kernels: str  # pattern of names
    kind: str  # "NaN bits": elements that are NaN on both sides differ in their other bits; "subnormals": see there
    reason: str


DECISIONS = (
    Decision(
        r".*",
        "NaN bits",
        "IEEE 754 leaves the sign and payload of a NaN that an operation makes to the processor and to which operand "
        "is first; compilers swap operands of sums and products. Metal gives no rule either",
    ),
    Decision(
        r".*(max|min|relu).*",
        "subnormals",
        "where they count as zero, what only picks one of its operands may keep a subnormal or give zero: which "
        "instruction a compiler takes for it decides that",
    ),
)


def explained(name: str, result: Mapping[str, Any], flushed: bool) -> Decision | None:
    """The decision that the differences of a mode fall under, with subnormals kept or `flushed`."""
    for decision in DECISIONS:
        left = result["differ"] - result["nan"] - (result["tiny"] if decision.kind == "subnormals" and flushed else 0)
        if re.fullmatch(decision.kernels, name) and left == 0:
            return decision
    return None
