"""`python -m tools.agx`: what the kernels cost on an M1, by Mesa's compiler, and what they cost before; then ops that
run as its machine code (`checks`).

Exit code 1 if a kernel doesn't compile, breaks a rule (`record.problems`) or is worse than in the record, or if an op
gives a wrong result. Where the compiler can't be built, it says why and leaves it at that.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.agx import checks, compile, kernels, mesa, record, recorded
from tools.agx.emulate import Emulator
from torch_foundry.aot.metallib import FAMILY

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "benchmarks/records/agx"
ROWS, TABLE = RECORDS / "g13.jsonl", RECORDS / "g13.md"
PROGRAMS = ROOT / "tests/tools/g13_programs.jsonl"  # of `KEPT`
KEPT = "^(rms_norm|linear q4_0)$"  # checks that tests run without the compiler


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.agx", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the record and its table; or the tests' programs")
    parser.add_argument("--kernels", default="", help="a regular expression: prints the rows of these alone")
    parser.add_argument("--code", action="store_true", help="print the instructions of those kernels, nothing else")
    parser.add_argument("--run", help="a regular expression: runs these checks, and nothing else")
    options = parser.parse_args()
    try:
        compiler = compile.Compiler(mesa.build(ROOT / "build/agx"), ROOT / "build/agx/cache")
    except mesa.Unavailable as why:
        print(f"skipped: {why}")
        return 0
    if options.run is not None:
        return _run(compiler, options.run, options.update)
    wanted = [kernel for kernel in kernels.every() if re.search(options.kernels, kernel.entry)]
    if options.code:
        for kernel in wanted:
            print(f"{kernel.file}: {kernel.entry}\n{compiler.code(kernel)}")
        return 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(compiler.try_row, wanted))
    rows = [row for row in found if isinstance(row, record.Row)]
    wrong = [text for text in found if isinstance(text, str)]
    before = record.load(ROWS.read_text()) if ROWS.exists() else []
    if options.kernels:
        print(record.table(rows))
        names = {row.name for row in rows}
        before = [row for row in before if row.name in names]
    elif options.update:
        RECORDS.mkdir(exist_ok=True)
        ROWS.write_text(record.save(rows))
        TABLE.write_text(record.table(rows))
        before = rows
    wrong += [*record.problems(rows), *([] if options.kernels else record.idle(rows)), *record.worse(before, rows)]
    print("\n".join([*wrong, f"{len(rows)} of {len(wanted)} kernels compile, {len(wrong)} problems"]))
    return 1 if wrong else 0


def _run(compiler: compile.Compiler, names: str, update: bool) -> int:
    """The checks of these names; to `update`, what tests run is written."""
    count, wrong = checks.run(Emulator(FAMILY, compiler.program), names)
    if update:
        kept = Emulator(FAMILY, compiler.program)
        checks.run(kept, KEPT)
        PROGRAMS.write_text(recorded.save(kept.ran))
    print("\n".join([*wrong, f"{count - len(wrong)} of {count} checks of machine code pass"]))
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
