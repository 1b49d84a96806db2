"""What doctor reports about the machine. Nothing here is private, and nothing needs the extension."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from torch_foundry import __version__
from torch_foundry.core import environment, support

GIB = 2**30
# Bandwidth of Apple's chips in GB/s, as Apple states it; where cores differ, the smaller one. For advice only.
APPLE_GB_S = {
    "M1": 68, "M1 Pro": 205, "M1 Max": 410, "M1 Ultra": 819, "M2": 102, "M2 Pro": 205, "M2 Max": 410, "M2 Ultra": 819,
    "M3": 102, "M3 Pro": 154, "M3 Max": 307, "M3 Ultra": 819, "M4": 120, "M4 Pro": 273, "M4 Max": 410, "M5": 153,
}  # fmt: skip
_PATHS = (
    environment.CACHE.name,
    environment.CXX.name,
)  # variables whose values are places: only whether they are set is told


def machine() -> dict[str, Any]:
    """The computer, its system and the versions of what matters here."""
    import torch

    mac = platform.system() == "Darwin"
    return {
        "system": f"macOS {platform.mac_ver()[0]}"
        if mac
        else f"{platform.system()} {platform.release().split('-')[0]}",
        "machine": platform.machine(),
        "model": support.sysctl("hw.model") if mac else None,
        "chip": support.sysctl("machdep.cpu.brand_string") if mac else _linux_cpu(),
        "cpu_cores": os.cpu_count(),
        "memory_gib": round(_memory() / GIB, 1),
        "rosetta": support.sysctl("sysctl.proc_translated") == "1" if mac else None,
        "virtual": support.sysctl("kern.hv_vmm_present") == "1" if mac else None,
        "low_power": _low_power() if mac else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "torch_foundry": __version__,
        "environment": _environment(),
    }


def directory_size(path: Path) -> int:
    """Bytes of all files below `path`."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else 0


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _environment() -> dict[str, str]:
    """Variables that change what runs."""
    names = sorted(n for n in os.environ if n.startswith(("TORCH_FOUNDRY_", "PYTORCH_MPS_", "MTL_")) or n == "CXX")
    return {n: "set" if n in _PATHS or "/" in os.environ[n] else os.environ[n] for n in names}


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _low_power() -> bool | None:
    """Whether macOS saves energy; None if it doesn't say."""
    for line in _output("pmset", "-g").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] in ("lowpowermode", "powermode"):
            return words[1] == "1"
    return None


def _linux_cpu() -> str | None:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), None)


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
