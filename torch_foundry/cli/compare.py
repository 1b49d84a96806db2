"""`torch-foundry compare`: where a patched model drifts from the stock one, layer by layer, in prompts and in steps."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from torch_foundry.cli.loading import (
    UserError,
    add_model_options,
    add_prompt_options,
    check_outputs,
    encode,
    find_device,
    load,
    write_json,
)


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("compare", help="drift of the patched model, layer by layer", description=__doc__)
    add_model_options(parser)
    add_prompt_options(parser)
    what = "instead: small fixed models of every family, or of some, against float64 logits that come with the package"
    parser.add_argument("--golden", nargs="*", metavar="FAMILY", help=what)
    parser.add_argument("--json", type=Path, metavar="FILE", help="with --golden: write a report to compare devices by")
    what = "instead: two such reports, and the first op of each family that differs; 1 if one does"
    parser.add_argument("--diff", nargs=2, type=Path, metavar=("A", "B"), help=what)
    parser.set_defaults(run=run, picture=None)


def run(args: argparse.Namespace) -> int:
    """Print the drift table; 1 if a stage is out of line."""
    if args.diff is not None:
        if args.golden is not None or args.json is not None:
            raise UserError("--diff: goes with neither --golden nor --json: it reads two reports and runs nothing")
        return _diff(*args.diff)
    if args.golden is not None:
        return _golden(args)
    if args.json is not None:
        raise UserError("--json: goes with --golden")
    model, tokenizer = load(args)
    inputs = encode(args, tokenizer, args.prompt)
    import torch_foundry

    drift = torch_foundry.compare(model, inputs["input_ids"])
    print(drift)
    return 1 if drift.first_bad else 0


def _golden(args: argparse.Namespace) -> int:
    """A line for each family as it ends; 1 if one is wrong."""
    check_outputs(args)
    device = find_device(args.device)
    from torch_foundry.diagnostics import golden
    from torch_foundry.diagnostics.doctor.examine import describe_device

    if unknown := sorted(set(args.golden) - golden.recipes().keys()):
        raise UserError(f"--golden {unknown[0]}: expected some of {', '.join(golden.recipes())}")
    rows = []
    print(golden.HEAD)
    for family in args.golden or golden.recipes():
        rows.append(golden.check(family, device, record=args.json is not None))
        print(golden.line(rows[-1]), flush=True)
    wrong, skipped = sum(bool(r.problem) and not r.skipped for r in rows), sum(r.skipped for r in rows)
    print(f"{len(rows) - wrong - skipped} of {len(rows)} right on {device} (float32), {wrong} wrong, {skipped} skipped")
    if args.json is not None:
        write_json(args.json, golden.portable(rows, describe_device(device)))
    return 1 if wrong else 0


def _diff(*paths: Path) -> int:
    """Print what differs in two reports; 1 if anything does."""
    reports = []
    for path in paths:
        try:
            reports.append(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: not JSON: {error}") from error
    from torch_foundry.diagnostics.golden.difference import NotComparable, difference

    try:
        found = difference(*reports)
    except NotComparable as error:
        raise UserError(f"{paths[0]} (A) and {paths[1]} (B): {error}") from error
    print(found)
    return 1 if found.rows else 0
