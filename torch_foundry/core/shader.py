"""`compile_shader`: run Metal kernels of your own on torch tensors, on whatever executor the tensors' device has."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from torch_foundry import msl
from torch_foundry.core import extension, sources  # noqa: F401  (extension loads the ops used below)
from torch_foundry.msl.usage import constants_used

Size = int | Sequence[int]
Value = bool | int | float

# Element formats of `struct` for MSL scalar types; bfloat is packed by torch.
_FORMATS = {
    "bool": "?", "char": "b", "int8_t": "b", "uchar": "B", "uint8_t": "B", "short": "h", "int16_t": "h",
    "ushort": "H", "uint16_t": "H", "int": "i", "int32_t": "i", "uint": "I", "uint32_t": "I", "long": "q",
    "int64_t": "q", "ulong": "Q", "uint64_t": "Q", "size_t": "Q", "float": "f", "half": "e", "bfloat": "bf",
}  # fmt: skip
_QUALIFIERS = {"constant", "device", "const", "threadgroup", "thread", "metal::"}


def compile_shader(
    source_or_path: str | Path,
    *,
    defines: Mapping[str, Any] | None = None,
    include_dirs: Sequence[str | Path] = (),
    constants: Mapping[str | int, Value] | None = None,
) -> ShaderLibrary:
    """Translate Metal source into a library whose kernels are called like functions: `lib.scale(x, y, 2.0, threads=n)`.

    source_or_path: MSL text (recognised by a newline or a brace) or the path of a `.metal` file.
    defines: preprocessor macros. include_dirs: where `#include "x.h"` is looked up.
    constants: function constants by name or index, for all calls.

    The interface follows `torch.mps.compile_shader`. A kernel is compiled when it is first called and cached on disk.

    MslError (`torch_foundry.msl`): source that can't be translated. FileNotFoundError: no such file. RuntimeError, at
    the first call: source that doesn't compile; the message has the compiler's words and the `.metal` line.
    """
    if not isinstance(source_or_path, Path) and ("\n" in source_or_path or "{" in source_or_path):
        source: str | Path = str(source_or_path)
    else:
        source = Path(source_or_path)
        if not source.is_file():
            raise FileNotFoundError(f"{source}: no such shader file")
    translation = msl.translate(
        source,
        defines={name: str(value) for name, value in (defines or {}).items()},
        include_dirs=[str(directory) for directory in include_dirs],
    )
    return ShaderLibrary(translation, constants or {})


class ShaderLibrary:
    """The kernels of one Metal source. Attribute access gives a kernel by its (host) name."""

    def __init__(self, translation: msl.Translation, constants: Mapping[str | int, Value]) -> None:
        self._kernels = {kernel.name: kernel for kernel in translation.kernels}
        self._translation = translation
        self._function_constants = translation.function_constants
        self._label = f"shader:{sources.digest(translation.source.encode())[:16]}"
        self._constants = self._resolve(constants)
        self._pipelines: dict[tuple[Any, ...], int] = {}
        torch.ops.torch_foundry._add_source(self._label, translation.msl, translation.source)

    @property
    def names(self) -> list[str]:
        """Names of the kernels, in the order of the source."""
        return list(self._kernels)

    def signature(self, name: str) -> msl.Kernel:
        """Reflection of one kernel: its arguments with kind, index, type and address space, its file and line."""
        if name not in self._kernels:
            raise AttributeError(f"no kernel named {name!r}; this library has: {', '.join(self._kernels) or 'none'}")
        return self._kernels[name]

    def __getattr__(self, name: str) -> ShaderKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return ShaderKernel(self, self.signature(name))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._kernels]

    def _resolve(self, constants: Mapping[str | int, Value]) -> dict[int, str]:
        """Function constants as index -> MSL text."""
        by_key = {c.name: c for c in self._function_constants} | {c.index: c for c in self._function_constants}
        resolved = {}
        for key, value in constants.items():
            if key not in by_key:
                known = ", ".join(f"{c.name} ({c.index})" for c in self._function_constants) or "none"
                raise ValueError(f"unknown function constant {key!r}; the source declares: {known}")
            resolved[by_key[key].index] = _literal(by_key[key], value)
        return resolved

    def _pipeline(self, kernel: msl.Kernel, constants: Mapping[str | int, Value], device: torch.device) -> int:
        values = self._constants | self._resolve(constants)
        if any(c.required and c.index not in values for c in self._function_constants):
            used = constants_used(self._translation, kernel)
            missing = [c for c in used if c.required and c.index not in values]
        else:
            missing = []
        if missing:
            names = ", ".join(f"{c.name} (index {c.index}, {c.type})" for c in missing)
            raise ValueError(f"{kernel.name}: function constants without a value: {names}")
        key = (kernel.name, str(device), tuple(sorted(values.items())))
        if key not in self._pipelines:
            types = {c.index: c.type for c in self._function_constants}
            self._pipelines[key] = torch.ops.torch_foundry._shader_pipeline(
                str(device),
                self._label,
                kernel.entry,
                kernel.signature,
                kernel.name,
                list(values),
                [types[index] for index in values],
                list(values.values()),
            )
        return self._pipelines[key]


class ShaderKernel:
    """One kernel of a library; call it with its arguments in the order of their buffer indices."""

    def __init__(self, library: ShaderLibrary, signature: msl.Kernel) -> None:
        self._library = library
        self._signature = signature
        self._buffers = sorted((a for a in signature.args if a.kind == "buffer"), key=lambda a: a.index or 0)
        self._memory = sorted((a for a in signature.args if a.kind == "threadgroup"), key=lambda a: a.index or 0)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{a.name}: {a.type} [[buffer({a.index})]]" for a in self._buffers)
        return f"<kernel {self._signature.name}({arguments})>"

    def __call__(
        self,
        *args: Any,
        threads: Size | None = None,
        threadgroups: Size | None = None,
        group_size: Size | None = None,
        threadgroup_memory: Sequence[int] = (),
        constants: Mapping[str | int, Value] | None = None,
    ) -> None:
        """Launch on tensors (by reference), Python numbers and tuples (by value, as the signature's type) or bytes.

        threads: exact number of threads per axis (default: elements of the first tensor); or
        threadgroups: number of threadgroups per axis. group_size: threads per threadgroup (default 256 on one axis).
        threadgroup_memory: bytes for each `[[threadgroup(i)]]` argument. None leaves an argument unbound.
        """
        name = self._signature.name
        if len(args) != len(self._buffers):
            expected = ", ".join(a.name for a in self._buffers)
            raise TypeError(f"{name}: expected {len(self._buffers)} arguments ({expected}), got {len(args)}")
        if len(threadgroup_memory) != len(self._memory):
            names = ", ".join(a.name for a in self._memory) or "none"
            raise TypeError(f"{name}: threadgroup_memory has {len(threadgroup_memory)} sizes for arguments: {names}")
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        devices = {tensor.device for tensor in tensors}
        if len(devices) != 1:
            raise ValueError(f"{name}: expected tensors of one device, got {sorted(map(str, devices)) or 'no tensors'}")
        grid, exact = self._grid(threads, threadgroups, tensors)
        group = _triple(group_size if group_size is not None else (min(256, max(1, grid[0])) if exact else 256))
        buffers: list[torch.Tensor | None] = [None] * (1 + max((a.index or 0 for a in self._buffers), default=-1))
        inline = [False] * len(buffers)
        for argument, value in zip(self._buffers, args, strict=True):
            index = argument.index or 0
            inline[index] = not (value is None or isinstance(value, torch.Tensor))
            buffers[index] = _pack(name, argument, value) if inline[index] else value
        handle = self._library._pipeline(self._signature, constants or {}, devices.pop())
        torch.ops.torch_foundry._shader_launch(
            handle, buffers, inline, grid, group, exact, [int(size) for size in threadgroup_memory]
        )

    def _grid(self, threads: Size | None, groups: Size | None, tensors: list[torch.Tensor]) -> tuple[list[int], bool]:
        if threads is not None and groups is not None:
            raise TypeError(f"{self._signature.name}: give threads or threadgroups, not both")
        if groups is not None:
            return _triple(groups), False
        return _triple(tensors[0].numel() if threads is None else threads), True


def _triple(size: Size) -> list[int]:
    axes = [int(size)] if isinstance(size, int) else [int(axis) for axis in size]
    if not 1 <= len(axes) <= 3 or min(axes) < 0:
        raise ValueError(f"expected 1 to 3 sizes that are not negative, got {size}")
    return axes + [1] * (3 - len(axes))


def _literal(constant: msl.FunctionConstant, value: Value) -> str:
    """A function constant's value as MSL text."""
    if constant.type == "bool":
        return "true" if value else "false"
    if constant.type in ("float", "half", "bfloat"):
        if not math.isfinite(value):
            return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
        return f"{float(value)!r}f"
    if constant.type in _FORMATS:
        return str(int(value))
    raise ValueError(f"function constant {constant.name}: type {constant.type} can't be set from Python")


def _pack(kernel: str, argument: msl.Argument, value: Any) -> torch.Tensor:
    """Bytes of a by-value argument, in a uint8 tensor."""
    where = f"{kernel}: argument {argument.name} ({argument.type})"
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
    else:
        data = _pack_numbers(where, argument.type, value)
    if not data:
        raise ValueError(f"{where}: no bytes; pass None to leave it unbound")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _pack_numbers(where: str, declared: str, value: Any) -> bytes:
    words = [w for w in declared.replace("&", " ").replace("*", " * ").split() if w not in _QUALIFIERS]
    is_pointer = "*" in words
    base = next((w for w in words if w != "*"), "").removeprefix("metal::")
    packed = base.startswith("packed_")
    scalar = base.removeprefix("packed_").rstrip("234") if base not in _FORMATS else base
    width = 1 if base in _FORMATS else int(base[-1]) if base[-1:] in "234" else 0
    if scalar not in _FORMATS or not width:
        raise TypeError(f"{where}: pass a tensor or bytes, a {type(value).__name__} can't be converted")
    numbers = list(value) if isinstance(value, list | tuple) else [value]
    if not is_pointer and len(numbers) != width:
        raise TypeError(f"{where}: expected {width} number{'s' * (width > 1)}, got {value!r}")
    if width == 3 and not packed:  # a vector of three takes the room of four
        numbers = [n for i in range(0, len(numbers), 3) for n in (*numbers[i : i + 3], 0)]
    try:
        if scalar == "bfloat":
            bits = torch.tensor(numbers, dtype=torch.bfloat16).view(torch.int16).tolist()
            return struct.pack(f"<{len(bits)}h", *bits)
        return struct.pack(f"<{len(numbers)}{_FORMATS[scalar]}", *numbers)
    except (struct.error, TypeError, OverflowError, ValueError) as error:
        raise TypeError(f"{where}: {value!r}: {error}") from None
