"""Opening whatever a path names."""

from __future__ import annotations

import os
from pathlib import Path

from torch_foundry.loaders.container import FileContainer
from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.files import File
from torch_foundry.loaders.folder import open_safetensors
from torch_foundry.loaders.gguf import open_gguf


def open_container(path: str | os.PathLike[str], *, check_finite: bool = True) -> FileContainer:
    """A GGUF file, a safetensors file, or a folder of either as a container; LoadError if it is none or a bad one.

    A file is what its first bytes say; a folder has safetensors, or one GGUF file (or the parts of one).
    """
    path = Path(path)
    if path.is_dir():
        parts = sorted(path.glob("*.gguf"))
        has_safetensors = any(path.glob("*.safetensors")) or (path / "model.safetensors.index.json").exists()
        if parts and not has_safetensors:
            first = parts[0]
            if len(parts) > 1 and f"-00001-of-{len(parts):05d}.gguf" not in first.name:
                names = ", ".join(part.name for part in parts[:8])
                raise LoadError("NOT_MODEL", path, expected="one GGUF file, or the parts of one", found=names)
            return open_gguf(first, check_finite=check_finite)
        return open_safetensors(path, check_finite=check_finite)
    file = File(path)
    first_bytes = bytes(file.read(min(4, file.size), 0, "magic"))
    file.close()
    if first_bytes == b"GGUF":
        return open_gguf(path, check_finite=check_finite)
    return open_safetensors(path, check_finite=check_finite)
