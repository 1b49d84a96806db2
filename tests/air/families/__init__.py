"""MLX's kernels: for the name of each, what its source is and a launch, by family."""

from __future__ import annotations

from collections.abc import Iterable

from tests.air.case import Case
from tests.air.families import attention, elementwise, gemm, gemv, norms, quantized, reductions, rows, sorts

FAMILIES = (elementwise, reductions, rows, gemv, quantized, attention, gemm, sorts, norms)


def case(name: str) -> Case:
    """The launch of a kernel. KeyError for one of no family."""
    for family in FAMILIES:
        if found := family.case(name):
            return found
    raise KeyError(name)


def cases(names: Iterable[str]) -> list[Case]:
    """The launches of those of the kernels that are of a family, by name."""
    return [found for name in sorted(names) for family in FAMILIES if (found := family.case(name))]


def sample(all_cases: Iterable[Case], count: int) -> list[Case]:
    """Of the kernels of each source `count`, evenly spread by name."""
    sources: dict[str, list[Case]] = {}
    for found in all_cases:
        sources.setdefault(found.source, []).append(found)
    chosen = []
    for members in sources.values():
        few = min(count, len(members))
        chosen += [members[i * len(members) // few] for i in range(few)]
    return chosen
