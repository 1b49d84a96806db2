"""Models in more files than a process may have open: each is opened when it is read, and has to be the same file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import save_file

from tests.io.gguf_models import write_file
from torch_foundry.io import LoadError, open_container
from torch_foundry.io.files import MOST_OPEN

COUNT, ROWS = 300, 8


def value(i: int) -> torch.Tensor:
    return torch.arange(ROWS * 4, dtype=torch.float32).view(ROWS, 4) + 1000 * i


def safetensors(folder: Path, count: int) -> None:
    names = {f"t{i}": f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)}
    for i, (tensor, name) in enumerate(names.items()):
        save_file({tensor: value(i)}, folder / name)
        os.utime(folder / name, (0, 0))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    os.utime(index, (0, 0))


def gguf(folder: Path, count: int) -> None:
    tensors = {f"t{i}": (value(i).numpy().astype(np.float32), GGMLQuantizationType.F32) for i in range(count)}
    write_file(folder / "model.gguf", "llama", {}, tensors, in_a_part=1)


WRITERS = {"safetensors": safetensors, "gguf": gguf}
READ = """
import resource, sys
import torch
from pathlib import Path
from tests.io.test_many_files import COUNT, value
from torch_foundry.io import open_container
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
for folder in sys.argv[1:]:
    with open_container(Path(folder)) as container:
        kept = [container.mapped(f"t{i}") for i in range(COUNT)]
        for i in range(COUNT):
            assert torch.equal(container.read(f"t{i}", 2, 7), value(i)[2:7])
    assert all(torch.equal(tensor, value(i)) for i, tensor in enumerate(kept))
    print("read")
"""


@pytest.mark.tier("files")
def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    for kind, write in WRITERS.items():
        (tmp_path / kind).mkdir()
        write(tmp_path / kind, COUNT)
    command = [sys.executable, "-c", READ, *(str(tmp_path / kind) for kind in WRITERS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.split() == ["read", "read"], done.stderr


def rewrite(path: Path) -> None:
    """The same size, inode and time of modification."""
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    os.utime(path, (0, 0))


def replace(path: Path) -> None:
    """The same bytes, in another file."""
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    os.utime(copy, (0, 0))
    copy.replace(path)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4)
    os.utime(path, (0, 0))


@pytest.mark.parametrize("change", [rewrite, replace, truncate, Path.unlink], ids=lambda change: change.__name__)
@pytest.mark.parametrize("kind", WRITERS)
def test_files_that_have_become_others(kind: str, change: Callable[[Path], None], tmp_path: Path) -> None:
    WRITERS[kind](tmp_path, MOST_OPEN + 1)
    path = min(tmp_path.glob("*-00007-of-*"))
    with open_container(tmp_path) as container:
        assert torch.equal(container.read("t6"), value(6))
        change(path)
        for read in (container.read, container.mapped):
            with pytest.raises(LoadError) as caught:
                read("t6")
            assert caught.value.code == "CHANGED" and Path(caught.value.file) == path
        assert torch.equal(container.read("t7"), value(7))
        file = container._files[path]
    with pytest.raises(ValueError, match="after it was closed"):
        container.read("t7")
    with pytest.raises(ValueError, match="after it was closed"):
        file.read(1, 0, "")


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="only Linux lists a process's descriptors there")
@pytest.mark.parametrize("count, held", [(MOST_OPEN, MOST_OPEN), (MOST_OPEN + 1, 0)])
def test_descriptors(count: int, held: int, tmp_path: Path) -> None:
    safetensors(tmp_path, count)
    before = len(os.listdir("/proc/self/fd"))
    with open_container(tmp_path) as container:
        mapped = [container.mapped(name) for name in container.tensors]
        assert len(os.listdir("/proc/self/fd")) == before + held
    assert len(os.listdir("/proc/self/fd")) == before and len(mapped) == count
