"""The projects whose kernels are run: where each is to be had, and its launches."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple

from tests.air import aten, mlx, wheels
from tests.air.case import Case
from tests.air.mlx import nax


class Project(NamedTuple):
    """One of them."""

    title: str
    wheel: wheels.Wheel
    families: tuple[ModuleType, ...]  # each with case(name): a launch, or None of a name that is another's

    def case(self, name: str) -> Case:
        """The launch of a kernel. KeyError for one of no family."""
        for family in self.families:
            if found := family.case(name):
                launch: Case = found
                return launch
        raise KeyError(name)

    def cases(self, names: Iterable[str]) -> list[Case]:
        """The launches of those of the kernels that are of a family, by name."""
        return [found for name in sorted(names) for family in self.families if (found := family.case(name))]


ALL = {
    "mlx": Project("MLX", wheels.MLX, mlx.FAMILIES),
    "m5": Project("MLX for an M5", wheels.M5, (nax,)),
    "torch": Project("torch", wheels.TORCH, aten.FAMILIES),
}


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
