"""Wheels that the check for macOS needs, of which only headers, libraries and lists of names are used. None is run."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

CACHE = Path(__file__).parents[3] / "build" / "macos"
# The newest patch of each minor version that is supported.
TORCH = {"2.11": "2.11.0", "2.12": "2.12.1", "2.13": "2.13.0", "2.14": "2.14.1", "2.15": "2.15.0"}
ZIG = "0.17.0"
PYOBJC = "12.2.2"
MAC = ("macosx_14_0_arm64", "macosx_11_0_arm64", "macosx_10_13_universal2")


class Failure(Exception):
    """What is wrong, in words for a terminal."""


def _downloaded(name: str, version: str, platforms: Sequence[str]) -> Path:
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(CACHE.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "-d", str(CACHE), f"{name}=={version}"]
        command += [part for platform in platforms for part in ("--platform", platform)]
        command += ["--python-version", "3.12"] if platforms else []
        # pip may be told which versions this machine installs: nothing is installed here
        environment = {**os.environ, "PIP_CONSTRAINT": os.devnull}
        result = subprocess.run(command, capture_output=True, text=True, env=environment)
        if result.returncode:
            raise Failure(f"{name} {version} can't be downloaded: {result.stderr.strip()[-300:]}")
    return sorted(CACHE.glob(pattern))[-1]


def _unpacked(name: str, version: str, platforms: Sequence[str], wanted: Sequence[str]) -> Path:
    """The parts of a wheel whose names begin like one of `wanted`, downloaded and unpacked once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    place = CACHE / f"{name}-{version}"
    with open(CACHE / "lock", "w") as lock:  # tests and make may both come first
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = place / "done"
        if not done.exists() or done.read_text() != "\n".join(wanted):
            archive = _downloaded(name, version, platforms)
            with zipfile.ZipFile(archive) as z:
                z.extractall(place, [n for n in z.namelist() if n.startswith(tuple(wanted))])
            done.write_text("\n".join(wanted))
            archive.unlink()
    return place


def _libc() -> Path:
    folder = "ziglang/lib/libc"
    return _unpacked("ziglang", ZIG, (), [f"{folder}/include/any-darwin-any/", f"{folder}/darwin/"]) / folder


def system() -> Path:
    """Headers of macOS's C library."""
    return _libc() / "include" / "any-darwin-any"


def symbols() -> str:
    """What macOS's C library exports, as the text of a libSystem.tbd."""
    text = (_libc() / "darwin" / "libSystem.tbd").read_text()
    # it has no arm64, and an architecture that no released linker knows
    return text.replace("arm64e.x1-", "arm64-")


def torch(minor: str) -> Path:
    """torch's headers and libraries for macOS on arm64."""
    if minor not in TORCH:
        raise Failure(f"torch {minor}: expected one of {', '.join(TORCH)}")
    libraries = [f"torch/lib/lib{name}.dylib" for name in ("torch", "torch_cpu", "c10")]
    return _unpacked("torch", TORCH[minor], MAC, ["torch/include/", *libraries]) / "torch"


def pyobjc() -> str:
    """PyObjC's table of Metal's methods and constants."""
    place = _unpacked("pyobjc-framework-metal", PYOBJC, MAC, ["Metal/_metadata.py"])
    return (place / "Metal" / "_metadata.py").read_text()


def system_there() -> bool:
    """Whether macOS's C library has been downloaded."""
    return (CACHE / f"ziglang-{ZIG}" / "done").exists()


def there(minor: str) -> bool:
    """Whether all that a check against this torch needs has been downloaded."""
    names = [f"torch-{TORCH[minor]}", f"pyobjc-framework-metal-{PYOBJC}"]
    return system_there() and all((CACHE / name / "done").exists() for name in names)
