"""Loading a model that is shown images or hears sounds, with what sees or hears them and its processor."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from torch_foundry.cli.loading import UserError, check_directory, find_device, find_model
from torch_foundry.core.errors import first_line
from torch_foundry.core.load_errors import LoadError

PROCESSORS = ("preprocessor_config.json", "processor_config.json")  # either says how images are read


def add_tower_option(parser: argparse.ArgumentParser) -> None:
    """The vision tower of a GGUF file, for subcommands that show a model images."""
    what = "GGUF file of what sees images (default: the mmproj-*.gguf beside the model's)"
    parser.add_argument("--mmproj", type=Path, metavar="FILE", help=what)


def _tower(path: Path, args: argparse.Namespace) -> Path:
    """The file of the vision tower that goes with the GGUF file `path`. LoadError: it isn't to be found."""
    from torch_foundry.io.load import tower_beside

    return Path(args.mmproj) if args.mmproj else tower_beside(path)


def _is_gguf(path: Path) -> bool:
    return path.is_file() or (any(path.glob("*.gguf")) and not any(path.glob("*.safetensors")))


def why_blind(args: argparse.Namespace) -> str:
    """Why the model of `args` is loaded without what sees images; empty if it is loaded with that, by
    `load_with_processor`."""
    path = find_model(args.model) if args.model else None
    if path is None:
        return "it knows letters alone"
    if path.exists() and _is_gguf(path):
        try:
            _tower(path, args)
        except LoadError:
            return "no file of its vision tower (mmproj-*.gguf) lies beside it, or several: --mmproj names one"
        return ""
    check_directory(path)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    from torch_foundry.models.families import HEADS

    known = {key.rpartition(".")[2] for key in HEADS}
    if "vision_config" not in config or not known.intersection(config.get("architectures") or ()):
        return "it is no model that is known to see them"
    if not any((path / name).is_file() for name in PROCESSORS):
        return "its folder has no processor of images (preprocessor_config.json)"
    from torch_foundry.io.parameters import TOWERS

    of_mlx, tower = _of_mlx(path, config)
    if of_mlx and not (tower and config.get("model_type") in TOWERS):
        return "mlx wrote its folder, of which only the decoder is loaded"
    return ""


def _of_mlx(path: Path, config: dict[str, Any]) -> tuple[bool, bool]:
    """Whether mlx wrote the folder, and if so, whether there is more than a decoder in it."""
    from torch_foundry.io.load import open_container
    from torch_foundry.io.packed import by_mlx
    from torch_foundry.io.parameters import has_tower

    try:
        with open_container(path, check_finite=False) as container:
            return by_mlx(config, container), has_tower(container.tensors)
    except LoadError as error:
        raise UserError(f"{path}: cannot load the model: {first_line(error)}") from error


def load_with_processor(args: argparse.Namespace, *, images: bool = True, sounds: bool = False) -> tuple[Any, Any, Any]:
    """The same of a model that is shown images or hears sounds, whole, and its processor: what is packed, or mlx wrote,
    by our loader, other folders by transformers. UserError: it doesn't take what is wanted, or can't be loaded."""
    path = find_model(args.model) if args.model else None
    if sounds and (path is None or (path.exists() and _is_gguf(path))):
        raise UserError("--sounds: expected the folder of a model that hears sounds")
    if path is None:
        raise UserError("--images: expected the folder of a model that is shown images, or its GGUF file")
    if not (path.exists() and _is_gguf(path)):
        check_directory(path)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    from torch_foundry.core import devices
    from torch_foundry.io.load import load as load_model
    from torch_foundry.io.parameters import class_name
    from torch_foundry.text import adopt, showing
    from torch_foundry.text.media import hears, sees

    device = find_device(args.device)
    args.device = str(device)
    transformers.logging.set_verbosity_error()
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()
    usual = "bfloat16" if devices.of(device).half else "float32"
    options: dict[str, Any] = {"dtype": getattr(torch, args.dtype or usual), "use_safetensors": True}
    try:
        if _is_gguf(path):
            dtype = None if args.dtype is None else options["dtype"]
            told = {"device": device, "dtype": dtype, "patch": False, "mmproj": _tower(path, args)}
            model, processor = load_model(path, **told)
            return model, processor.tokenizer, processor
        processor = transformers.AutoProcessor.from_pretrained(path)
        tokenizer = getattr(processor, "tokenizer", None)
        if tokenizer is None or (images and not sees(processor)):
            raise ValueError("it has no processor of images")
        if sounds and not hears(processor):
            raise ValueError(f"expected a processor that takes sounds, got {type(processor).__name__}")
        if not tokenizer.chat_template:
            tokenizer.chat_template = processor.chat_template
        processor.tokenizer = adopt(tokenizer, path)
        if sounds and (token := getattr(processor, "audio_token", None)):
            processor.tokenizer.chat_template = showing(processor.tokenizer, token, "audio")
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if config.get("quantization_config") or _of_mlx(path, config)[0]:
            model, _ = load_model(path, device=device, dtype=options["dtype"], patch=False, images=True)
        else:
            kind = class_name(config["model_type"], images=True)
            if kind is None:
                raise ValueError(f"expected a model that is shown images or hears sounds, got {config['model_type']}")
            model = getattr(transformers, kind).from_pretrained(path, **options).to(device).eval()
    except Exception as error:
        raise UserError(f"{path}: cannot load the model: {first_line(error)}") from error
    return model, processor.tokenizer, processor
