"""Loads the compiled extension and tells it where kernels come from. Imported by whatever needs `torch.ops`."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import tempfile
import warnings
from pathlib import Path

import torch

from torch_foundry.core import environment, nvrtc, sources, support

PACKAGE = Path(__file__).parents[1]
BUILT = PACKAGE / "_built"
CHECKOUT = PACKAGE.parent
SANITIZERS = {"": "", "address": "asan", "thread": "tsan"}
# What a sanitizer's runtime has, which must be in the process before Python is.
SWITCHES = {"asan": "__sanitizer_start_switch_fiber", "tsan": "__tsan_create_fiber"}


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


def _toolchain() -> tuple[list[str], str]:
    """The compiler's command, as recorded at build time unless $CXX has another, and the identity recorded with it."""
    recorded = json.loads((BUILT / "toolchain.json").read_text())
    return sources.given_compiler() or recorded["compiler"], recorded["identity"]


def _require_runtime(sanitizer: str) -> None:
    if not hasattr(ctypes.CDLL(None), SWITCHES[sanitizer]):
        raise ImportError(
            f"TORCH_FOUNDRY_SANITIZE: the sanitizer has to be loaded before Python. Start it with LD_PRELOAD="
            f'"$(c++ -print-file-name=lib{sanitizer}.so) $(c++ -print-file-name=libstdc++.so)", as `make {sanitizer}` '
            "in the Makefile does"
        )


def setup_host(cache: Path | None = None) -> None:
    """Tell the host executor its compiler, flags and caches. `cache` overrides where new kernels go."""
    checkout = CHECKOUT / "csrc" / "host"
    tree = sources.HostTree(checkout if kernels_from() == "src" and checkout.is_dir() else BUILT / "host")
    command, identity = _toolchain()
    kernel, runtime = tree.flags("kernel"), tree.flags("runtime")
    if sanitizer := SANITIZERS[environment.SANITIZE.value()]:
        _require_runtime(sanitizer)
        kernel, runtime = kernel + tree.flags(sanitizer), runtime + tree.flags(f"runtime-{sanitizer}")
    if environment.CHECKED.on():
        kernel = kernel + tree.flags("checked")
    torch.ops.torch_foundry._host_setup(
        command,
        identity,
        str(tree.root),
        tree.text_digest(),
        kernel,
        runtime,
        tree.runtime_sources(),
        [str(BUILT / "kernels")] if cache is None else [],
        str(cache or cache_dir() / "kernels"),
    )


def setup_cuda() -> None:
    """Tell the CUDA executor its compiler, its prelude and its cache, in builds that have one."""
    if not hasattr(torch.ops.torch_foundry, "_cuda_setup"):
        return
    checkout = CHECKOUT / "csrc"
    root = checkout if kernels_from() == "src" and (checkout / "cuda").is_dir() else BUILT
    torch.ops.torch_foundry._cuda_setup(
        nvrtc.libraries(torch.version.cuda),
        str(root),
        sources.tree_digest(root / "prelude", root / "cuda" / "prelude"),
        environment.CHECKED.on(),
        [str(BUILT / "kernels")],
        str(cache_dir() / "kernels"),
    )


def setup_metal() -> None:
    """Tell the Metal executor what the environment says, in builds that have one."""
    metal = torch.ops.torch_foundry
    if not hasattr(metal, "_metal_language"):
        return
    version = environment.METAL_VERSION.value()
    metal._metal_language(int(version.replace(".", "") or 0) * 10)
    metal._metal_icb(environment.ICB.on())
    if (every := environment.COMMIT_EVERY.value()) is not None:
        metal._metal_commit_interval(every)
    add_metallibs()
    if environment.METAL_ARCHIVE.on():
        metal._metal_archive(str(cache_dir() / "metal" / f"{sources.tree_digest(shader_dir())[:16]}-"))
        atexit.register(metal._metal_save_archive)


def add_metallibs(built: Path = BUILT) -> None:
    """Tell the Metal executor what metallib.py compiled into `built`, unless TORCH_FOUNDRY_METALLIB=0."""
    manifest = built / "metal" / "manifest.json"
    if not environment.METALLIB.on() or not manifest.is_file():
        return
    for level, made in json.loads(manifest.read_text()).items():
        version = int(level.replace(".", "")) * 10
        path = str(manifest.parent / made["library"])
        torch.ops.torch_foundry._metal_library(version, path, list(made["texts"]), list(made["texts"].values()))


def load() -> None:
    """Load `_C` once, register the shaders and set the executors up. ImportError says what is in the way."""
    # another library in place of _C, which it brings along: tests/metal runs the Metal executor on a mock that way
    given = environment.EXTENSION.given()
    library = Path(given) if given else next(iter(PACKAGE.glob("_C*.so")), None)
    if library is None:
        raise ImportError("torch_foundry is not built: run `make build` in the checkout, or `pip install .`")
    support.load_library(library, BUILT)
    torch.ops.torch_foundry._cache_fallback(str(fallback_dir()))
    torch.ops.torch_foundry._compile_notice(environment.PROGRESS.on())
    setup_host()
    setup_cuda()
    setup_metal()
    add_own_shaders()


load()
