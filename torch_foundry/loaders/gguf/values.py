"""Values of GGUF metadata. The contents of arrays stay in the file until somebody asks for them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch

from torch_foundry import _ext  # noqa: F401  (loads the op)
from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.files import File
from torch_foundry.loaders.gguf.cursor import Cursor

_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")
_STRING, _ARRAY = _NAMES.index("str"), _NAMES.index("array")
_SCALARS = {number: struct.Struct(f"<{letter}") for number, letter in enumerate("BbHhIifB") if number != 7}
_SCALARS |= {number: struct.Struct(f"<{letter}") for number, letter in ((10, "Q"), (11, "q"), (12, "d"))}
_DTYPES = dict(
    zip(_NAMES, ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", "", "", "<u8", "<i8", "<f8"), strict=True)
)
_MOST_STRINGS = 1 << 24  # strings of an array that are taken; vocabularies have some 10^5
_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 20  # bytes of truth values that are looked at together


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

    def numpy(self) -> np.ndarray:
        """Numbers and truth values as a vector of their own dtype; TypeError for strings."""
        values = self._read()
        if isinstance(values, list):
            raise TypeError(f"{self._key}: expected an array of numbers, got one of strings")
        return values

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
                self._values = np.frombuffer(raw, _DTYPES[self.kind])
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
