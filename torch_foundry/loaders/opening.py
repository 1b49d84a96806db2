"""Opening whatever a path names."""

from __future__ import annotations

import os
from pathlib import Path

from torch_foundry.loaders.container import FileContainer
from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.files import File, is_folder, names_in
from torch_foundry.loaders.folder import INDEX, open_safetensors
from torch_foundry.loaders.foreign import LOOK, is_safetensors
from torch_foundry.loaders.gguf import open_gguf


def open_container(path: str | os.PathLike[str], *, check_finite: bool = True) -> FileContainer:
    """A GGUF file, a safetensors file, or a folder of either, as a container; LoadError if it is none of these or a bad
    one.

    A file's kind is decided by its first bytes. A folder has safetensors, or one GGUF file (or the parts of one).
    """
    path = Path(path)
    if is_folder(path):
        names = names_in(path)
        parts = [name for name in names if name.endswith(".gguf")]
        if parts and INDEX not in names and not any(name.endswith(".safetensors") for name in names):
            if len(parts) > 1 and not parts[0].endswith(f"-00001-of-{len(parts):05d}.gguf"):
                found = ", ".join(parts)
                raise LoadError("NOT_MODEL", path, expected="one GGUF file, or the parts of one", found=found)
            return open_gguf(path / parts[0], check_finite=check_finite)
        return open_safetensors(path, check_finite=check_finite)
    file = File(path)
    try:
        first = bytes(file.read(min(LOOK, file.size), 0, "magic"))
    finally:
        file.close()
    named = path.suffix == ".gguf" and not is_safetensors(first)  # the error is about what the name says
    opener = open_gguf if first[:4] == b"GGUF" or named else open_safetensors
    return opener(path, check_finite=check_finite)
