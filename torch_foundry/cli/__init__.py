"""The `torch-foundry` command."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
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
from torch_foundry.core.errors import first_line


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand. Exit codes: 0 all well, 1 results that must agree differ, 2 can't run, 130 interrupted, 141
    nobody reads what it prints any more."""
    _open_streams()
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
    try:
        if args.command is None:
            print(next_steps())
        code: int = args.run(args) if args.command else 0
        sys.stdout.flush()  # what can't be written is said here, not by Python at the exit
        return code
    except BrokenPipeError:  # as behind `| head`
        _drop_output()
        return 141
    except OSError as error:
        _drop_output()
        print(f"torch-foundry: {first_line(error)}", file=sys.stderr)
        return 2
    except UserError as error:
        print(f"torch-foundry: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130


def _open_streams() -> None:
    """Those that were closed (`<&-`) are None: from here on they are empty. Text that the output's encoding lacks is
    shown by its code; of the input, bytes that are none are handed on, as those of arguments are (`check_text`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 until the process ends
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def _drop_output() -> None:
    """If stdout can't be written, let nobody try again: Python would at the exit."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
