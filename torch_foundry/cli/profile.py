"""`torch-foundry profile`: where the time of a token goes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from torch_foundry.cli.loading import UserError, add_model_options, load


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("profile", help="where the time of a token goes", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--quantize", metavar="FORMAT", help="pack the weights first: q8_0, q4_0, ...")
    parser.add_argument("--context", type=int, default=512, help="tokens in the cache (default: 512)")
    parser.add_argument("--batch", type=int, default=1, help="rows (default: 1)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to generate for the time of generate()")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="write a picture (.svg)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the profile."""
    if args.picture is not None and args.picture.suffix != ".svg":
        raise UserError(f"--picture {args.picture}: expected a name that ends in .svg")
    model, _ = load(args)
    import torch_foundry
    from torch_foundry.profiling import picture, profile

    try:
        torch_foundry.patch(model, quantize=args.quantize)
        found = profile(model, context=args.context, batch=args.batch, tokens=args.tokens)
    except (ValueError, RuntimeError, KeyError) as error:
        raise UserError(str(error).splitlines()[0]) from error
    print(found)
    for path, text in ((args.json, json.dumps(found.to_json(), indent=1) + "\n"), (args.picture, picture.svg(found))):
        if path is not None:
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    return 0
