"""The header of one GGUF file.

The format allows more than is accepted here. Refused, because no writer makes them and they could only mislead: arrays
of arrays; tensors without dimensions; an alignment below 8 or that is no power of two; names longer than 64 bytes or
with control characters; tensors in another order than they are listed; anything between or after the tensors but
alignment padding. Accepted: a last tensor without its padding.
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch_foundry.io.container import TensorInfo
from torch_foundry.io.files import LOOK, File, foreign, is_safetensors
from torch_foundry.io.gguf.values import Cursor, read_value, type_name
from torch_foundry.io.storage import GGML, GGML_GONE, LIMIT, Storage

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MOST = 1 << 18  # keys, and tensors, of a file that are taken; models have some 10^2 and 10^3
_LEAST_KEY, _LEAST_TENSOR = 8 + 1 + 4 + 1, 8 + 1 + 4 + 8 + 4 + 8  # bytes
_LONGEST_KEY, _LONGEST_NAME, _MOST_DIMS = 65535, 64, 4
_DIMS = [struct.Struct(f"<{count}Q") for count in range(_MOST_DIMS + 1)]
_ALIGNMENT, _LEAST_ALIGNMENT, _MOST_ALIGNMENT = 32, 8, 1 << 30


@dataclass
class Header:
    """What one file says: its metadata, and where its tensors lie."""

    metadata: dict[str, Any]
    tensors: Mapping[str, TensorInfo]


class Tensors(Mapping[str, TensorInfo]):
    """The tensors of a file, in its order; a TensorInfo is made when it is asked for.

    found: by name (shape, format, offset within the data, bytes). begin: where the data begin.
    """

    def __init__(self, found: dict[str, tuple[tuple[int, ...], str, int, int]], path: Path, begin: int) -> None:
        self._found, self._path, self._begin = found, path, begin

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __getitem__(self, name: str) -> TensorInfo:
        shape, format, offset, nbytes = self._found[name]
        return TensorInfo(name, shape, format, self._path, self._begin + offset, nbytes)


def read_header(file: File) -> Header:
    """The header of `file`, all of it checked; LoadError otherwise."""
    cursor = Cursor(file)
    cursor.field = "magic"
    if (magic := bytes(cursor.take(min(4, file.size)))) != _MAGIC[: len(magic)]:
        begin = bytes(file.read(min(LOOK, file.size), 0, "magic"))
        what = "a safetensors file" if is_safetensors(begin) else foreign(begin)
        cursor.fail("MAGIC", "a GGUF file", what or repr(magic), 0)
    cursor.take(4 - len(magic))
    cursor.field = "version"
    version = cursor.u32()
    if version not in _VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        code, found = (
            ("ENDIAN", f"version {swapped}, big-endian") if swapped in (1, *_VERSIONS) else ("VERSION", version)
        )
        cursor.fail(code, "version 2 or 3, little-endian", found, 4)
    cursor.field = "n_tensors"
    n_tensors = _count(cursor, _LEAST_TENSOR)
    cursor.field = "n_kv"
    n_keys = _count(cursor, _LEAST_KEY)
    metadata = _read_metadata(cursor, n_keys)
    tensors = _read_tensors(cursor, n_tensors, metadata.get("general.alignment", _ALIGNMENT))
    return Header(metadata, tensors)


def _count(cursor: Cursor, least: int) -> int:
    count = cursor.u64()
    room = min(cursor.left // least, _MOST)
    if count > room:
        cursor.fail("COUNT", f"at most {room}, which the file has room for", count, cursor.offset - 8)
    return count


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    string, u32 = cursor.string, cursor.u32
    for index in range(count):
        cursor.field, cursor.index = "key", index
        key = string(_LONGEST_KEY, "KEYLEN")
        if not key:
            cursor.fail("KEY_EMPTY", "a key", "none", cursor.offset - 8)
        if "\0" in key:
            cursor.fail("KEY_NUL", "a key without zero bytes", repr(key[:80]), _begin(cursor, key))
        if key in metadata:
            cursor.fail("KEY_DUP", "each key once", repr(key[:80]), _begin(cursor, key))
        cursor.field, cursor.index = key, -1
        number = u32()
        if key == "general.alignment":
            metadata[key] = _read_alignment(cursor, number)
        else:
            metadata[key] = read_value(cursor, number)
    return metadata


def _begin(cursor: Cursor, text: str) -> int:
    """Where the string begins that has just been read."""
    return cursor.offset - 8 - len(text.encode())


def _read_alignment(cursor: Cursor, number: int) -> int:
    if number != 4:
        cursor.fail("ALIGN_TYPE", "type u32", type_name(number), cursor.offset - 4)
    value = cursor.u32()
    if value & (value - 1) or not _LEAST_ALIGNMENT <= value <= _MOST_ALIGNMENT:
        cursor.fail("ALIGN", f"a power of two, {_LEAST_ALIGNMENT} to {_MOST_ALIGNMENT}", value, cursor.offset - 4)
    return value


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> Tensors:
    total, in_line = 0, True
    found: dict[str, tuple[tuple[int, ...], str, int, int]] = {}
    for index in range(count):
        cursor.field, cursor.index = "tensor", index
        name = cursor.field = _read_name(cursor, found)
        cursor.index = -1
        dims, elements = _read_dims(cursor)
        storage = _read_type(cursor)
        if dims[0] % storage.block:
            cursor.fail("BLOCK", f"rows of whole blocks of {storage.block} elements", dims[0])
        nbytes = elements // storage.block * storage.nbytes
        if nbytes > LIMIT:
            cursor.fail("BYTES_OVF", f"at most {LIMIT} bytes", nbytes)
        expected, total = total, total + -(-nbytes // alignment) * alignment
        if total > LIMIT:
            cursor.fail("SUM_OVF", f"tensors of at most {LIMIT} bytes together", total)
        offset = cursor.u64()
        if in_line and offset < expected:  # all before it lies side by side
            code = "OFF_ALIGN" if offset % alignment else "OVERLAP"
            cursor.fail(code, f"offset {expected}, where the tensor before it ends", offset, cursor.offset - 8)
        in_line = in_line and offset == expected
        found[name] = dims[::-1], storage.name, offset, nbytes
    begin = _check_layout(cursor, [(name, offset, size) for name, (_, _, offset, size) in found.items()], alignment)
    return Tensors(found, cursor.file.path, begin)


def _read_name(cursor: Cursor, known: Container[str]) -> str:
    name = cursor.string(_LONGEST_NAME, "NAME_LEN")
    if not name:
        cursor.fail("NAME_EMPTY", "a name", "none", cursor.offset - 8)
    if not name.isprintable():
        if "\0" in name:
            cursor.fail("NAME_NUL", "a name without zero bytes", repr(name), _begin(cursor, name))
        if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in name):
            cursor.fail("NAME_CTRL", "a name without control characters", repr(name), _begin(cursor, name))
    if name in known:
        cursor.fail("NAME_DUP", "each name once", repr(name), _begin(cursor, name))
    return name


def _read_dims(cursor: Cursor) -> tuple[tuple[int, ...], int]:
    """Dimensions in the file's order, rows last, and their product."""
    count = cursor.u32()
    if not 1 <= count <= _MOST_DIMS:
        cursor.fail("NDIMS", f"1 to {_MOST_DIMS} dimensions", count, cursor.offset - 4)
    dims, elements = cursor.unpack(_DIMS[count]), 1
    for dim in dims:
        if not dim:
            cursor.fail("ZERO_DIM", "dimensions of at least 1", list(dims), cursor.offset - 8 * count)
        if dim > LIMIT:
            cursor.fail("DIM_RANGE", f"dimensions of at most {LIMIT}", dim, cursor.offset - 8 * count)
        elements *= dim
    if elements > LIMIT:
        cursor.fail("ELEM_OVF", f"at most {LIMIT} elements", elements, cursor.offset - 8 * count)
    return dims, elements


def _read_type(cursor: Cursor) -> Storage:
    number = cursor.u32()
    storage = GGML.get(number)
    if storage is None:
        if number in GGML_GONE:
            cursor.fail(
                "TYPE_GONE", "a type that is still in use", f"{number} ({GGML_GONE[number]})", cursor.offset - 4
            )
        cursor.fail("TYPE", "a known type of tensors", number, cursor.offset - 4)
    return storage


def _check_layout(cursor: Cursor, tensors: list[tuple[str, int, int]], alignment: int) -> int:
    """Where the data begin, whose tensors (name, offset within the data, bytes) must follow one another to the end."""
    begin = -(-cursor.offset // alignment) * alignment
    room = cursor.file.size - begin
    expected = end = 0
    for name, offset, nbytes in tensors:
        if offset != expected:
            _misplaced(cursor, tensors, alignment, begin)
        end = offset + nbytes
        if end > room:
            cursor.field = name
            cursor.fail(
                "DATA_SHORT", f"{nbytes} bytes", f"the end of the file after {max(room - offset, 0)}", begin + offset
            )
        expected = -(-end // alignment) * alignment
    cursor.field = "data"
    if not tensors and not cursor.left:
        return begin  # a vocabulary without weights ends with its header
    if room > expected:
        cursor.fail("TRAILING", "the end of the file", f"{room - expected} more bytes", begin + expected)
    if room not in (end, expected):
        cursor.fail("DATA_SHORT", f"{expected - end} bytes to fill the alignment up, or none", room - end, begin + end)
    return begin


def _misplaced(cursor: Cursor, tensors: list[tuple[str, int, int]], alignment: int, begin: int) -> NoReturn:
    """Say what is wrong with offsets that are not one behind the other."""
    room = cursor.file.size - begin
    for name, offset, _ in tensors:
        cursor.field = name
        if offset >= max(room, 1):
            cursor.fail("OFF_RANGE", f"an offset within {max(room, 0)} bytes of data", offset)
        if offset % alignment:
            cursor.fail("OFF_ALIGN", f"an offset that {alignment} divides", offset)
    end, last = 0, "the header"
    for name, offset, nbytes in sorted(tensors, key=lambda tensor: tensor[1:]):
        cursor.field = name
        if offset < end:
            cursor.fail("OVERLAP", f"an offset from {end} on, where {last} ends", offset, begin + offset)
        if offset > end:
            cursor.fail("HOLE", f"offset {end}, where {last} ends", offset, begin + offset)
        end, last = -(-(offset + nbytes) // alignment) * alignment, name
    cursor.field = "tensors"
    cursor.fail("ORDER", "tensors in the order that they are listed in", "another", begin)
