"""What the subcommands share: options, loading a model, encoding a prompt, writing figures and pictures."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from torch_foundry.core.errors import first_line

PROMPT = "Tell me a story about a lost kite."
DTYPES = ("float32", "float16", "bfloat16")


class UserError(Exception):
    """A request that can't be met; the message is one line that says why."""


MODEL = "GGUF file, Hugging Face directory, or the name of a model in the Hub's cache"


def add_model_options(parser: argparse.ArgumentParser, positional: bool = False, what: str = "") -> None:
    """Options of every subcommand that runs a model: which one, in which dtype, on which device.

    positional: the model is the command's argument, and its dtype what `torch_foundry.load` chooses. what: is done if
    it is given; default: the demo model is used if it is not.
    """
    what = f"{MODEL}: {what}" if what else f"{MODEL} (default: the demo model)"
    if positional:
        parser.add_argument("model", metavar="MODEL", type=Path, nargs="?", help=what)
    else:
        parser.add_argument("--model", metavar="PATH", type=Path, help=what)
    default = None if positional else "float32"
    parser.add_argument("--dtype", choices=DTYPES, default=default, help="of weights and activations")
    add_device_option(parser)


def add_device_option(parser: argparse.ArgumentParser) -> None:
    """The device of every subcommand, which `find_device` reads."""
    parser.add_argument("--device", help="torch device (default: mps, else cuda, else cpu)")


def add_prompt_options(parser: argparse.ArgumentParser) -> None:
    """Options of subcommands that give the model a prompt."""
    parser.add_argument("--prompt", default=PROMPT, metavar="TEXT", help="what the model is asked")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as it is, without the chat template")


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Options of subcommands that can write what they found."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--picture", type=_picture, metavar="FILE", help="write a picture (.svg)")


def _picture(name: str) -> Path:
    if not name.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{name}: expected a name that ends in .svg")
    return Path(name)


def check_outputs(args: argparse.Namespace) -> None:
    """UserError if figures or picture can't be written to where `args` say: before the work, not after it."""
    for path in (args.json, args.picture, getattr(args, "llmfit", None)):
        if path is not None:
            try:
                absent = not path.exists()
                path.open("ab").close()
                if absent:
                    path.unlink()
            except OSError as error:
                raise UserError(f"{path}: cannot be written: {error.strerror}") from error


def write_outputs(args: argparse.Namespace, figures: Any, svg: str) -> None:
    """Write figures (JSON) and picture (SVG) to where `args` say. UserError for a file that can't be written."""
    for path, text in ((args.json, json.dumps(figures, indent=1) + "\n"), (args.picture, svg)):
        if path is not None:
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise UserError(f"{path}: cannot be written: {error.strerror}") from error


def write_json(path: Path, figures: Any) -> None:
    """Write figures to a file that `check_outputs` has seen."""
    path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def load(args: argparse.Namespace) -> tuple[Any, Any]:
    """Model (in eval mode, on the device) and tokenizer of `args.model`. Raises UserError for what can't be loaded."""
    from torch_foundry.demo_model import demo_model_path
    from torch_foundry.io.load import load as load_model

    path = find_model(args.model) if args.model else demo_model_path()
    if path.suffix != ".gguf":
        check_directory(path)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a local directory needs no network, and must not wait for one
    import torch
    import transformers

    device = find_device(args.device)
    args.device = str(device)  # for those who print it
    transformers.logging.set_verbosity_error()
    if args.model is None:
        transformers.utils.logging.disable_progress_bar()  # a blink
    try:
        dtype = None if args.dtype is None else getattr(torch, args.dtype)
        return load_model(path, device=device, dtype=dtype, patch=False)
    except Exception as error:  # a LoadError, or whatever a broken directory makes transformers raise
        raise UserError(f"{path}: cannot load the model: {first_line(error)}") from error


def find_model(name: Path) -> Path:
    """The file or folder that is meant: OWNER/NAME, or OWNER/NAME/.../FILE.gguf, may lie in the Hub's cache."""
    name = name.expanduser()
    if name.exists() or name.is_absolute() or len(name.parts) < 2:
        return name
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download("/".join(name.parts[:2]), local_files_only=True)
    except (HFValidationError, LocalEntryNotFoundError):
        return name
    return Path(folder, *name.parts[2:])


def name_of(model: Path | None, demo: str) -> str:
    """What a model is called: as its file or folder, also where that is the present one (`.`). None: `demo`."""
    if model is None:
        return demo
    path = Path(os.path.abspath(model.expanduser()))  # links stay: a file of the Hub's cache leads to its checksum
    return path.stem if path.suffix == ".gguf" else path.name


def cached_models() -> list[str]:
    """OWNER/NAME of what the Hub's cache has."""
    from huggingface_hub import constants

    folders = Path(constants.HF_HUB_CACHE).glob("models--*/snapshots")
    return sorted(folder.parent.name.removeprefix("models--").replace("--", "/") for folder in folders)


def check_format(name: str | None) -> None:
    """UserError unless --quantize names a format that weights can be packed as, or nothing."""
    if name is None:
        return
    from torch_foundry import quant

    if name.lower() not in quant.PACKABLE:
        raise UserError(f"--quantize {name}: expected one of {quant.listing(quant.PACKABLE)}")


def check_text(what: str, text: str) -> str:
    """`text`; UserError if some bytes of it were none in the system's encoding: Python hands those on as surrogates,
    which tokenizers refuse in words of their own."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{what}: expected text in {sys.getfilesystemencoding()}, found other bytes") from error
    return text


def encode(args: argparse.Namespace, tokenizer: Any, prompt: str) -> dict[str, Any]:
    """Model inputs for `prompt`: `input_ids` [1, L] and `attention_mask`, on the device."""
    check_text("the prompt", prompt)
    if tokenizer.chat_template and not args.raw:
        messages = [{"role": "user", "content": prompt}]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    else:
        inputs = tokenizer(prompt, return_tensors="pt")
    if inputs["input_ids"].shape[-1] == 0:
        raise UserError("the prompt has no tokens")
    return {name: inputs[name].to(args.device) for name in ("input_ids", "attention_mask")}


def check_directory(directory: Path) -> None:
    from torch_foundry.io.load import how_to_get

    if not directory.is_dir():
        near = [name for name in cached_models() if directory.name.lower() in name.lower()]
        hint = f"in the Hub's cache: {', '.join(near[:4])}" if near and directory.name else how_to_get(directory)
        raise UserError(f"{directory}: no such model directory; {hint}")
    if any(directory.glob("*.gguf")):
        return
    config = directory / "config.json"
    if not config.is_file():
        raise UserError(f"{directory}: not a model directory (it has no config.json)")
    try:
        described = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{config}: cannot be read: {first_line(error)}") from error
    if not isinstance(described, dict) or "model_type" not in described:
        raise UserError(f"{config}: not the config of a model (it has no model_type)")
    if not any(directory.glob("*.safetensors")):
        raise UserError(f"{directory}: no weights in it (*.safetensors)")


def find_device(name: str | None) -> Any:
    """The torch device called `name` (None: the default one), on which kernels can run; UserError otherwise."""
    import torch

    from torch_foundry.core import devices, runtime

    if name is None:
        return runtime.default_device()
    try:
        device = torch.device(name)
        if problem := devices.device_problem(device.type, runtime.has_executor(device.type)):
            raise RuntimeError(problem)
        torch.empty(0, device=device)
    except Exception as error:  # an unknown name, a device without an executor, an index that does not exist
        raise UserError(f"--device {name}: {first_line(error)}") from error
    return device
