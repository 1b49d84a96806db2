"""A weight format is one header and one line: one that nobody has seen works everywhere, with nothing else edited.

The tree has a copy of the shaders, in which q8_0 has a second name and id. `_C` is the package's: only its table of
formats, which needs no torch, is compiled again, in a library that is found before it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.quant.test_contraction import setup_flags
from torch_foundry import _ext, sources

pytestmark = pytest.mark.tier("kernels")

ROOT = Path(__file__).parents[2]
NAME, GGUF_TYPE = "late8", 250


def write_tree(place: Path) -> None:
    """A checkout with a format more: `shaders` are a copy, everything else is this checkout's."""
    (place / "torch_foundry").symlink_to(_ext.PACKAGE)
    (place / "csrc").symlink_to(ROOT / "csrc")
    shutil.copytree(ROOT / "shaders", place / "shaders")
    formats = place / "shaders" / "quant"
    header = (formats / "q8_0.h").read_text().replace("q8_0, 8)", f"q8_0, {GGUF_TYPE})")
    (formats / f"{NAME}.h").write_text(header.replace("q8_0", NAME).replace("Q8_0", NAME.capitalize()))
    with (formats / "formats.h").open("a") as lines:
        lines.write(f'#include "{NAME}.h"\n')


def build_table(place: Path) -> Path:
    """The table of the tree's formats, over that of `_C`."""
    torch_root, library = Path(torch.__file__).parent, place / "formats.so"
    extension = next(iter(_ext.PACKAGE.glob("_C*.so")))
    command = [*sources.compiler(), *setup_flags(), "-O1", "-shared", "-fPIC", "-o", str(library)]
    command += [str(ROOT / "csrc" / "core" / "quant_blocks.cpp"), f"-I{ROOT / 'csrc'}", f"-I{place / 'shaders'}"]
    command += [f"-I{torch_root / 'include'}", "-Wl,--no-as-needed", str(extension), f"-L{torch_root / 'lib'}", "-lc10"]
    subprocess.run([*command, f"-Wl,-rpath,{extension.parent}:{torch_root / 'lib'}"], check=True)
    return library


@pytest.mark.skipif(platform.system() != "Linux", reason="a library's functions in place of another's: ELF")
@pytest.mark.skipif("TORCH_FOUNDRY_EXTENSION" in os.environ, reason="_C has been replaced already")
def test_one_header_and_one_line(tmp_path: Path) -> None:
    write_tree(tmp_path)
    (tmp_path / "cache").mkdir()
    kernels = _ext.cache_dir() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache" / "kernels").symlink_to(kernels)
    settings = {
        "TORCH_FOUNDRY_EXTENSION": str(build_table(tmp_path)),
        "TORCH_FOUNDRY_KERNELS": "src",
        "TORCH_FOUNDRY_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    command = [sys.executable, str(Path(__file__).parent / "new_format.py"), NAME, str(GGUF_TYPE), str(tmp_path)]
    run = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
