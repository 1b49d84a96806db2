"""A weight format is one header and one line, a format of KV caches one line: what nobody has seen works everywhere,
with nothing else edited.

The tree has a copy of the shaders, in which both kinds of q8_0 have a second name. `_C` is the package's: only its
tables of formats, which need no torch, are compiled again, in a library that is found before it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from tests.quant.test_contraction import setup_flags
from torch_foundry.core import extension as _ext
from torch_foundry.core import sources
from torch_foundry.msl.lint.unit import instances

pytestmark = pytest.mark.tier("kernels")

ROOT = Path(__file__).parents[2]
NAME, GGUF_TYPE = "late8", 250


def write_tree(place: Path) -> None:
    """A checkout with formats more: `shaders` are a copy, everything else is this checkout's."""
    (place / "torch_foundry").symlink_to(_ext.PACKAGE)
    (place / "csrc").symlink_to(ROOT / "csrc")
    shutil.copytree(ROOT / "shaders", place / "shaders")
    formats = place / "shaders" / "quant"
    header = (formats / "q8_0.h").read_text().replace("q8_0, 8)", f"q8_0, {GGUF_TYPE})")
    (formats / f"{NAME}.h").write_text(header.replace("q8_0", NAME).replace("Q8_0", NAME.capitalize()))
    with (formats / "formats.h").open("a") as lines:
        lines.write(f'#include "{NAME}.h"\n')
    caches = place / "shaders" / "attention" / "kv_formats.h"
    text = caches.read_text().rstrip()
    assert text.endswith(")")
    caches.write_text(f"{text} \\\n  FORMAT({NAME.capitalize()}Kv, {NAME}, 8, true)\n")


def build_tables(place: Path) -> Path:
    """The tables of the tree's formats, over those of `_C`."""
    torch_root, library = Path(torch.__file__).parent, place / "formats.so"
    extension = next(iter(_ext.PACKAGE.glob("_C*.so")))
    command = [*sources.compiler(), *setup_flags(), "-O1", "-shared", "-fPIC", "-o", str(library)]
    command += [str(ROOT / "csrc" / "core" / name) for name in ("quant_blocks.cpp", "kv_table.cpp")]
    command += [f"-I{ROOT / 'csrc'}", f"-I{place / 'shaders'}"]
    command += [f"-I{torch_root / 'include'}", "-Wl,--no-as-needed", str(extension), f"-L{torch_root / 'lib'}", "-lc10"]
    subprocess.run([*command, f"-Wl,-rpath,{extension.parent}:{torch_root / 'lib'}"], check=True)
    return library


@pytest.mark.tier("nightly")  # a copy of the project is built
@pytest.mark.skipif(platform.system() != "Linux", reason="a library's functions in place of another's: ELF")
@pytest.mark.skipif(
    "-Bsymbolic" in str(sysconfig.get_config_var("LDSHARED")), reason="this Python's libraries call their own functions"
)
@pytest.mark.skipif("TORCH_FOUNDRY_EXTENSION" in os.environ, reason="_C has been replaced already")
def test_no_other_edit(tmp_path: Path) -> None:
    write_tree(tmp_path)
    shaders, policy = tmp_path / "shaders", NAME.capitalize()
    linted = instances(shaders / "embedding" / "embedding.metal", include_dirs=[shaders])
    assert f"embedding<{policy}, bfloat, int, 8>" in linted and f"embedding<{policy}, bfloat, int, 8>" not in instances(
        ROOT / "shaders" / "embedding" / "embedding.metal", include_dirs=[ROOT / "shaders"]
    )
    linted = instances(shaders / "attention" / "rope_kv.metal", include_dirs=[shaders])
    assert f"rope_kv<half, float, Llama, {policy}KvOut, {policy}KvOut, 2>" in linted
    (tmp_path / "cache").mkdir()
    kernels = _ext.cache_dir() / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache" / "kernels").symlink_to(kernels)
    settings = {
        "TORCH_FOUNDRY_EXTENSION": str(build_tables(tmp_path)),
        "TORCH_FOUNDRY_KERNELS": "src",
        "TORCH_FOUNDRY_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    command = [sys.executable, str(Path(__file__).parent / "new_format.py"), NAME, str(GGUF_TYPE), str(tmp_path)]
    run = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
