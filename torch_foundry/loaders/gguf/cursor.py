"""A position in the header of a GGUF file: never past its end, with no more than a window of it in memory."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.files import File

_U32, _U64 = struct.Struct("<I").unpack_from, struct.Struct("<Q").unpack_from
WINDOW = 1 << 18  # bytes that are read at a time
LONGEST = 1 << 24  # bytes of the longest string that is taken: a chat template has some 10^4


class Cursor:
    """A place in the file. `field`: what is being read there, for errors; what it is the `index`-th of, from 0 on."""

    __slots__ = ("_base", "at", "buffer", "field", "file", "index")

    def __init__(self, file: File, offset: int = 0) -> None:
        self.file, self.field, self.index = file, "", -1
        self.buffer, self.at, self._base = bytearray(), 0, offset

    @property
    def offset(self) -> int:
        """Where in the file it stands."""
        return self._base + self.at

    @property
    def named(self) -> str:
        """`field`, with its number if it has one."""
        return self.field if self.index < 0 else f"{self.field} {self.index}"

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.file.size - self._base - self.at

    def fail(self, code: str, expected: str, found: object, offset: int | None = None) -> NoReturn:
        """Raise the LoadError that says so."""
        where = self.offset if offset is None else offset
        raise LoadError(code, self.file.path, self.named, expected=expected, found=str(found), offset=where)

    def fill(self, count: int) -> None:
        """See to it that `count` bytes from here on are in `buffer`; TRUNCATED if the file ends before."""
        if self.at + count <= len(self.buffer):
            return
        left = self.left
        if count > left:
            self.fail("TRUNCATED", f"{count} bytes", f"the end of the file after {left}")
        self._base, self.at = self.offset, 0
        self.buffer = self.file.read(min(max(count, WINDOW), left), self._base, self.named)

    def take(self, count: int) -> bytearray:
        """The next `count` bytes."""
        if self.at + count > len(self.buffer):
            self.fill(count)
        start = self.at
        self.at = start + count
        return self.buffer[start : start + count]

    def skip(self, count: int) -> None:
        """Go on by `count` bytes, which the file must have (callers make sure)."""
        self.at += count  # may lie past the buffer; `fill` reads on from there

    def u32(self) -> int:
        """The next unsigned 32-bit integer."""
        if self.at + 4 > len(self.buffer):
            self.fill(4)
        self.at += 4
        return _U32(self.buffer, self.at - 4)[0]

    def u64(self) -> int:
        """The next unsigned 64-bit integer."""
        if self.at + 8 > len(self.buffer):
            self.fill(8)
        self.at += 8
        return _U64(self.buffer, self.at - 8)[0]

    def unpack(self, kind: struct.Struct) -> tuple[Any, ...]:
        """The next numbers."""
        if self.at + kind.size > len(self.buffer):
            self.fill(kind.size)
        self.at += kind.size
        return kind.unpack_from(self.buffer, self.at - kind.size)

    def string(self, limit: int = LONGEST, code: str = "STRLEN") -> str:
        """The next string; `code` is that of one over `limit` bytes."""
        if self.at + 8 > len(self.buffer):
            self.fill(8)
        start = self.at + 8
        length = _U64(self.buffer, start - 8)[0]
        if length > limit or start + length > len(self.buffer):
            if length > self.left - 8:
                self.fail("STRLEN", f"at most {self.left - 8} bytes of text", length)
            if length > limit:
                self.fail(code, f"at most {limit} bytes of text", length)
            self.fill(8 + length)
            start = self.at + 8
        try:
            text = self.buffer[start : start + length].decode()
        except UnicodeDecodeError as problem:
            where = self.offset + 8 + problem.start
            self.fail("UTF8", "text in UTF-8", f"byte {problem.object[problem.start]:#x}", where)
        self.at = start + length
        return text
