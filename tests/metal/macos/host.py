"""The host executor for macOS: its runtime and a kernel of each shader, compiled and linked with the lines of
csrc/host/flags.txt that a Mac takes, as it does when a kernel is first used.

The C library is macOS's own list of symbols (from ziglang). libc++'s are not there, so the runtime is let look them up.
"""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llvm
import wheels
from wheels import Failure

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT))
from torch_foundry.core.sources import HostTree  # noqa: E402
from torch_foundry.msl import translate  # noqa: E402
from torch_foundry.msl.lint.host import with_instances  # noqa: E402
from torch_foundry.msl.lint.unit import instances  # noqa: E402

# What libc++ and libc++abi export: std::, operators new and delete, the exception and type information support.
STANDARD = re.compile(r"__ZN?K?V?St|__ZT[VIS]N?K?(St|10__cxxabiv1)|__Zn[wa]|__Zd[la]|___cxa_|___gxx_|__ZT[VIS][a-z]")


def kernel_text(shader: Path, shaders: Path) -> str:
    """The translation of a shader with one of its kernels registered: the first, or the first instance it names."""
    translation = translate(shader, include_dirs=[shaders])
    translation = with_instances(translation, instances(shader, include_dirs=[shaders]))
    kernel = translation.kernels[0]
    return f'{translation.source}\nMSL_KERNEL("{kernel.name}", {kernel.signature}, {kernel.entry})\n'


def library(tree: HostTree, kind: str, text: str, target: Path, *options: str) -> Path:
    """Compiles and links `text` as a kernel or as the runtime. Raises Failure with the messages."""
    command = [*llvm.compiler(), *tree.flags(kind, "Darwin", "arm64"), *options]
    command += [word for folder in tree.include_dirs() for word in ("-I", str(folder))]
    linker = [f"-L{target.parent}", "-fuse-ld=lld", "-nostdlib++", "-Wl,-w"]
    if message := llvm.messages_of([*command, "-x", "c++", "-", "-o", str(target), *linker], text):
        raise Failure(f"{target.stem}: {message[:4000]}")
    return target


def check(place: Path, root: Path = ROOT, jobs: int | None = None) -> int:
    """Compile and link runtime and kernels; number of kernels. `root`: of csrc and shaders. Raises Failure."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "libSystem.tbd").write_text(wheels.symbols())
    tree = HostTree(root / "csrc" / "host")
    text = "".join(f'#include "{name}"\n' for name in tree.runtime_sources())
    strict = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror=unguarded-availability-new")
    runtime = library(tree, "runtime", text, place / "runtime.so", *strict, "-undefined", "dynamic_lookup")
    if missing := [name for name in llvm.looked_up(runtime) if not STANDARD.match(name)]:
        raise Failure(f"macOS has not what the runtime uses:\n{llvm.demangled(missing)}")
    there = llvm.exported(runtime)

    def checked(shader: Path) -> str:
        try:
            kernel = library(tree, "kernel", kernel_text(shader, root / "shaders"), place / f"{shader.stem}.so")
        except Failure as failure:
            return str(failure)
        missing = [name for name in llvm.looked_up(kernel) if name not in there and not STANDARD.match(name)]
        return f"{shader.name}: neither macOS nor the runtime has\n{llvm.demangled(missing)}" if missing else ""

    shaders = sorted((root / "shaders").rglob("*.metal"))
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        failures = [failure for failure in pool.map(checked, shaders) if failure]
    if failures:
        raise Failure("\n".join(failures))
    return len(shaders)
