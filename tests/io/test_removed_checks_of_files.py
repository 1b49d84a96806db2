"""As test_removed_checks.py, for what reads files: paths of all kinds, a system that fails, files that change."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.io.check_mutation import Readers, checks
from torch_foundry.core.load_errors import LoadError

pytestmark = pytest.mark.tier("nightly")

DATA = bytes(range(100))
REDUNDANT = {
    "io.files: _identity(found) != self._identity": "what changes a file's size or time changes its ctime as well",
}
CODES = {
    "pipe": "NOT_FILE", "absent": "ABSENT", "zero_byte": "ABSENT", "names_in_a_file": "ABSENT", "no_state": "IO",
    "failing_reads": "IO", "past_the_end": "TRUNCATED", "no_mapping": "IO", "state_lost": "PERMISSION",
}  # fmt: skip
READS = {
    "sound": (DATA[10:50], 100), "short_reads": DATA[10:50], "interrupted": DATA[10:50],
    "written_over_a_folder": (errno.EISDIR, True), "written_under_a_long_name": (errno.ENAMETOOLONG, True),
}  # fmt: skip
Scene = Callable[[Any, Path, pytest.MonkeyPatch], object]
SCENES: dict[str, Scene] = {}


def scene(function: Scene) -> Scene:
    SCENES[function.__name__.strip("_")] = function
    return function


def failing(name: str, number: int, on: pytest.MonkeyPatch, after: int = 0) -> None:
    """Let a call of the system fail, once it has worked so often."""
    works, calls = getattr(os, name), [0]

    def call(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            raise OSError(number, os.strerror(number))
        return works(*arguments, **options)

    on.setattr(os, name, call)


@scene
def _sound(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    file = files.File(path)
    file.check()
    return bytes(file.read(40, 10, "x")), file.size


@scene
def _pipe(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    os.mkfifo(path.with_suffix(".pipe"))
    return files.File(path.with_suffix(".pipe"))


@scene
def _absent(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    return files.File(path.with_suffix(".absent"))


@scene
def _zero_byte(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    return files.File("a\0b")


@scene
def _names_in_a_file(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    return files.names_in(path)


@scene
def _no_state(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    failing("fstat", errno.EIO, patch)
    return files.File(path)


@scene
def _being_written(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    path.write_bytes(DATA)  # a moment ago
    patch.setattr(files.time, "sleep", lambda seconds: os.truncate(path, 50))
    return files.File(path)


def changed(rest: bool, change: Callable[[Path], object]) -> Scene:
    def run(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
        file = files.File(path)
        if rest:
            file.rest()
        change(path)
        return file.check()

    return run


def replaced(path: Path) -> None:
    """By another of its size and time."""
    other = path.with_suffix(".other")
    other.write_bytes(DATA)
    os.utime(other, (0, 0))
    other.rename(path)


def touched(path: Path) -> None:
    """Other bytes; size and time as before."""
    with path.open("r+b") as file:
        file.write(b"\xff")
    os.utime(path, (0, 0))


SCENES["cut"] = changed(False, lambda path: os.truncate(path, 50))
SCENES["replaced"] = changed(False, replaced)
SCENES["lost"] = changed(False, Path.unlink)
SCENES["cut at rest"] = changed(True, lambda path: os.truncate(path, 50))
SCENES["touched at rest"] = changed(True, touched)
SCENES["lost at rest"] = changed(True, Path.unlink)


@scene
def _renamed_and_cut(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    """What was opened is cut; the path names one that looks the same."""
    file, real = files.File(path), os.stat
    state = real(path)
    os.truncate(path, 50)
    patch.setattr(os, "stat", lambda *_: state)
    return file.check()


@scene
def _short_reads(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    real = os.preadv
    patch.setattr(os, "preadv", lambda fd, buffers, offset: real(fd, [buffers[0][:7]], offset))
    return bytes(files.File(path).read(40, 10, "x"))


@scene
def _interrupted(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    real, calls = os.preadv, [0]

    def interrupted(*arguments: Any) -> int:
        calls[0] += 1
        if calls[0] == 1:
            raise InterruptedError
        return real(*arguments)

    patch.setattr(os, "preadv", interrupted)
    return bytes(files.File(path).read(40, 10, "x"))


@scene
def _failing_reads(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    failing("preadv", errno.EIO, patch)
    return files.File(path).read(40, 10, "x")


@scene
def _past_the_end(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    return files.File(path).read(40, 90, "x")


@scene
def _no_mapping(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    patch.setattr(torch, "from_file", refuse)
    return files.File(path).map()


@scene
def _state_lost(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    file = files.File(path)
    failing("fstat", errno.EACCES, patch)
    return file.check()


def refused(files: Any, target: Path, named: Path) -> object:
    """The error of writing to `target`, and whether it names `named`, not the hidden file that is written first."""
    with pytest.raises(OSError) as raised, files.replacing(target) as file:
        file.write(DATA)
    return raised.value.errno, raised.value.filename == str(named)


@scene
def _written_over_a_folder(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    (folder := path.with_suffix(".folder")).mkdir()
    return refused(files, folder, folder)


@scene
def _written_under_a_long_name(files: Any, path: Path, patch: pytest.MonkeyPatch) -> object:
    return refused(files, path.with_name(250 * "x"), path.parent)


def outcomes(files: Any, folder: Path) -> dict[str, str]:
    """How each scene ends."""
    found = {}
    for name, play in SCENES.items():
        path = folder / f"{len(os.listdir(folder))}.bin"
        path.write_bytes(DATA)
        os.utime(path, (0, 0))
        with pytest.MonkeyPatch.context() as patch:
            try:
                found[name] = repr(play(files, path, patch))
            except LoadError as error:
                found[name] = error.code
            except Exception as problem:
                found[name] = repr(problem)
    return found


def test_a_removed_check_is_noticed(tmp_path: Path) -> None:
    chosen = ("io.files",)
    sound = outcomes(Readers(None, chosen).modules["io.files"], tmp_path)
    ends = {name: repr(READS[name]) if name in READS else CODES.get(name, "CHANGED") for name in SCENES}
    assert sound == ends
    found = checks("io.files")
    missed = {check.name for check in found if outcomes(Readers(check, chosen).modules["io.files"], tmp_path) == sound}
    assert missed == REDUNDANT.keys() and len(found) >= 13
