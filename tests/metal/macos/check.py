"""Compiles the extension for arm64 macOS 14 and links it against torch's own macOS wheels, on Linux and without an SDK.

    python tests/metal/macos/check.py [VERSION ...]     torch versions; default: all that are supported

Headers of the system come from PyPI (ziglang), those of Foundation and Metal are the stubs beside this file and in
../include, C++'s are libc++'s. Fails on any warning of our own files, a selector that no stub declares, an API newer
than macOS 14 without @available, and a symbol of torch that the wheel does not export.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CACHE = ROOT / "build" / "macos"
VERSIONS = ("2.11.0", "2.12.1", "2.13.0", "2.14.0", "2.15.0")  # one of each minor version that is supported
TARGET = "arm64-apple-macosx14.0"
PACKAGES = "clang-19 lld-19 llvm-19 libc++-19-dev"
OURS = re.compile(r"\b(?:at|c10|torch|foundry)::")
SOURCES = ("core/*.cpp", "ops/*.cpp", "host/executor.cpp", "host/toolchain.cpp", "metal/*.cpp", "metal/*.mm")
WARNINGS = "-Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers -Wno-sign-compare"
ERRORS = "-Werror=objc-method-access -Werror=unguarded-availability-new -Wno-unknown-pragmas"


class Failure(Exception):
    """What is wrong, in words for a terminal."""


def tool(name: str) -> str:
    """A program of LLVM, the newest that is installed."""
    names = [name, *(f"{name}-{version}" for version in range(17, 31))]
    found = next((n for n in reversed(names) if shutil.which(n)), None)
    if found is None:
        raise Failure(f"{name} is missing (Debian: apt-get install {PACKAGES})")
    return found


def unavailable() -> str | None:
    """Why the check can't run here; None if it can (it may still have to download)."""
    try:
        tool("clang++"), tool("ld64.lld"), tool("llvm-nm")
        libcxx()
    except Failure as failure:
        return str(failure)
    return None


def libcxx() -> Path:
    """libc++'s headers."""
    found = sorted(Path("/usr/lib").glob("llvm-*/include/c++/v1"))
    if not found:
        raise Failure(f"libc++'s headers are missing (Debian: apt-get install {PACKAGES})")
    return found[-1]


def wheel(requirement: str, platforms: Sequence[str]) -> Path:
    """The wheel of one package, downloaded by pip once."""
    name = requirement.replace("==", "-")
    if not (found := sorted(CACHE.glob(f"{name}-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(CACHE)]
        command += [part for platform in platforms for part in ("--platform", platform)]
        command += ["--python-version", "3.12"] if platforms else []
        result = subprocess.run([*command, requirement], capture_output=True, text=True)
        if result.returncode:
            raise Failure(f"{requirement} can't be downloaded: {result.stderr.strip()[-300:]}")
        found = sorted(CACHE.glob(f"{name}-*.whl"))
    return found[-1]


def unpacked(archive: Path, wanted: Sequence[str]) -> Path:
    """The parts of a wheel whose names begin like one of `wanted`, unpacked once."""
    place = CACHE / archive.stem
    if not (place / "done").exists():
        with zipfile.ZipFile(archive) as z:
            z.extractall(place, [n for n in z.namelist() if n.startswith(tuple(wanted))])
        (place / "done").touch()
    return place


def system() -> Path:
    """Headers of macOS's C library."""
    wanted = "ziglang/lib/libc/include/any-darwin-any/"
    return unpacked(wheel("ziglang", ()), (wanted,)) / wanted


def torch(version: str) -> Path:
    """torch's headers and libraries for macOS."""
    libraries = [f"torch/lib/lib{name}.dylib" for name in ("torch", "torch_cpu", "c10")]
    platforms = ("macosx_14_0_arm64", "macosx_11_0_arm64")
    return unpacked(wheel(f"torch=={version}", platforms), ["torch/include/", *libraries]) / "torch"


def sources(csrc: Path) -> list[Path]:
    """What setup.py compiles on a Mac."""
    return sorted(path for pattern in SOURCES for path in csrc.glob(pattern))


def compile_one(source: Path, target: Path, torch_root: Path, csrc: Path) -> str:
    """The compiler's messages; empty if there are none."""
    clang = tool("clang++")
    asked = subprocess.run([clang, "-print-resource-dir"], capture_output=True, text=True, check=True)
    language = ["-x", "objective-c++", "-fno-objc-arc"] if source.suffix == ".mm" else ["-x", "c++"]
    includes = [libcxx(), Path(asked.stdout.strip()) / "include", HERE, system(), HERE.parent / "include"]
    includes += [torch_root / "include", torch_root / "include/torch/csrc/api/include"]
    flags = ["-target", TARGET, "-std=c++20", "-O1", "-fvisibility=hidden", "-fblocks", "-nostdinc", "-nostdinc++"]
    flags += [f"-isystem{path}" for path in includes]
    # headers of a newer system than this clang knows leave these two to it
    flags += ["-DINFINITY=__builtin_inff()", '-DNAN=__builtin_nanf("")', f"-I{csrc}", f"-I{ROOT / 'shaders'}"]
    command = [clang, *language, *flags, *WARNINGS.split(), *ERRORS.split(), "-c", str(source), "-o", str(target)]
    return subprocess.run(command, capture_output=True, text=True).stderr


def link(objects: Sequence[Path], bundle: Path, torch_root: Path) -> None:
    """A loadable bundle; what is left to look up at load time must not be ours or torch's."""
    libraries = [f"-L{torch_root / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu"]
    command = [tool("ld64.lld"), "-arch", "arm64", "-platform_version", "macos", "14.0", "14.2", "-bundle"]
    command += ["-undefined", "dynamic_lookup", *map(str, objects), *libraries, "-o", str(bundle)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise Failure(f"linking failed: {result.stderr[-2000:]}")
    nm = subprocess.run([tool("llvm-nm"), "-m", "-u", str(bundle)], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-4] if "dynamically" in line else "" for line in nm.splitlines()]
    looked_up = [name for name in names if name]
    shown = subprocess.run([tool("llvm-cxxfilt"), "-_", *looked_up], capture_output=True, text=True, check=True).stdout
    # templates of the standard library with our types are made here and found at home
    missing = [n for n in shown.splitlines() if OURS.search(n.split("(")[0]) and not n.startswith("std::")]
    if missing:
        raise Failure("not in this torch:\n  " + "\n  ".join(missing))


def check(version: str, csrc: Path = ROOT / "csrc", jobs: int | None = None) -> int:
    """Compile and link against one torch; number of files. Raises Failure."""
    torch_root, place = torch(version), CACHE / f"objects-{version}"
    place.mkdir(exist_ok=True)
    system()  # before the threads
    files = sources(csrc)
    objects = [place / f"{path.parent.name}_{path.name}.o" for path in files]
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        messages = list(pool.map(lambda pair: compile_one(*pair, torch_root, csrc), zip(files, objects, strict=True)))
    if any(messages):
        raise Failure("\n".join(message for message in messages if message))
    link(objects, place / "_C.so", torch_root)
    return len(files)


def main() -> int:
    """Exit code 0: all compile and link, 1: something does not, 3: can't run here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--jobs", type=int)
    options = parser.parse_args()
    if reason := unavailable():
        print(reason, file=sys.stderr)
        return 3
    CACHE.mkdir(parents=True, exist_ok=True)
    failed = False
    for version in options.versions:
        try:
            files = check(version, jobs=options.jobs)
            print(f"torch {version}: {files} files compile and link for {TARGET}", flush=True)
        except Failure as failure:
            failed = True
            print(f"torch {version}: FAILED\n{failure}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
