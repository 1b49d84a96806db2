"""The main loop of a kernel, from what Mesa's compiler prints of its last form: blocks of instructions that follow one
another, a loop being those from a jump's target back to the jump."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

# Cycles of G13's integer and complex unit, which simdgroups share; all else takes one to issue, or as `SLOW` says.
# Mesa's model (agx_performance.c); conversions as github.com/philipturner/metal-benchmarks measured them.
SHARED = {
    **dict.fromkeys(("imad", "bfi", "bfeil", "extr", "asr", "floor", "convert", "sin_pt_1", "sin_pt_2"), 4),
    **dict.fromkeys(("log2", "exp2", "popcount", "ffs", "bitrev", "rint", "trunc", "ceil"), 4),
    **{"rcp": 6, "rsqrt": 8, "srsqrt": 8},
}
SLOW = {"simd_prefix": 18, "simd_reduce": 24, "shuffle": 2, "get_sr": 2, "icmp_ballot": 2}
PRODUCTS = {"ffma", "fmul", "hfma", "hmul"}
_BLOCK = re.compile(r"^block(\d+) \{$|^\}(?: -> ((?:block\d+ ?)+))?.*$", re.M)


@dataclass(frozen=True)
class Loop:
    """A turn of a loop, of one simdgroup."""

    instructions: int = 0
    cycles: int = 0  # of the busiest unit; without latencies and waits
    loads: int = 0  # from device memory, and constant tables
    products: int = 0  # of floats, with and without a sum

    @staticmethod
    def of(operations: list[str]) -> Loop:
        """The cost of some instructions, by their names."""
        count = Counter(operations)
        issue = sum(n * SLOW.get(name, 1) for name, n in count.items())
        shared = sum(n * SHARED.get(name, 0) for name, n in count.items())
        loads = count["device_load"]
        return Loop(len(operations), max(issue, shared), loads, sum(count[name] for name in PRODUCTS))


def main_loop(printed: str) -> Loop:
    """The loop with the most instructions, those of loops in it included, each once; zeros if there is none."""
    blocks, jumps = _blocks(printed)
    loops = [Loop.of([name for block in blocks[to : at + 1] for name in block]) for at, to in jumps if to <= at]
    return max(loops, key=lambda loop: loop.instructions, default=Loop())


def _blocks(printed: str) -> tuple[list[list[str]], list[tuple[int, int]]]:
    """Names of the instructions of each block of the main program's last form, and jumps: from block, to block."""
    programs: list[tuple[list[list[str]], list[tuple[int, int]]]] = []
    ends = list(_BLOCK.finditer(printed))
    for start, end in pairwise(ends):
        if start[1] is None:
            continue
        if start[1] == "0":
            programs.append(([], []))
        blocks, jumps = programs[-1]
        lines = printed[start.end() : end.start()].splitlines()
        blocks.append(
            [line.partition(" = ")[2].split()[0] if " = " in line else line.split()[0] for line in lines if line]
        )
        jumps += [(int(start[1]), int(to)) for to in re.findall(r"\d+", end[2] or "")]
    # The preamble, which runs once before and fills uniform registers, is printed last.
    return next(program for program in reversed(programs) if not any("uniform_store" in block for block in program[0]))
