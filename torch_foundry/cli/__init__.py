"""The `torch-foundry` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torch_foundry import __version__
from torch_foundry.cli import chat, compare, doctor, generate, perplexity, profile, serve, tune
from torch_foundry.cli.loading import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand. Exit codes: 0 all well, 1 results that must agree differ, 2 can't run, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="torch-foundry", description="Hugging Face models on fused Metal kernels.")
    parser.add_argument("--version", action="version", version=f"torch_foundry {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    chat.add_parser(commands)
    generate.add_parser(commands)
    compare.add_parser(commands)
    doctor.add_parser(commands)
    perplexity.add_parser(commands)
    profile.add_parser(commands)
    serve.add_parser(commands)
    tune.add_parser(commands)
    args = parser.parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except UserError as error:
        print(f"torch-foundry: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
