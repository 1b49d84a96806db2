"""Each op on the shapes of real models, in each format, beside stock torch in the same run.

python -m benchmarks.bench_ops --device cuda --models qwen2.5-0.5b,llama-3-8b --formats f16,q8_0 --ops linear,attention

Records go to ops.jsonl in --out, one a row, and plots beside it. A row whose result disagrees with float64 is invalid:
no speed-up is computed for it, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence

import torch

from benchmarks.cases import QUICK, Case, Sizes
from benchmarks.harness import machine, options, plots, record
from benchmarks.harness.machine import Machine
from benchmarks.harness.record import Parity, Record
from benchmarks.harness.table import table
from benchmarks.measuring import CRITERION, Effort, measure
from benchmarks.models import MIXTURES, MODELS, REAL
from benchmarks.ops import OPS, cases
from torch_foundry import quant


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    args = _parser().parse_args(argv)
    device = options.device(args)
    names = ["tiny"] if args.quick else options.some_of(args.models, MODELS, "--models")
    sizes = QUICK if args.quick else Sizes(rows=tuple(options.numbers(args.rows, "--rows")))
    todo = cases(
        {name: MODELS[name] for name in names},
        options.some_of(args.ops, OPS, "--ops"),
        options.some_of(args.formats, quant.FORMATS, "--formats"),
        options.some_of(args.layouts, ("2d", "3d"), "--layouts"),
        sizes,
    )
    found = machine.look(device, quick=args.quick, commit=args.commit)
    effort = Effort(machine.cache_bytes(device, args.quick), seed=args.seed)
    if args.quick:
        effort = dataclasses.replace(effort, rounds=3, budget_s=0.01)
    records = []
    for number, case in enumerate(todo, 1):
        started = time.monotonic()
        records.append(one(case, device, found, effort))
        record.append(args.out / "ops.jsonl", records[-1:])  # at once: an interrupted run keeps what it has
        if not args.silent:
            took = time.monotonic() - started
            print(f"{number}/{len(todo)} {case.op} {case.format} {case.shape()} {took:.1f} s", file=sys.stderr)
    print(f"{found}\n{table(records)}")
    if not args.no_plots:
        plots.write_all(args.out)
    return record.conclude(records, args.out / "ops.jsonl")


def one(case: Case, device: torch.device, found: Machine, effort: Effort) -> Record:
    """The record of a case, whatever happens: one that is too large is skipped, one that fails is invalid."""
    bare = Record("op", case.op, found.executor, case.format, case.shape(), found, seed=effort.seed)
    try:
        return measure(case, OPS[case.op], device, found, effort)
    except torch.OutOfMemoryError as error:
        return dataclasses.replace(bare, kind="skipped", reason=f"out of memory: {str(error).splitlines()[0]}")
    except RuntimeError as error:
        return dataclasses.replace(bare, parity=Parity(False, CRITERION, None, str(error).splitlines()[0]))


def _parser() -> argparse.ArgumentParser:
    assert __doc__
    parser = argparse.ArgumentParser(prog="bench_ops", description=__doc__.splitlines()[0])
    options.add(parser, (*REAL, *MIXTURES), "f16,bf16,f32,q8_0,q4_0")
    parser.add_argument("--ops", default=",".join(OPS), help=f"some of {', '.join(OPS)}")
    parser.add_argument("--rows", default="1,4,8,512", help="of linear's input")
    parser.add_argument("--layouts", default="2d,3d", help="of activations: [rows, n], [batch, length, n]")
    return parser


if __name__ == "__main__":
    sys.exit(options.run("bench_ops", main))
