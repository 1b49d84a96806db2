"""A mistake in `_C` is reported: `make asan` and `make tsan` run this beside the tests that have no report."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import cpp_extension

from torch_foundry.core import environment

ROOT = Path(__file__).parents[2]
SANITIZER = environment.SANITIZE.value()
BUILD = ROOT / "build" / SANITIZER
pytestmark = [
    pytest.mark.tier("nightly"),
    pytest.mark.skipif(not SANITIZER or not environment.EXTENSION.given(), reason="run by `make asan` and `make tsan`"),
]

LAUNCHES = """
from concurrent.futures import ThreadPoolExecutor
x = torch.ones(1, 64)
ops.rms_norm(x, x[0], 1e-6)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda _: [ops.rms_norm(x, x[0], 1e-6) for _ in range(200)], range(4)))
"""
# By sanitizer: file, what is right in it and what is seeded, the calls that go wrong, and words of the report.
FAULTS = {
    "address": (
        "loaders/bindings.cpp",
        "done < count && all.size() - at >= 8",
        "done < count && all.size() - at >= 1",
        "torch.ops.torch_foundry.skip_strings(torch.zeros(4, dtype=torch.uint8), 1)",
        ("heap-buffer-overflow", "skip_strings"),
    ),
    "thread": (
        "core/counters.cpp",
        "  std::lock_guard<std::mutex> lock(mutex);\n  add(",
        "  add(",
        LAUNCHES,
        ("data race", "CountedLaunch"),
    ),
}


def ran(library: Path, calls: str) -> subprocess.CompletedProcess[str]:
    """A process that makes these calls with this library in place of `_C`."""
    code = f"import torch\nfrom torch_foundry import ops\n{calls}\nprint('finished')"
    given = os.environ | {environment.EXTENSION.name: str(library)}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=given, capture_output=True, text=True)


def seeded(place: Path, file: str, right: str, wrong: str) -> Path:
    """The extension with one file changed, from the objects of the build."""
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    text = (ROOT / "csrc" / file).read_text()
    assert text.count(right) == 1
    source, target = place / "seeded.cpp", place / "seeded.o"
    source.write_text(text.replace(right, wrong))
    folder = BUILD / "objects"
    made = folder / "csrc" / Path(file).with_suffix(".o")
    told = ["ninja", "-C", str(folder), "-t", "commands", str(made)]
    line = subprocess.run(told, env=plain, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    line = line.replace(str(made), str(target)).replace(str(ROOT / "csrc" / file), str(source))
    assert str(source) in line and str(target) in line
    subprocess.run(["bash", "-c", line], cwd=folder, env=plain, check=True)
    objects = [str(path) for path in folder.rglob("*.o") if path != made]
    linked = [word for path in cpp_extension.library_paths() for word in (f"-L{path}", f"-Wl,-rpath,{path}")]
    flags = [word for word in shlex.split(line) if word.startswith("-fsanitize=")]
    libraries = ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python", "-ldl"]
    command = [environment.CXX.given() or "c++", "-shared", *objects, str(target), *linked, *libraries, *flags]
    subprocess.run([*command, "-o", str(place / "_C.so")], env=plain, check=True)
    return place / "_C.so"


def test_a_seeded_fault_is_reported(tmp_path: Path) -> None:
    file, right, wrong, calls, words = FAULTS[SANITIZER]
    clean = ran(Path(environment.EXTENSION.given()), calls)
    assert clean.returncode == 0 and "finished" in clean.stdout and "Sanitizer" not in clean.stderr, clean.stderr
    found = ran(seeded(tmp_path, file, right, wrong), calls)
    assert found.returncode != 0 and all(word in found.stderr for word in words), found
