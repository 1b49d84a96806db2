"""Many mutants through the readers: python -m tests.io.fuzz.run --inputs 200000 [--processes 2] [--record FILE].

A crash is anything but a LoadError, or something untrue that was accepted; a hang takes longer than ten seconds of CPU
time. Both are printed with the mutant's number, which makes it again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from .mutants import KINDS

HANG = 10.0  # seconds of CPU time
PIECE = 5000  # mutants that a process makes before it reports


class Hang(BaseException):
    pass


@dataclass
class Result:
    inputs: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    strategies: Counter[str] = field(default_factory=Counter)
    crashes: dict[str, list[Any]] = field(default_factory=dict)  # by what was raised: kind, number, traceback
    hangs: list[tuple[str, int]] = field(default_factory=list)
    slowest: tuple[float, str, int] = (0.0, "", 0)  # seconds of CPU time, kind, number
    peak: int = 0  # bytes by which a process grew while it worked

    def add(self, other: Result) -> None:
        self.inputs += other.inputs
        self.codes += other.codes
        self.strategies += other.strategies
        self.crashes |= other.crashes
        self.hangs += other.hangs
        self.slowest = max(self.slowest, other.slowest)
        self.peak = max(self.peak, other.peak)


def work(kind: str, numbers: Iterable[int]) -> Result:
    """These mutants, one after the other."""
    from .mutants import mutant
    from .target import probe

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Hang

    found = Result()
    before = signal.signal(signal.SIGVTALRM, stop)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in numbers:
        data, chosen = mutant(kind, number)
        found.inputs += 1
        found.strategies.update(chosen)
        start = time.process_time()
        signal.setitimer(signal.ITIMER_VIRTUAL, HANG)
        try:
            found.codes[probe(kind, data) or "accepted"] += 1
        except Hang:
            found.hangs.append((kind, number))
        except BaseException as problem:
            found.crashes.setdefault(f"{kind}: {problem!r:.100}", [kind, number, traceback.format_exc(limit=-3)])
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        found.slowest = max(found.slowest, (time.process_time() - start, kind, number))
    signal.signal(signal.SIGVTALRM, before)
    found.peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024
    return found


def _warm() -> None:
    os.nice(10)
    for kind in KINDS:
        work(kind, range(-50, 0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000, help="of each kind of file")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--record", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    start, total = time.time(), {kind: Result() for kind in options.kinds}
    with ProcessPoolExecutor(options.processes, initializer=_warm) as pool:
        pieces = [
            (kind, pool.submit(work, kind, range(at, min(at + PIECE, options.first + options.inputs))))
            for at in range(options.first, options.first + options.inputs, PIECE)
            for kind in options.kinds
        ]
        for kind, piece in pieces:
            total[kind].add(piece.result())
    record: dict[str, Any] = {"seconds": round(time.time() - start)}
    for kind, result in total.items():
        print(f"{kind}: {result.inputs} inputs by {len(result.strategies)} strategies")
        print(f"  {len(result.crashes)} crashes, {len(result.hangs)} hangs; {dict(result.codes.most_common())}")
        print(
            f"  slowest {result.slowest[0] * 1e3:.1f} ms (number {result.slowest[2]}), memory +{result.peak >> 10} KiB"
        )
        for _, number, trace in result.crashes.values():
            print(f"  crash, number {number}:\n{trace}")
        for hang in result.hangs:
            print(f"  hang, number {hang[1]}")
        record[kind] = {
            "inputs": result.inputs, "strategies": len(result.strategies), "crashes": len(result.crashes),
            "hangs": len(result.hangs), "slowest_ms": round(result.slowest[0] * 1e3, 1),
            "memory_kib": result.peak >> 10, "codes": dict(result.codes.most_common()),
        }  # fmt: skip
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(result.crashes or result.hangs for result in total.values()))


if __name__ == "__main__":
    sys.exit(main())
