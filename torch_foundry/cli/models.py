"""`torch-foundry models`: what is on disk (the Hub's cache, folders), what patch would do with it, whether it fits."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_foundry.cli.loading import add_device_option, find_device, find_model

if TYPE_CHECKING:
    from torch_foundry.diagnostics.models import Entry

HEADS = ("model", "on disk", "format", "architecture", "fits", "patch")
PATCHES = {"whole": "fused whole", "layers": "layers only", "leaves": "leaves only"}


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("models", help="models on disk, and what patch would do", description=__doc__)
    what = "folders, or GGUF files, to look at beside the Hub's cache"
    parser.add_argument("paths", metavar="PATH", type=Path, nargs="*", help=what)
    parser.add_argument("--json", action="store_true", help="all that is known, for machines")
    add_device_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a table, or JSON. 0, also where models are broken: their lines say so."""
    device = find_device(args.device)
    import transformers

    from torch_foundry.core import memory
    from torch_foundry.diagnostics import models

    transformers.logging.set_verbosity_error()
    found = list(models.in_cache(device))
    known = {entry.path for entry in found}
    for path in args.paths:
        found += [entry for entry in models.at(find_model(path), device) if entry.path not in known]
    free = memory.free(device)
    if args.json:
        print(
            json.dumps({"device": str(device), "free": free, "models": [entry.to_json() for entry in found]}, indent=1)
        )
        return 0
    if not found:
        print("no models in the Hub's cache; to look elsewhere: torch-foundry models FOLDER")
        return 0
    print(table(found))
    room = "nothing is refused" if free is None else f"{memory.size(free)} are free"
    print(f"\nfits: the weights alone, on {device}, where {room}")
    return 0


def table(entries: list[Entry]) -> str:
    """Columns for the eye; what is wrong with an entry, or why it is not fused whole, ends its line."""
    from torch_foundry.core import memory

    rows: list[tuple[str, ...]] = [HEADS]
    for entry in entries:
        fits = "-" if entry.fits is None else ("yes" if entry.fits else f"no: {memory.size(entry.needed)}")
        alone = " (by from_pretrained alone)" if entry.loader == "from_pretrained" else ""
        says = ": ".join(filter(None, (PATCHES.get(entry.patch, "") + alone, entry.why)))
        says = f"not loaded: {entry.problem}" if entry.problem else says
        cells = (entry.name, memory.size(entry.nbytes), entry.format or "-", entry.architecture or "-", fits, says)
        rows.append(tuple(cell if cell.isprintable() else ascii(cell) for cell in cells))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )
