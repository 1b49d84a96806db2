"""Reads a metallib: which functions it has, and the LLVM bitcode of each.

The container is 'MTLB', a header with four (offset, size) sections, then for each function a list of tags: a name of
four letters, a length, that many bytes.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

MAGIC = b"MTLB"
WRAPPED, BARE = 0x0B17C0DE, 0xDEC04342  # LLVM bitcode with its wrapper, and 'BC' C0DE without
HEADER = struct.Struct("<4s20x8Q")  # magic; functions, two sections of tags, bitcode: offset and size


class MetalLibError(ValueError):
    """A file that is no metallib, or is damaged."""


class Function(NamedTuple):
    """One function, as it lies in the file."""

    air_version: tuple[int, int]  # (2, 6)
    offset: int
    size: int


class MetalLib:
    """The functions of one file by name; where there are several of a name, for more than one AIR, the newest."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            if path.stat().st_size < HEADER.size:
                raise MetalLibError(f"{path}: too short for a metallib")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.functions = self._read()
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise MetalLibError(f"{path}: a damaged metallib ({error!r})") from error

    def _read(self) -> dict[str, Function]:
        magic, listed, _, _, _, _, _, code, _ = HEADER.unpack_from(self._data)
        if magic != MAGIC:
            raise MetalLibError(f"{self.path}: not a metallib: it begins with {magic!r}")
        (count,) = struct.unpack_from("<I", self._data, listed)
        functions: dict[str, Function] = {}
        at = listed + 4
        for _ in range(count):
            (size,) = struct.unpack_from("<I", self._data, at)  # itself included
            tags = self._tags(at + 4, at + size)
            name = tags[b"NAME"].rstrip(b"\0").decode()
            major, minor = struct.unpack_from("<2H", tags[b"VERS"])
            _, _, offset = struct.unpack("<3Q", tags[b"OFFT"])
            (length,) = struct.unpack("<Q", tags[b"MDSZ"])
            found = Function((major, minor), code + offset, length)
            functions[name] = max(found, functions.get(name, found))
            at += size
        return functions

    def _tags(self, at: int, end: int) -> dict[bytes, bytes]:
        tags = {}
        while at < end and (name := self._data[at : at + 4]) != b"ENDT":
            (size,) = struct.unpack_from("<H", self._data, at + 4)
            tags[name] = self._data[at + 6 : at + 6 + size]
            at += 6 + size
        return tags

    def bitcode(self, name: str) -> bytes:
        """One function's module, without the wrapper. KeyError for a name that isn't there."""
        _, at, size = self.functions[name]
        magic, _, offset, inner = struct.unpack_from("<4I", self._data[at : at + size].ljust(16, b"\0"))
        if magic not in (WRAPPED, BARE):
            raise MetalLibError(f"{self.path}: {name} is no LLVM bitcode: it begins with {magic:#x}")
        return self._data[at + offset : at + offset + inner] if magic == WRAPPED else self._data[at : at + size]
