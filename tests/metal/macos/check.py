"""Compiles the extension for arm64 macOS 14 and links it against torch's own macOS wheels, on Linux and without an SDK.

    python tests/metal/macos/check.py [2.11 ...]     torch's minor versions; default: all that are supported

Headers of the system come from PyPI (ziglang), those of Foundation and Metal are the stubs beside this file and in
../include, C++'s are libc++'s; flags are setup.py's and stricter ones. Fails on any warning of our own files, a
selector that no stub declares, an API newer than macOS 14 without @available, a symbol of torch that the wheel does
not export, and a name in the stub of Metal that PyObjC does not know. Then the host executor for macOS: host.py.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import host  # noqa: E402
import llvm  # noqa: E402
import stub_names  # noqa: E402
import wheels  # noqa: E402
from llvm import messages_of, tool  # noqa: E402
from wheels import Failure  # noqa: E402

ROOT = HERE.parents[2]
# A function, or a table of a class, in a namespace of ours or of torch's, as the linker knows it.
OURS = re.compile(r"__Z(?:T[VTIS]|GV|Th\w+?_)?N?[VKrRO]*(?:2at|3c10|5torch|6caffe2|7foundry)")
SOURCES = (
    *("core/*.cpp", "ops/*.cpp", "loaders/*.cpp", "metal/*.cpp", "metal/*.mm"),
    *("host/executor.cpp", "host/guarded.cpp", "host/toolchain.cpp"),
)
STRICTER = "-Wall -Wextra -Werror -Werror=undeclared-selector -Wno-unused-parameter -Wno-missing-field-initializers"
# What nearly every file includes, compiled once. It hides a missing include, of which Linux's compiler tells in all but
# csrc/metal: that goes without for the first torch.
PREFIX = "#include <ATen/ATen.h>\n#include <torch/library.h>\n"


def setup_flags() -> list[str]:
    """The compiler flags of setup.py on a Mac."""
    found: list[str] = []
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text())):
        named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if named and node.targets[0].id in ("CXX_FLAGS", "METAL_FLAGS"):
            found += ast.literal_eval(node.value)
    if "-fno-objc-arc" not in found or "-std=c++20" not in found:
        raise Failure(f"setup.py's flags for a Mac are not where they were; found {found}")
    return found


def compiler(language: str, torch_root: Path, csrc: Path) -> list[str]:
    """The command without its file."""
    includes = [HERE.parent / "include", torch_root / "include", torch_root / "include/torch/csrc/api/include"]
    flags = [f"-isystem{path}" for path in includes]
    # headers of a newer system than this clang knows leave these two to it
    flags += ["-DINFINITY=__builtin_inff()", '-DNAN=__builtin_nanf("")', f"-I{csrc}", f"-I{ROOT / 'shaders'}"]
    # as torch's build helper has it
    flags += ["-DTORCH_EXTENSION_NAME=_C", "-DTORCH_API_INCLUDE_EXTENSION_H", "-DPy_LIMITED_API=0x030A0000"]
    return [*llvm.compiler(HERE), "-x", language, *setup_flags(), "-O1", *STRICTER.split(), *flags]


def precompiled(torch_root: Path, csrc: Path, place: Path) -> list[str]:
    """Options that bring the precompiled prefix in, with the templates that torch's headers instantiate."""
    source, target = place / "prefix.h", place / "prefix.pch"
    source.write_text(PREFIX)
    command = [*compiler("objective-c++-header", torch_root, csrc)]
    command += ["-fpch-instantiate-templates"]  # half of each file's time
    if message := messages_of([*command, str(source), "-o", str(target)]):
        raise Failure(message)
    return ["-include-pch", str(target)]


def link(objects: Sequence[Path], bundle: Path, torch_root: Path) -> None:
    """A loadable bundle; what is left to look up at load time must not be ours or torch's."""
    libraries = [f"-L{torch_root / 'lib'}", "-lc10", "-ltorch", "-ltorch_cpu"]
    command = [tool("ld64.lld"), "-arch", "arm64", "-platform_version", "macos", "14.0", "14.2", "-bundle"]
    command += ["-undefined", "dynamic_lookup", *map(str, objects), *libraries, "-o", str(bundle)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise Failure(f"linking failed: {result.stderr[-2000:]}")
    if missing := [name for name in llvm.looked_up(bundle) if OURS.match(name)]:
        raise Failure(f"not in this torch:\n{llvm.demangled(missing)}")


def check(
    minor: str, csrc: Path = ROOT / "csrc", place: Path | None = None, jobs: int | None = None, *, alone: bool = True
) -> int:
    """Compile and link against one torch; number of files. alone: csrc/metal without the prefix. Raises Failure."""
    torch_root = wheels.torch(minor)
    place = place or wheels.CACHE / f"objects-{minor}"
    place.mkdir(parents=True, exist_ok=True)
    files = sorted(path for pattern in SOURCES for path in csrc.glob(pattern))
    objects = [place / f"{path.parent.name}_{path.name}.o" for path in files]
    command = compiler("objective-c++", torch_root, csrc)
    bare = {path for path in files if alone and path.parent.name == "metal"}
    prefix = precompiled(torch_root, csrc, place) if bare != set(files) else []
    work = [
        [*command, *(() if source in bare else prefix), "-c", str(source), "-o", str(target)]
        for source, target in zip(files, objects, strict=True)
    ]
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        messages = [message for message in pool.map(messages_of, work) if message]
    if messages:
        raise Failure("\n".join(messages))
    link(objects, place / "_C.so", torch_root)
    return len(files)


def check_names(header: Path = HERE.parent / "include" / "Metal" / "Metal.h") -> str:
    """Holds the stub of Metal against PyObjC's names. Raises Failure."""
    command = compiler("objective-c++", ROOT, ROOT / "csrc")  # nothing of torch is included
    tree = stub_names.syntax_tree([*command, str(header)])
    problems, compared, unknown = stub_names.compare(tree, wheels.pyobjc())
    if problems:
        raise Failure("\n".join(problems))
    return f"{compared} selectors as in PyObjC's Metal; of {unknown} it says nothing"


def report(what: str, work: Callable[[], str]) -> bool:
    """Prints what came of `work`; whether it went well."""
    began = time.monotonic()
    try:
        print(f"{what}: {work()} ({time.monotonic() - began:.0f} s)", flush=True)
    except Failure as failure:
        print(f"{what}: FAILED\n{failure}", flush=True)
        return False
    return True


def main() -> int:
    """Exit code 0: all compile and link, 1: something does not, 3: can't run here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=list(wheels.TORCH), metavar="VERSION")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--csrc", type=Path, default=ROOT / "csrc", help="sources of the extension")
    options = parser.parse_args()
    if reason := llvm.unavailable():
        print(reason, file=sys.stderr)
        return 3

    jobs = options.jobs or os.cpu_count() or 1
    together = min(jobs, len(options.versions))  # each has a prefix to wait for

    def compiled(minor: str) -> str:
        alone = minor == options.versions[0]
        count = check(minor, options.csrc.resolve(), jobs=-(-jobs // together), alone=alone)
        objective = len(list(options.csrc.glob("metal/*.mm")))
        return f"{count} files ({objective} of Objective-C++) compile and link for {llvm.TARGET}"

    def host_executor() -> str:
        return f"runtime and {host.check(wheels.CACHE / 'host', jobs=options.jobs)} kernels compile and link"

    with ThreadPoolExecutor(together) as pool:
        good = list(pool.map(lambda minor: report(f"torch {minor}", lambda: compiled(minor)), options.versions))
    good += [report("names", check_names), report("host executor", host_executor)]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
