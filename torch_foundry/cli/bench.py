"""`torch-foundry bench`: llama-bench's table of a model: prompts and new tokens a second, at some depths."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_foundry.cli.loading import (
    UserError,
    add_model_options,
    check_format,
    check_outputs,
    load,
    name_of,
    write_json,
)
from torch_foundry.core.errors import first_line

if TYPE_CHECKING:
    from torch_foundry.diagnostics.bench import Speed

ROW = "| {:<20} | {:<8} | {:>8} | {:<7} | {:<16} | {:>8} | {:>17} | {:>8} |"


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("bench", help="tokens a second, by llama-bench's protocol", description=__doc__)
    add_model_options(parser, positional=True)
    code = parser.add_mutually_exclusive_group()
    code.add_argument("--quantize", metavar="FORMAT", help="pack the weights first: q8_0, q4_K, ...")
    code.add_argument("--stock", action="store_true", help="measure the model unpatched")
    for name, default, what in (("prompt", "512", "to read"), ("new", "128", "to generate"), ("depth", "0", "before")):
        what = f"tokens {what}, some with commas between; 0: none (default: {default})"
        options: dict[str, Any] = {"type": _numbers, "default": _numbers(default), "metavar": "N,..", "help": what}
        parser.add_argument(f"-{name[0]}", f"--{name}", **options)
    parser.add_argument("-r", "--repeats", type=int, default=5, metavar="N", help="after one not counted (default: 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures, under llama-bench's names")
    what = "write the speeds of new tokens as llmfit's community collects them"
    parser.add_argument("--llmfit", type=Path, metavar="FILE", help=what)
    parser.set_defaults(run=run, picture=None)


def _numbers(text: str) -> list[int]:
    if not all(part.isdecimal() and int(part) < 2**31 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text}: expected whole numbers from 0 on, with commas between")
    return [int(part) for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Print a line for each test as it ends."""
    check_format(args.quantize)
    check_outputs(args)
    if args.repeats < 1:
        raise UserError(f"--repeats {args.repeats}: expected at least 1")
    if args.llmfit is not None and not any(args.new):
        raise UserError("--llmfit: expected new tokens to measure (--new)")
    model, _ = load(args)
    import torch_foundry
    from torch_foundry.diagnostics.bench import llmfit, measure
    from torch_foundry.hf.packing import packed_formats

    if not args.stock:
        torch_foundry.patch(model, quantize=args.quantize)
    about = {
        "model": name_of(args.model, "demo model"),
        "weights": packed_formats(model) or str(model.dtype).removeprefix("torch."),
        "model_size": sum(each.nbytes for each in (*model.parameters(), *model.buffers())),
        "backend": "stock" if args.stock else torch_foundry.executor(args.device),
        "device": args.device,
    }
    found = []
    tests = [{"depth": d} | size for d in args.depth for size in (*_sizes("prompt", args), *_sizes("new", args))]
    print(ROW.format("model", "weights", "MiB", "backend", "test", "min", "avg t/s", "max"))
    print("|---|---|---:|---|---|---:|---:|---:|")
    for test in tests:
        try:
            found.append(measure(model, repeats=args.repeats, **test))
        except (ValueError, RuntimeError) as error:
            raise UserError(first_line(error)) from error
        print(_line(about, found[-1]), flush=True)
    seen = torch_foundry.report(model)
    for what, reasons in (("stock code ran for", seen.fallbacks), ("no graph for", seen.eager)):
        if reasons and not args.stock:
            print(f"{what}: {', '.join(reasons)}", file=sys.stderr)
    if args.json is not None:
        write_json(args.json, [about | each.to_json() for each in found])
    if args.llmfit is not None:
        write_json(args.llmfit, llmfit(f"{about['model']} {about['weights']}", found, model.device))
    return 0


def _sizes(name: str, args: argparse.Namespace) -> list[dict[str, int]]:
    return [{name: size} for size in getattr(args, name) if size]


def _line(about: dict[str, Any], speed: Speed) -> str:
    figures = speed.to_json()
    average = f"{figures['avg_ts']:.2f} ± {figures['stddev_ts']:.2f}"
    size, least, most = (f"{each:.1f}" for each in (about["model_size"] / 2**20, figures["min_ts"], figures["max_ts"]))
    return ROW.format(about["model"], about["weights"], size, about["backend"], speed.name, least, average, most)
