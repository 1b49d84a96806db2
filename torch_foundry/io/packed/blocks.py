"""Packed weights whose codes, scales and zeros lie in tensors of their own, and how blocks are made of them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from torch_foundry import quant
from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.container import Container, TensorInfo
from torch_foundry.io.parameters import ParameterNames
from torch_foundry.io.storage import LARGEST_EXPONENTS
from torch_foundry.io.weights import Weight, WeightReader

DENSE = tuple(quant.DENSE)
_CHUNK = 4 << 20  # bytes of blocks that are made at a time


@dataclass(frozen=True)
class Settings:
    """`quantization_config` of a config.json, whose values are checked when they are asked for."""

    file: str
    values: dict[str, Any]
    where: str = "quantization_config"

    def integer(self, name: str, choices: tuple[int, ...], default: int | None = None) -> int:
        """A whole number among `choices`."""
        value = self.values.get(name, default)
        if type(value) is not int or value not in choices:
            raise self.error(name, f"one of {', '.join(map(str, choices))}", value)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A truth value."""
        value = self.values.get(name, default)
        if type(value) is not bool:
            raise self.error(name, "true or false", value)
        return value

    def text(self, name: str, choices: tuple[str, ...], default: str | None = None) -> str:
        """One of `choices`."""
        value = self.values.get(name, default)
        if type(value) is not str or value.lower() not in choices:
            raise self.error(name, f"one of {', '.join(choices)}", value)
        return value.lower()

    def error(self, name: str, expected: str, value: object) -> LoadError:
        """What is wrong with a value."""
        found = "nothing" if value is None else reprlib.repr(value)
        return LoadError("QUANT_CONFIG", self.file, f"{self.where}.{name}", expected=expected, found=found)


@dataclass(frozen=True)
class Parts:
    """The tensors of a container, checked against what a weight must be made of."""

    source: WeightReader
    names: ParameterNames

    @property
    def container(self) -> Container:
        """Whose tensors they are."""
        return self.source.container

    def error(self, code: str, name: str, expected: str, found: object) -> LoadError:
        """What is wrong with the tensor called `name`."""
        info = self.container.tensors.get(name)
        path = self.container.path if info is None else info.path
        return LoadError(code, path, name, expected=expected, found=str(found))

    def part(self, name: str, formats: tuple[str, ...], shape: tuple[int, ...] | None = None) -> TensorInfo:
        """The tensor called `name`, which has one of these types and, if given, this shape."""
        info = self.container.tensors.get(name)
        if info is None:
            raise self.error("PACK_PART", name, f"a tensor {list(shape)}" if shape else "a tensor", "none")
        if info.format not in formats:
            raise self.error("PACK_TYPE", name, " or ".join(formats), info.format)
        if shape is not None and info.shape != shape:
            raise self.error("PACK_SHAPE", name, str(list(shape)), list(info.shape))
        return info

    def group_of(self, name: str, columns: int, block: int) -> None:
        """Refuse a weight whose rows are not whole blocks."""
        if columns % block:
            raise self.error("PACK_GROUP", name, f"rows of a multiple of {block} weights", columns)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Rows of a tensor, as `Container.read`."""
        return self.container.read(name, start, stop)

    def finite(self, name: str) -> bool:
        """Whether NaN and infinities in a tensor are errors."""
        return self.container.checks_finite(name)

    def put(self, weights: dict[str, Weight], name: str, weight: Weight) -> None:
        """The weight of the parameter `name`, for which no other tensor may stand."""
        if name in weights:
            found = f"{weights[name].source} and {weight.source}"
            raise LoadError("NAME_DUP", self.container.path, name, expected="one weight", found=found)
        weights[name] = weight

    def dense(self, name: str) -> Weight:
        """A tensor as it lies in the file."""
        info = self.container.tensors[name]
        if info.format not in DENSE:
            raise self.error("TENSOR_TYPE", name, "f32, f16 or bf16", info.format)
        return self.source.weight(info, info.shape)


def blocks_weight(
    shape: tuple[int, ...], fmt: str, source: str, blocks: Callable[[int, int], torch.Tensor], **options: Any
) -> Weight:
    """A packed weight whose rows start:stop (of the first dimension) `blocks` makes, uint8, on the CPU.

    A few rows at a time: beside the weight itself, little more than those is held.
    """
    row = quant.get_format(fmt).row_size(shape[-1])

    def load(device: torch.device) -> torch.Tensor:
        packed = torch.empty(*shape[:-1], row, dtype=torch.uint8, device=device)
        for start, stop in chunks(shape[0], packed[0].numel() if shape[0] else 1):
            packed[start:stop] = blocks(start, stop).view(stop - start, *packed.shape[1:])
        return packed

    return Weight(shape, fmt, source, load, **options)


def chunks(rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of rows that take some MiB."""
    step = max(1, _CHUNK // max(1, row_bytes))
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of each element, in a last dimension."""
    return tensor.contiguous().unsqueeze(-1).view(torch.uint8)


def two_halves(codes: torch.Tensor, run: int) -> torch.Tensor:
    """Bytes [..., n] with two neighbours each, [..., n / run, run]: the first half of 2 * run codes in the low nibbles,
    the second in the high ones."""
    nibbles = torch.stack((codes & 15, codes >> 4), -1).view(*codes.shape[:-1], -1, 2, run)
    return nibbles[..., 0, :] | nibbles[..., 1, :] << 4


def small_floats(
    parts: Parts, name: str, shape: tuple[int, ...], mode: str, scales: TensorInfo, factor: torch.Tensor | None = None
) -> Weight:
    """A matrix of `mode` (mxfp4, mxfp8, nvfp4), two codes a byte but for mxfp8. factor: of all NVFP4's, float32 [1]."""
    block = 64 if mode == "nvfp4" else 32
    parts.group_of(name, shape[-1], block)

    def blocks(start: int, stop: int) -> torch.Tensor:
        exponents = parts.read(scales.name, start, stop).view(torch.uint8)
        check_exponents(parts, scales.name, mode, exponents)
        codes = parts.read(name, start, stop).view(torch.uint8)
        if mode != "mxfp8":
            codes = two_halves(codes, 16 if mode == "mxfp4" else 8)
        rows = codes.view(*exponents.shape[:-1], shape[-1] // block, -1)
        made = torch.cat((exponents.view(*rows.shape[:-1], -1), rows), -1)
        return made if factor is None else torch.cat((as_bytes(factor).expand(*made.shape[:-1], 4), made), -1)

    return blocks_weight(shape, mode if factor is None else f"{mode}_f32", name, blocks)


def halves(parts: Parts, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
    """Scales as float16, which has to hold them."""
    given = parts.read(name, start, stop)
    scales = given.half()
    if not torch.equal(scales.to(given.dtype), given):
        raise parts.error("PACK_SCALE", name, "scales of float16", "some that float16 can't hold")
    return scales


def check_exponents(parts: Parts, name: str, fmt: str, exponents: torch.Tensor) -> None:
    """Refuse scales of the tensor `name`, bytes of `fmt`, with which a weight is no finite number."""
    (_, kind), *_ = quant.FORMATS[fmt].scales
    most = LARGEST_EXPONENTS.get(kind, 126)  # of E4M3, behind which there are the NaN and what is negative
    if parts.finite(name) and bool((exponents > most).any()):
        raise parts.error("NONFINITE", name, f"a scale of at most {most}", int(exponents.max()))
