"""Builds the mock of Metal: csrc/metal and tests/metal/mock in one library, which stands in for a Mac's `_C`.

    python tests/metal/build.py            prints the library's path, or (exit code 3) why there can be none here
    python tests/metal/build.py --missing  only prints the packages that are missing for it

It is linked to torch_foundry/_C, so ops and host executor are the ones that every other test runs. Only what changed
is compiled. Use it as `TORCH_FOUNDRY_EXTENSION=<path> python ...`: then torch has a device "mps".
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "metal"
BUILD = ROOT / "build" / "metal_mock"
PACKAGES = "clang gobjc libgnustep-base-dev gnustep-base-runtime libblocksruntime-dev"

# GNUstep's Foundation with gcc's Objective-C runtime; blocks from libBlocksRuntime.
OBJC = (
    "-fobjc-runtime=gcc -fblocks -fobjc-exceptions -fconstant-string-class=NSConstantString -D_NATIVE_OBJC_EXCEPTIONS "
    "-DGNUSTEP -DGNUSTEP_BASE_LIBRARY=1 -Wno-protocol -Wno-objc-protocol-method-implementation "
    "-Wno-property-attribute-mismatch -Wno-nullability-completeness -Wno-objc-root-class -Wno-deprecated-declarations"
)


def clang() -> str | None:
    """The newest clang++ that is installed."""
    names = ["clang++", *(f"clang++-{version}" for version in range(14, 31))]
    return next((name for name in reversed(names) if shutil.which(name)), None)


def objc_headers() -> Path | None:
    """Directory of gcc's <objc/objc.h>."""
    found = sorted(Path("/usr/lib/gcc").glob("*/*/include/objc/objc.h"))
    return found[-1].parents[1] if found else None


def unavailable() -> str | None:
    """Why the mock can't be built here; None if it can."""
    if platform.system() != "Linux":
        return f"the mock of Metal runs on Linux, not on {platform.system()}"
    headers = [Path("/usr/include/GNUstep/Foundation/Foundation.h"), Path("/usr/include/Block.h")]
    if clang() and objc_headers() and all(header.exists() for header in headers):
        return None
    return f"the mock of Metal needs clang and GNUstep (Debian: apt-get install {PACKAGES})"


def _sources() -> list[Path]:
    folders = [ROOT / "csrc" / "metal", HERE / "mock"]
    return [path for folder in folders for path in sorted(folder.iterdir()) if path.suffix in (".mm", ".cpp")]


def _ninja_file(extension: Path) -> str:
    import torch

    torch_root = Path(torch.__file__).parent
    include = [HERE / "include", HERE / "mock", ROOT / "csrc", ROOT / "shaders"]
    system = [torch_root / "include", torch_root / "include/torch/csrc/api/include", Path("/usr/include/GNUstep")]
    flags = " ".join(
        [
            "-std=c++20 -O1 -g1 -fPIC -Wall -Wno-unknown-pragmas -Wno-unknown-warning-option",
            *(f"-I{path}" for path in include),
            *(f"-isystem {path}" for path in [*system, objc_headers()]),
            f"'-DMOCK_PYTHON=\"{sys.executable}\"' '-DMOCK_DIRECTORY=\"{HERE / 'mock'}\"'",
        ]
    )
    lines = [
        f"clang = {clang()}",
        f"flags = {flags}",
        f"objc = {OBJC}",
        "rule cpp",
        "  command = $clang -x c++ $flags -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in",
        "rule objcpp",
        "  command = $clang -x objective-c++ $flags $objc $pch -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in",
        "rule pch",
        "  command = $clang -x objective-c++-header $flags $objc -MMD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "  description = $in",
        "rule link",
        f"  command = $clang -shared $in -o $out {extension} -L{torch_root / 'lib'} -ltorch -ltorch_cpu -lc10 "
        # before GNUstep's own _Block_copy, which knows no C++ objects
        f"-lBlocksRuntime -lgnustep-base -L{objc_headers().parent if objc_headers() else ''} -lobjc -ldl "
        f"-Wl,--no-undefined -Wl,-rpath,{torch_root / 'lib'} -Wl,-rpath,{extension.parent}",
        "  description = $out",
        f"build prefix.pch: pch {HERE / 'mock' / 'prefix.h'}",
    ]
    objects = []
    for source in _sources():
        target = f"{source.parent.name}_{source.name}.o"
        objects.append(target)
        if source.suffix == ".mm":
            lines += [f"build {target}: objcpp {source} | prefix.pch", "  pch = -include-pch prefix.pch"]
        else:
            lines.append(f"build {target}: cpp {source}")
    lines.append(f"build libfoundry_mock.so: link {' '.join(objects)} | {extension}")
    return "\n".join([*lines, ""])


def _front_end() -> str:
    """Digest of the translator, by which the mock's compiler keeps translations apart."""
    sha = hashlib.sha256((HERE / "mock" / "translate.py").read_bytes())
    for path in sorted((ROOT / "torch_foundry" / "msl").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            sha.update(path.read_bytes())
    return sha.hexdigest()[:16]


def build() -> Path:
    """The library, up to date. RuntimeError has the compiler's messages."""
    extension = next(iter((ROOT / "torch_foundry").glob("_C*.so")), None)
    if extension is None:
        raise RuntimeError("torch_foundry is not built: run `make build`")
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rules, text = BUILD / "build.ninja", _ninja_file(extension)
        if not rules.exists() or rules.read_text() != text:
            rules.write_text(text)
        (BUILD / "front_end").write_text(_front_end())
        ninja = Path(sys.executable).parent / "ninja"
        jobs = os.environ.get("MAX_JOBS") or str(os.cpu_count() or 1)
        command = [str(ninja) if ninja.exists() else "ninja", "-C", str(BUILD), "-j", jobs, "-k", "0"]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"the mock of Metal does not build:\n{result.stdout[-6000:]}")
    return BUILD / "libfoundry_mock.so"


def main() -> int:
    reason = unavailable()
    if "--missing" in sys.argv:
        print(PACKAGES if reason and platform.system() == "Linux" else "")
        return 0
    if reason:
        print(reason, file=sys.stderr)
        return 3
    print(build())
    return 0


if __name__ == "__main__":
    sys.exit(main())
