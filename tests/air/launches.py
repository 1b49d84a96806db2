"""Launches of this project's own kernels, as record.py stores them: a file each, read as a case."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tests.air.case import TYPES, Array, Buffer, Case
from torch_foundry.aot.metallib import library_name


@dataclass(frozen=True)
class About:
    """A launch without its buffers' bytes."""

    file: str  # of shaders/
    entry: str  # with its template arguments
    constants: dict[str, str]  # function constants by index: "true"
    grid: tuple[int, ...]
    group: tuple[int, ...]
    threads: bool  # whether `grid` counts threads
    threadgroup: tuple[int, ...]  # bytes of each threadgroup argument
    kinds: dict[str, str]  # of the buffers by index, as in case.TYPES
    written: tuple[int, ...]  # buffers that the op lets the kernel write

    @property
    def key(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """What is compiled."""
        return self.file, self.entry, tuple(sorted(self.constants.items()))

    @property
    def function(self) -> tuple[str, str]:
        """File and name of the kernel."""
        return self.file, self.entry.partition("<")[0]


def write(path: Path, about: About, before: dict[int, Array], after: dict[bool, dict[int, Array]]) -> None:
    """after: the bytes of written buffers, with subnormals kept (False) and taken for zero (True)."""
    arrays = {f"before{i}": data for i, data in before.items()}
    arrays |= {f"after{int(flush)}.{i}": data for flush, found in after.items() for i, data in found.items()}
    np.savez(path, about=np.array(json.dumps(asdict(about))), **arrays)  # type: ignore[arg-type]


def about(path: Path) -> About:
    """What a file says of its launch."""
    with np.load(path) as stored:
        return About(**json.loads(str(stored["about"])))


def read(path: Path) -> Case:
    """The launch, which has to leave what the host executor left."""
    of = about(path)

    def arrays(prefix: str) -> dict[int, Buffer]:
        with np.load(path) as stored:
            return {
                i: Buffer(stored[f"{prefix}{i}"].view(TYPES[kind]), kind)
                for i, kind in ((int(i), kind) for i, kind in of.kinds.items())
                if f"{prefix}{i}" in stored
            }

    def after(flush: bool) -> dict[int, Array]:
        return {i: buffer.array for i, buffer in (arrays("before") | arrays(f"after{int(flush)}.")).items()}

    constants = {int(i): int(value == "true") for i, value in of.constants.items()}
    return Case(
        library_name(of.entry), of.file, "", lambda: arrays("before"), of.grid, of.group, of.threads, constants,
        of.threadgroup, recorded=path, after=after,
    )  # fmt: skip
