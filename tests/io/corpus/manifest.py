"""Every case of the corpus, and how one is opened. `python -m tests.io.corpus.manifest` writes manifest.tsv."""

from __future__ import annotations

from pathlib import Path

import torch_foundry
from torch_foundry.io.container import Container
from torch_foundry.io.gguf import open_gguf
from torch_foundry.io.safetensors import open_safetensors

from . import (
    container_head,
    container_tensors,
    folders,
    mixers,
    models,
    packed_blocks,
    packed_compressed,
    packed_floats,
    packed_folders,
    packed_modelopt,
    packed_words,
    parts,
    tensors_file,
    words,
)  # fmt: skip
from .case import Case, Table

TABLES: dict[str, Table] = {
    "GGUF header": container_head.H,
    "GGUF metadata": container_head.K,
    "GGUF tensors": container_tensors.T,
    "GGUF data": container_tensors.D,
    "GGUF parts": parts.G,
    "GGUF architectures": mixers.A,
    "GGUF vocabularies": models.V,
    "safetensors": tensors_file.S,
    "folders of shards": folders.I,
    "packed words": packed_words.P,
    "packed blocks": packed_blocks.P,
    "packed floats": packed_floats.P,
    "compressed-tensors": packed_compressed.P,
    "ModelOpt": packed_modelopt.P,
    "folders of models": packed_folders.P,
    "tokenizers of folders": words.P,
}
CASES = [case for table in TABLES.values() for case in table.cases]
MANIFEST = Path(__file__).parent / "manifest.tsv"
_MANY = 10_000  # entries of a header that is only read, not what it describes
_LARGE = 1 << 26  # bytes of a tensor that is not read: sparse ones


def open_container(case: Case, path: Path) -> Container:
    """For classes of containers; of a model's parts, the first file is opened."""
    if case.id[0] == "G":
        return open_gguf(min(path.iterdir()))
    return open_gguf(path) if case.id[0] in "HKTD" else open_safetensors(path)


def header(case: Case, path: Path) -> None:
    """What opening a file does."""
    open_container(case, path).close()


def load(case: Case, path: Path) -> None:
    """Everything that a loader does with the file: header, metadata, every tensor; of a model, all of it."""
    if case.id[0] in "AVP":
        torch_foundry.load(path, device="cpu", patch=False, progress=False)
        return
    with open_container(case, path) as container:
        if len(container.tensors) + len(container.metadata) > _MANY:
            return
        for value in container.metadata.values():
            if hasattr(value, "tolist"):
                len(value.tolist())
        for name, info in container.tensors.items():
            if 0 < info.nbytes < _LARGE:
                container.read(name)


def lines() -> list[str]:
    """id, class, what is put in, what is wanted, codes that are right, digest of the file."""
    found = ["id\tclass\twhat is put in\twant\tcodes\tdigest"]
    for title, table in TABLES.items():
        for case in table.cases:
            want = ("reject" if case.want else "accept") + (" (policy)" if case.policy else "")
            found.append("\t".join((case.id, title, case.what, want, " ".join(case.want), case.digest())))
    return found


if __name__ == "__main__":
    MANIFEST.write_text("\n".join(lines()) + "\n")
