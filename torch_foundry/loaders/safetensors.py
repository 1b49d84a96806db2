"""The header of one safetensors file. It is read by C++ (csrc/loaders): it may have a million entries.

Beyond what the format forbids, this is not taken: a header that begins with white space; fields of a tensor that the
format doesn't name; the same name twice; names that look like paths, or with control characters in them; rows of
elements smaller than a byte that aren't whole bytes, even where the whole tensor is; an entry over 8 MiB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import torch

from torch_foundry import _ext  # noqa: F401  (loads the class)
from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.files import File
from torch_foundry.loaders.foreign import LOOK, foreign
from torch_foundry.loaders.tensors import TensorInfo
from torch_foundry.loaders.types import SAFETENSORS

_LONGEST = 100_000_000  # bytes of a header, by the format
_WINDOW = 1 << 18  # bytes of it that are read at a time
_DTYPES = [(name, storage.block, storage.nbytes) for name, storage in SAFETENSORS.items()]


class Tensors(Mapping[str, TensorInfo]):
    """The tensors of a file, in the order of its header; a TensorInfo is made when it is asked for."""

    def __init__(self, header: Any, file: File, begin: int) -> None:
        self._header, self._path, self._begin = header, file.path, begin

    def __len__(self) -> int:
        return self._header.size()

    def __iter__(self) -> Iterator[str]:
        return map(self._header.name, range(len(self)))

    def __getitem__(self, name: str) -> TensorInfo:
        index = self._header.find(name)
        if index < 0:
            raise KeyError(name)
        dtype, shape, offset, nbytes = self._header.tensor(index)
        return TensorInfo(name, tuple(shape), SAFETENSORS[dtype].name, self._path, self._begin + offset, nbytes)


def read_header(file: File) -> tuple[dict[str, str], Tensors]:
    """Metadata and tensors of `file`, all of it checked; LoadError otherwise."""
    begin = bytes(file.read(min(LOOK, file.size), 0, "header"))
    if file.size < 8:
        raise LoadError("ST_SHORT", file.path, "header", expected="at least 8 bytes", found=f"{file.size}", offset=0)
    length, most = int.from_bytes(begin[:8], "little"), min(_LONGEST, file.size - 8)
    if length > most:
        if (what := foreign(begin)) is not None:
            raise LoadError("MAGIC", file.path, expected="a safetensors file", found=what, offset=0)
        expected = f"a header of at most {most} bytes"
        raise LoadError("ST_HLEN", file.path, "header", expected=expected, found=f"{length}", offset=0)
    header = torch.classes.torch_foundry.SafetensorsHeader(_DTYPES, length)
    window = torch.empty(min(_WINDOW, length), dtype=torch.uint8)
    for at in range(0, max(length, 1), _WINDOW):
        piece = window[: min(_WINDOW, length - at)]
        file.read_into(piece.numpy().data, 8 + at, "header")
        _raise(header.feed(piece, at + _WINDOW >= length), file)
    _raise(header.finish(file.size - 8 - length), file)
    return header.metadata(), Tensors(header, file, 8 + length)


def _raise(fault: tuple[str, str, str, str, int] | None, file: File) -> None:
    if fault:
        code, field, expected, found, offset = fault
        raise LoadError(code, file.path, field, expected=expected, found=found, offset=None if offset < 0 else offset)


def write_tensors(file: BinaryIO, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file, tensor by tensor, into a file that the caller has opened (and locked)."""
    names = {storage.dtype: name for name, storage in reversed(SAFETENSORS.items()) if storage.block == 1}
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    ordered = sorted(tensors.items(), key=lambda each: -each[1].itemsize)  # so that all of them are aligned
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
