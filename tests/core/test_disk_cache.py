"""Kernels on disk: what is damaged is compiled again, what another user may write is not run, and a cache that can't be
used is replaced. In processes of their own, as kernels stay loaded."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_foundry.core import extension, sources

pytestmark = pytest.mark.tier("kernels")

ROOT = Path(__file__).parents[2]
SOURCE = (
    "#include <metal_stdlib>\nconstant float v [[function_constant(0)]];\n"
    "kernel void fill(device float* y, uint i [[thread_position_in_grid]]) { y[i] = v; }\n"
)
PROGRAM = f"""
import torch, torch_foundry
for value in range(int(sys.argv[1])):
    y = torch.zeros(1)
    torch_foundry.compile_shader({SOURCE!r}, constants={{"v": float(value)}}).fill(y)
    print(y.item())
"""


def start(count: int, cache: Path | str, *, before: str = "", **options: object) -> subprocess.Popen[str]:
    """A process that compiles and runs `count` kernels, which print 0.0, 1.0, .. Its temporary files are beside the
    cache."""
    environment = {**os.environ, "TORCH_FOUNDRY_CACHE": str(cache), **options.pop("environment", {})}  # type: ignore[dict-item]
    command = [sys.executable, "-c", f"import sys\n{before}\n{PROGRAM}", str(count)]
    return subprocess.Popen(command, env=environment, cwd=ROOT, text=True, stdout=-1, stderr=-1, **options)  # type: ignore[call-overload]


def run(count: int, cache: Path | str, **options: object) -> str:
    """Its stderr, if it went well."""
    process = start(count, cache, **options)
    out, error = process.communicate()
    assert process.returncode == 0, (process.returncode, error[-3000:])
    assert out.split() == [str(float(value)) for value in range(count)]
    return error


def sound(entry: Path) -> bool:
    content = entry.read_bytes()
    return Path(f"{entry}.sum").read_text() == f"{hashlib.sha1(content).hexdigest()} {len(content)}\n"


def kernels(cache: Path) -> list[Path]:
    """Entries in order of their names."""
    return sorted((cache / "kernels").glob("*.so"))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "without its last page": lambda content: content[:-4096],
    "a changed byte": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
}


def damage(folder: Path) -> None:
    """Each kernel in another way; two more lose their sum, or get that of another."""
    entries = sorted(folder.glob("*.so"))
    for entry, how in zip(entries, DAMAGE.values(), strict=False):
        entry.write_bytes(how(entry.read_bytes()))
    Path(f"{entries[-2]}.sum").unlink()
    shutil.copyfile(f"{entries[0]}.sum", f"{entries[-1]}.sum")


COUNT = len(DAMAGE) + 2


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with COUNT kernels, and with the runtime where the package has been built without kernels."""
    cache = tmp_path_factory.mktemp("made")
    run(COUNT, cache)
    assert len(kernels(cache)) >= COUNT and all(map(sound, kernels(cache)))
    return cache


def test_damaged_entries_are_compiled_again(made: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    shutil.copytree(made, cache)
    damage(cache / "kernels")
    wrong = [kernel for kernel in kernels(cache) if not Path(f"{kernel}.sum").exists() or not sound(kernel)]
    assert len(wrong) == COUNT
    run(COUNT, cache)
    assert kernels(cache) == [cache / "kernels" / kernel.name for kernel in kernels(made)]
    assert all(map(sound, kernels(cache)))


def test_damaged_entries_of_the_package_are_not_used(made: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    for path in extension.BUILT.iterdir():
        (built / path.name).symlink_to(path)
    (built / "kernels").unlink(missing_ok=True)
    shutil.copytree(made / "kernels", built / "kernels")
    damage(built / "kernels")
    before = {path.name: path.read_bytes() for path in (built / "kernels").iterdir()}
    use = "from pathlib import Path\nfrom torch_foundry.core import devices, extension\n"
    use += f"extension.BUILT = Path({str(built)!r})\n"
    run(COUNT, tmp_path / "cache", before=f"{use}devices.HOST.set_up(extension.places())")
    assert len(kernels(tmp_path / "cache")) >= COUNT and all(map(sound, kernels(tmp_path / "cache")))
    assert {path.name: path.read_bytes() for path in (built / "kernels").iterdir()} == before


def test_the_prelude_is_compiled_once(tmp_path: Path) -> None:
    """GCC and clang read it in a quarter of the time then; one that they won't take costs time, and nothing else."""
    run(1, tmp_path)
    (header,) = (tmp_path / "kernels").glob("*.gch")
    made = header.stat().st_mtime_ns
    run(2, tmp_path)
    assert header.stat().st_mtime_ns == made
    content = b"no header that was compiled"
    header.write_bytes(content)
    Path(f"{header}.sum").write_text(f"{hashlib.sha1(content).hexdigest()} {len(content)}\n")
    run(3, tmp_path)
    assert header.read_bytes() == content and len(kernels(tmp_path)) >= 3


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = tmp_path / "kernels"
    folder.mkdir()
    names = [
        f"{'ab' * 20}.{ended.pid}.0.cpp",
        f"{'ab' * 20}.so.{ended.pid}.7.part.cpp",
        f"{'ab' * 20}.{os.getpid()}.0.so",
    ]
    for name in [*names, f"{'cd' * 20}.{ended.pid}.0.so"]:
        (folder / name).touch()
    for name in names:
        os.utime(folder / name, (1e9, 1e9))
    run(1, tmp_path)
    entries = [*kernels(tmp_path), *folder.glob("*.h"), *folder.glob("*.gch")]
    left = {path.name for path in folder.iterdir()} - {entry.name + s for entry in entries for s in ("", ".sum")}
    assert left - {names[2]} == set()  # of a process that lives; the one that is young counts as an entry
    assert (folder / names[2]).exists() and (folder / f"{'cd' * 20}.{ended.pid}.0.so").exists()


# -------------------------------------------------------------------------------------------- caches that can't be used


def test_a_cache_that_everybody_may_write_is_not_run(made: Path, tmp_path: Path) -> None:
    """Nor one that belongs to another user, which root alone can make."""
    planted, cache = tmp_path / "planted", tmp_path / "cache"
    run(1, planted)
    shutil.copytree(planted, cache)
    entry, *_ = [kernel for kernel in kernels(cache) if b"msl_rt_launch" not in kernel.read_bytes()]
    other = next(k for k in kernels(made) if k.name not in {kernel.name for kernel in kernels(cache)})
    for suffix in ("", ".sum"):  # a kernel that computes something else
        shutil.copyfile(f"{other}{suffix}", f"{entry}{suffix}")
    temporary = {"environment": {"TMPDIR": str(tmp_path)}}
    fallback = tmp_path / f"torch_foundry-{os.getuid()}"

    def refused(problem: str) -> None:
        error = run(1, cache, **temporary)
        (line,) = (line for line in error.splitlines() if "kernel cache" in line)
        assert f"{cache / 'kernels'} {problem}" in line and "TORCH_FOUNDRY_CACHE" in line and str(fallback) in line
        assert sound(fallback / "kernels" / entry.name)
        shutil.rmtree(fallback)

    (cache / "kernels").chmod(0o777)
    refused("can be written by every user")
    (cache / "kernels").chmod(0o755)
    if os.geteuid() == 0:
        os.chown(cache / "kernels", 12345, 0)
        refused("belongs to another user (uid 12345)")
        os.chown(cache / "kernels", 0, 0)
        os.chown(entry, 12345, 0)
    else:
        entry.chmod(0o666)
    error = run(1, cache, **temporary)
    assert "so it is not used" in error and sound(entry) and not fallback.exists()


def test_no_place_to_write(tmp_path: Path) -> None:
    """One warning; the second process finds what the first has kept, and needs none."""
    temporary = {"environment": {"TMPDIR": str(tmp_path)}}
    (line,) = (line for line in run(2, "/dev/null/cache", **temporary).splitlines() if "kernel cache" in line)
    assert "/dev/null/cache/kernels can't be made (Not a directory)" in line and "TORCH_FOUNDRY_CACHE" in line
    assert "kernel cache" not in run(2, "/dev/null/cache", **temporary)


def test_no_home(tmp_path: Path) -> None:
    nobody = "import os, pathlib\nos.environ.pop('XDG_CACHE_HOME', None)\n"
    nobody += "def home(cls): raise RuntimeError('Could not determine home directory.')\n"
    nobody += "pathlib.Path.home = classmethod(home)\n"
    error = run(1, "", before=nobody, environment={"TMPDIR": str(tmp_path)})
    assert error.count("there is no home directory") == 1 and "TORCH_FOUNDRY_CACHE" in error
    assert kernels(tmp_path / f"torch_foundry-{os.getuid()}")


def test_nowhere_at_all_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / f"torch_foundry-{os.getuid()}").touch()
    process = start(1, "/dev/null/cache", environment={"TMPDIR": str(tmp_path)})
    error = process.communicate()[1]
    assert process.returncode == 1
    assert "/dev/null/cache/kernels can't be made" in error and "set TORCH_FOUNDRY_CACHE to a folder" in error


@pytest.mark.parametrize("limit", [512, 6000], ids=["the source", "the library"])
def test_a_full_disk_is_named(limit: int, tmp_path: Path) -> None:
    full = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))}
    process = start(1, tmp_path, **full)
    error = process.communicate()[1]
    assert process.returncode == 1 and "File too large" in error.splitlines()[-1] + error.splitlines()[-2], error
    assert [path for path in (tmp_path / "kernels").iterdir() if path.suffixes[0] != ".h"] == []  # the prelude's stays


# --------------------------------------------------------------------------------------------------- while one compiles


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """A compiler that says that it was started, and works when it is told to go on."""
    wrapper = tmp_path / "slow-c++"
    wait = f"touch {tmp_path}/started; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    wait = f'case " $* " in *" -E "*) ;; *) {wait};; esac'  # the front end's preprocessor is not what is waited for
    version = '[ "$1" = --version ] && { echo "slow 1.0"; exit 0; }'
    wrapper.write_text(f'#!/bin/sh\n{version}\n{wait}\nexec {shutil.which(sources.compiler()[0])} "$@"\n')
    wrapper.chmod(0o755)
    return {"CXX": str(wrapper)}


def test_waiting_for_the_compiler_is_said(slow: dict[str, str], tmp_path: Path) -> None:
    process = start(1, tmp_path, environment={**slow, "TORCH_FOUNDRY_PROGRESS": "1"})
    assert process.stderr
    assert "compiling kernels (once" in process.stderr.readline()  # it waits until this is read
    (tmp_path / "go").touch()
    assert process.communicate() == ("0.0\n", "")


def test_an_interrupt_is_an_interrupt(slow: dict[str, str], tmp_path: Path) -> None:
    process = start(1, tmp_path, environment=slow, start_new_session=True)
    while not (tmp_path / "started").exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    out, error = process.communicate()
    assert process.returncode == -signal.SIGINT and error.endswith("KeyboardInterrupt\n") and out == ""
    assert "does not compile" not in error


LIST = """
import torch
from torch_foundry import ops
from torch_foundry.core.ahead import KernelList
kernels = KernelList(torch.device("cpu"))
x, weight = torch.empty(2, 64, device="meta"), torch.empty(64, device="meta")
with kernels.record():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        ops.rms_norm(x.to(dtype), weight.to(dtype), 1e-6, kind="olmo")
kernels.compile()
print(len(kernels))
"""


def test_a_terminal_shows_how_far_it_is(slow: dict[str, str], tmp_path: Path) -> None:
    """A bar, once a second has passed, which goes when all is done. Elsewhere nothing."""
    own, terminal = pty.openpty()
    environment = {**os.environ, **slow, "TORCH_FOUNDRY_CACHE": str(tmp_path / "cache"), "TORCH_FOUNDRY_PROGRESS": ""}
    process = subprocess.Popen(
        [sys.executable, "-c", LIST], env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=terminal
    )
    os.close(terminal)
    seen = b""
    while b"] 0 of 3" not in seen:
        seen += os.read(own, 4096)
    (tmp_path / "go").touch()
    assert process.communicate()[0] == b"3\n" and process.returncode == 0
    while chunk := _read(own):
        seen += chunk
    lines = seen.decode().split("\r")
    assert all(re.search(r"compiling kernels \(once\) \[[# ]{24}\] [0-3] of 3", line) for line in lines[1:-1] if line)
    assert lines[-1] == "\033[K", lines


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # nobody writes any more
        return b""
