"""Reading the header of a GGUF file: a position in it, and values of its metadata.

Never past the end of the file, and with no more than a window of it in memory; the contents of arrays stay in the file
until somebody asks for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, overload

import numpy as np
import torch

from torch_foundry.core import extension  # noqa: F401  (loads the op)
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.files import File

_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")
_STRING, _ARRAY = _NAMES.index("str"), _NAMES.index("array")
_LETTERS = "BbHhIif?..Qqd"  # of `struct`, by number
_SCALARS = {i: struct.Struct(f"<{letter}") for i, letter in enumerate(_LETTERS) if letter not in "?."}
_PYTHON = {bool: "bool", int: "u32", float: "f32"}
_MOST_STRINGS = 1 << 24  # strings of an array that are taken; vocabularies have some 10^5
_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 20  # bytes of truth values that are looked at together
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


def type_name(number: int) -> str:
    """What a type of values is called here: "u32", "str", ..."""
    return _NAMES[number] if number < len(_NAMES) else f"type {number}"


class Array(Sequence[Any]):
    """An array of the metadata, checked but still in its file: numbers, truth values or strings.

    kind: of its elements ("u8" ... "f64", "bool", "str"). Elements are read when first asked for, all at once;
    LoadError if the file has changed since, ValueError if it was closed. Equal to sequences with equal elements.
    """

    def __init__(self, file: File, key: str, kind: str, count: int, offset: int, nbytes: int) -> None:
        self.kind, self._count, self._key = kind, count, key
        self._file, self._offset, self._nbytes = file, offset, nbytes
        self._values: np.ndarray | list[str] | None = None

    def __len__(self) -> int:
        return self._count

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Numbers and truth values are a vector of their own dtype."""
        return np.asarray(self._read(), dtype)

    def tolist(self) -> list[Any]:
        """The elements as Python's own ints, floats, bools or strs."""
        values = self._read()
        return list(values) if isinstance(values, list) else values.tolist()

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        values = self._read()
        return values[index] if isinstance(values, list) else values[index].tolist()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and not isinstance(other, str) and self.tolist() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._count} x {self.kind}>"

    def _read(self) -> np.ndarray | list[str]:
        if self._values is None:
            self._file.check()
            raw = self._file.read(self._nbytes, self._offset, self._key)
            self._file.check()
            if self.kind == "str":
                try:
                    self._values = _strings(raw, self._count)
                except (struct.error, UnicodeDecodeError):  # it was looked at when the file was opened
                    found = "other texts than when the file was opened"
                    raise LoadError("CHANGED", self._file.path, self._key, expected="texts", found=found) from None
            else:
                self._values = np.frombuffer(raw, f"<{_LETTERS[_NAMES.index(self.kind)]}")
        return self._values


def read_value(cursor: Cursor, number: int) -> Any:
    """The value of type `number` at the cursor: an int, float, bool, str or Array. `cursor.field` is its key."""
    scalar = _SCALARS.get(number)
    if scalar is not None:
        return cursor.unpack(scalar)[0]
    if number == _STRING:
        return cursor.string()
    if number == _ARRAY:
        return _read_array(cursor)
    if number >= len(_NAMES):
        cursor.fail("KV_TYPE", f"a type of values, 0 to {len(_NAMES) - 1}", number, cursor.offset - 4)
    value = cursor.take(1)[0]
    if value > 1:
        cursor.fail("BOOL", "0 or 1", value, cursor.offset - 1)
    return bool(value)


def _read_array(cursor: Cursor) -> Array:
    start = cursor.offset
    number, count = cursor.u32(), cursor.u64()
    if number == _ARRAY:
        cursor.fail("ARR_NEST", "an array of numbers, truth values or strings", "one of arrays", start)
    if number >= len(_NAMES):
        cursor.fail("KV_TYPE", f"a type of values, 0 to {len(_NAMES) - 1}", number, start)
    kind = _NAMES[number]
    least = 8 if number == _STRING else _SCALARS[number].size if number in _SCALARS else 1
    if count > cursor.left // least:
        cursor.fail("ARRLEN", f"at most {cursor.left // least} elements", count, start + 4)
    offset = cursor.offset
    if kind == "str":
        _skip_strings(cursor, count, start + 4)
    elif kind == "bool":
        _skip_bools(cursor, count)
    else:
        cursor.skip(count * least)
    return Array(cursor.file, cursor.field, kind, count, offset, cursor.offset - offset)


def _skip_bools(cursor: Cursor, count: int) -> None:
    while count:
        piece = min(count, _PIECE)
        values = np.frombuffer(cursor.take(piece), np.uint8)
        if values.max() > 1:
            at = int((values > 1).argmax())
            cursor.fail("BOOL", "0 or 1", values[at], cursor.offset - piece + at)
        count -= piece


def _skip_strings(cursor: Cursor, count: int, at: int) -> None:
    """Over `count` strings, each of them looked at: within the file, and UTF-8."""
    if count > _MOST_STRINGS:
        cursor.fail("ARRLEN", f"at most {_MOST_STRINGS} strings", count, at)
    while count:
        cursor.fill(8)
        window = torch.frombuffer(cursor.buffer, dtype=torch.uint8)[cursor.at :]
        done, taken, bad = torch.ops.torch_foundry.skip_strings(window, count)
        if bad >= 0:
            at = cursor.offset + bad
            cursor.fail("UTF8", "text in UTF-8", f"byte {int(window[bad]):#x}", at)
        cursor.skip(taken)
        count -= done
        if not done:  # a string that goes on behind the window
            cursor.string()
            count -= 1


def _strings(raw: bytearray, count: int) -> list[str]:
    length_at, position, found = _LENGTH.unpack_from, 0, []
    for _ in range(count):
        after = position + 8 + length_at(raw, position)[0]
        found.append(raw[position + 8 : after].decode())
        position = after
    return found


def pack_string(text: str) -> bytes:
    """A string as files have it: its length in bytes, then UTF-8."""
    raw = text.encode()
    return _LENGTH.pack(len(raw)) + raw


def pack_value(value: Any) -> bytes:
    """A value and its type. TypeError for what files can't say.

    Whole numbers of arrays are signed where they have room, as gguf's own writer has them: llama.cpp refuses types of
    tokens that are not.
    """
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + pack_string(value)
    if not isinstance(value, Sequence):
        number = _NAMES.index(_kind([value]))
        return struct.pack(f"<I{_LETTERS[number]}", number, value)
    if all(isinstance(each, str) for each in value):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(pack_string, value))
    number = _NAMES.index(_kind(value, signed=True))
    return struct.pack(f"<IIQ{len(value)}{_LETTERS[number]}", _ARRAY, number, len(value), *value)


def _kind(values: Sequence[Any], *, signed: bool = False) -> str:
    """The type that all these numbers have room in; signed: rather one that has negative ones as well."""
    kinds = {type(value) for value in values}
    if len(kinds) != 1 or (kind := _PYTHON.get(kinds.pop())) is None:
        raise TypeError(f"metadata: expected numbers, truth values or strings of one type, got {kinds}")
    if kind != "u32":
        return kind
    low, high = min(values), max(values)
    return "i32" if low < 0 or (signed and high < 1 << 31) else "u32" if high < 1 << 32 else "u64"
