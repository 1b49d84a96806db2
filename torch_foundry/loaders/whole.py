"""Writing a file so that it appears under its name when it is whole, and not at all if anything fails."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PART = ".{name}.{hex}.part"  # beside the file


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
