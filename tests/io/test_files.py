"""Paths that are no files, and files that change while they are read."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.io.test_gguf_reader import blocks, write
from torch_foundry.io import LoadError, open_container, open_gguf, open_safetensors
from torch_foundry.io.files import File

OPENERS: list[Callable[..., Any]] = [open_gguf, open_safetensors, open_container]
opened_by_all = pytest.mark.parametrize("opener", OPENERS, ids=lambda opener: opener.__name__)


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(LoadError) as caught:
        call()
    return caught.value.code


def settle() -> None:
    """Wait until a change gets another time of modification than what was written last."""
    time.sleep(0.02)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A sound file with tensors of ones, "t" of 4 rows and "u" of 1."""
    ones = np.full((4, 64), 1, np.uint8)
    return write(tmp_path / "m.gguf", {"t": (24, ones), "u": (24, ones[:1])}, texts=["a", "b"])


@opened_by_all
def test_pipes_devices_folders_and_sockets(opener: Callable[..., Any], tmp_path: Path) -> None:
    pipe, folder, listening = tmp_path / "pipe.gguf", tmp_path / "folder", tmp_path / "socket.gguf"
    os.mkfifo(pipe)
    folder.mkdir()
    assert code_of(lambda: opener(pipe)) == "NOT_FILE"
    assert code_of(lambda: opener("/dev/zero")) == "NOT_FILE"
    assert code_of(lambda: opener(folder)) == ("NOT_FILE" if opener is open_gguf else "NOT_MODEL")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listening))
        assert code_of(lambda: opener(listening)) == "NOT_FILE"


@opened_by_all
def test_paths_that_lead_nowhere(opener: Callable[..., Any], tmp_path: Path) -> None:
    one, two, dangling = tmp_path / "one.gguf", tmp_path / "two.gguf", tmp_path / "dangling.gguf"
    one.symlink_to(two)
    two.symlink_to(one)
    dangling.symlink_to(tmp_path / "absent")
    (tmp_path / "file").write_bytes(b"")
    assert code_of(lambda: opener(one)) == "LOOP"
    for absent in (dangling, tmp_path / "absent.gguf", tmp_path / "file" / "m.gguf", tmp_path / ("x" * 300), "a\0b"):
        assert code_of(lambda absent=absent: opener(absent)) == "ABSENT"  # type: ignore[misc]


@opened_by_all
@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.EACCES, "PERMISSION"), (errno.EPERM, "PERMISSION"), (errno.EIO, "IO"), (errno.EMFILE, "IO")],
)
def test_a_system_that_refuses_to_open(
    opener: Callable[..., Any], number: int, code: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    assert code_of(lambda: opener(path)) == code


def test_no_permission(path: Path) -> None:
    path.chmod(0)
    if os.access(path, os.R_OK):
        open_gguf(path).close()  # root may read everything
    else:
        assert code_of(lambda: open_gguf(path)) == "PERMISSION"


def test_links_are_followed(path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    with open_gguf(link) as container:
        assert bool((container.read("t") == 1).all())


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 96)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(32))


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\2" * 100)


def rename(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    stat = path.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # nothing but the inode tells them apart
    other.rename(path)


@pytest.mark.parametrize("change", [cut, grow, rewrite, rename, Path.unlink], ids=lambda each: each.__name__)
def test_a_change_after_opening_is_an_error_for_all_that_is_read(change: Callable[[Path], None], path: Path) -> None:
    with open_gguf(path) as container:
        assert container.read("u").sum() == container.mapped("u").sum() == 64
        settle()
        change(path)
        assert code_of(lambda: container.read("u")) == "CHANGED"
        assert code_of(lambda: container.read_into("t", torch.empty(1, 64, dtype=torch.int8), 3)) == "CHANGED"
        assert code_of(lambda: container.mapped("u")) == "CHANGED"
        assert code_of(container.metadata["texts"].tolist) == "CHANGED"


@pytest.mark.parametrize("change", [cut, grow, rewrite, rename, Path.unlink], ids=lambda each: each.__name__)
@pytest.mark.parametrize("when", range(4))
def test_a_change_at_any_read(
    change: Callable[[Path], None], when: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The header of this file is one read, each of its tensors another."""
    preadv, calls = os.preadv, 0

    def changing(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == when + 1:
            settle()
            change(path)
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", changing)
    open_file = os.open(path, os.O_RDONLY)  # or a new file might get the inode of the old
    read: list[torch.Tensor] = []
    try:
        with open_gguf(path) as container:
            for name in ("t", "u", "t"):
                read.append(container.read(name))
        assert calls < when + 1
    except LoadError as problem:
        assert problem.code == "CHANGED" or (when == 0 and change is cut and problem.code == "DATA_SHORT")
        assert calls >= when + 1
    finally:
        os.close(open_file)
    assert all(bool((tensor == 1).all()) for tensor in read)


def failing(at: int, fault: Callable[[], int]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A system call that does as `fault` does at its `at`-th call."""

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        count = iter(range(1 << 30))
        return lambda *arguments, **named: fault() if next(count) == at else call(*arguments, **named)

    return wrapped


def out_of_memory() -> int:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def interrupted() -> int:
    raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))


@pytest.mark.parametrize("name", ["open", "fstat", "stat", "preadv"])
def test_any_call_may_fail(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else None
    call, failures = getattr(os, name), 0
    for at in range(100):
        wrapped = failing(at, out_of_memory)(call)
        with monkeypatch.context() as patch:
            patch.setattr(os, name, wrapped)
            try:
                with open_gguf(path) as container:
                    container.read("t")
                    assert container.metadata["texts"] == ["a", "b"]
                break
            except LoadError as problem:
                assert problem.code == "IO" and "memory" in problem.found
                failures += 1
    assert failures == at > 0
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before


def test_short_and_interrupted_reads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, calls = os.preadv, 0

    def faulty(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            interrupted()
        return preadv(fd, [buffers[0][: 1 + calls % 7]], offset)

    monkeypatch.setattr(os, "preadv", faulty)
    with open_gguf(path) as container:
        assert bool((container.read("t") == 1).all()) and container.metadata["texts"] == ["a", "b"]
    assert calls > 100


def test_a_system_that_reads_nothing_is_no_endless_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_gguf(path) as container:
        monkeypatch.setattr(os, "preadv", lambda *_: 0)
        assert code_of(lambda: container.read("t")) == "TRUNCATED"


def test_reading_after_closing(path: Path) -> None:
    container = open_gguf(path)
    mapped = container.mapped("t")
    texts = container.metadata["texts"]
    container.close()
    container.close()
    for read in (lambda: container.read("t"), lambda: container.mapped("t"), texts.tolist):
        with pytest.raises(ValueError, match="closed"):
            read()
    assert bool((mapped == 1).all())  # it stays


def test_writing_to_a_mapped_tensor_leaves_the_file_alone(path: Path) -> None:
    before = path.read_bytes()
    with open_gguf(path) as container:
        container.mapped("t").fill_(7)
        assert bool((container.read("t") == 1).all())
    assert path.read_bytes() == before


WRITER = """
import os, sys
path, value = sys.argv[1], 1
head = open(path, "rb").read(4096)
while True:  # from its beginning, then by another file of the same name: always of one value
    value = value % 120 + 1
    for name in (path, path + ".new"):
        with open(name, "wb", buffering=0) as file:
            file.write(head + bytes([value]) * (1 << 20))
    os.replace(path + ".new", path)
"""
READER = """
import sys, time
from torch_foundry.io import LoadError, open_gguf
good = bad = 0
end = time.monotonic() + 1.5
while time.monotonic() < end:
    try:
        with open_gguf(sys.argv[1]) as container:
            tensor = container.read("t")
        assert int(tensor.min()) == int(tensor.max()), "a mixture"
        good += 1
    except LoadError as problem:
        assert problem.code in ("CHANGED", "TRUNCATED", "DATA_SHORT"), problem
        bad += 1
print(good, bad)
"""


@pytest.mark.tier("files")
def test_two_processes_read_what_a_third_rewrites(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"t": (24, np.full((16, 1 << 16), 1, np.uint8))}, alignment=4096)
    assert path.stat().st_size == 4096 + (1 << 20)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    try:
        readers = [subprocess.Popen([sys.executable, "-c", READER, str(path)], stdout=subprocess.PIPE) for _ in "ab"]
        outputs = [reader.communicate(timeout=120)[0].split() for reader in readers]
        assert [reader.returncode for reader in readers] == [0, 0]
        assert all(int(good) + int(bad) > 0 for good, bad in outputs)
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.wait()


def test_a_file_written_just_now_is_opened_a_step_of_the_clock_later(path: Path) -> None:
    path.write_bytes(path.read_bytes())
    File(path).close()
    assert time.time_ns() - path.stat().st_mtime_ns >= 10_000_000


def test_reading_into_memory(path: Path) -> None:
    with open_gguf(path) as container:
        out = torch.zeros(6, 64, dtype=torch.int8)
        container.read_into("t", out[1:5])
        assert out[:, 0].tolist() == [0, 1, 1, 1, 1, 0]
        for bad in (
            torch.zeros(5, 64, dtype=torch.int8),
            torch.zeros(4, 63, dtype=torch.int8),
            torch.zeros(4, 64, dtype=torch.uint8),
            torch.zeros(4, 128, dtype=torch.int8)[:, ::2],
            torch.zeros(4 * 64, dtype=torch.int8),
            torch.zeros(4, 64, dtype=torch.int8, device="meta"),
        ):
            with pytest.raises(ValueError, match="t: expected"):
                container.read_into("t", bad)
        for start, stop in ((-1, 2), (3, 2), (0, 5)):
            with pytest.raises(ValueError, match="t: expected rows"):
                container.read("t", start, stop)


def test_open_container_goes_by_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    gguf_file = write(tmp_path / "a" / "m.bin", {"t": (24, blocks(24, (1,), 32))})
    with open_container(gguf_file) as container:
        assert list(container.tensors) == ["t"]
    gguf_file.rename(tmp_path / "a" / "m.gguf")
    with open_container(tmp_path / "a") as container:
        assert list(container.tensors) == ["t"]
    safetensors.torch.save_file({"s": torch.ones(2)}, tmp_path / "a" / "x.safetensors")
    with open_container(tmp_path / "a") as container:
        assert list(container.tensors) == ["s"]
    (tmp_path / "a" / "x.safetensors").unlink()
    (tmp_path / "a" / "n.gguf").write_bytes(b"")
    assert code_of(lambda: open_container(tmp_path / "a")) == "NOT_MODEL"
    torch.save({"a": torch.ones(2)}, tmp_path / "model.bin")
    assert code_of(lambda: open_container(tmp_path / "model.bin")) in ("MAGIC", "PICKLE")


def peak() -> int:
    """Bytes of memory that this process had at most since `reset`."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) * 1024


def test_weights_are_read_into_their_place_without_a_second_copy(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"t": (24, np.zeros((1, 1 << 20), np.uint8))})
    head = path.read_bytes()[: -(1 << 20)].replace(
        (1).to_bytes(8, "little") + (24).to_bytes(4, "little") + bytes(8),
        (128).to_bytes(8, "little") + (24).to_bytes(4, "little") + bytes(8),
    )
    path.write_bytes(head)
    os.truncate(path, len(head) + (128 << 20))  # sparse
    with open_gguf(path) as container:
        out = torch.ones(128, 1 << 20, dtype=torch.int8)
        container.read_into("t", out[:8])
        if Path("/proc/self/clear_refs").exists():
            Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in use
            before = peak()
            container.read_into("t", out)
            assert peak() - before < 6 << 20  # 5 % of the file
        else:
            container.read_into("t", out)
        assert not bool(out.any())
