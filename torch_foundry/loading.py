"""`torch_foundry.load`: a model and its tokenizer from files, with weights as they lie there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch_foundry.loaders.allow import Allow
from torch_foundry.loaders.errors import LoadError

if TYPE_CHECKING:
    import torch

    from torch_foundry.loaders.described import Described

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def load(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    patch: bool = True,
    mmap: bool = False,
    progress: bool = True,
    check_finite: bool | None = None,
    allow: Iterable[str] = (),
    gguf_file: str | None = None,
    attn_implementation: str | None = None,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer; returns (model, tokenizer), the model patched and in eval mode.

    path: a GGUF file (any part of a split one), or a folder with safetensors or with one GGUF. Packed weights stay
    packed, each in its own format, and are read once, directly to where they stay.

    device: default "mps" if kernels can run there, else "cuda", else "cpu".
    dtype: of activations, norms and whatever else isn't packed. Default: float32 on the CPU. Elsewhere the 16-bit dtype
        of the file's dense matrices, or bfloat16 if they have none, because no model overflows in it.
    patch: False returns the model unpatched.
    mmap: on the CPU and on Metal, leave weights in the page cache unless they need conversion (as the rows of Llama's
        queries and keys do, and dense weights of another dtype). If somebody truncates the file, the process ends
        (SIGBUS); if somebody rewrites it, the weights change. On Metal such weights can't be changed in place. On other
        devices mmap saves the first of two copies.
    progress: show a progress bar if there is something to wait for.
    check_finite: treat NaN and infinities as errors. Default: only without mmap, because it reads the whole file.
    allow: faults to accept, as "CODE" or "CODE:shell pattern of tensor names". Codes: TENSOR_EXTRA (ignored),
        TENSOR_MISSING (becomes zeros, or a norm's initial value), NONFINITE, VOCAB_MISSING (the tokenizer is None).
    gguf_file: which one to load, in a folder that has several or that has safetensors too.
    attn_implementation: as in `from_pretrained`; matters where stock code runs.

    LoadError: the file isn't what it should be; its `code` says in what way. Pickles are refused, and code that comes
    with a model never runs.
    """
    import torch

    allow = (allow,) if isinstance(allow, str) else tuple(allow)
    finite = not mmap if check_finite is None else check_finite
    if device is None:
        from torch_foundry.runtime import default_device

        device = default_device()
    device = torch.device(device)
    path = Path(path)
    if not os.path.lexists(path):
        raise LoadError("ABSENT", path, expected=f"a file or folder; {how_to_get(path)}", found="no such file")
    found = _describe(path, gguf_file, mmap, finite, allow)
    try:
        from torch_foundry.loaders.assemble import assemble
        from torch_foundry.text import adopt

        if (tokenizer := found.tokenizer()) is not None:
            tokenizer = adopt(tokenizer, found.file)

        model = assemble(
            found.config,
            found.weights,
            file=found.file,
            device=device,
            dtype=_dtype(found, device) if dtype is None else dtype,
            generation_config=found.generation_config,
            attn_implementation=attn_implementation or found.attn_implementation,
            progress=progress,
            allow=(*allow, *(f"TENSOR_MISSING:{name}" for name in found.absent)),
        )
    finally:
        found.close()
    from torch_foundry.patch.quantizer import attach

    attach(model)
    if patch:
        from torch_foundry.patch.api import patch as patch_model

        patch_model(model)
    return model, tokenizer


def how_to_get(path: Path) -> str:
    """A hint for whoever gave the name of a model in place of a path."""
    name = path.as_posix()
    is_name = not path.is_absolute() and name.count("/") == 1 and path.suffix != ".gguf"
    name = name if is_name else "OWNER/NAME"
    return f"to fetch a model from the Hub: hf download {name} --local-dir {name.split('/')[1]}"


def _dtype(found: Described, device: torch.device) -> torch.dtype:
    import torch

    if device.type == "cpu":
        return torch.float32
    return found.dtype if found.dtype in (torch.float16, torch.bfloat16) else torch.bfloat16


def _describe(path: Path, gguf_file: str | None, mmap: bool, finite: bool, allow: tuple[str, ...]) -> Described:
    options: dict[str, Any] = {"mmap": mmap, "check_finite": finite, "allow": allow}
    if gguf_file is not None:
        if Path(gguf_file).name != gguf_file:
            raise ValueError(f"gguf_file: expected the name of a file in {path}, got {gguf_file!r}")
        return _describe_gguf(path / gguf_file, options)
    if path.is_dir():
        names = sorted(os.listdir(path))
        if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in names):
            from torch_foundry.loaders.directory import describe_directory

            return describe_directory(path, **options)
        if not any(name.endswith(".gguf") for name in names):
            _refuse(path, names)
    elif path.suffix in PICKLES:
        _refuse(path, [path.name])
    elif path.name.endswith((".safetensors", ".safetensors.index.json")) and path.is_file():
        raise LoadError("NOT_MODEL", path, expected="the folder with its config.json", found="a file of safetensors")
    return _describe_gguf(path, options)


def _refuse(path: Path, names: list[str]) -> None:
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        expected = "safetensors or GGUF: pickles can run code when they are read"
        raise LoadError("PICKLE", path, expected=expected, found=", ".join(pickles[:3]))
    raise LoadError("NOT_MODEL", path, expected="safetensors with a config.json, or a GGUF file", found="neither")


def _describe_gguf(path: Path, options: dict[str, Any]) -> Described:
    from torch_foundry.loaders.gguf import open_gguf
    from torch_foundry.loaders.gguf.describe import describe_gguf
    from torch_foundry.loaders.opening import open_container

    opener = open_container if path.is_dir() else open_gguf
    container = opener(path, check_finite=options["check_finite"])
    try:
        has_none = not any(key.startswith("tokenizer.") for key in container.metadata)
        without = has_none and Allow(options["allow"])("VOCAB_MISSING", container.path.name)
        return describe_gguf(container, **options, tokens=_no_tokens if without else _tokens)
    except BaseException:
        container.close()
        raise


def _no_tokens(metadata: Any, file: Path, rows: int) -> tuple[Any, dict[str, Any]]:
    return lambda: None, {}


def _tokens(metadata: Any, file: Path, rows: int) -> tuple[Any, dict[str, Any]]:
    """A function that makes the tokenizer, and the ids of special tokens under transformers' names."""
    from torch_foundry.text import check_vocabulary, tokenizer_from_gguf

    vocabulary = check_vocabulary(metadata, file, rows)
    ids: dict[str, Any] = {f"{name}_token_id": vocabulary.ids.get(name) for name in ("bos", "pad")}
    ends = vocabulary.ends
    ids["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None
    return lambda: tokenizer_from_gguf(metadata, file, rows, vocabulary), ids
