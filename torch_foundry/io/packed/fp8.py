"""FP8: `NAME.weight` of 8-bit floats (E4M3), with `NAME.weight_scale_inv` or `NAME.weight_scale` beside it, by which
it is multiplied whatever that is called. There is a scale for a square of weights (DeepSeek's and Qwen's files), for a
group, for a row (those of compressed-tensors and fbgemm) or for the matrix. ModelOpt gives each dimension of a grid of
squares another one of 1.

Activations are not quantised, whatever the settings say of them: their factors are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from torch_foundry.io.packed.blocks import Parts, Settings, as_bytes, blocks_weight
from torch_foundry.io.weights import Weight

_SUFFIXES = ("_scale_inv", "_scale")
_OF_ACTIVATIONS = ("input_scale", "activation_scale")
_LEAST, _WIDEST = 32, 128  # weights of our blocks
_LARGEST = torch.finfo(torch.float8_e4m3fn).max
_MOST = 1 << 20  # rows or columns of a square
Square = tuple[int, int]


def weights(parts: Parts, settings: Settings) -> dict[str, Weight]:
    """All weights of the container, by name. `weight_block_size`: rows and columns that share a scale; if it is absent
    or null, the shape of the scales says it."""
    settings.text("activation_scheme", ("dynamic", "static"), "dynamic")
    return matrices(parts, square_of(settings, "weight_block_size"))


def square_of(settings: Settings, name: str) -> Square | None:
    """Rows and columns that share a scale, by the setting `name`; None: it says nothing."""
    value: Any = settings.values.get(name)
    if value is None:
        return None
    good = isinstance(value, list) and len(value) == 2 and all(type(n) is int and 0 < n <= _MOST for n in value)
    if not good or value[1] % _LEAST:
        raise settings.error(name, f"rows, and columns that are a multiple of {_LEAST}", value)
    return value[0], value[1]


def matrices(parts: Parts, square: Square | None, others: Iterable[str] = ()) -> dict[str, Weight]:
    """All weights of the container but `others`, tensors that are read otherwise."""
    tensors, found, beside = parts.container.tensors, dict[str, Weight](), set(others)
    for name in [name for name, info in tensors.items() if info.format == "f8_e4m3" and name not in beside]:
        scales = next((f"{name}{s}" for s in _SUFFIXES if f"{name}{s}" in tensors), f"{name}{_SUFFIXES[0]}")
        prefix = name.removesuffix("weight") if name.endswith(".weight") else f"{name}_"
        beside |= {name, scales, *(f"{prefix}{each}" for each in _OF_ACTIVATIONS)}
        matrix = _Matrix.checked(parts, name, scales, square)
        path, _, leaf = name.rpartition(".")
        rows = matrix.shape[-2]
        if leaf == "gate_up_proj" and len(matrix.shape) == 3:
            parts.put(found, f"{path}.gate_proj", matrix.weight(0, rows // 2))
            parts.put(found, f"{path}.up_proj", matrix.weight(rows // 2, rows))
        else:
            parts.put(found, name, matrix.weight(0, rows))
    for name in tensors:
        if name not in beside:
            parts.put(found, name, parts.dense(name))
    return found


@dataclass(frozen=True)
class _Matrix:
    """A matrix [N, K], or those of experts [E, N, K]. square: rows and columns that share a scale.

    grid: shape of the scales, with a number of rows and one of columns, which a file's may lack if they are 1.
    """

    parts: Parts
    name: str
    scales: str
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    square: Square

    @classmethod
    def checked(cls, parts: Parts, name: str, scales: str, square: Square | None) -> _Matrix:
        shape = parts.container.tensors[name].shape
        if len(shape) not in (2, 3) or 0 in shape or (name.endswith("gate_up_proj") and shape[-2] % 2):
            raise parts.error("PACK_SHAPE", name, "a matrix, or those of experts", list(shape))
        *experts, rows, columns = shape
        given = parts.part(scales, ("f32", "bf16", "f16", "f8_e8m0", "u8")).shape
        given = given[::2] if len(given) == 4 and given[1::2] == (1, 1) else given
        if square is not None:
            grid = (*experts, -(-rows // square[0]), -(-columns // square[1]))
            if given != grid:
                raise parts.error("PACK_SHAPE", scales, str(list(grid)), list(given))
        else:
            grid = (*given, *(1,) * (len(shape) - len(given)))
            if given == (1,):
                grid = (1,) * len(shape)
            split = len(grid) == len(shape) and 0 not in grid and not rows % grid[-2] and not columns % grid[-1]
            if not split or grid[:-2] != tuple(experts):
                raise parts.error("PACK_SHAPE", scales, f"equal shares of {list(shape)}", list(given))
            square = rows // grid[-2], columns // grid[-1]
        made = cls(parts, name, scales, shape, grid, square)
        if made.block % _LEAST:
            expected = f"rows and groups of a multiple of {_LEAST} weights"
            raise parts.error("PACK_GROUP", name, expected, f"{columns} in groups of {square[1]}")
        return made

    @property
    def block(self) -> int:
        """Columns of our blocks, of which none has two scales."""
        group = self.square[1] if self.grid[-1] > 1 else _WIDEST
        return math.gcd(group, self.shape[-1], _WIDEST)

    def weight(self, first: int, last: int) -> Weight:
        """The rows first:last, of each expert."""
        shape, size, experts = self.shape, self.block, len(self.shape) > 2
        columns = torch.arange(0, shape[-1], size) // self.square[1]

        def blocks(start: int, stop: int) -> torch.Tensor:
            codes = self.parts.read(self.name, start, stop).view(torch.uint8)
            codes = codes[:, first:last] if experts else codes
            scales = self._scales(start, stop) if experts else self._scales()
            rows = torch.arange(first, last) if experts else torch.arange(start, stop)
            scales = scales[..., rows // self.square[0], :][..., columns]
            return torch.cat((as_bytes(scales), codes.unflatten(-1, (-1, size))), -1)

        return blocks_weight((*shape[:-2], last - first, shape[-1]), f"fp8_g{size}", self.name, blocks)

    def _scales(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Scales, of some experts: float32 [..., rows, columns] of the grid."""
        read = self.parts.read(self.scales, start, stop)
        powers = read.dtype == torch.uint8
        scales = (read.view(torch.float8_e8m0fnu) if powers else read).float()
        if self.parts.finite(self.scales) and not bool((scales * _LARGEST).isfinite().all()):
            raise self.parts.error("NONFINITE", self.scales, f"scales that hold for {_LARGEST:g}", "a larger one")
        return scales.view(-1, *self.grid[1:]) if len(self.grid) > 2 else scales.view(self.grid)
