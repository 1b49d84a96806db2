"""How snapshots may keep recurrent states: as they are (None), or in codes of 8 bits ("q8_0").

A state of a sequence is laid out flat, in rows of ROW elements, the last one filled up with zeros; each is packed as a
row of a packed KV cache is (`quant.kv`): a code for each element, and an f16 scale for each 32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torch_foundry.kvcache.base import RecurrentSpec
from torch_foundry.quant.kv import pack_rows, row_bytes, unpack_rows

NAMES = ("q8_0",)
ROW = 256


def check(name: str | None) -> None:
    """ValueError unless `name` is that of a format, or None."""
    if name is not None and name not in NAMES:
        raise ValueError(f"snapshot_format={name!r}: expected None or {', '.join(map(repr, NAMES))}")


def kept_as(shape: Sequence[int], dtype: torch.dtype, name: str | None) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and dtype of what is kept of a sequence's state that has these."""
    if name is None:
        return tuple(shape), dtype
    return (-(-math.prod(shape) // ROW) * row_bytes(ROW, name),), torch.uint8


def nbytes(spec: RecurrentSpec, dtype: torch.dtype, name: str | None) -> int:
    """Bytes of what is kept of all states of a layer."""
    kept = [kept_as(shape, kind, name) for _, shape, kind in spec.of(dtype)]
    return sum(math.prod(shape) * kind.itemsize for shape, kind in kept)


def packed(state: Tensor, name: str) -> Tensor:
    """state [B, ...] as uint8 [B, n]."""
    flat = state.flatten(1)
    rows = torch.nn.functional.pad(flat, (0, -flat.shape[1] % ROW)).unflatten(1, (-1, ROW))
    return pack_rows(rows, name).flatten(1)


def unpacked(data: Tensor, name: str, shape: Sequence[int]) -> Tensor:
    """What `packed` states of `shape` [B, ...] stand for, in float32."""
    return rows_of(data, name).flatten(1)[:, : math.prod(shape[1:])].reshape(tuple(shape))


def rows_of(data: Tensor, name: str) -> Tensor:
    """What `packed` states stand for, in float32 [B, rows, ROW], with what fills the last row up."""
    return unpack_rows(data.unflatten(1, (-1, row_bytes(ROW, name))), name)
