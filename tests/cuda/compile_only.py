"""Compiles kernels for a GPU that is not there: builds compile_only.cpp with the CUDA executor's own compiler.cpp.

`load()` puts it in the place of the host executor, so a process that has called it runs no kernels any more: tests use
it in processes of their own.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "cuda"
BUILD = ROOT / "build" / "compile_only"
SOURCES = (HERE / "compile_only.cpp", ROOT / "csrc" / "cuda" / "compiler.cpp")
HEADERS = (*(ROOT / "csrc" / "core").glob("*.h"), *(ROOT / "csrc" / "cuda").glob("*.h"))


def unavailable() -> str | None:
    """Why nothing can be compiled here; None if it can."""
    from torch_foundry.core.devices import cuda

    if any((Path(directory) / "nvrtc.h").is_file() for directory in cuda.Cuda().include_dirs()):
        return None
    return "NVRTC is not installed (pip install nvidia-cuda-nvrtc)"


def build() -> Path:
    """The library, up to date. RuntimeError has the compiler's messages."""
    import torch

    from torch_foundry.core.devices import cuda

    torch_root = Path(torch.__file__).parent
    extension = next((ROOT / "torch_foundry").glob("_C*.so"))
    library = BUILD / "compile_only.so"
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = max(path.stat().st_mtime for path in (*SOURCES, *HEADERS))
        if library.exists() and library.stat().st_mtime > newest:
            return library
        include = [ROOT / "csrc", ROOT / "shaders", torch_root / "include"]
        include += [
            torch_root / "include" / "torch" / "csrc" / "api" / "include",
            *map(Path, cuda.Cuda().include_dirs()),
        ]
        flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wno-sign-compare", "-Wno-unknown-pragmas"]
        flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
        libraries = [f"-L{torch_root / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl", str(extension)]
        paths = [f"-Wl,-rpath,{torch_root / 'lib'}", f"-Wl,-rpath,{extension.parent}"]
        temporary = library.with_suffix(f".{os.getpid()}.so")
        command = [os.environ.get("CXX") or "c++", *flags, *(f"-I{path}" for path in include), *map(str, SOURCES)]
        result = subprocess.run([*command, "-o", str(temporary), *libraries, *paths], capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"compile_only does not build:\n{result.stderr[-4000:]}")
        temporary.replace(library)
    return library


def load(arch: str = "sm_90", *, checked: bool = False, cache: Path | None = None) -> None:
    """From here on the kernels of CPU tensors are compiled for `arch` and not run."""
    import torch

    import torch_foundry.core.extension as ext
    from torch_foundry.core import sources
    from torch_foundry.core.devices import cuda

    torch.ops.load_library(build())
    root = ROOT / "csrc"
    digest = sources.tree_digest(root / "prelude", root / "cuda" / "prelude")
    cache = cache or BUILD / "kernels"
    torch.ops.compile_only.setup(cuda.libraries("13"), str(root), digest, checked, str(cache), arch)
    ext.add_shaders(ROOT / "shaders")


def run(script: str, *, arch: str = "sm_90", checked: bool = False, timeout: int = 1800) -> str:
    """What `script` prints in a process of its own, after load(). RuntimeError has what went wrong."""
    start = f"from tests.cuda import compile_only\ncompile_only.load({arch!r}, checked={checked})\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", start + script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if result.returncode:
        raise RuntimeError(result.stderr[-4000:])
    return result.stdout
