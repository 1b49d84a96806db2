"""Opening what a path names: a container, or a model and its tokenizer (`torch_foundry.load`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.container import Container
from torch_foundry.io.files import LOOK, File, is_folder, is_safetensors, names_in
from torch_foundry.io.gguf import open_gguf
from torch_foundry.io.safetensors import PICKLES, SUFFIXES, no_weights, open_safetensors

if TYPE_CHECKING:
    from torch_foundry.io.weights import ModelSource


def open_container(path: str | os.PathLike[str], *, check_finite: bool = True) -> Container:
    """A GGUF file, a safetensors file, or a folder of either, as a container; LoadError if it is none of these or a bad
    one.

    A file's kind is decided by its first bytes. A folder has safetensors, or one GGUF file (or the parts of one).
    """
    path = Path(path)
    if is_folder(path):
        gguf = _gguf_in(path, names_in(path))
        opener = open_safetensors if gguf is None else open_gguf
        return opener(gguf or path, check_finite=check_finite)
    file = File(path)
    try:
        first = bytes(file.read(min(LOOK, file.size), 0, "magic"))
    except BaseException:
        file.close()
        raise
    named = path.suffix == ".gguf" and not is_safetensors(first)  # the error is about what the name says
    opener = open_gguf if first[:4] == b"GGUF" or named else open_safetensors
    return opener(file, check_finite=check_finite)


def gguf_of(path: Path) -> Path | None:
    """The GGUF file that `path` is, or that its folder has; None: safetensors."""
    return _gguf_in(path, names_in(path)) if is_folder(path) else path


def _gguf_in(folder: Path, names: list[str]) -> Path | None:
    """The GGUF file of a folder, or the first part of it; None if there is none, or if there are safetensors."""
    parts = [name for name in names if name.endswith(".gguf") and not is_tower(name)]
    if not parts or any(name.endswith(SUFFIXES) for name in names):
        return None
    if len(parts) > 1 and not parts[0].endswith(f"-00001-of-{len(parts):05d}.gguf"):
        found = ", ".join(parts)
        raise LoadError("NOT_MODEL", folder, expected="one GGUF file, or the parts of one", found=found)
    return folder / parts[0]


def is_tower(name: str) -> bool:
    """Whether a GGUF file is called as llama.cpp calls those of vision towers, which are no models."""
    return name.endswith(".gguf") and "mmproj" in name.lower()


def tower_beside(path: Path) -> Path:
    """The file of a vision tower in a GGUF file's folder. LoadError: there is none, or several."""
    folder = path if is_folder(path) else path.parent
    names = sorted(filter(is_tower, names_in(folder)))
    if len(names) != 1:
        expected = "the file of a vision tower (mmproj-*.gguf) beside it, or named by mmproj"
        raise LoadError("NOT_MODEL", path, expected=expected, found=", ".join(names) or "none")
    return folder / names[0]


def load(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | Literal["auto"] | None = None,
    patch: bool = True,
    mmap: bool = False,
    progress: bool = True,
    check_finite: bool | None = None,
    allow: Iterable[str] = (),
    gguf_file: str | None = None,
    mmproj: str | os.PathLike[str] | None = None,
    attn_implementation: str | None = None,
    images: bool = False,
) -> tuple[Any, Any]:
    """Load a model and its tokenizer; returns (model, tokenizer), the model patched and in eval mode.

    path: a GGUF file (any part of a split one), or a folder with safetensors or with one GGUF. Packed weights stay
    packed, each in its own format, and are read once, directly to where they stay. A folder of a model that is shown
    images gives all of it, but for Qwen3.5's (see `images`) and some of mlx's, of which it gives the decoder.

    device: default "mps" if kernels can run there, else "cuda", else "cpu".
    dtype: of activations, norms and whatever else isn't packed. Default: float32 on the CPU. Elsewhere the 16-bit dtype
        of the file's dense matrices, or bfloat16 if they have none, because no model overflows in it. "auto": that of
        the file's dense matrices, or float32, on any device.
    patch: False returns the model unpatched.
    mmap: on the CPU and on Metal, leave weights in the page cache unless they need conversion (as the rows of Llama's
        queries and keys do, and dense weights of another dtype). If somebody truncates the file, the process ends
        (SIGBUS); if somebody rewrites it, the weights change. On Metal such weights can't be changed in place. On other
        devices mmap saves the first of two copies.
    progress: show a progress bar on a terminal if there is something to wait for.
    check_finite: treat NaN and infinities as errors. Default: only without mmap, because it reads the whole file.
    allow: faults to accept, as "CODE" or "CODE:shell pattern of tensor names". Codes: TENSOR_EXTRA (ignored),
        TENSOR_MISSING (becomes zeros, or a norm's initial value), NONFINITE, VOCAB_MISSING (the tokenizer is None).
    gguf_file: which one to load, in a folder that has several or that has safetensors too.
    mmproj: the GGUF file of a vision tower, as llama.cpp has them, that goes with the one at `path`. The model is then
        whole, and a processor, whose `tokenizer` it has, is returned in place of the tokenizer.
    attn_implementation: as in `from_pretrained`; matters where stock code runs.
    images: Qwen3.5 with what sees images, which its decoder is loaded without by default; any other folder is refused
        if it has no model that is shown images.

    LoadError: the file isn't what it should be; its `code` says in what way. Pickles are refused, and code that comes
    with a model never runs. DoesNotFit (a torch.OutOfMemoryError), before weights are read: the device has no room for
    them; the text says what would fit.
    """
    allow = (allow,) if isinstance(allow, str) else tuple(allow)
    if device is None:
        from torch_foundry.core.runtime import default_device

        device = default_device()
    device = torch.device(device)
    path = Path(path)
    if not os.path.lexists(path):
        raise LoadError("ABSENT", path, expected=f"a file or folder; {how_to_get(path)}", found="no such file")
    found = open_model(
        path,
        gguf_file,
        mmproj,
        mmap=mmap,
        check_finite=not mmap if check_finite is None else check_finite,
        allow=allow,
        images=images,
    )
    if dtype == "auto":
        dtype = found.dtype or torch.float32
    elif dtype is None:
        dtype = found.dtype_on(device)
    try:
        from torch_foundry.io.assemble import assemble
        from torch_foundry.text import adopt

        if (tokenizer := found.tokenizer()) is not None:
            tokenizer = adopt(tokenizer, found.file)
            tokenizer = found.processor(tokenizer) if found.processor else tokenizer

        model = assemble(
            found.config,
            found.weights,
            file=found.file,
            device=device,
            dtype=dtype,
            generation_config=found.generation_config,
            attn_implementation=attn_implementation or found.attn_implementation,
            model_class=found.model_class,
            progress=progress,
            allow=(*allow, *(f"TENSOR_MISSING:{name}" for name in found.absent)),
        )
    finally:
        found.close()
    model.config.name_or_path = os.fspath(path if gguf_file is None else path / gguf_file)  # as stock
    from torch_foundry.hf.quantizer import attach

    attach(model)
    if patch:
        from torch_foundry.hf.api import patch as patch_model

        patch_model(model)
    return model, tokenizer


def how_to_get(path: Path) -> str:
    """A hint for whoever gave the name of a model in place of a path."""
    name = path.as_posix()
    is_name = not path.is_absolute() and name.count("/") == 1 and path.suffix != ".gguf"
    name = name if is_name else "OWNER/NAME"
    return f"to fetch a model from the Hub: hf download {name} --local-dir {name.split('/')[1]}"


def open_model(
    path: Path,
    gguf_file: str | None = None,
    mmproj: str | os.PathLike[str] | None = None,
    *,
    images: bool = False,
    **options: Any,
) -> ModelSource:
    """The model at `path`, its weights still in their files. LoadError as of `load`; `options`: as of both kinds."""
    from torch_foundry.io.model_directory import open_model_directory
    from torch_foundry.io.model_file import open_model_file

    of_file = {**options, "mmproj": mmproj}
    if images and (gguf_file is not None or gguf_of(path) is not None):
        raise LoadError(
            "NOT_MODEL", path, expected="a folder of safetensors: mmproj shows a GGUF file images", found="GGUF"
        )
    if gguf_file is not None:
        if Path(gguf_file).name != gguf_file:
            raise ValueError(f"gguf_file: expected the name of a file in {path}, got {gguf_file!r}")
        return open_model_file(path / gguf_file, **of_file)
    if is_folder(path):
        names = names_in(path)
        if (file := _gguf_in(path, names)) is not None:
            return open_model_file(file, **of_file)
        if not any(name.endswith(SUFFIXES) for name in names):
            raise no_weights(path, names)
        if mmproj is not None:
            raise ValueError(f"mmproj: goes with a GGUF file, and {path} has safetensors, with their tower if any")
        return open_model_directory(path, images=images, **options)
    if path.suffix in PICKLES:
        raise no_weights(path, [path.name])
    if path.name.endswith(SUFFIXES) and path.is_file():
        raise LoadError("NOT_MODEL", path, expected="the folder with its config.json", found="a file of safetensors")
    return open_model_file(path, **of_file)
