"""Translated shaders and the host toolchain's files: made at build time, or from the checkout when kernels are edited.

Imports no torch, so that setup.py can use it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_foundry.core import environment


def digest(*parts: bytes) -> str:
    """Hex SHA-256 over `parts`: identity of content."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(len(part).to_bytes(8, "little") + part)
    return sha.hexdigest()


def tree_digest(*roots: Path) -> str:
    """Digest of all files under `roots`: names and contents."""
    parts = []
    for root in roots:
        for path in sorted(root.rglob("*") if root.is_dir() else [root]):
            if path.is_file() and "__pycache__" not in path.parts:
                parts += [str(path.relative_to(root)).encode(), path.read_bytes()]
    return digest(*parts)


def shader_files(shaders: Path) -> list[Path]:
    """The `.metal` files in all folders below `shaders`, by name. ValueError if two have the same name."""
    files = sorted(shaders.rglob("*.metal"), key=lambda path: (path.name, path))
    for first, second in itertools.pairwise(files):
        if first.name == second.name:
            raise ValueError(f"{first} and {second}: kernels are known by the names of their files")
    return files


def translate_cached(shader: Path, shaders: Path, cache: Path) -> tuple[str, str]:
    """A `.metal` file with its includes in place, and as C++ text; made again only if a file of its closure changed.

    `shaders`: the folder that its includes are looked for in.
    """
    import torch_foundry.msl as msl

    front_end = tree_digest(Path(msl.__file__).parent)
    manifest = cache / f"{shader.stem}.{digest(str(shader.resolve()).encode())[:16]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # else it is written anew
        entry = json.loads(manifest.read_text())
        closure, texts = entry["files"], (entry["msl"], entry["source"])
        unchanged = all(Path(f).is_file() and digest(Path(f).read_bytes()) == sha for f, sha in closure.items())
        whole = entry["sum"] == digest(*(text.encode() for text in texts))
        if entry["front_end"] == front_end and unchanged and whole:
            return texts
    translation = msl.translate(shader, include_dirs=[shaders])
    texts = translation.msl, translation.source
    entry = {
        "front_end": front_end,
        "files": {f: digest(Path(f).read_bytes()) for f in translation.files},
        "sum": digest(*(text.encode() for text in texts)),
        "msl": texts[0],
        "source": texts[1],
    }
    with contextlib.suppress(OSError):  # it can be translated again
        cache.mkdir(parents=True, exist_ok=True)
        temporary = manifest.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(entry))
        temporary.replace(manifest)
    return texts


@dataclass(frozen=True)
class HostTree:
    """Where the host executor's text lies: its half of the prelude, the runtime's sources and the compiler flags."""

    root: Path

    def include_dirs(self) -> list[Path]:
        """Where a kernel's includes are looked for: the host's half of the prelude, the shared half, the runtime."""
        return [self.root / "prelude", self.root.parent / "prelude", self.root]

    def runtime_sources(self) -> list[str]:
        """Files of the fiber runtime, compiled as one."""
        return (self.root / "runtime.sources").read_text().split()

    def text_digest(self) -> str:
        """Digest of all that a kernel or the runtime is compiled with."""
        *preludes, root = self.include_dirs()
        return tree_digest(*preludes, *sorted(root.glob("*.h")), *sorted(root.glob("*.cpp")))

    def flags(self, kind: str, system: str = platform.system(), machine: str = platform.machine()) -> list[str]:
        """Compiler flags of one kind: the lines `kind:`, `kind-<system>:` and `kind-<machine>:` of flags.txt."""
        lines = dict(line.split(":", 1) for line in (self.root / "flags.txt").read_text().splitlines() if ":" in line)
        if kind not in lines:
            raise ValueError(f"{self.root / 'flags.txt'}: no line for {kind!r}")
        of_machine = lines.get(f"{kind}-{machine}", "") if _has_avx2() else ""
        return f"{lines[kind]} {lines.get(f'{kind}-{system}', '')} {of_machine}".split()


def _has_avx2() -> bool:
    """Whether this machine has what -march=x86-64-v3 needs; True on other architectures."""
    cpuinfo = Path("/proc/cpuinfo")
    return platform.machine() != "x86_64" or not cpuinfo.exists() or " avx2 " in cpuinfo.read_text()


def given_compiler() -> list[str]:
    """The words of $CXX as a shell has them, such as "ccache g++"; none if it is not set."""
    try:
        return shlex.split(environment.CXX.given())
    except ValueError as error:
        raise environment.CXX.error(f"the command of a C++ compiler ({error})") from None


def compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, else the first of c++, g++ and clang++ that exists (else `c++`)."""
    return given_compiler() or [next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), "c++")]


def compiler_identity(command: Sequence[str]) -> str:
    """First line of `command --version`, with the machine, as csrc/host/toolchain.cpp has it in every kernel's key.

    Empty without a compiler.
    """
    try:
        result = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{result.stdout.splitlines()[0]} {platform.machine()}"


def build_tree(root: Path, built: Path) -> None:
    """Fill `built` from a checkout: translated shaders, their source, the host tree and the compiler's identity."""
    preludes = sorted((root / "csrc").glob("*/prelude"))
    for name in ("prelude", "shaders", "translated", *(prelude.parent.name for prelude in preludes)):
        shutil.rmtree(built / name, ignore_errors=True)
    shutil.copytree(root / "shaders", built / "shaders")
    ignored = shutil.ignore_patterns("executor.cpp", "pipeline.h", "toolchain.*")
    for name in ("host", "prelude"):
        shutil.copytree(root / "csrc" / name, built / name, ignore=ignored)
    for prelude in preludes:
        shutil.copytree(prelude, built / prelude.parent.name / "prelude", dirs_exist_ok=True)
    cache = Path(environment.CACHE.given() or root / "build") / "translated"
    (built / "translated").mkdir(parents=True)
    for shader in shader_files(root / "shaders"):
        msl, cpp = translate_cached(shader, root / "shaders", cache)
        (built / "translated" / shader.name).write_text(msl)
        (built / "translated" / f"{shader.name}.cpp").write_text(cpp)
    command = compiler()
    identity = {"compiler": command, "identity": compiler_identity(command)}
    (built / "toolchain.json").write_text(json.dumps(identity))
