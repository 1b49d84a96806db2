"""The host executor as a library: its runtime, its prelude and translated kernels, compiled as it compiles them.

Kernels of one file are compiled together: their prelude and headers are most of what a kernel costs.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_foundry import msl
from torch_foundry.core import sources

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "air"
TREE = sources.HostTree(ROOT / "csrc" / "host")
TENSORS = Path(__file__).parent / "tensors.h"


class DoesNotCompile(Exception):
    """What the compiler says of it."""


def _built(kind: str, label: str, text: str, optimise: str) -> Path:
    """A library of C++ text, kept by content."""
    command = [*(sources.given_compiler() or ["c++"]), *TREE.flags(kind), optimise]
    for folder in ("", "/prelude", "/../prelude"):
        command += ["-I", f"{TREE.root}{folder}"]
    command += ["-I", str(Path(__file__).parent)]  # tensors.h
    key = sources.digest(TREE.text_digest().encode(), TENSORS.read_bytes(), " ".join(command).encode(), text.encode())
    library = PLACE / "cache" / f"{label}-{key[:24]}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        part, source = (library.with_suffix(f".{os.getpid()}{end}") for end in (".part", ".cpp"))
        source.write_text(text)
        result = subprocess.run([*command, str(source), "-o", str(part)], capture_output=True, text=True)
        source.unlink()
        if result.returncode:
            part.unlink(missing_ok=True)
            errors = [line for line in result.stderr.splitlines() if "error" in line] or [result.stderr]
            raise DoesNotCompile(f"{label}: {' | '.join(errors[:3])}"[:1000])
        part.replace(library)
    return library


def runtime() -> Path:
    """The fiber runtime."""
    text = "".join(f'#include "{TREE.root / name}"\n' for name in TREE.runtime_sources())
    return _built("runtime", "runtime", text, "-O2")


def glue(functions: Mapping[str, str]) -> Path:
    """glue.cpp with the functions of `intrinsics.Body.cpp` behind it."""
    text = (Path(__file__).parent / "glue.cpp").read_text()
    more = "\n".join(functions[name] for name in sorted(functions))
    return _built("kernel", "glue", f'{text}\nextern "C" {{\n{more}\n}}\n', "-O1")


@functools.lru_cache(8)  # torch's headers have all instances: one text for many batches
def _translated(label: str, text: str, include: str) -> msl.Translation:
    return msl.translate(text, include_dirs=[include], name=label)


def kernels(label: str, text: str, constants: Mapping[int, str], names: Sequence[str], include: Path) -> Path:
    """A library with the kernels `names` of Metal text, as the front end translates it.

    constants: function constants as text, by index. Raises MslError or DoesNotCompile.
    """
    translation = _translated(label, text, str(include))
    there = {kernel.name: kernel for kernel in translation.kernels}
    defined = "".join(f"#define MSL_FC_{index} ({value})\n" for index, value in constants.items())
    entries = "".join(f'MSL_KERNEL("{name}", {there[name].signature}, {there[name].entry})\n' for name in names)
    return _built("kernel", label, f"{defined}{translation.source}\n{entries}", "-O1")
