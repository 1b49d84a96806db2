"""The Metal executor, which runs kernels on MPS tensors: its build, its switches, loading into shared memory."""

from __future__ import annotations

import atexit
import contextlib
import json
import platform
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from torch_foundry.core import environment, sources, support
from torch_foundry.core.devices.base import Device, Facts, Places

OLDEST_MACOS = (14, 0)  # Metal 3.1, for bfloat
# What stock torch has Metal kernels for since which version, by the kernels' names in its macOS builds; the rest is
# MPSGraph's work.
STOCK_KERNELS = {
    (2, 11): "norms and attention of a few queries",
    (2, 13): "attention of whole prompts",
    (2, 14): "linear layers of one row",
}


def _op(name: str) -> Any:
    """An op of the executor; None in builds without it."""
    return getattr(torch.ops.torch_foundry, name, None)


class Metal(Device):
    """Apple's GPUs, and on other systems a mock of one."""

    kind = "mps"
    built_from = ("metal/*.mm",)
    maps_files = True
    float64 = False
    compiles_ahead = True
    emulated = platform.system() != "Darwin"

    def builds(self) -> bool:
        return platform.system() == "Darwin"

    def set_up(self, places: Places) -> None:
        if (language := _op("_metal_language")) is None:
            return
        language(int(environment.METAL_VERSION.value().replace(".", "") or 0) * 10)
        _op("_metal_replays")(environment.REPLAYS.value())
        if (every := environment.COMMIT_EVERY.value()) is not None:
            _op("_metal_commit_interval")(every)
        add_metallibs(places.built)
        if environment.METAL_ARCHIVE.on():
            system = support.sysctl("kern.osversion")  # whose update brings another compiler
            name = f"{sources.tree_digest(places.shaders)[:16]}-{system}-"
            _op("_metal_archive")(str(places.cache / "metal" / name))
            atexit.register(_op("_metal_save_archive"))

    def built(self) -> bool:
        return torch.backends.mps.is_built()

    def available(self) -> bool:
        return torch.backends.mps.is_available()

    def own_problem(self) -> str:
        try:
            return str(_info().get("problem", ""))
        except RuntimeError:  # no device: there is a sentence for that
            return ""

    def expected(self, known: Facts) -> bool:
        return known.system == "Darwin"

    def problem(self, has_executor: bool, known: Facts | None = None) -> str | None:
        known = known or self.facts()
        instead = 'the kernels run on the CPU here, with device "cpu"'
        if known.system == "Darwin":
            if known.rosetta:
                return (
                    "this Python is an x86_64 program under Rosetta, which has no MPS device: install Python for arm64"
                )
            if known.machine == "x86_64":
                return f"an Intel Mac has no MPS device that torch_foundry can use (it needs an M1 or later): {instead}"
            if known.macos is not None and known.macos < OLDEST_MACOS:
                return (
                    f"torch_foundry's Metal kernels need macOS {OLDEST_MACOS[0]} or later and this is macOS "
                    f"{known.macos[0]}.{known.macos[1]}: update macOS; until then {instead}"
                )
        if has_executor:
            if known.system != "Darwin" or known.available:  # elsewhere it is a mock
                return known.problem or None
            return (
                "torch sees no MPS device (torch.backends.mps.is_available() is False), as in a virtual machine or a "
                f"sandbox without a GPU: {instead}"
            )
        if known.system != "Darwin":
            return f"there is no MPS device: Metal needs macOS and this is {known.system}; {instead}"
        if not known.built:
            return f"this torch was built without MPS: install torch's macOS arm64 wheel, then {support.REBUILD}"
        return f"this build of torch_foundry has no Metal executor: {support.REBUILD}"

    def synchronize(self, device: torch.device) -> None:
        torch.mps.synchronize() if self.available() else super().synchronize(device)

    def memory(self, device: torch.device) -> int:
        return torch.mps.current_allocated_memory() if self.available() else super().memory(device)

    def working_set(self, device: torch.device) -> tuple[int, int] | None:
        asked = _op("_metal_working_set")
        if asked is None:
            return None
        most, used = asked()
        return most, used

    def host_view(self, tensor: torch.Tensor) -> torch.Tensor:
        view = _op("_metal_host_view")  # before torch 2.12 there is none: the GPU's memory is private
        found = view(tensor) if view is not None and tensor.numel() else None
        return tensor if found is None else found

    def mapped(self, file: int, offset: int, nbytes: int) -> torch.Tensor | None:
        map_pages = _op("_metal_map")
        found: torch.Tensor | None = map_pages and map_pages(file, offset, nbytes)  # None if Metal refuses the pages
        return found

    def reads_files(self) -> bool:
        return environment.METAL_IO.on() and _op("_metal_read") is not None  # an experiment

    def read_file(self, path: Path, offset: int, out: torch.Tensor) -> str:
        return str(_op("_metal_read")(str(path.absolute()), offset, out))

    @property
    def replays(self) -> tuple[str, ...]:
        return super().replays if _op("_metal_replays") is None else environment.REPLAYS.allowed

    @contextlib.contextmanager
    def replaying(self, how: str) -> Iterator[None]:
        if (set_replays := _op("_metal_replays")) is None:
            yield
            return
        before = _info()["replays"]
        set_replays(how)
        try:
            yield
        finally:
            set_replays(before)

    def describe(self, device: torch.device) -> dict[str, Any]:
        found: dict[str, Any] = {"metal": info} if (info := _info()) else {}
        if self.available():
            for key, name in (("gpu", "get_name"), ("gpu_cores", "get_core_count")):
                found[key] = getattr(torch.backends.mps, name, lambda: None)()
            found["working_set_gib"] = round(torch.mps.recommended_max_memory() / 2**30, 1)
        return found

    def ours(self, description: dict[str, Any]) -> str:
        metal = description.get("metal", {})
        library = {"metallib": ", compiled ahead of time", "jit": ", compiled from source at first use"}
        language = f" in Metal {metal['language']}" if "language" in metal else ""
        codes: dict[Any, str] = {
            True: "; packed codes are subnormal halves",
            False: "; the GPU keeps no subnormal halves",
        }
        own = codes.get(description.get("subnormal_codes"), "")
        if tensors := description.get("tensors"):
            error = f"error {tensors['error']:.1e}, {tensors['most']:.1e} allowed"
            own += f"; tensor operations: {'' if tensors['used'] else 'not used, '}{error}"
        return f"kernels{language} on torch's MPS stream{library.get(metal.get('library', ''), '')}{own}"

    def stock(self, torch_version: str) -> str:
        known = [what for since, what in STOCK_KERNELS.items() if since <= support.version_pair(torch_version)]
        return f"Metal kernels for {', '.join(known)}; MPSGraph for the rest"

    def advice(self, torch_version: str) -> Iterator[str]:
        major, minor = max(STOCK_KERNELS)
        if support.version_pair(torch_version) < (major, minor):
            yield f"Stock torch is faster from {major}.{minor} on: what is compared with it here is this version."


def _info() -> dict[str, str]:
    """What the executor says about itself; nothing in builds without it. RuntimeError: there is no device."""
    info = _op("_metal_info")
    return {} if info is None else dict(info())


def add_metallibs(built: Path) -> None:
    """Tell the executor what aot/metallib.py compiled into `built`, unless TORCH_FOUNDRY_METALLIB=0."""
    manifest = built / "metal" / "manifest.json"
    if not environment.METALLIB.on() or not manifest.is_file():
        return
    for level, made in json.loads(manifest.read_text()).items():
        version = int(level.replace(".", "")) * 10
        path = str(manifest.parent / made["library"])
        _op("_metal_library")(version, path, list(made["texts"]), list(made["texts"].values()))


def commit_every(launches: int) -> None:
    """Set after how many launches of a thread the Metal executor commits its work to the GPU, without waiting for it.

    A small number lets the GPU start early; a large one costs the CPU less (a commit takes some 20 us). 0: work is
    committed only when torch does it, that is when somebody waits, and by `commit()`, for example once per token.
    Default: $TORCH_FOUNDRY_COMMIT_EVERY, else 100. Takes effect at the next launch, in all threads.

    ValueError: not such a number. In a build without a Metal executor this warns and does nothing.
    """
    if not isinstance(launches, int) or not 0 <= launches < 2**31:
        raise ValueError(f"launches={launches!r}: expected 0 (when torch does) or a number of launches")
    _call("commit_every", "_metal_commit_interval", launches)


def commit() -> None:
    """Commit what this thread has launched on `mps` to the GPU now, without waiting for it.

    In a build without a Metal executor this warns and does nothing.
    """
    _call("commit", "_metal_commit")


def _call(function: str, name: str, *arguments: int) -> None:
    if (op := _op(name)) is None:
        text = f"runtime.{function} has no effect: this build of torch_foundry has no Metal executor"
        warnings.warn(f"{text}, and the others hand over each launch at once", stacklevel=3)
        return
    op(*arguments)
