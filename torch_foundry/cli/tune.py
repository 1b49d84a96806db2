"""`torch-foundry tune`: find the fastest variants of the kernels on this machine; the ops use them from then on."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_foundry.cli.loading import UserError, add_model_options, check_format, find_device, load

if TYPE_CHECKING:
    from torch_foundry.core import tuning


FORMATS, ROWS = "f16,q8_0,q4_0", "1,2,4,8"


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("tune", help="find the fastest kernel variants on this machine", description=__doc__)
    add_model_options(parser, positional=True, what="tune what this model uses, and nothing else")
    parser.add_argument("--quantize", metavar="FORMAT", help="of MODEL: pack the weights first: q8_0, q4_0, ...")
    parser.add_argument("--formats", metavar="A,B", help=f"weight formats (default: {FORMATS})")
    parser.add_argument(
        "--shapes", metavar="NxK,..", help="outputs x inputs (default: those of Qwen2.5-0.5B up to Llama-3-8B)"
    )
    parser.add_argument("--rows", metavar="1,2", help=f"rows of x (default: {ROWS})")
    parser.add_argument("--again", action="store_true", help="forget what was found before; without it a run goes on")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--show", action="store_true", help="print what was found on this machine, and stop")
    what.add_argument("--export", metavar="FILE", type=Path, help="write what was found to a file, and stop")
    what.add_argument("--import", metavar="FILE", type=Path, dest="take", help="use an exported file, and stop")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: done, 2: can't be done."""
    from torch_foundry.core import tuning
    from torch_foundry.diagnostics import tune

    if args.model is None and (args.dtype or args.quantize):
        raise UserError(f"{'--dtype' if args.dtype else '--quantize'}: expected a model, whose weights these are")
    device = find_device(args.device)
    try:
        family = tuning.family(device)
        if args.take:
            return _import(args.take, family)
        table = tune.saved(device)
        if args.show:
            print(describe(table))
            return 0
        if args.export:
            args.export.write_text(tuning.dumps(table))
            print(f"{len(table.entries)} entries for {family} written to {args.export}")
            return 0
        return _tune(args, device, table)
    except tuning.TuningError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from error


def _import(path: Path, family: str) -> int:
    from torch_foundry.core import tuning

    table = tuning.read(path)
    tuning.check_fits(table, str(path), family)
    print(f"{len(table.entries)} entries for {family} are used from now on: {tuning.write(table)}")
    return 0


def describe(table: tuning.Table) -> str:
    """A table for the eye."""
    if not table.entries:
        return f"nothing tuned for {table.family} yet (shaders {table.shaders}, torch {table.torch})"
    lines = [f"{table.family}, {table.device}, shaders {table.shaders}, torch {table.torch}"]
    for e in table.entries:
        k = e.key
        shape = f"head_dim {k.n}" if k.op == "attention" else f"{k.rows} x {k.k} -> {k.n}"
        chosen = " ".join(f"{name}={value}" for name, value in e.choice.items())
        lines.append(f"{k.op:11} {k.format:5} {shape:22} {e.us:9.1f} us (before {e.default_us:9.1f})  {chosen}")
    return "\n".join(lines)


def _numbers(text: str, option: str, separator: str = ",") -> list[int]:
    try:
        values = [int(part) for part in text.split(separator)]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise UserError(f"{option}: expected whole numbers above 0, got {text!r}")
    return values


def _wanted(args: argparse.Namespace, device: Any) -> list[tuning.Key]:
    from torch_foundry import quant
    from torch_foundry.core import devices
    from torch_foundry.diagnostics import tune

    by_matrices = devices.of(device).multiplies_few_by_matrices
    if args.model is not None:
        try:
            return tune.keys_of(_patched(args), device, by_matrices)
        except ValueError as error:
            raise UserError(f"{args.model}: {error}") from error
    formats = (args.formats or FORMATS).split(",")
    for name in formats:
        if name not in quant.FORMATS:
            raise UserError(f"--formats: expected some of {quant.listing(quant.FORMATS)}, got {name!r}")
    rows = _numbers(args.rows or ROWS, "--rows")
    if not set(rows) <= set(tune.ROWS):
        raise UserError(f"--rows: expected some of 1, 2, 4, 8, got {args.rows!r}")
    shapes = list(tune.SHAPES)
    if args.shapes:
        pairs = [_numbers(text, "--shapes", "x") for text in args.shapes.split(",")]
        if any(len(pair) != 2 for pair in pairs):
            raise UserError(f"--shapes: expected NxK, got {args.shapes!r}")
        shapes = [(n, k) for n, k in pairs]
    for name, left in tune.left_out(formats, shapes).items():
        text = ", ".join(f"{n}x{k}" for n, k in left)
        size = quant.get_format(name).block_size
        print(f"{name}: not for {text}, whose rows are not whole blocks of {size}", file=sys.stderr)
    if not (keys := tune.keys(formats, shapes, rows, by_matrices)):
        raise UserError("--shapes: nothing to tune, as no row is a whole number of blocks of its format")
    return keys


def _patched(args: argparse.Namespace) -> Any:
    """MODEL, as it would run."""
    if others := [name for name in ("formats", "shapes", "rows") if getattr(args, name) is not None]:
        raise UserError(f"--{others[0]}: expected either shapes or a model, which has its own, got both")
    check_format(args.quantize)
    import torch_foundry

    model, _ = load(args)
    try:
        torch_foundry.patch(model, quantize=args.quantize)
    except (ValueError, RuntimeError) as error:
        raise UserError(str(error).splitlines()[0]) from error
    return model


def _tune(args: argparse.Namespace, device: Any, table: tuning.Table) -> int:
    from tqdm import tqdm

    from torch_foundry.core import tuning
    from torch_foundry.diagnostics import tune

    if args.again:
        table = tuning.new_table(table.family, table.device)
        tuning.forget()
    tuning.apply(table)
    done = {(e.key.op, e.key.format, e.key.rows, *tuning.bucket(e.key)) for e in table.entries}
    todo = [k for k in _wanted(args, device) if (k.op, k.format, k.rows, *tuning.bucket(k)) not in done]
    with tqdm(todo, "Tuning", leave=False, disable=None) as bar:
        for key in bar:
            bar.set_postfix_str(f"{key.op} {key.format} {key.rows} x {key.k} -> {key.n}")
            table = table.with_entry(tune.tune(key, device))
            tuning.write(table)  # after each, so that a run that is interrupted goes on where it was
    print(describe(table))
    print(f"\nkept in {tuning.path_of(table)}")
    return 0
