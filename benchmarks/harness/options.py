"""Command-line options that the benchmarks share, and what follows from them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from torch_foundry import quant
from torch_foundry.cli.loading import UserError, find_device

OUT = Path("build/bench")


def add(parser: argparse.ArgumentParser, models: Iterable[str], formats: str) -> None:
    """--device, --models, --formats, --out, --seed, --quick, --silent, --commit, --no-plots."""
    known = list(models)
    parser.add_argument("--device", help="cpu, cuda or mps; by default the GPU, if this build runs on it")
    parser.add_argument("--models", default=",".join(known), help=f"some of {', '.join(known)}")
    parser.add_argument("--formats", default=formats, help=f"some of {quant.listing(quant.FORMATS)}")
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder for records and plots; default {OUT}")
    parser.add_argument("--seed", type=int, default=0, help="of weights and prompts")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, few rounds: shows that it works, no more")
    parser.add_argument("--silent", action="store_true", help="print the table only")
    parser.add_argument("--commit", help="what to record as the commit; by default git is asked")
    parser.add_argument("--no-plots", action="store_true", help="write records only")


def some_of(text: str, known: Iterable[str], option: str) -> list[str]:
    """The names in a comma-separated list; UserError for one that isn't known."""
    names, known = [name.strip() for name in text.split(",") if name.strip()], list(known)
    for name in names:
        if name not in known:
            raise UserError(f"{option}: expected some of {', '.join(known)}, got {name!r}")
    if not names:
        raise UserError(f"{option}: expected some of {', '.join(known)}")
    return names


def numbers(text: str, option: str) -> list[int]:
    """Whole numbers above 0 in a comma-separated list."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise UserError(f"{option}: expected whole numbers above 0, got {text!r}")
    return values


def pair(text: str, option: str) -> tuple[int, int]:
    """Two whole numbers above 0 with an x between them."""
    parts = numbers(text.replace("x", ","), option)
    if len(parts) != 2:
        raise UserError(f"{option}: expected AxB, got {text!r}")
    return parts[0], parts[1]


def device(args: argparse.Namespace) -> torch.device:
    """The device to measure; UserError if there are no kernels for it."""
    chosen: torch.device = find_device(args.device)
    if chosen.type == "cpu":
        print("the CPU plays a GPU here: right results mean something, times of the kernels don't", file=sys.stderr)
        if args.quick:
            torch.set_num_threads(1)  # tiny tensors: threads would wait for each other most of the time
    return chosen


def run(prog: str, main: Callable[[Sequence[str] | None], int], argv: Sequence[str] | None = None) -> int:
    """`main(argv)` as a command: 0 done, 1 something was wrong, 2 the request can't be met."""
    try:
        return main(argv)
    except UserError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
