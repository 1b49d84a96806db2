"""Which platforms and torch versions this package supports, and one sentence for each case that it doesn't.

The sentences depend on plain facts only, so each can be tested on any machine. Imports no torch: setup.py uses it.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import sysconfig
import warnings
from pathlib import Path

OLDEST_TORCH = (2, 11)
NEWEST_TORCH = (2, 15)  # that was tested; a newer one works if the extension builds with it, and says so once
REBUILD = "build it again in its source directory: pip install --no-build-isolation --no-deps --force-reinstall ."
_RECORD = "torch.txt"


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
