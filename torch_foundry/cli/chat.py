"""`torch-foundry chat`: talk with a model in the terminal, or ask it what a pipe brings."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torch_foundry.cli.loading import UserError, add_model_options, check_format, check_text, load, name_of
from torch_foundry.cli.multimodal import add_tower_option, load_with_processor, why_blind
from torch_foundry.core.errors import first_line

if TYPE_CHECKING:
    from torch_foundry.chat.commands import Ask, Commands
    from torch_foundry.chat.conversation import Conversation


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("chat", help="talk with a model", description=__doc__)
    add_model_options(parser, positional=True)
    parser.add_argument("--quantize", metavar="FORMAT", help="pack the weights first: q8_0, q4_K, ...")
    parser.add_argument("--system", metavar="TEXT", default="", help="a system message")
    parser.add_argument("--set", metavar="NAME=VALUE", nargs="+", default=[], help="temperature=0.7, seed=1 ...")
    parser.add_argument("--resume", metavar="FILE", type=Path, help="go on with a conversation that /save wrote")
    parser.add_argument("--tools", metavar="FILE", type=Path, help="JSON: schemas of functions that it may call")
    parser.add_argument(
        "--image", metavar="FILE", type=Path, nargs="+", default=[], help="shown with the first question"
    )
    add_tower_option(parser)
    parser.add_argument("--no-images", action="store_true", help="load the language model alone, which is shown none")
    parser.add_argument("--plain", action="store_true", help="line by line, also where the terminal could do more")
    parser.add_argument("--json", action="store_true", help="plain: a line of JSON for each answer, with its figures")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Converse until the input ends. 0: all well, 1: a line failed, 2: can't run."""
    from torch_foundry.chat.commands import setting

    check_format(args.quantize)
    settings = {}
    try:
        for text in args.set:
            name, _, value = text.partition("=")
            settings[name] = setting(name, value)
    except ValueError as error:
        raise UserError(f"--set {error}") from error
    check_text("--system", args.system)
    piped = not sys.stdin.isatty()
    question = check_text("what came through the pipe", sys.stdin.read()) if piped else ""
    if piped and not question.strip():
        raise UserError("nothing came through the pipe: expected a question, as in `echo hi | torch-foundry chat`")
    if piped or args.plain or args.json or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return _plain(args, settings, question)
    return _in_terminal(args, settings)


def _conversation(args: argparse.Namespace, settings: dict[str, Any], log: Any) -> Commands:
    """The commands around a new conversation, or around one that was saved."""
    from torch_foundry.chat.commands import Commands
    from torch_foundry.chat.conversation import Conversation

    def another(name: str) -> tuple[Any, Any, str, Any]:
        return _load(argparse.Namespace(**(vars(args) | {"model": Path(name), "quantize": None, "mmproj": None})))

    model, tokenizer, name, processor = _load(args)
    told = {"system": args.system, "tools": _tools(args.tools), "processor": processor}
    conversation = Conversation(model, tokenizer, name=name, **told, log=log)
    conversation.settings |= settings
    if args.resume is not None:
        try:
            conversation.resume(args.resume)
        except Exception as error:  # a LoadError, or what the system says
            raise UserError(f"--resume {first_line(error)}") from error
    try:
        conversation.attach(*args.image) if args.image else None
    except ValueError as error:
        raise UserError(f"--image {first_line(error)}") from error
    commands = Commands(conversation, another)
    for line in commands.gone():
        log(line)
    return commands


def _load(args: argparse.Namespace) -> tuple[Any, Any, str, Any]:
    """Model, patched and packed, its tokenizer, what it is called, and its processor, or why it has none."""
    import torch_foundry

    processor: Any = "it was loaded with --no-images" if args.no_images else why_blind(args)
    if processor and args.image:
        raise UserError(f"--image: {args.model or 'the demo model'} is shown no images: {processor}")
    model = None
    if not processor:
        try:
            model, tokenizer, processor = load_with_processor(args)
        except UserError as error:
            if args.image:
                raise
            processor = str(error)
    if model is None:
        model, tokenizer = load(args)
    if tokenizer is None:
        raise UserError(f"{args.model}: it has no tokenizer, which a chat needs")
    torch_foundry.patch(model, quantize=args.quantize)
    name = name_of(args.model, "demo model")
    return model, tokenizer, f"{name}, {args.quantize or str(model.dtype).removeprefix('torch.')}", processor


def _tools(path: Path | None) -> list[dict[str, Any]] | None:
    if path is None:
        return None
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--tools {path}: cannot be read: {first_line(error)}") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UserError(f"--tools {path}: expected a list of schemas")
    return tools


def _in_terminal(args: argparse.Namespace, settings: dict[str, Any]) -> int:
    try:
        from torch_foundry.chat.app import ChatApp, stderr_to
    except ModuleNotFoundError as error:
        hint = "pip install 'torch_foundry[chat]' brings it, and --plain does without"
        raise UserError(f"chat needs {error.name}, which is not installed: {hint}") from error
    log: list[str] = []
    app = ChatApp(_conversation(args, settings, log.append), log)
    with stderr_to(log):
        app.run()
    return app.return_code or 0


def _plain(args: argparse.Namespace, settings: dict[str, Any], question: str) -> int:
    commands = _conversation(args, settings, lambda line: print(f"torch-foundry: {line}", file=sys.stderr))
    if not question:
        return 1 if converse(commands, sys.stdin, args.json) else 0
    try:
        talk = commands.conversation
        print_answer(lambda emit: talk.ask(question.strip(), emit), talk, args.json)
    except BrokenPipeError:
        raise
    except Exception as error:  # whatever a model or its template can do
        raise UserError(first_line(error)) from error
    return 0


def print_answer(ask: Ask, conversation: Conversation, as_json: bool = False) -> None:
    """Print an answer as it arrives, and, on stderr, its calls of tools as they were understood; or, in the end, one
    line of JSON: the answer, its calls, and what it took."""
    pieces: list[str] = []

    def emit(piece: str) -> None:
        pieces.append(piece)
        if not as_json:
            print(piece, end="", flush=True)

    figures = ask(emit)
    calls = conversation.calls
    told = {"calls": [{"name": call.name, "arguments": call.text} for call in calls]} if calls else {}
    print(json.dumps({"text": "".join(pieces), **told, **figures.to_json()}) if as_json else "", flush=True)
    for call in () if as_json else calls:
        print(f"calls {call.name} {call.text} (/tool answers it)", file=sys.stderr)


def converse(commands: Commands, lines: TextIO, as_json: bool = False) -> int:
    """Answer one line after the other, also those that are commands ("/help"), until there are no more.

    For terminals that can't draw, and for answers that go to a file. On stderr: what is no answer, and what failed.
    Returns how many lines failed.
    """
    failed = 0
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        if not (line := lines.readline()):
            print(file=sys.stderr)
            return failed
        if not line.strip():
            continue
        try:
            outcome = commands.run(check_text("the line", line))
            for text in filter(None, (outcome.text, outcome.edit)):
                print(text, file=sys.stderr)
            if outcome.ask is not None:
                print_answer(outcome.ask, commands.conversation, as_json)
            if outcome.leave:
                return failed
        except BrokenPipeError:  # nobody reads the answers any more
            raise
        except Exception as error:  # whatever a model or a file can do: the conversation goes on
            print(f"torch-foundry: {first_line(error)}", file=sys.stderr)
            failed += 1
