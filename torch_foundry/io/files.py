"""Reading files that may be anything and may change while they are read, and writing them as a whole."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from torch_foundry.core.load_errors import LoadError

_CODES = {
    errno.ENOENT: ("ABSENT", "no such file"),
    errno.ENOTDIR: ("ABSENT", "no such file"),
    errno.ENAMETOOLONG: ("ABSENT", "no such file"),
    errno.EACCES: ("PERMISSION", "a file that may not be read"),
    errno.EPERM: ("PERMISSION", "a file that may not be read"),
    errno.ELOOP: ("LOOP", "symbolic links in a circle"),
    errno.ENXIO: ("NOT_FILE", "a pipe, device or socket"),
    errno.EISDIR: ("NOT_FILE", "a folder"),
}
MOST_OPEN = 32  # files of a model that stay open between reads: macOS lets a process have 256 by default
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # opening a pipe would wait for a writer
_CALL = 1 << 30  # bytes of one call; systems take at most 2^31 - 1
_TICK_NS = 12_000_000  # longer than the steps that kernels write times of modification in (1000/HZ ms, HZ from 100)
PART = ".{name}.{hex}.part"  # what is being written, beside the file
LOOK = 64  # bytes of a file's beginning that tell
_TEXTS = (
    (b"version https://git-lfs.github.com/", "a git-LFS pointer: the file itself was not downloaded (git lfs pull)"),
    (b"<!doctype html", "an HTML page, as failed downloads leave"),
    (b"<html", "an HTML page, as failed downloads leave"),
    (b"<?xml", "an XML page, as failed downloads leave"),
    (b"entry not found", "the message of a failed download, 'Entry not found'"),
    (b"invalid username or password", "the message of a failed download, 'Invalid username or password'"),
    (b"invalid credentials", "the message of a failed download, 'Invalid credentials'"),
    (b"access to model", "the message of a failed download: the model wants a login"),
    (b"repository not found", "the message of a failed download, 'Repository not found'"),
)
_OLD = "an old {} file of llama.cpp, from before GGUF: convert the model anew"
_MAGICS = (
    (b"GGUF", "a GGUF file"),
    *((magic, _OLD.format(name)) for magic, name in ((b"lmgg", "GGML"), (b"fmgg", "GGMF"), (b"tjgg", "GGJT"))),
    (b"algg", "a GGLA file, an old adapter of llama.cpp"),
    (b"PK\x03\x04", "a ZIP archive, as torch.save makes"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x89HDF", "an HDF5 file, as Keras makes"),
    *((bytes((0x80, protocol)), "a pickle") for protocol in range(2, 6)),
)


def failure(path: Path, problem: OSError | ValueError) -> LoadError:
    """The LoadError for what the system says about `path`."""
    number = problem.errno if isinstance(problem, OSError) else None
    code, found = ("ABSENT", "a path that can't be one") if number is None else _CODES.get(number, ("IO", str(problem)))
    return LoadError(code, path, expected="a file that can be read", found=found)


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder; of paths that can't be looked at opening says what is wrong."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def names_in(path: Path) -> list[str]:
    """What lies in the folder `path`, sorted."""
    try:
        return sorted(os.listdir(path))
    except OSError as problem:
        raise failure(path, problem) from None


class File:
    """A regular file, open for reading; every read checks that it is still the file that was opened.

    A change is noticed by size, modification time and inode. Modification times advance in steps of some milliseconds,
    so a file that was written less than a step ago is opened a step later; then no change can hide within a step. Not
    noticed are writes of another process through a shared mapping before the system records them, and the rest of a
    single write in place that began more than a step before the file was opened (its time is that of its beginning).

    resting: after `rest` the file is opened again for each read. Its inode number may have been reused in between, so
    the time of the last change of any kind (ctime) must be the same as well.
    """

    resting = False

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._fd = os.open(self.path, _FLAGS)
        except (OSError, ValueError) as problem:
            raise failure(self.path, problem) from None
        try:
            found = os.fstat(self._fd)
            if not stat.S_ISREG(found.st_mode):
                kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, device or socket"
                raise LoadError("NOT_FILE", self.path, expected="a regular file", found=kind)
            if 0 <= (age := time.time_ns() - found.st_mtime_ns) < _TICK_NS:
                time.sleep((_TICK_NS - age) / 1e9)
                if _identity(os.fstat(self._fd)) != _identity(found):
                    raise LoadError("CHANGED", self.path, expected="a file", found="one that is being written")
        except OSError as problem:
            self.close()
            raise failure(self.path, problem) from None
        except LoadError:
            self.close()
            raise
        self.size = found.st_size
        self._identity, self._changed = _identity(found), found.st_ctime_ns

    def rest(self) -> None:
        """Give the descriptor back; the file is opened when there is something to read."""
        self.close()
        self.resting = True

    def check(self) -> None:
        """LoadError if the file, or what its path names, isn't what was opened."""
        with self.opened() as fd:
            try:
                now, named = _identity(os.fstat(fd)), _identity(os.stat(self.path))
            except OSError as problem:
                raise self._lost(problem) from None
        if now != self._identity or named != self._identity:
            raise self._other(named if named[:2] != self._identity[:2] else now)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """A descriptor; of a resting file, one for the time of the block."""
        if not self.resting:
            if self._fd < 0:
                raise ValueError(f"{self.path}: read after it was closed")
            yield self._fd
            return
        try:
            fd = os.open(self.path, _FLAGS)
        except OSError as problem:
            raise self._lost(problem) from None
        try:
            found = os.fstat(fd)
            if _identity(found) != self._identity or found.st_ctime_ns != self._changed:
                raise self._other(_identity(found))
            yield fd
        finally:
            os.close(fd)

    def _lost(self, problem: OSError) -> LoadError:
        if problem.errno != errno.ENOENT:
            return failure(self.path, problem)
        return LoadError("CHANGED", self.path, expected="the file that was opened", found="none")

    def _other(self, now: tuple[int, int, int, int]) -> LoadError:
        found = "another file" if now[:2] != self._identity[:2] else f"{now[2]} bytes, modified"
        return LoadError("CHANGED", self.path, expected=f"the file that was opened, {self.size} bytes", found=found)

    def read_into(self, out: memoryview, offset: int, field: str) -> None:
        """Fill `out` with the bytes from `offset` on. Callers check for changes, around a series of reads."""
        done = 0
        with self.opened() as fd:
            while done < len(out):
                try:
                    count = os.preadv(fd, [out[done : done + _CALL]], offset + done)
                except InterruptedError:
                    continue
                except OSError as problem:
                    raise failure(self.path, problem) from None
                if count <= 0:
                    break
                done += count
        if done < len(out):
            self.check()
            found = f"its end at {offset + done}"
            raise LoadError("TRUNCATED", self.path, field, expected=f"{len(out)} bytes", found=found, offset=offset)

    def read(self, count: int, offset: int, field: str) -> bytearray:
        """`count` bytes from `offset` on."""
        out = bytearray(count)
        self.read_into(memoryview(out), offset, field)
        return out

    def map(self) -> np.ndarray:
        """The bytes of the whole file where they lie in the page cache. What is written to them stays in the process.

        By torch, as Python's own maps keep a descriptor each.
        """
        with self.opened() as fd:
            try:
                whole: np.ndarray = torch.from_file(f"/dev/fd/{fd}", False, self.size, dtype=torch.uint8).numpy()
            except RuntimeError as problem:
                raise LoadError(
                    "IO", self.path, expected="a file that can be mapped", found=str(problem).splitlines()[0]
                ) from None
        return whole

    def close(self) -> None:
        """Close it; a second time does nothing."""
        self.resting = False
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def foreign(first: bytes) -> str | None:
    """What a file with this beginning (up to `LOOK` bytes) is; None if it is nothing known here."""
    text = first.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for words, what in _TEXTS:
        if text.startswith(words):
            return what
    return next((what for magic, what in _MAGICS if first.startswith(magic)), None)


def is_safetensors(first: bytes) -> bool:
    """Whether a file with this beginning may be one: the length of a header, below 2^27, and a brace."""
    return first[8:9] == b"{" and int.from_bytes(first[:8], "little") < 1 << 27


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new file beside `path`, open for writing. It takes the place of `path` at the end of the block, or is removed
    if the block raises. Parts of the same name that dead processes left are removed first.

    A part is locked as long as its process writes, so no other takes it for a leftover: locks end with the process,
    whatever ends it, and hold across containers, where numbers of processes say nothing. OSError names what was given.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        _remove_stale(path)
        file, part = _create(path)
    except OSError as problem:
        raise OSError(problem.errno, problem.strerror, str(path.parent)) from None  # not the hidden name
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(part, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        raise


def _create(path: Path) -> tuple[BinaryIO, Path]:
    while True:
        part = path.with_name(PART.format(name=path.name, hex=secrets.token_hex(4)))
        file = open(part, "xb")  # noqa: SIM115 (the caller closes it)
        with contextlib.suppress(OSError):  # a file system without locks: then nobody removes parts there
            fcntl.flock(file, fcntl.LOCK_EX)
        if part.exists():
            return file, part
        file.close()  # somebody took it for a leftover before it was locked


def _remove_stale(path: Path) -> None:
    ours = re.compile(re.escape(PART).replace(r"\{name\}", re.escape(path.name)).replace(r"\{hex\}", "[0-9a-f]{1,8}"))
    for name in os.listdir(path.parent):
        if ours.fullmatch(name):
            with contextlib.suppress(OSError), open(path.parent / name, "rb") as part:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: it is being written
                os.unlink(path.parent / name)
