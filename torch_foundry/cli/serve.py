"""`torch-foundry serve`: a model behind OpenAI's and Anthropic's protocols."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import logging
from pathlib import Path
from typing import Any

from torch_foundry.cli.loading import UserError, add_model_options, check_format, load, name_of
from torch_foundry.cli.multimodal import add_tower_option, load_with_processor
from torch_foundry.core.errors import first_line
from torch_foundry.core.load_errors import LoadError


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("serve", help="answer requests of other programs over HTTP", description=__doc__)
    add_model_options(parser, positional=True)
    parser.add_argument("--quantize", metavar="FORMAT", help="pack the weights first: q8_0, q4_0, ...")
    parser.add_argument("--name", action="append", metavar="NAME", help="the model's, as requests give it; several")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=8000, help="default: 8000")
    keys = "file with an API key a line; without one, anybody who reaches the server may use it"
    parser.add_argument("--api-keys", type=Path, metavar="FILE", help=keys)
    parser.add_argument("--origin", action="append", metavar="URL", help="of web pages that may call it; several")
    parser.add_argument("--requests", type=int, default=32, metavar="N", help="answered at a time (default: 32)")
    parser.add_argument("--queue", type=int, default=256, metavar="N", help="that may wait (default: 256)")
    shown = "images that a request may show; the model is loaded with what sees them (default: it is shown none)"
    parser.add_argument("--images", type=int, default=0, metavar="N", dest="max_images", help=shown)
    heard = "sounds that a request may have; the model is loaded with what hears them (default: it hears none)"
    parser.add_argument("--sounds", type=int, default=0, metavar="N", dest="max_sounds", help=heard)
    add_tower_option(parser)
    budget = "of a step, prompts' and answers' together (default: what suits the device)"
    parser.add_argument("--budget", type=int, metavar="TOKENS", help=budget)
    parser.add_argument("--blocks", type=int, metavar="N", help="of 16 tokens in the KV cache")
    memory = "for the KV cache and snapshots of recurrent states together, in MiB"
    parser.add_argument("--cache-memory", type=int, metavar="N", help=memory)
    packed = "q8_0 keeps snapshots in about a quarter of the memory, with a small error (default: exact)"
    parser.add_argument("--snapshot-format", metavar="FORMAT", help=packed)
    parser.add_argument("--mtp", action="store_true", help="the model's own MTP head drafts; answers stay the same")
    for name, value, what in (
        ("max-prompt", None, "tokens of a prompt"),
        ("max-tokens", None, "tokens of an answer"),
        ("concurrent", 256, "open requests (default: 256)"),
        ("per-key", None, "requests at a time of one key"),
        ("timeout", 600.0, "seconds for an answer (default: 600)"),
        ("drain", 30.0, "seconds that running answers get when it is stopped (default: 30)"),
    ):
        kind = float if isinstance(value, float) else int
        parser.add_argument(f"--{name}", type=kind, default=value, metavar="N", help=what)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    try:
        from torch_foundry.serving.app import Server, freeze_heap
        from torch_foundry.serving.gate import LOOPBACK
        from torch_foundry.serving.service import ServerConfig, Service
    except ModuleNotFoundError as error:
        raise UserError(f"no module {error.name}: pip install 'torch_foundry[serve]'") from error
    check_format(args.quantize)
    if not 0 <= args.port < 1 << 16:
        raise UserError(f"--port {args.port}: expected 0 to {(1 << 16) - 1}")
    names = tuple(args.name or [name_of(args.model, "demo")])
    told = {field.name for field in dataclasses.fields(ServerConfig)} & vars(args).keys()
    try:
        options = {name: value for name in told - {"api_keys"} if (value := getattr(args, name)) is not None}
        config = ServerConfig(names, _keys(args.api_keys), origins=tuple(args.origin or ()), **options)
    except ValueError as error:
        raise UserError(str(error)) from error
    processor = None
    if args.max_images or args.max_sounds:
        wanted = {"images": bool(args.max_images), "sounds": bool(args.max_sounds)}
        model, tokenizer, processor = load_with_processor(args, **wanted)
    else:
        model, tokenizer = load(args)
    import torch_foundry
    from torch_foundry.engine.warm_up import warm_up

    try:
        torch_foundry.patch(model, quantize=args.quantize)
        limits = {name: getattr(args, name) for name in ("requests", "queue", "budget", "blocks")}
        memory = None if args.cache_memory is None else args.cache_memory << 20
        kept = {"cache_bytes": memory, "snapshot_format": args.snapshot_format}
        engine = torch_foundry.Engine(model, tokenizer, **limits, **kept, use_mtp=args.mtp)
        warm_up(engine)
        service = Service(engine, config, processor)
    except (ValueError, RuntimeError, KeyError, LoadError) as error:
        raise UserError(first_line(error)) from error
    except (MemoryError, OverflowError) as error:
        raise UserError("no room for so large a cache: expected fewer --requests or --blocks") from error
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if args.host not in LOOPBACK and not config.api_keys:
        logging.warning("anybody who reaches %s may use this server: --api-keys asks for keys", args.host)
    print(f"{names[0]}: http://{args.host}:{args.port}/v1 (OpenAI), http://{args.host}:{args.port} (Anthropic)")
    freeze_heap()
    try:
        Server(service, host=args.host, port=args.port).run()
    finally:
        gc.unfreeze()  # the process may go on
    return 0


def _keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        keys = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {first_line(error)}") from error
    if not keys:
        raise UserError(f"{path}: no key in it")
    return keys
