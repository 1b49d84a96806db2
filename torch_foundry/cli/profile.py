"""`torch-foundry profile`: where the time of a token goes."""

from __future__ import annotations

import argparse
from typing import Any

from torch_foundry.cli.loading import (
    UserError,
    add_model_options,
    add_output_options,
    check_outputs,
    load,
    write_outputs,
)


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("profile", help="where the time of a token goes", description=__doc__)
    add_model_options(parser)
    parser.add_argument("--quantize", metavar="FORMAT", help="pack the weights first: q8_0, q4_0, ...")
    parser.add_argument("--context", type=int, default=512, help="tokens in the cache (default: 512)")
    parser.add_argument("--batch", type=int, default=1, help="sequences (default: 1)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens that generate() is timed with (default: 64)")
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the profile."""
    check_outputs(args)
    model, _ = load(args)
    import torch_foundry
    from torch_foundry.diagnostics.profiling import profile, svg

    try:
        torch_foundry.patch(model, quantize=args.quantize)
        found = profile(model, context=args.context, batch=args.batch, tokens=args.tokens)
    except (ValueError, RuntimeError, KeyError) as error:
        raise UserError(str(error).splitlines()[0]) from error
    print(found)
    write_outputs(args, found.to_json(), svg.svg(found))
    return 0
