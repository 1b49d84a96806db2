"""Builds `agx_stats` (mesa/clc/agx_stats.c) within Mesa, from Debian's source package: minutes, once."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from torch_foundry.core.sources import tree_digest

VERSION, RELEASE = "25.0.7", "trixie"  # of Mesa, and the Debian that has it
SHA256 = "592272df3cf01e85e7db300c449df5061092574d099da275d19e97ef0510f8a6"
HERE = Path(__file__).parent
NEEDED = ("gcc", "g++", "ninja", "bison", "flex", "pkg-config", "clang-15", "opt-15", "llvm-spirv-15")
OPTIONS = (
    "-Dbuildtype=release -Db_ndebug=false -Dplatforms= -Dgallium-drivers= -Dvulkan-drivers= -Dtools=asahi"
    " -Dopengl=false -Dglx=disabled -Degl=disabled -Dgbm=disabled -Dgles1=disabled -Dgles2=disabled -Dllvm=disabled"
    " -Dmesa-clc=system -Dbuild-tests=false -Dvideo-codecs= -Dxmlconfig=disabled"
    " -Dzstd=disabled -Dshader-cache=disabled"
)


class Unavailable(Exception):
    """The compiler can't be had here; the text says why."""


def build(place: Path) -> Path:
    """The program, built in `place` if it isn't there. Raises Unavailable."""
    program, stamp = place / "build/src/asahi/clc/agx_stats", place / "built"
    wanted = f"{VERSION} {tree_digest(HERE / 'mesa')}"
    if program.exists() and stamp.exists() and stamp.read_text() == wanted:
        return program
    if missing := [name for name in NEEDED if not shutil.which(name)]:
        raise Unavailable(f"missing programs: {', '.join(missing)}")
    place.mkdir(parents=True, exist_ok=True)
    tarball, tree, venv = place / f"mesa_{VERSION}.orig.tar.xz", place / f"mesa-{VERSION}", place / "venv"
    print(f"building Mesa's compiler in {place} (minutes; build.log has the details)", flush=True)
    with (place / "build.log").open("w") as log:
        if not tarball.exists():
            _fetch(place, log)
        if hashlib.sha256(tarball.read_bytes()).hexdigest() != SHA256:
            raise Unavailable(f"{tarball} is not the file that was pinned")
        if not tree.exists():
            _run(["tar", "xf", str(tarball)], place, log)
        # As new files: with the time of an edit, ninja takes one that is older than the last build for built.
        shutil.copytree(HERE / "mesa", tree / "src/asahi", dirs_exist_ok=True, copy_function=shutil.copyfile)
        if not (venv / "bin/meson").exists():
            _run([sys.executable, "-m", "venv", str(venv)], place, log)
            _run([str(venv / "bin/pip"), "install", "-q", "-r", str(HERE / "requirements.txt")], place, log)
        if not (place / "build/build.ninja").exists():
            native = str(HERE / "mesa/native.ini")
            _run(["meson", "setup", "build", tree.name, "--native-file", native, *OPTIONS.split()], place, log)
        _run(["ninja", "-C", "build", "src/asahi/clc/agx_stats"], place, log)
    stamp.write_text(wanted)
    return program


def _fetch(place: Path, log: object) -> None:
    """The source package, through apt, with lists of its own: the system's stay as they are."""
    mirror = next(
        (found for path in _lists() if (found := re.search(r"^(?:deb|URIs:)\s.*?(http\S+)", path.read_text(), re.M))),
        None,
    )
    if mirror is None or not shutil.which("apt-get"):
        raise Unavailable("no sources of a Debian system are configured here")
    apt = place / "apt"
    (apt / "lists/partial").mkdir(parents=True, exist_ok=True)
    (apt / "sources.list").write_text(f"deb-src {mirror[1]} {RELEASE} main\n")
    settings = {
        "Etc::sourcelist": apt / "sources.list",
        "Etc::sourceparts": apt / "parts",
        "State::lists": apt / "lists",
    }
    (apt / "apt.conf").write_text("".join(f'Dir::{name} "{value}";\n' for name, value in settings.items()))
    for words in ("update -qq", "source -qq --download-only mesa"):
        _run(["apt-get", *words.split()], place, log, APT_CONFIG=str(apt / "apt.conf"))


def _lists() -> list[Path]:
    apt = Path("/etc/apt")
    return [path for path in (apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))) if path.is_file()]


def _run(command: list[str], place: Path, log: object, **environment: str) -> None:
    path = f"{place / 'venv/bin'}:{os.environ['PATH']}"
    settings = {**os.environ, "PATH": path, **environment}
    result = subprocess.run(command, cwd=place, env=settings, stdout=log, stderr=subprocess.STDOUT)  # type: ignore[call-overload]
    if result.returncode:
        raise Unavailable(f"`{' '.join(command[:3])}` failed; see {place / 'build.log'}")
