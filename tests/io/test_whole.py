"""Files that are written whole or not at all: what killed processes leave, what living ones are writing, errors."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.hf import tiny_models
from torch_foundry import Session, save_gguf
from torch_foundry.io import files
from torch_foundry.io.files import replacing

WRITER = """
import sys, time
from torch_foundry.io.files import replacing
with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print(file.name, flush=True)
    time.sleep(600)
"""


@contextmanager
def writer(path: Path) -> Iterator[tuple[Any, Path]]:
    """A process that has written half of the file, and the part."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def gguf_file(path: Path) -> None:
    save_gguf(tiny_models.random_model(tiny_models.config("LlamaConfig")), path)


def session(path: Path) -> None:
    Session(tiny_models.random_model(tiny_models.config("LlamaConfig"))).save(path)


SAVERS: dict[str, Callable[[Path], None]] = {"m.gguf": gguf_file, "s.safetensors": session}


@pytest.mark.parametrize("name", SAVERS)
def test_what_killed_processes_left_is_removed_and_what_a_living_one_writes_is_not(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    others = [tmp_path / f".x{name}.0123abcd.part", tmp_path / f".{name}.mine.part", tmp_path / f"{name}.0123abcd.part"]
    for other in others:  # of other names, or not ours
        other.write_bytes(b"")
    (tmp_path / f".{name}.4711.part").write_bytes(b"left by a process of that number")
    with writer(path) as (process, part), writer(path) as (_, living):
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert part.read_bytes() == living.read_bytes() == b"half"
        SAVERS[name](path)
        assert sorted(tmp_path.iterdir()) == sorted([path, living, *others])
    SAVERS[name](path)
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


@pytest.mark.parametrize("name", SAVERS)
def test_a_part_is_locked_until_it_is_whole(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked, replace = [], files.os.replace

    def replaced(part: Path, path: Path) -> None:
        with open(part, "rb") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked.append(part)
        replace(part, path)

    monkeypatch.setattr(files.os, "replace", replaced)
    SAVERS[name](tmp_path / name)
    assert len(locked) == 1 and (tmp_path / name).stat().st_size > 100


@pytest.mark.parametrize("name", SAVERS)
def test_errors_name_what_was_given(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        SAVERS[name](tmp_path / "none" / name)
    assert caught.value.filename == str(tmp_path / "none") and ".part" not in str(caught.value)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADirectoryError) as other:
        SAVERS[name](tmp_path / "file" / name)
    assert other.value.filename == str(tmp_path / "file")
    (tmp_path / name).mkdir()
    with pytest.raises(IsADirectoryError) as folder:
        SAVERS[name](tmp_path / name)
    assert folder.value.filename == str(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / name, tmp_path / "file"])


def test_a_part_that_is_taken_away_before_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may see it between its creation and its lock."""
    lock, taken = fcntl.flock, []

    def flock(file: Any, how: int) -> None:
        if not taken:
            taken.append(Path(file.name))
            taken[0].unlink()
        lock(file, how)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with replacing(tmp_path / "a") as file:
        file.write(b"whole")
    assert Path(file.name) != taken[0] and (tmp_path / "a").read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_relative_name_and_a_file_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with replacing("a") as file:
        file.write(b"old")
    with pytest.raises(KeyboardInterrupt), replacing("a") as file:
        raise KeyboardInterrupt
    assert Path("a").read_bytes() == b"old" and [each.name for each in tmp_path.iterdir()] == ["a"]
