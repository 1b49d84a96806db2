"""The registry of weight formats, read from the extension's table (shaders/quant/formats.h)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from torch_foundry.core import extension  # noqa: F401  (loads the table)

DENSE = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
DENSE_NAMES = {dtype: name for name, dtype in DENSE.items()}


@dataclass(frozen=True)
class Format:
    """A weight format: weights per block and bytes per block (dense: 1, and the element size).

    gguf_type: GGUF's type id; None for blocks that are made from the tensors of other kinds of files.
    packable: whether `quantize` can pack weights in this format; blocks of the others come from files only.
    searched: whether it looks for the least error, and takes the importance of columns into account.
    scales: byte and type of each scale or offset of a block. whole: a value of theirs at which all weights are whole
    numbers; 0 if packing holds such numbers exactly.
    """

    name: str
    gguf_type: int | None
    block_size: int
    block_bytes: int
    packable: bool
    whole: int = 0
    searched: bool = False
    scales: tuple[tuple[int, str], ...] = ()

    @property
    def packed(self) -> bool:
        """Whether weights are stored as uint8 blocks, not as a tensor of their dtype."""
        return self.block_size > 1

    @property
    def dtype(self) -> torch.dtype:
        """Of the tensor that stores the weights."""
        return torch.uint8 if self.packed else DENSE[self.name]

    def row_size(self, columns: int) -> int:
        """Elements of `dtype` that a row of `columns` weights takes. ValueError if it isn't whole blocks."""
        if columns % self.block_size:
            raise ValueError(f"{self.name}: expected a multiple of {self.block_size} columns, got {columns}")
        return columns // self.block_size * self.block_bytes if self.packed else columns

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of so many stored rows of `columns` weights."""
        return rows * self.row_size(columns) * self.dtype.itemsize

    def columns(self, row_size: int) -> int:
        """Weights in a stored row of `row_size` elements; the inverse of `row_size`."""
        if not self.packed:
            return row_size
        if row_size % self.block_bytes:
            raise ValueError(
                f"{self.name}: expected rows of whole {self.block_bytes}-byte blocks, got {row_size} bytes"
            )
        return row_size // self.block_bytes * self.block_size


def _read(name: str, numbers: Sequence[int], scales: Sequence[tuple[int, str]]) -> Format:
    gguf_type, block_size, block_bytes, packable, whole, searched = numbers
    known = None if gguf_type < 0 else gguf_type
    return Format(name, known, block_size, block_bytes, bool(packable), whole, bool(searched), tuple(scales))


FORMATS: dict[str, Format] = {
    name: _read(name, *entry) for name, entry in torch.ops.torch_foundry.quant_formats().items()
}
PACKABLE: tuple[str, ...] = tuple(name for name, known in FORMATS.items() if known.packable)


def listing(names: Iterable[str]) -> str:
    """Names of formats for a message. Of names that differ only in numbers, the first and the last."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(re.sub(r"\d_g\d+(_\w+)?$", "", name), []).append(name)
    return ", ".join(f"{each[0]} ... {each[-1]}" if len(each) > 1 else each[0] for each in families.values())


def get_format(name: str) -> Format:
    """The format called `name`, in any case ("q4_K" is ggml's spelling); ValueError lists what there is."""
    try:
        return FORMATS[name.lower()]
    except KeyError:
        raise ValueError(f"format: expected one of {listing(FORMATS)}, got {name!r}") from None
