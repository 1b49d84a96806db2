"""Writing GGUF files."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import torch

from torch_foundry import quant
from torch_foundry.loaders.whole import replacing

ALIGNMENT = 32
NUMBERS = {
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<?"),
    "u64": (10, "<Q"),
    "f64": (12, "<d"),
}
STRING, ARRAY = 8, 9
OF_PYTHON = {bool: "bool", int: "u32", float: "f32"}


class Tensor:
    """A tensor to write. shape: rows first. format: of `quant.FORMATS`, one that GGUF has. read: the stored tensor."""

    def __init__(self, shape: Sequence[int], fmt: str, read: Callable[[], torch.Tensor]) -> None:
        known = quant.get_format(fmt)
        if known.gguf_type is None:
            raise ValueError(f"format: GGUF has no {fmt}")
        self.shape, self.format, self.read, self.type = tuple(shape), fmt, read, known.gguf_type
        self.nbytes = known.row_size(self.shape[-1]) * known.dtype.itemsize
        for size in self.shape[:-1]:
            self.nbytes *= size


def write_gguf(path: str | os.PathLike[str], metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a file; it appears under its name when it is whole, and not at all if anything fails.

    metadata: bool, int (u32, i32 or u64 by its value), float (f32), str, or a sequence of one of these. tensors: read
    and written one by one.
    """
    with replacing(path) as file:
        _write(file, metadata, tensors)


def _write(file: BinaryIO, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    header = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        header += _string(key) + _value(value)
    offset = 0
    for name, tensor in tensors.items():
        dims = tensor.shape[::-1]
        header += _string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.type, offset)
        offset += _aligned(tensor.nbytes)
    file.write(header.ljust(_aligned(len(header)), b"\0"))
    for name, tensor in tensors.items():
        data = tensor.read().detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        if data.numel() != tensor.nbytes:
            raise ValueError(f"{name}: expected {tensor.nbytes} bytes to write, got {data.numel()}")
        file.write(data.numpy().data)
        file.write(bytes(_aligned(tensor.nbytes) - tensor.nbytes))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, Sequence):
        return _array(value)
    number, layout = NUMBERS[_kind([value])]
    return struct.pack("<I", number) + struct.pack(layout, value)


def _array(values: Sequence[Any]) -> bytes:
    if all(isinstance(value, str) for value in values):
        return struct.pack("<IIQ", ARRAY, STRING, len(values)) + b"".join(map(_string, values))
    number, layout = NUMBERS[_kind(values)]
    body = struct.pack(f"<{len(values)}{layout[1]}", *values)
    return struct.pack("<IIQ", ARRAY, number, len(values)) + body


def _kind(values: Iterable[Any]) -> str:
    """The type that all these numbers have room in."""
    kinds = {type(value) for value in values}
    if len(kinds) != 1 or (kind := OF_PYTHON.get(kinds.pop())) is None:
        raise TypeError(f"metadata: expected numbers, truth values or strings of one type, got {kinds}")
    if kind != "u32":
        return kind
    low, high = min(values), max(values)
    return "i32" if low < 0 else "u32" if high < 1 << 32 else "u64"
