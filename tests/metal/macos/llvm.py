"""The LLVM tools that compile and link for macOS on Linux, and what every such compilation is given."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import wheels
from wheels import Failure

TARGET = "arm64-apple-macosx14.0"
PACKAGES = "clang-19 lld-19 llvm-19 libc++-19-dev"


def tool(name: str) -> str:
    """A program of LLVM, the newest that is installed."""
    names = [name, *(f"{name}-{version}" for version in range(17, 31))]
    found = next((n for n in reversed(names) if shutil.which(n)), None)
    if found is None:
        raise Failure(f"{name} is missing (Debian: apt-get install {PACKAGES})")
    return found


def libcxx() -> Path:
    """libc++'s headers."""
    found = sorted(Path("/usr/lib").glob("llvm-*/include/c++/v1"))
    if not found:
        raise Failure(f"libc++'s headers are missing (Debian: apt-get install {PACKAGES})")
    return found[-1]


def unavailable() -> str | None:
    """Why the check can't run here; None if it can (it may still have to download)."""
    try:
        tool("clang++"), tool("ld64.lld"), tool("llvm-nm"), tool("llvm-cxxfilt"), libcxx()
    except Failure as failure:
        return str(failure)
    return None


@cache
def resources() -> Path:
    """clang's own headers."""
    asked = subprocess.run([tool("clang++"), "-print-resource-dir"], capture_output=True, text=True, check=True)
    return Path(asked.stdout.strip()) / "include"


def compiler(*includes: Path) -> list[str]:
    """clang++ for macOS, whose headers are libc++'s, its own, those of macOS's C library, and `includes`."""
    folders = [libcxx(), resources(), *includes, wheels.system()]
    return [tool("clang++"), "-target", TARGET, "-nostdinc", "-nostdinc++", *(f"-isystem{path}" for path in folders)]


def messages_of(command: Sequence[str], text: str = "") -> str:
    """The messages of a compiler that may read `text` from its standard input; empty if there are none."""
    result = subprocess.run(command, input=text, capture_output=True, text=True)
    return result.stderr or ("" if result.returncode == 0 else f"{command[0]} failed ({result.returncode})")


def looked_up(library: Path) -> list[str]:
    """Symbols that no library on the link line had: to be found when `library` is loaded."""
    nm = subprocess.run([tool("llvm-nm"), "-m", "-u", str(library)], capture_output=True, text=True, check=True).stdout
    return [line.split()[-4] for line in nm.splitlines() if "dynamically looked up" in line]


def exported(library: Path) -> set[str]:
    """Symbols that `library` has for others."""
    nm = subprocess.run([tool("llvm-nm"), "-j", "-g", "-U", str(library)], capture_output=True, text=True, check=True)
    return set(nm.stdout.split())


def demangled(names: Sequence[str]) -> str:
    """The names as C++ has them, one a line."""
    command = [tool("llvm-cxxfilt"), "-_", *names]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
