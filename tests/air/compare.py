"""Kernels that Apple's compiler made beside the same source through our front end, bit for bit, on one runtime.

    python -m tests.air.compare [--of mlx|torch] [--kernels REGEX] [--sample N] [--contract] [--sources MLX]
    python -m tests.air.compare METALLIB.. [--kernels REGEX] [--contract]

Runs kernels of public wheels (projects.py), or this project's own from metallibs that a Mac has made, as many at a time
as there are cores, each in a process that may crash. Prints a table by source, and every difference that decisions.py
has no line for. Exit code 0: none, or there is nothing to run, 1: some. `compare` takes any metallib with any cases.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.air import decisions, intrinsics, module, mutations, projects, source, toolchain, wheels
from tests.air.case import Case
from tests.air.metallib import MetalLib, MetalLibError

LIMIT = 120  # seconds that a kernel may take


@dataclass
class Outcome:
    """What came of a case."""

    case: Case
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """ "equal", a decision's kind, or what is wrong."""
        if "failed" in self.result:
            return str(self.result["failed"])
        kinds = []
        for mode in ("kept", "flushed"):
            found = self.result[mode]
            if found["untouched"]:
                return "the kernel changed no buffer"
            if found["differ"]:
                decision = decisions.explained(self.case.name, found, mode == "flushed")
                if decision is None:
                    return f"{found['differ']} of {found['of']} differ, subnormals {mode}: {found['first']}"
                kinds.append(decision.kind)
        return kinds[0] if kinds else "equal"

    @property
    def is_fault(self) -> bool:
        return self.verdict != "equal" and self.verdict not in {decision.kind for decision in decisions.DECISIONS}


class Worker:
    """A process that runs cases. If it ends in the middle of one, that is its result, and a new one is started."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None

    def run(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            command = [sys.executable, "-m", "tests.air.worker", *self._arguments]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                cwd=toolchain.ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        process = self._process
        assert process.stdin and process.stdout
        clock = threading.Timer(LIMIT, process.kill)
        clock.start()
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            clock.cancel()
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self._process = None
        code = process.wait()
        return {"failed": f"the process ended with {code}: " + ("no answer in time" if code == -9 else "a crash")}

    def close(self) -> None:
        if self._process is not None and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()


def glue_of(lib: MetalLib, cases: Iterable[Case], mutation: str = "") -> dict[str, str]:
    """The functions of glue.cpp that the kernels call. Those that nothing stands for are left to the worker to say."""
    mutate = mutations.ALL[mutation] if mutation else str
    found: dict[str, str] = {}
    for kernel in dict.fromkeys(case.name for case in cases):
        try:
            text = module.disassembled(lib.bitcode(kernel))
        except (RuntimeError, MetalLibError):  # which the worker says, too
            continue
        for name, returns, args in module.declared(mutate(text)):
            symbol = intrinsics.symbol(name)
            if symbol not in found:
                try:
                    found[symbol] = intrinsics.body(name, returns, args).cpp
                except intrinsics.UnknownInAir:
                    found[symbol] = ""
    return {symbol: text for symbol, text in found.items() if text}


def glue(functions: dict[str, str]) -> Path:
    """A library of the functions, without those that the prelude lacks: the worker says so of kernels that call one."""

    def known(some: dict[str, str]) -> dict[str, str]:
        try:
            toolchain.glue(some)
        except toolchain.DoesNotCompile:
            half = len(some) // 2
            return known(dict([*some.items()][:half])) | known(dict([*some.items()][half:])) if half else {}
        return some

    return toolchain.glue(known(functions))


def batches(cases: Sequence[Case]) -> Iterator[list[Case]]:
    """Cases that are compiled together."""
    units = collections.defaultdict(list)
    for case in cases:
        units[case.unit].append(case)
    for members in units.values():
        for at in range(0, len(members), source.BATCH):
            yield members[at : at + source.BATCH]


def compare(
    lib: MetalLib,
    include: Path,
    cases: Sequence[Case],
    *,
    contract: bool = False,
    mutation: str = "",
    jobs: int | None = None,
) -> list[Outcome]:
    """Runs the cases from `lib` and from the text that `include` has the headers of.

    contract, mutation: see module.prepared and mutations.py.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    paths = str(lib.path), str(toolchain.runtime()), str(glue(glue_of(lib, cases, mutation)))
    workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for _ in range(jobs):
        workers.put(Worker(*paths))

    def work(batch: list[Case]) -> list[Outcome]:
        try:
            library = str(source.compiled(batch, include)) if batch[0].has_source else ""
        except Exception as error:
            if len(batch) > 1:  # whose fault it is, each alone says
                return [outcome for case in batch for outcome in work([case])]
            return [Outcome(batch[0], {"failed": f"{type(error).__name__}: {error}"})]
        worker = workers.get()
        try:
            how = {"library": library, "contract": contract, "mutation": mutation}
            orders = ({"name": case.name, "project": case.project, "recorded": str(case.recorded or ""), **how}
                      for case in batch)  # fmt: skip
            return [Outcome(case, worker.run(order)) for case, order in zip(batch, orders, strict=True)]
        finally:
            workers.put(worker)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            return list(itertools.chain.from_iterable(pool.map(work, batches(cases))))
    finally:
        while not workers.empty():
            workers.get().close()


def verdicts(project: str, names: Sequence[str], mutation: str = "") -> list[str]:
    """What comes of some kernels of a project (of projects.ALL), for tests."""
    of = projects.ALL[project]
    library, include = of.wheel.get()
    outcomes = compare(MetalLib(library), include, [of.case(name) for name in names], mutation=mutation)
    return [outcome.verdict for outcome in outcomes]


def table(outcomes: Sequence[Outcome]) -> str:
    """How many kernels of each source came out how; "right" are those that have a reference instead."""
    rows: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for outcome in outcomes:
        file = outcome.case.source.split()[-1].split("/")[-1]
        verdict = "differ" if outcome.is_fault else outcome.verdict
        rows[file]["right" if verdict == "equal" and outcome.case.wanted else verdict] += 1
    rows["all"] = sum(rows.values(), collections.Counter())
    columns = ("equal", "right", *dict.fromkeys(decision.kind for decision in decisions.DECISIONS), "differ")
    lines = [f"{'source':28}" + "".join(f"{column:>11}" for column in columns)]
    lines += [f"{file:28}" + "".join(f"{counts[c]:>11}" for c in columns) for file, counts in rows.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metallib", nargs="*", type=Path, help="of this project, or a folder that may have some")
    parser.add_argument("--of", choices=projects.ALL, action="append", help="whose kernels; all, if not given")
    parser.add_argument("--kernels", default="", metavar="REGEX", help="names that it is found in")
    parser.add_argument("--sample", type=int, metavar="N", help="of each source, N kernels, evenly spread")
    parser.add_argument("--contract", action="store_true", help="products and sums fused where Apple may fuse them")
    parser.add_argument(
        "--sources", type=Path, metavar="MLX", help=f"a checkout of MLX {wheels.MLX.version}, for what no wheel has"
    )
    options = parser.parse_args(arguments)
    if options.metallib:
        return _own(options)
    return max([_report(projects.ALL[name], options) for name in options.of or projects.ALL])


def _own(options: argparse.Namespace) -> int:
    """Compares this project's kernels; 1 if any is a fault. Of those without a launch it says so, no more."""
    from tests.air import launches, record  # with torch, which nothing else here needs

    files = [path for path in options.metallib if path.suffix == ".metallib"]
    folders = [path for path in options.metallib if path not in files]
    libs = [MetalLib(path) for path in [*files, *(f for folder in folders for f in sorted(folder.rglob("*.metallib")))]]
    if not libs:
        print(f"skipped: no metallib in {', '.join(map(str, folders))}")
        return 0
    chosen = {name for lib in libs for name in lib.functions if re.search(options.kernels, name)}
    cases = [launches.read(path) for path in record.record(toolchain.PLACE / "launches", chosen)]
    faults = 0
    for lib in libs:
        began = time.monotonic()
        outcomes = compare(lib, Path(), [c for c in cases if c.name in lib.functions], contract=options.contract)
        for outcome in outcomes:
            on = " ".join(str(index) for index, value in outcome.case.constants.items() if value)
            verdict = "right" if outcome.verdict == "equal" else outcome.verdict
            print(f"{outcome.case.name}{on and f' with {on}'}: {verdict}")
        without = sorted(chosen & set(lib.functions) - {outcome.case.name for outcome in outcomes})
        print("".join(f"{name}: no launch recorded\n" for name in without), end="")
        print(table(outcomes))
        print(f"{len(outcomes)} launches, {len(without)} kernels without one, of {lib.path} in "
              f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
        faults += sum(outcome.is_fault for outcome in outcomes)
    return int(faults > 0)


def _report(project: projects.Project, options: argparse.Namespace) -> int:
    """Compares the kernels of one project; 1 if any is a fault."""
    title = f"{project.title} {project.wheel.version}"
    try:
        library, include = project.wheel.get()
    except wheels.Unavailable as reason:
        print(f"{title} skipped: {reason}")
        return 0
    began = time.monotonic()
    lib = MetalLib(library)
    include = options.sources if options.sources and project.wheel is wheels.MLX else include
    chosen = project.cases(name for name in lib.functions if re.search(options.kernels, name))
    chosen = [case for case in chosen if source.there(case, include)]
    if options.sample:
        chosen = projects.sample(chosen, options.sample)
    outcomes = compare(lib, include, chosen, contract=options.contract)
    for outcome in outcomes:
        if outcome.is_fault:
            print(f"{outcome.case.name}: {outcome.verdict}")
    print(table(outcomes))
    print(f"{len(outcomes)} kernels of {title} in {time.monotonic() - began:.0f} s", flush=True)
    return int(any(outcome.is_fault for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
