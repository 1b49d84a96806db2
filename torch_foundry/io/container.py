"""Tensors in open files: what the containers of all kinds have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torch_foundry.core import devices
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.files import File
from torch_foundry.io.storage import TYPES, Storage, nonfinite

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as a container describes it.

    shape: rows first, as torch has it (GGUF lists dimensions the other way round). format: a name of
    `torch_foundry.quant.FORMATS`, or of a plain type that is no weight format ("i8", "i16", "i32", "i64", "u8", "u16",
    "u32", "f64", "bool", "f8_e4m3", "f8_e5m2"). offset: of its first byte in the file `path`.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    path: Path
    offset: int
    nbytes: int


_CHUNK = 1 << 22  # bytes that are read and then looked at while they are still in the cache
_WORD = 4  # bytes whose multiples blocks may have to begin at, and copies by Metal


class Container:
    """One or several open files that belong together; it closes them at the end of a `with`.

    check_finite: a NaN or an infinity in a floating-point tensor, or in the scale of a block, is a LoadError when it is
    read (by `read` and `read_into`; `mapped` tensors are not looked at).

    tensors: by name; their headers have been read and checked. blocks: of bytes that are blocks, their type, by tensor.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, TensorInfo],
        files: Sequence[File],
        *,
        check_finite: bool = True,
    ) -> None:
        self.path, self.metadata, self.tensors = path, metadata, tensors
        self.checks_finite: Callable[[str], bool] = lambda name: check_finite  # by name; a `WeightReader` has its own
        self.blocks: dict[str, Storage] = {}
        self._files = {file.path: file for file in files}
        self._maps: dict[Path, np.ndarray] = {}

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Rows `start:stop` (of the first dimension) on the CPU: uint8 [..., row bytes] if packed, else of its dtype.

        LoadError if the file has changed since it was opened, can't be read, or holds what no weight is.
        """
        shape = self.shape(name)
        if shape:
            stop = shape[0] if stop is None else stop
            if not 0 <= start <= stop <= shape[0]:
                raise ValueError(f"{name}: expected rows within 0:{shape[0]}, got {start}:{stop}")
            shape = (stop - start, *shape[1:])
        out = torch.empty(shape, dtype=self._storage(name).dtype)
        self.read_into(name, out, start)
        return out

    def read_into(self, name: str, out: torch.Tensor, start: int = 0, on_device: torch.Tensor | None = None) -> None:
        """The rows from `start` on that `out` (contiguous, on the CPU, of the dtype of `read`) has room for.

        on_device: the tensor whose memory `out` is (`Device.host_view`), if its device is to read the file.
        """
        info, storage, shape = self.tensors[name], self._storage(name), self.shape(name)
        row = shape[1:] if shape else ()
        rows = (out.shape[0] if out.ndim else 1) if shape else 1
        if out.dtype != storage.dtype or out.shape[1 if shape else 0 :] != row or out.ndim != len(shape):
            raise ValueError(f"{name}: expected {storage.dtype} [rows, {row}], got {out.dtype} {list(out.shape)}")
        if not devices.of(out.device).host_memory or not out.is_contiguous():
            raise ValueError(f"{name}: expected contiguous memory of the CPU to read into")
        if start < 0 or start + rows > (shape[0] if shape else 1):
            raise ValueError(f"{name}: expected rows within 0:{shape[0] if shape else 1}, got {start}:{start + rows}")
        if not out.numel():
            return
        data = out.reshape(-1).view(torch.uint8)
        self._fill(info, storage, data, info.offset + start * (data.numel() // rows), on_device)

    def _fill(
        self, info: TensorInfo, storage: Storage, data: torch.Tensor, offset: int, on_device: torch.Tensor | None
    ) -> None:
        file, memory = self._file(info), data.numpy().data
        content = self.blocks.get(info.name, storage)
        step, finite = _CHUNK // content.nbytes * content.nbytes, self.checks_finite(info.name)
        file.check()
        if on_device is not None and (failed := devices.of(on_device.device).read_file(file.path, offset, on_device)):
            file.check()
            wanted = f"{on_device.nbytes} bytes"
            raise LoadError("IO", file.path, info.name, expected=wanted, found=failed, offset=offset)
        for begin in range(0, data.numel(), step):
            if on_device is None:
                file.read_into(memory[begin : begin + step], offset + begin, info.name)
            chunk = data[begin : begin + step]
            if storage.name == "bool" and bool((chunk > 1).any()):
                raise LoadError("BOOL", info.path, info.name, expected="bytes of 0 or 1", found=f"{int(chunk.max())}")
            if finite and (at := nonfinite(chunk, content)) is not None:
                file.check()
                where = offset + begin + at
                raise LoadError(
                    "NONFINITE", info.path, info.name, expected="finite values", found="NaN or infinity", offset=where
                )
        file.check()

    def mapped(self, name: str, device: torch.device = CPU) -> torch.Tensor:
        """The whole tensor where it lies in the page cache, without a copy; shape and dtype as `read` gives them.

        If somebody truncates the file, the process ends (SIGBUS); if somebody rewrites it, the weights change. Writing
        to the tensor affects this process only, and is impossible on `mps`. NaN is not checked. A tensor that doesn't
        begin at a multiple of its element's size and of four bytes is read instead.
        """
        info, storage, shape = self.tensors[name], self._storage(name), self.shape(name)
        if not info.nbytes or info.offset % max(storage.dtype.itemsize, _WORD):
            return self.read(name).to(device)
        file = self._file(info)
        file.check()
        if not (known := devices.of(device)).host_memory:
            with file.opened() as fd:
                pages = known.mapped(fd, info.offset, info.nbytes)
            return self.read(name).to(device) if pages is None else pages.view(storage.dtype).view(shape)
        mapping = self._maps.get(info.path)
        if mapping is None:
            mapping = self._maps[info.path] = file.map()
        count = info.nbytes // storage.dtype.itemsize
        return torch.frombuffer(mapping, dtype=storage.dtype, count=count, offset=info.offset).view(shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the tensor that `read` returns: the last dimension of a packed one counts bytes."""
        info, storage = self.tensors[name], self._storage(name)
        if not storage.packed:
            return info.shape
        return (*info.shape[:-1], info.shape[-1] // storage.block * storage.nbytes)

    def rows(self, name: str) -> int:
        """Of a tensor; 0: there is none."""
        return self.tensors[name].shape[0] if name in self.tensors and self.tensors[name].shape else 0

    def _storage(self, name: str) -> Storage:
        return TYPES[self.tensors[name].format]

    def _file(self, info: TensorInfo) -> File:
        file = self._files.get(info.path)
        if file is None:
            raise ValueError(f"{info.path}: read after it was closed")
        return file

    def close(self) -> None:
        """Close the files; mapped tensors stay."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._maps.clear()

    def __enter__(self) -> Container:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
