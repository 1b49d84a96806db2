"""A kernel's machine code on a grid: uniforms filled as a driver does, simdgroups that take turns at barriers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np

from tools.agx.decode import decode
from tools.agx.execute import Place, Simdgroup
from tools.agx.memory import Memory
from tools.agx.registers import LANES, UNIFORMS, Fault, Integers, Lanes, Words

BASE = 0x15_FFFF_0000  # of device memory: buffers lie on both sides of a multiple of 2^32
THREADGROUP = 1 << 16  # bytes that an address of its memory can name
Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Program:
    """Code, and what its uniforms have to hold; `_at` counts halves of uniforms. As `agx_stats` prints it."""

    code: bytes
    main: int  # bytes of the code
    preamble: int  # -1: none
    tables: bytes  # constant memory
    tables_at: int  # where their address goes
    constants: bytes  # of the code, kept in uniforms
    constants_at: int
    arguments_at: tuple[int, ...]
    buffers: tuple[int, ...]  # which buffer each argument is; the last argument is the grid's size in threadgroups

    @classmethod
    def of(cls, printed: dict[str, Any]) -> Program:
        """From a line of JSON, whose bytes are in hexadecimal."""
        given = {field.name: printed[field.name] for field in fields(cls)}
        given |= {name: bytes.fromhex(given[name]) for name in ("code", "tables", "constants")}
        return cls(**given | {name: tuple(given[name]) for name in ("arguments_at", "buffers")})


@dataclass(frozen=True)
class Grid:
    """Threadgroups of `group` threads; with `threads`, `size` counts threads, and an axis may end within a group."""

    size: Triple
    group: Triple
    threads: bool = False

    def groups(self) -> Triple:
        """How many threadgroups."""
        x, y, z = (-(-n // g) if self.threads else n for n, g in zip(self.size, self.group, strict=True))
        return x, y, z


def launch(program: Program, memory: Memory, addresses: Sequence[int], grid: Grid) -> None:
    """Runs all threadgroups, one after the other. `addresses`: of the buffers by index; those behind the last one are
    absent. Raises Fault, DecodeError."""
    groups = memory.add(np.array(grid.groups(), np.uint32).view(np.uint8))
    tables = memory.add(np.frombuffer(program.tables, np.uint8))
    uniforms = Words(UNIFORMS, 1)
    arguments = [*(addresses[n] if n < len(addresses) else 0 for n in program.buffers), groups]
    for at, value in zip((*program.arguments_at, program.tables_at), (*arguments, tables), strict=True):
        for i in range(4):
            uniforms.half(at + i)[:] = value >> 16 * i & 0xFFFF
    for i, half in enumerate(np.frombuffer(program.constants, np.uint16)):
        uniforms.half(program.constants_at + i)[:] = half
    if program.preamble >= 0:
        code = {i.at: i for i in decode(program.code, program.preamble)}
        once = Place(memory, Memory("threadgroup"), uniforms, {}, np.arange(LANES) == 0)
        for _ in Simdgroup(once).run(code, program.preamble):
            raise Fault("a barrier in the preamble")
    code = {i.at: i for i in decode(program.code, program.main)}
    for z, y, x in product(*(range(n) for n in reversed(grid.groups()))):
        threadgroup = Memory("threadgroup")
        threadgroup.reserve(THREADGROUP)
        places = [
            Place(memory, threadgroup, uniforms, *_threads(grid, (x, y, z), n))
            for n in range(-(-int(np.prod(grid.group)) // LANES))
        ]
        _take_turns([Simdgroup(place).run(code, program.main) for place in places if place.launched.any()])


def _take_turns(running: list[Iterator[None]]) -> None:
    """From barrier to barrier."""
    while running:
        waiting = [each for each in running if next(each, running) is None]
        if waiting and len(waiting) < len(running):
            raise Fault("not all simdgroups of a threadgroup came to a barrier")
        running = waiting


def _threads(grid: Grid, group: Triple, simdgroup: int) -> tuple[dict[int, Integers], Lanes]:
    """What special registers say to a simdgroup's threads, and which of them exist."""
    lanes = np.arange(LANES)
    index = simdgroup * LANES + lanes
    gx, gy, gz = grid.group
    inside = [index % gx, index // gx % gy, index // (gx * gy)]
    position = [p + g * n for p, g, n in zip(inside, group, grid.group, strict=True)]
    exist = index < gx * gy * gz
    if grid.threads:
        for p, n in zip(position, grid.size, strict=True):
            exist &= p < n
    special = {51: index, 52: lanes, 53: np.array([simdgroup])}
    for axis in range(3):
        special |= {axis: np.array([group[axis]]), 4 + axis: np.array([grid.group[axis]])}
        special |= {48 + axis: inside[axis], 80 + axis: position[axis]}
    return special, exist
