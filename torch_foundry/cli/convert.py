"""`torch-foundry convert`: a model of any readable file or folder, packed or not, as a GGUF file or a folder."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from torch_foundry.cli.loading import DTYPES, UserError, check_format, find_model
from torch_foundry.cli.multimodal import PROCESSORS, why_blind
from torch_foundry.core.errors import first_line

KEPT = (*PROCESSORS, "video_preprocessor_config.json")  # of a folder that becomes one


def add_parser(commands: Any) -> None:
    """Register the subcommand."""
    parser = commands.add_parser("convert", help="a model as a GGUF file or a folder, packed", description=__doc__)
    what = "GGUF file, Hugging Face directory, or the name of a model in the Hub's cache"
    parser.add_argument("model", metavar="MODEL", type=Path, help=what)
    parser.add_argument("out", metavar="OUT", type=Path, help="NAME.gguf, or the folder to make; neither exists yet")
    parser.add_argument("--quantize", metavar="FORMAT", help="pack the weights: q8_0, q4_K, ...")
    imatrix = "UTF-8: packs with the least error of what layers give for it (K and IQ4 formats)"
    parser.add_argument("--imatrix", metavar="TEXT", type=Path, help=imatrix)
    parser.add_argument("--dtype", choices=DTYPES, help="of dense weights (default: the file's)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load, pack and write. What there is at OUT is never replaced, and nothing is left there if writing fails."""
    from torch_foundry import quant

    check_format(args.quantize)
    if args.imatrix and not (args.quantize and quant.get_format(args.quantize).searched):
        names = quant.listing(name for name, known in quant.FORMATS.items() if known.searched)
        raise UserError(f"--imatrix: expected --quantize with one of {names}")
    if args.out.exists():
        raise UserError(f"{args.out}: exists already")
    model, tokenizer = _load(args)
    try:
        _pack(args, model, tokenizer)
        _write(args.out, model, tokenizer, find_model(args.model))
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(first_line(error)) from error
    size = sum(f.stat().st_size for f in ([args.out] if args.out.is_file() else args.out.iterdir()))
    print(f"{args.out}: {size / 1e6:.1f} MB")
    return 0


def _load(args: argparse.Namespace) -> tuple[Any, Any]:
    import torch

    from torch_foundry.io.load import load

    path = find_model(args.model)
    whole = args.out.suffix != ".gguf" and _is_folder(path) and not why_blind(args)
    try:
        dtype: Any = getattr(torch, args.dtype) if args.dtype else "auto"
        return load(path, device="cpu", dtype=dtype, patch=False, images=whole)
    except Exception as error:
        raise UserError(f"{path}: cannot load the model: {first_line(error)}") from error


def _is_folder(path: Path) -> bool:
    """Whether it is one of safetensors, which may have what sees images."""
    return path.is_dir() and any(path.glob("*.safetensors"))


def _pack(args: argparse.Namespace, model: Any, tokenizer: Any) -> None:
    from torch_foundry import dequantize, importance, quantize

    if args.quantize is None:
        return
    dequantize(model)  # what was packed is packed anew
    found = None
    if args.imatrix:
        try:
            text = args.imatrix.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{args.imatrix}: cannot be read: {first_line(error)}") from error
        if not text.strip():
            raise UserError(f"{args.imatrix}: no text in it")
        found = importance(model, tokenizer(text, return_tensors="pt", verbose=False).input_ids[0])
    quantize(model, args.quantize, found)


def _write(out: Path, model: Any, tokenizer: Any, source: Path) -> None:
    from torch_foundry import save_gguf

    if out.suffix == ".gguf":
        save_gguf(model, out, tokenizer)
        return
    try:
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
        for name in KEPT if _is_folder(source) else ():
            if (source / name).is_file():
                shutil.copyfile(source / name, out / name)
    except BaseException:
        shutil.rmtree(out, ignore_errors=True)
        raise
