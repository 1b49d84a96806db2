"""The record of what kernels cost: rows, what must hold of each, what is worse than before, and the table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tools.agx.air import Loop

CODE = 12 << 10  # bytes of code that the instruction cache holds (github.com/philipturner/metal-benchmarks)
TOLERATED = 1.02  # growth of code and of cycles that is no news
# Kernels that no token waits for alone: products of many rows, and what reads prompts. Registers and cycles of those
# with products of matrices are indicative: Mesa's compiler has no such instruction, two fma stand in for it.
PROMPTS = re.compile(
    r"linear_(tiles|backward_input)|moe_(linear|group|combine)|attention_prefill|gated_delta_(inputs|solve|chunks|outputs)|mamba2_(inputs|chunks)|sample_count_prompt"
    r"|(linear_rows|norm_linear|norm_glu)<\w+, \w+, [248],|norm_qkv<\w+, \w+, \w+, [248],"
)
# Kernels of a token that spill, or have more code than that, and why; each row is of some.
EXCUSED = {
    r"attention_decode<.*(256, 4|512, 2|Kv<128>, 128, 128, 4), 4, 8>": "rows that share a reading of the keys have"
    " their sums in registers, and of loops over rows that clang leaves rolled Mesa makes chains of selects",
    r"attention_decode<.*Out(<\w+>)?>": "heads of a new token are made once, before the loop",
    r"attention_decode<.*, 2, 4, 8, 512>": "of latents, 512 columns that are keys and values at once",
    r"attention_decode_matrix<": "of sixteen queries; two fma stand in for each product of matrices",
    r"rope_kv<.*, 16>": "a head of 512 columns is read before anything is computed",
    r"(gated_delta|mamba2)<": "the state of a head lies in registers, and clang leaves the loops over it rolled",
    r"sample_draw<true>": "the path of draws among more tokens than threads keep, which is seldom taken",
}


@dataclass(frozen=True)
class Row:
    """A kernel as Mesa's compiler makes it for an M1. Registers are of 16 bits; `threads` are those it is
    launched with, `allowed` those that its registers leave room for; cycles are of one simdgroup, without latencies."""

    file: str
    kernel: str
    threads: int
    allowed: int
    registers: int
    spills: int
    fills: int
    bytes: int
    instructions: int
    cycles: int
    loop: Loop

    @property
    def name(self) -> tuple[str, str]:
        """What tells it from others."""
        return self.file, self.kernel


def row(file: str, kernel: str, threads: int, stats: str, loop: Loop) -> Row:
    """A row from the words of Mesa's statistics: "877 inst, 883 alu, .., 0:0 spills:fills"."""
    found = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", stats)}
    spilled = re.search(r"(\d+):(\d+) spills:fills", stats)
    if spilled is None:
        raise ValueError(f"no spills in {stats!r}")
    spills, fills = int(spilled[1]), int(spilled[2])
    cycles = max(found["alu"], found["ic"])
    return Row(
        file,
        kernel,
        threads,
        found["threads"],
        found["regs"],
        spills,
        fills,
        found["bytes"],
        found["inst"],
        cycles,
        loop,
    )


def problems(rows: Iterable[Row]) -> list[str]:
    """What must not be: a line for each."""
    found = []
    for each in rows:
        if each.allowed < each.threads:
            found.append(f"{each.kernel}: {each.threads} threads are launched, registers leave room for {each.allowed}")
        if _large(each) and not _excuses(each):
            found.append(f"{each.kernel}: {each.spills} spills, {each.bytes} bytes of code ({CODE} are good)")
    return found


def idle(rows: Iterable[Row]) -> list[str]:
    """Excuses that none of all kernels needs."""
    needed = {pattern for each in rows if _large(each) for pattern in _excuses(each)}
    return [f"no kernel needs the excuse {pattern}" for pattern in EXCUSED if pattern not in needed]


def _large(each: Row) -> bool:
    return not PROMPTS.match(each.kernel) and (each.spills > 0 or each.bytes > CODE)


def _excuses(each: Row) -> list[str]:
    return [pattern for pattern in EXCUSED if re.match(pattern, each.kernel)]


def worse(before: Iterable[Row], after: Iterable[Row]) -> list[str]:
    """In what kernels are worse than they were, new, or gone."""
    old, new = ({each.name: each for each in rows} for rows in (before, after))
    found = [f"{kernel}: not in the record" for _, kernel in sorted(new.keys() - old.keys())]
    found += [f"{kernel}: in the record alone" for _, kernel in sorted(old.keys() - new.keys())]
    for name in sorted(old.keys() & new.keys()):
        was, now = old[name], new[name]
        changes = [
            ("spills and fills", was.spills + was.fills, now.spills + now.fills, 1.0),
            ("threads that fit, fewer", -was.allowed, -now.allowed, 1.0),
            ("bytes of code", was.bytes, now.bytes, TOLERATED),
            ("cycles", was.cycles, now.cycles, TOLERATED),
            ("cycles of the main loop", was.loop.cycles, now.loop.cycles, TOLERATED),
        ]
        found += [
            f"{now.kernel}: {what}, {abs(a)} before, {abs(b)} now" for what, a, b, most in changes if b > a * most
        ]
    return found


def save(rows: Iterable[Row]) -> str:
    """The record: a line of JSON for each row."""
    return "".join(json.dumps(asdict(each)) + "\n" for each in rows)


def load(text: str) -> list[Row]:
    """What `save` wrote."""
    found = [json.loads(line) for line in text.splitlines()]
    return [Row(**{**each, "loop": Loop(**each["loop"])}) for each in found]


HEAD = """# Kernels as machine code of an M1
Written by `make agx UPDATE=1`; don't edit. Mesa's open-source compiler for Apple's G13 makes it, not Apple's: believe
factors, not percents. Registers are of 16 bits, 256 at most; threads are those of a threadgroup, and those that
registers leave room for. Cycles are of one simdgroup by Mesa's model, without latencies and waits: of the code, each
instruction once, and of a turn of the largest loop. A product is a multiplication of floats, with its sum if it has
one; beside those of weights there are some for scales. Kernels of prompts and of several rows are marked p; two fma
stand in for a product of matrices.

"""


def table(rows: Iterable[Row]) -> str:
    """All rows, as a document."""
    columns = ["kernel", "threads", "fit", "registers", "spills:fills", "bytes", "instructions", "cycles"]
    columns += ["loop: instructions", "cycles", "loads", "products", "cycles a product", "loads a product"]
    lines = [columns, ["---"] * len(columns)]
    for each in rows:
        loop, mark = each.loop, " p" if PROMPTS.match(each.kernel) else ""
        shares = [f"{n / loop.products:.2f}" if loop.products else "" for n in (loop.cycles, loop.loads)]
        of_loop = [loop.instructions, loop.cycles, loop.loads, loop.products] if loop.instructions else [""] * 4
        values = [each.threads, each.allowed, each.registers, f"{each.spills}:{each.fills}", each.bytes]
        lines.append(
            [f"`{each.kernel}`{mark}", *map(str, [*values, each.instructions, each.cycles, *of_loop]), *shares]
        )
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)
