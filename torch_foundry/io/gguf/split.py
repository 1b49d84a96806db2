"""Models in several GGUF files, NAME-00001-of-00003.gguf and so on, as a container."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.container import Container, TensorInfo
from torch_foundry.io.files import MOST_OPEN, File
from torch_foundry.io.gguf.reader import Header, read_header

_NAME = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"


def open_gguf(path: str | os.PathLike[str] | File, *, check_finite: bool = True) -> Container:
    """The GGUF file `path` as a container, with the other parts if it has any; LoadError if anything is wrong.

    path: or a File that is open already. metadata: ints, floats, bools, strs and `Array`s, those of the first part.
    check_finite: see `Container`.
    """
    files = [path if isinstance(path, File) else File(path)]
    path = files[0].path
    try:
        header = _read(files[0])
        count = _integer(header, path, _COUNT, 1)
        named = _NAME.fullmatch(path.name)
        if count <= 1 and (named is None or int(named["count"]) <= 1):
            _check(header, path, 0, count, len(header.tensors))
            return Container(path, header.metadata, header.tensors, files, check_finite=check_finite)
        if named is None or int(named["count"]) != count:
            found = f"{path.name}, {_COUNT} {count}"
            raise LoadError("SPLIT", path, _COUNT, expected=f"NAME-00001-of-{count:05d}.gguf", found=found)
        headers, total = [], _integer(header, path, _TENSORS, -1)
        tensors: dict[str, TensorInfo] = {}
        for number in range(count):
            part = path.with_name(f"{named['name']}-{number + 1:05d}-of-{count:05d}.gguf")
            if part == path:
                headers.append(header)
            else:
                files.append(_open(part, path))
                headers.append(_read(files[-1]))
            if count > MOST_OPEN:
                files[-1].rest()
            _check(headers[-1], part, number, count, total)
            _check_same(headers[0], headers[-1], part)
            if twice := tensors.keys() & headers[-1].tensors.keys():
                found = f"in {tensors[min(twice)].path.name} too"
                raise LoadError("SPLIT", part, min(twice), expected="a tensor of one part", found=found)
            tensors |= headers[-1].tensors
        if len(tensors) != total:
            raise LoadError("SPLIT", path, _TENSORS, expected=f"{total} tensors", found=f"{len(tensors)}")
    except BaseException:
        for file in files:
            file.close()
        raise
    return Container(path, headers[0].metadata, tensors, files, check_finite=check_finite)


def _open(part: Path, whole: Path) -> File:
    """A part of the file `whole`, which somebody asked for."""
    try:
        return File(part)
    except LoadError as problem:
        if problem.code != "ABSENT":
            raise
        raise LoadError("SPLIT", whole, expected=f"the part {part.name}", found="no such file") from None


def _read(file: File) -> Header:
    header = read_header(file)
    file.check()
    return header


def _integer(header: Header, path: Path, key: str, absent: int) -> int:
    value: Any = header.metadata.get(key, absent)
    if type(value) is not int or (value < 0 and value != absent):
        raise LoadError("SPLIT", path, key, expected="a number", found=f"{value!r:.80}")
    return value


def _check(header: Header, path: Path, number: int, count: int, total: int) -> None:
    """That a file says of itself what it should: part `number` (from 0) of `count`, which have `total` tensors."""
    for key, expected in ((_NUMBER, number), (_COUNT, count), (_TENSORS, total)):
        absent = expected if count <= 1 else -1
        if (found := _integer(header, path, key, absent)) != expected:
            raise LoadError("SPLIT", path, key, expected=f"{expected}", found="nothing" if found < 0 else f"{found}")


def _check_same(first: Header, header: Header, path: Path) -> None:
    key = "general.architecture"
    expected, found = first.metadata.get(key), header.metadata.get(key)
    if found not in (None, expected):
        raise LoadError("SPLIT", path, key, expected=f"{expected!r:.80}", found=f"{found!r:.80}")
