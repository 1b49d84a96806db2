"""Rows of a packed KV cache (shaders/attention/kv_store.h) in plain torch: what a head of one token is stored as.

For `columns` elements: a code each, the first of a byte in its lower bits, an f16 scale for each 32 of them, bytes up
to a multiple of four. An element is scale * (code - zero), where zero is the middle of the codes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_foundry.core.limits import KV_BLOCK

LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class KvFormat:
    """A packed format: `bits` of a code. symmetric: codes go equally far in both directions; if not, the scale's sign
    is that of the largest value, which then has the lowest code.
    """

    bits: int
    symmetric: bool

    @property
    def zero(self) -> int:
        """The code of 0."""
        return 1 << (self.bits - 1)


FORMATS = {name: KvFormat(*entry) for name, entry in torch.ops.torch_foundry.kv_formats().items()}


def cast_saturating(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as `dtype`; what is finite stays so: numbers that are too large for float16 are cut."""
    if dtype == torch.float16 and x.dtype != dtype:
        x = torch.where(x.isfinite(), x.clamp(-LARGEST, LARGEST), x)
    return x.to(dtype)


@functools.cache
def row_bytes(columns: int, name: str) -> int:
    """Bytes of a row of `columns` elements, a multiple of 16, in the format `name`."""
    return int(torch.ops.torch_foundry.kv_row_bytes(columns, name))


def pack_rows(x: Tensor, name: str) -> Tensor:
    """x [..., columns] as uint8 [..., row_bytes]: bit for bit what ops.rope_kv writes.

    A block with NaN or infinity becomes NaN; what is larger than the largest scale can say is cut to that.
    """
    columns, f = x.shape[-1], FORMATS[name]
    wide = torch.nn.functional.pad(x.float(), (0, -columns % KV_BLOCK)).unflatten(-1, (-1, KV_BLOCK))
    low, high = wide.amin(-1), wide.amax(-1)
    extreme = torch.where(high >= -low, high, low)
    scale = extreme.abs() / (f.zero - 1) if f.symmetric else extreme / -f.zero
    scale = scale.clamp(-LARGEST, LARGEST).half().float()
    scale = torch.where(wide.isfinite().all(-1), scale, torch.nan)
    inverse = torch.where(scale == 0, 0.0, 1 / scale)[..., None]
    codes = torch.floor((wide * inverse).nan_to_num(0.0) + (f.zero + 0.5)).clamp(int(f.symmetric), 2 * f.zero - 1)
    flat = codes.flatten(-2)[..., :columns].to(torch.uint8)
    if f.bits == 4:
        flat = flat[..., 0::2] | flat[..., 1::2] << 4
    packed = torch.cat((flat, scale.half().view(torch.uint8)), -1)
    return torch.nn.functional.pad(packed, (0, row_bytes(columns, name) - packed.shape[-1]))


def head_dim_of(nbytes: int, name: str) -> int:
    """How many elements a row of so many bytes has."""
    columns = int(torch.ops.torch_foundry.kv_columns(int(nbytes), name))
    if not columns:
        raise ValueError(f"{nbytes} bytes are no row of {name}")
    return columns


def unpack_rows(packed: Tensor, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 [..., row_bytes] as `dtype` [..., columns]; exact in float32."""
    columns, f = head_dim_of(packed.shape[-1], name), FORMATS[name]
    codes_end, blocks = columns * f.bits // 8, -(-columns // KV_BLOCK)
    codes, scale = packed[..., :codes_end], packed[..., codes_end : codes_end + 2 * blocks]
    if f.bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    wide = codes.float() - f.zero
    scales = scale.contiguous().view(torch.float16).float().repeat_interleave(KV_BLOCK, -1)[..., :columns]
    return (wide * scales).to(dtype)
