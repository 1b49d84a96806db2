"""The `torch-foundry` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torch_foundry import __version__
from torch_foundry.cli import (
    bench,
    chat,
    compare,
    completion,
    convert,
    doctor,
    generate,
    models,
    perplexity,
    profile,
    serve,
    tune,
)
from torch_foundry.cli.loading import UserError, cached_models


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand. Exit codes: 0 all well, 1 results that must agree differ, 2 can't run, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="torch-foundry", description="Hugging Face models on fused Metal kernels.")
    parser.add_argument("--version", action="version", version=f"torch_foundry {__version__}")
    commands = parser.add_subparsers(dest="command")
    chat.add_parser(commands)
    generate.add_parser(commands)
    compare.add_parser(commands)
    convert.add_parser(commands)
    doctor.add_parser(commands)
    models.add_parser(commands)
    perplexity.add_parser(commands)
    profile.add_parser(commands)
    serve.add_parser(commands)
    tune.add_parser(commands)
    bench.add_parser(commands)
    completion.add_parser(commands)
    args = parser.parse_args(argv)
    if args.command is None:
        print(next_steps())
        return 0
    try:
        code: int = args.run(args)
        return code
    except UserError as error:
        print(f"torch-foundry: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


def next_steps() -> str:
    """What somebody may do who has typed no command."""
    lines = [
        f"torch_foundry {__version__}: Hugging Face models on fused Metal kernels.\n",
        "  torch-foundry doctor        whether this machine is all right, and what it reaches",
        "  torch-foundry models        what is in the Hub's cache and in folders, and what would run fused",
        "  torch-foundry chat          talk with the bundled model, which knows children's stories",
        "  torch-foundry chat MODEL    the same with a folder, a GGUF file, or a model in the Hub's cache",
        "  torch-foundry serve MODEL   answer other programs, by OpenAI's and Anthropic's protocols",
        "  torch-foundry bench MODEL   how many tokens a second, as llama-bench measures",
        "  torch-foundry generate      stock and patched side by side",
        "\nMore commands: torch-foundry --help. Options: torch-foundry COMMAND --help.",
    ]
    if models := cached_models():
        some = ", ".join(models[:8]) + (f" and {len(models) - 8} more" if len(models) > 8 else "")
        lines.append(f"In the Hub's cache: {some}")
    else:
        lines.append("A model to begin with: hf download HuggingFaceTB/SmolLM2-135M-Instruct")
    return "\n".join(lines)
