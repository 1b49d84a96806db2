"""Loads the compiled extension and tells it where kernels come from. Imported by whatever needs `torch.ops`."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from torch_foundry.core import devices, environment, sources, support
from torch_foundry.core.devices.base import Places

PACKAGE = Path(__file__).parents[1]
BUILT = PACKAGE / "_built"
CHECKOUT = PACKAGE.parent


def fallback_dir() -> Path:
    """Where kernels are kept if that can't be done in the user's cache directory: below the temporary files."""
    try:
        folder = tempfile.gettempdir()
    except OSError:  # nowhere can be written, which is said when something has to be
        folder = "/tmp"
    return Path(folder) / f"torch_foundry-{os.getuid()}"


def cache_dir() -> Path:
    """Where kernels compiled at run time are kept: $TORCH_FOUNDRY_CACHE, else the user's cache directory.

    Warns where there is no home directory, and gives a folder below the temporary files.
    """
    if given := environment.CACHE.given():
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_foundry"
    except RuntimeError:
        place = fallback_dir()
        warnings.warn(
            f"torch_foundry: there is no home directory, so kernels are kept in {place}; set TORCH_FOUNDRY_CACHE to a "
            "folder of your own",
            stacklevel=2,
        )
        return place


def kernels_from() -> str:
    """`built`: kernels as the package was built. `src`: shaders of the checkout, translated when they changed."""
    return environment.KERNELS.value()


def shader_dir() -> Path:
    """The folder of the shaders in use."""
    checkout = CHECKOUT / "shaders"
    return checkout if kernels_from() == "src" and checkout.is_dir() else BUILT / "shaders"


def add_shaders(directory: Path) -> None:
    """Translate the `.metal` files of `directory` and put them in the place of the registered ones."""
    cache = cache_dir() / "translated"
    for shader in sources.shader_files(directory):
        torch.ops.torch_foundry._add_source(shader.name, *sources.translate_cached(shader, directory, cache))


def add_built_shaders() -> None:
    """Register the shaders in the form that setup.py gave them."""
    for path in sorted((BUILT / "translated").glob("*.metal")):
        torch.ops.torch_foundry._add_source(path.name, path.read_text(), Path(f"{path}.cpp").read_text())


def add_own_shaders() -> None:
    """Register the package's own shaders, as TORCH_FOUNDRY_KERNELS says."""
    if kernels_from() == "src":
        add_shaders(shader_dir())
    else:
        add_built_shaders()
    for shader in sources.shader_files(shader_dir()):
        torch.ops.torch_foundry._group_source(shader.name, shader.parent.name)


def places(kernels: Path | None = None) -> Places:
    """Where executors find things now. kernels: where new ones go, and no others are looked for."""
    checkout, cache = CHECKOUT / "csrc", cache_dir()
    csrc = checkout if kernels_from() == "src" and checkout.is_dir() else BUILT
    ready = () if kernels else (BUILT / "kernels",)
    return Places(BUILT, csrc, shader_dir(), cache, kernels or cache / "kernels", ready)


def load() -> None:
    """Load `_C` once, register the shaders and set the executors up. ImportError says what is in the way."""
    # another library in place of _C, which it brings along: tests/metal runs the Metal executor on a mock that way
    given = environment.EXTENSION.given()
    library = Path(given) if given else next(iter(PACKAGE.glob("_C*.so")), None)
    if library is None:
        raise ImportError("torch_foundry is not built: run `make build` in the checkout, or `pip install .`")
    support.load_library(library, BUILT)
    torch.ops.torch_foundry._cache_fallback(str(fallback_dir()))
    shown = environment.PROGRESS.given() or (sys.stderr is not None and sys.stderr.isatty())
    torch.ops.torch_foundry._compile_notice(bool(shown) and environment.PROGRESS.on())
    found = places()
    for device in devices.DEVICES.values():
        device.set_up(found)
    add_own_shaders()


load()
