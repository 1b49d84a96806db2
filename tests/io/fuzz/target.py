"""What is fuzzed: a file in memory is opened and everything in it read. Only a LoadError may come out of it."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.io.fuzz import packs_truth
from tests.io.fuzz.mutants import KINDS as KINDS
from torch_foundry import quant
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.config_json import parse
from torch_foundry.io.container import Container
from torch_foundry.io.gguf import reader
from torch_foundry.io.packed import read_weights
from torch_foundry.io.parameters import ParameterNames
from torch_foundry.io.safetensors import read_header
from torch_foundry.io.storage import TYPES
from torch_foundry.io.weights import WeightReader


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


def open_memory(kind: str, data: bytes) -> Container:
    file = Memory(data)
    if kind == "gguf":
        header = reader.read_header(file)
        return Container(file.path, header.metadata, header.tensors, [file])
    metadata, tensors = read_header(file)
    return Container(file.path, metadata, tensors, [file])


def probe(kind: str, data: bytes) -> str:
    """The code by which it is refused ("" if it is not). AssertionError if something untrue is accepted."""
    try:
        if kind == "packs":
            _probe_packs(data)
            return ""
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


def _probe_packs(data: bytes) -> None:
    """Settings and tensors: weights have the shape and the values that the method's own formula says."""
    count = int.from_bytes(data[:4], "little")
    try:
        config = parse(data[4 : 4 + count])
    except (ValueError, RecursionError) as problem:
        raise LoadError("CONFIG", "memory", "config", expected="JSON", found=str(problem)) from None
    if not isinstance(config, dict):
        raise LoadError("CONFIG", "memory", "config", expected="an object", found=type(config).__name__)
    given = config.get("quantization_config")
    settings = config.get("quantization") if given is None else given
    container = open_memory("safetensors", data[4 + count :])
    source = WeightReader(container, False, lambda name: True)
    weights = read_weights(source, config, "config.json", ParameterNames("llama"))
    for name, weight in weights.items():
        known, loaded = quant.get_format(weight.format), weight.load(torch.device("cpu"))
        if not known.packed:
            assert tuple(loaded.shape) == weight.shape and bool(loaded.isfinite().all()), name
            continue
        assert loaded.dtype == torch.uint8, name
        assert tuple(loaded.shape) == (*weight.shape[:-1], known.row_size(weight.shape[-1])), name
        if weight.order is not None:
            assert sorted(weight.order.tolist()) == list(range(weight.shape[-1])), name
        values = quant.dequantize(loaded.flatten(0, -2), weight.format)
        assert isinstance(settings, dict), name
        truth = packs_truth.values(container, weight, settings)
        if truth is not None:
            if weight.order is not None:
                values = torch.empty_like(values).index_copy_(1, weight.order.long(), values)
            error = (values.double() - truth).abs()
            assert bool((error <= 1e-5 * truth.abs() + 1e-7 + 2e-6 * truth.abs().max()).all()), name


def _check_layout(container: Container, size: int) -> None:
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
