"""Where NVRTC, which compiles kernels for CUDA, and CUDA's headers lie. Without torch, for setup.py to use it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path


def _homes() -> Iterator[Path]:
    """Directories with `include/` and `lib/` of CUDA: the toolkit's, and those of NVIDIA's Python packages."""
    for given in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if given and Path(given).is_dir():
            yield Path(given)
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations or [] if spec else []:
        yield from sorted(path for path in Path(root).iterdir() if path.is_dir() and path.name != "__pycache__")


def libraries(cuda: str | None = None) -> list[str]:
    """Paths and names under which to look for libnvrtc, the best first.

    cuda: the version of CUDA that torch was built for ("13.0"): another one's cubins may be too new for the driver.
    """
    found = [
        path
        for home in _homes()
        for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
        for path in sorted((home / folder).glob("libnvrtc.so.*"))
    ]
    major = cuda.partition(".")[0] if cuda else ""
    fits = [path for path in found if path.name.removeprefix("libnvrtc.so.").partition(".")[0] == major]
    names = [f"libnvrtc.so.{version}" for version in dict.fromkeys((major, "13", "12")) if version]
    return [*dict.fromkeys(str(path) for path in (*fits, *found)), *names]


def include_dirs() -> list[str]:
    """Directories with cuda.h, cuda_runtime_api.h or nvrtc.h."""
    headers = ("cuda.h", "cuda_runtime_api.h", "nvrtc.h")
    candidates = [home / "include" for home in _homes()]
    return [str(c) for c in dict.fromkeys(candidates) if any((c / header).is_file() for header in headers)]
