"""Which platforms, torch versions and devices this package supports, and one sentence for each case that it doesn't.

The sentences depend on plain facts only, so each can be tested on any machine. Imports no torch: setup.py uses it.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import sysconfig
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OLDEST_TORCH = (2, 11)
NEWEST_TORCH = (2, 15)  # that was tested; a newer one works if the extension builds with it, and says so once
OLDEST_MACOS = (14, 0)  # of the Metal executor: Metal 3.1, for bfloat
REBUILD = "build it again in its source directory: pip install --no-build-isolation --no-deps --force-reinstall ."
_RECORD = "torch.txt"


@dataclass(frozen=True)
class Facts:
    """What the sentences depend on."""

    system: str  # platform.system(): "Darwin", "Linux" ...
    machine: str  # "arm64", "x86_64" ...
    macos: tuple[int, int] | None  # None: not macOS, or not known
    rosetta: bool  # an x86_64 process on Apple silicon
    mps_built: bool  # whether torch was built with MPS
    mps_available: bool
    cuda_built: bool
    cuda_available: bool
    gpu_problem: str = ""  # why the Metal executor can't use the GPU; empty: it can, or isn't loaded


def sysctl(name: str) -> str:
    """A kernel variable of macOS; empty where there is none."""
    try:
        result = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()


def macos_version() -> tuple[int, int] | None:
    """Version of macOS. A Python that was built for an old SDK reports 10.16 for anything newer: not known."""
    numbers = version_pair(platform.mac_ver()[0])
    return None if numbers in ((0, 0), (10, 16)) else numbers


def facts() -> Facts:
    """The facts of this process."""
    import torch

    system, machine = platform.system(), platform.machine()
    return Facts(
        system=system,
        machine=machine,
        macos=macos_version(),
        rosetta=system == "Darwin" and machine == "x86_64" and sysctl("sysctl.proc_translated") == "1",
        mps_built=torch.backends.mps.is_built(),
        mps_available=torch.backends.mps.is_available(),
        cuda_built=torch.version.cuda is not None,
        cuda_available=torch.cuda.is_available(),
        gpu_problem=_gpu_problem(),
    )


def _gpu_problem() -> str:
    import torch

    try:
        return str(dict(torch.ops.torch_foundry._metal_info())["problem"])
    except (AttributeError, RuntimeError):  # no executor, or no device: there are sentences for both
        return ""


def version_pair(version: str) -> tuple[int, int]:
    """Major and minor number of "2.13.0+cpu"; zeros for what is not a number."""
    major, minor, *_ = [*version.split("."), "0", "0"]
    digits = ["".join(c for c in part if c.isdigit()) for part in (major, minor)]
    return int(digits[0] or 0), int(digits[1] or 0)


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


# ---------------------------------------------------------------------------------------------------------------- torch


def torch_problem(version: str, built_with: str | None) -> str | None:
    """Why the extension can't run on torch `version`; None if it can. `built_with`: version of torch it was built for.

    torch's C++ interface changes with each minor version, so an extension fits the one that it was built for.
    """
    if version_pair(version) < OLDEST_TORCH:
        wanted = f"torch>={_text(OLDEST_TORCH)}"
        return (
            f"torch_foundry needs torch {_text(OLDEST_TORCH)} or later and this is torch {version}: "
            f"pip install --upgrade '{wanted}', then {REBUILD}"
        )
    if built_with is not None and version_pair(built_with) != version_pair(version):
        return f"torch_foundry was built for torch {built_with} and torch {version} is installed: {REBUILD}"
    return None


def torch_warning(version: str) -> str | None:
    """What to say about a torch that is newer than any that was tested; None if it isn't."""
    if version_pair(version) <= NEWEST_TORCH:
        return None
    return (
        f"torch_foundry was tested with torch {_text(OLDEST_TORCH)} to {_text(NEWEST_TORCH)} and this is torch "
        f"{version}: `torch-foundry doctor` says whether its results are right"
    )


def installed_torch() -> str | None:
    """The folder that has this Python's torch, if it is new enough; in pip's isolated build too, which hides it."""
    place = sysconfig.get_path("platlib")
    version = Path(place, "torch", "version.py")
    found = version.is_file() and re.search(r"__version__ = ['\"]([^'\"]+)", version.read_text())
    return place if found and version_pair(found[1]) >= OLDEST_TORCH else None


def use_installed_torch() -> None:
    """For setup.py: build with the torch that is installed, if it is new enough. Under another one, such as an isolated
    build may have, the extension would not load.
    """
    place = installed_torch()
    if place is not None and place not in sys.path:
        sys.path.insert(0, place)


def module_command(module: str, first: Path) -> list[str]:
    """The command that runs `module` in a process which imports from `first`, then from where this process does.

    The environment can't say so: in pip's isolated build every Python that starts drops the installed packages.
    """
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", f"import runpy, sys; sys.path[:] = {[str(first), *sys.path]!r}; {run}"]


def load_problem(status: int, compiler: str) -> str | None:
    """Why an extension that `compiler` has built can't be used, by the exit status of a process that imported it."""
    if status == 0:
        return None
    if status > 0:
        return f"the extension that {compiler} built does not load: the error above says why"
    return (
        f"the extension that {compiler} built crashes when it is loaded (signal {-status}), as one does that has a "
        "libstdc++ of its own beside torch's: choose a compiler that links it dynamically, with CC and CXX"
    )


def record_torch(built: Path, version: str) -> None:
    """Note, at build time, which torch the extension beside `built` is for."""
    (built / _RECORD).write_text(version)


def recorded_torch(built: Path) -> str | None:
    """What `record_torch` noted; None if nothing."""
    path = built / _RECORD
    return path.read_text().strip() if path.is_file() else None


def load_library(library: Path, built: Path) -> None:
    """torch.ops.load_library, with an ImportError in one sentence where the dynamic linker would name a symbol."""
    import torch

    if problem := torch_problem(torch.__version__, recorded_torch(built)):
        raise ImportError(problem)
    try:
        torch.ops.load_library(library)
    except OSError as error:
        raise ImportError(f"torch_foundry's extension does not load: {REBUILD} ({error})") from error
    if warning := torch_warning(torch.__version__):
        warnings.warn(warning, stacklevel=2)


# -------------------------------------------------------------------------------------------------------------- devices


def device_problem(kind: str, has_executor: bool, known: Facts | None = None) -> str | None:
    """Why kernels can't run on tensors of device type `kind`; None if they can.

    has_executor: whether this build has an executor for it. known: facts to judge by; default: those of this process.
    """
    if kind == "meta":
        return "tensors on the meta device hold no data: load the weights onto a real device first"
    if kind == "mps":
        return _mps_problem(has_executor, known or facts())
    if kind == "cuda":
        return _cuda_problem(has_executor, known or facts())
    if has_executor:
        return None
    if kind == "cpu":
        return f"this build of torch_foundry has no executor for the CPU: {REBUILD}"
    return f"torch_foundry runs on cpu, mps and cuda tensors, not on {kind}"


def _mps_problem(has_executor: bool, known: Facts) -> str | None:
    instead = 'the kernels run on the CPU here, with device "cpu"'
    if known.system == "Darwin":
        if known.rosetta:
            return "this Python is an x86_64 program under Rosetta, which has no MPS device: install Python for arm64"
        if known.machine == "x86_64":
            return f"an Intel Mac has no MPS device that torch_foundry can use (it needs an M1 or later): {instead}"
        if known.macos is not None and known.macos < OLDEST_MACOS:
            return (
                f"torch_foundry's Metal kernels need macOS {OLDEST_MACOS[0]} or later and this is macOS "
                f"{_text(known.macos)}: update macOS; until then {instead}"
            )
    if has_executor:
        if known.system != "Darwin" or known.mps_available:  # elsewhere mps is a mock of Metal
            return known.gpu_problem or None
        return (
            "torch sees no MPS device (torch.backends.mps.is_available() is False), as in a virtual machine or a "
            f"sandbox without a GPU: {instead}"
        )
    if known.system != "Darwin":
        return f"there is no MPS device: Metal needs macOS and this is {known.system}; {instead}"
    if not known.mps_built:
        return f"this torch was built without MPS: install torch's macOS arm64 wheel, then {REBUILD}"
    return f"this build of torch_foundry has no Metal executor: {REBUILD}"


def _cuda_problem(has_executor: bool, known: Facts) -> str | None:
    if not known.cuda_built:
        return f"this torch was built without CUDA: install one with CUDA, then {REBUILD}"
    if not known.cuda_available:
        return "torch sees no NVIDIA GPU (torch.cuda.is_available() is False)"
    if has_executor:
        return None
    return f"this build of torch_foundry has no CUDA executor: {REBUILD}"


def require_device(device: Any, has_executor: bool) -> None:
    """Raise RuntimeError with `device_problem`'s sentence if kernels can't run on `device`."""
    if problem := device_problem(str(device).split(":")[0], has_executor):
        raise RuntimeError(problem)
