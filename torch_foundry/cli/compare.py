"""`torch-foundry compare`: where a patched model drifts from the stock one, layer by layer, in prompts and in steps."""

from __future__ import annotations

import argparse
from typing import Any

from torch_foundry.cli.loading import add_model_options, add_prompt_options, encode, load


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("compare", help="drift of the patched model, layer by layer", description=__doc__)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the drift table; 1 if a stage is out of line."""
    model, tokenizer = load(args)
    inputs = encode(args, tokenizer, args.prompt)
    import torch_foundry

    drift = torch_foundry.compare(model, inputs["input_ids"])
    print(drift)
    return 1 if drift.first_bad else 0
