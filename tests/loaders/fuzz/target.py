"""What is fuzzed: a file in memory is opened and everything in it read. Only a LoadError may come out of it."""

from __future__ import annotations

from pathlib import Path

from torch_foundry.loaders.container import FileContainer
from torch_foundry.loaders.errors import LoadError
from torch_foundry.loaders.gguf import reader
from torch_foundry.loaders.safetensors import read_header
from torch_foundry.loaders.types import TYPES

KINDS = ("gguf", "safetensors")


class Memory:
    """In place of a `files.File`: bytes that never change. read: how many were asked for."""

    def __init__(self, data: bytes, path: str = "memory") -> None:
        self.data, self.path, self.size, self.count = data, Path(path), len(data), 0

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass

    def read_into(self, out: memoryview, offset: int, field: str) -> None:
        if not 0 <= offset <= offset + len(out) <= len(self.data):
            raise AssertionError(f"{field}: {len(out)} bytes at {offset} asked for, of {len(self.data)}")
        out[:] = self.data[offset : offset + len(out)]
        self.count += len(out)

    def read(self, count: int, offset: int, field: str) -> bytearray:
        out = bytearray(count)
        self.read_into(memoryview(out), offset, field)
        return out


def open_memory(kind: str, data: bytes) -> FileContainer:
    file = Memory(data)
    if kind == "gguf":
        header = reader.read_header(file)
        return FileContainer(file.path, header.metadata, header.tensors, [file])
    metadata, tensors = read_header(file)
    return FileContainer(file.path, metadata, tensors, [file])


def probe(kind: str, data: bytes) -> str:
    """The code by which it is refused ("" if it is not). AssertionError if something untrue is accepted."""
    try:
        container = open_memory(kind, data)
        for value in container.metadata.values():
            if hasattr(value, "tolist"):
                assert len(value.tolist()) == len(value)
        _check_layout(container, len(data))
        for name in container.tensors:
            tensor = container.read(name)
            assert tuple(tensor.shape) == container.shape(name)
    except LoadError as error:
        assert error.expected and error.found, str(error)
        return error.code
    return ""


def _check_layout(container: FileContainer, size: int) -> None:
    """Every tensor lies within the file and in no other, and has the bytes of its shape and type."""
    end = 0
    for info in sorted(container.tensors.values(), key=lambda info: (info.offset, info.nbytes)):
        storage, elements = TYPES[info.format], 1
        for dim in info.shape:
            elements *= dim
        assert info.nbytes * storage.block == elements * storage.nbytes, info
        assert not info.shape or info.shape[-1] % storage.block == 0, info
        assert end <= info.offset and info.offset + info.nbytes <= size, info
        end = info.offset + info.nbytes
