"""Shaders of a folder as one text, in which the Metal executor compiles what a model's first token needs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from torch_foundry import msl
from torch_foundry.core import extension, sources
from torch_foundry.msl.lint.unit import instances

pytestmark = pytest.mark.tier("kernels")

SHADERS = extension.CHECKOUT / "shaders"
FOLDERS = sorted({path.parent for path in sources.shader_files(SHADERS)})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_shaders_of_a_folder_compile_as_one_text(folder: Path) -> None:
    """As csrc/metal/batch.mm puts them together: names and function constants are told apart, and each header comes
    once. An instance of each file is compiled, as there is no Apple compiler here."""
    files = sorted(folder.glob("*.metal"))
    text = "".join(msl.translate(path, include_dirs=[SHADERS]).msl for path in files)
    whole = msl.translate(text, name=f"{folder.name}.metal")
    indices = Counter(constant.index for constant in whole.function_constants)
    names = Counter(kernel.name for kernel in whole.kernels)
    assert max(indices.values(), default=1) == 1 and max(names.values(), default=1) == 1
    used = [next(iter(instances(path, include_dirs=[SHADERS])), None) for path in files]
    kernels = [(entry, f"{entry.partition('<')[0]}_msl_args") for entry in used if entry is not None]
    assert kernels
    *others, (entry, signature) = kernels
    made = "".join(f'MSL_KERNEL("{other}", {of}, {other})\n' for other, of in others)
    file = f"all-of-{folder.name}.metal"
    torch.ops.torch_foundry._add_source(file, "", f"{whole.source}\n{made}")
    handle = torch.ops.torch_foundry._shader_pipeline("cpu", file, entry, signature, "", [], [], [])
    assert handle >= 0
