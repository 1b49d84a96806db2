"""Rows of a packed KV cache (shaders/kv_store.h) in plain torch: what a head of one token is stored as.

For `columns` elements: a code each, an f16 scale for each 32 of them, bytes up to a multiple of four. q8_0: a byte,
scale * (code - 128); q4_0: four bits, the first of a pair in the lower ones, scale * (code - 8).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.limits import KV_BLOCK

BITS = {"q8_0": 8, "q4_0": 4}
LARGEST = 65504.0  # of f16


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as `dtype`; what is finite stays so: numbers that are too large for float16 are cut."""
    if dtype == torch.float16 and x.dtype != dtype:
        x = torch.where(x.isfinite(), x.clamp(-LARGEST, LARGEST), x)
    return x.to(dtype)


def row_bytes(columns: int, name: str) -> int:
    """Bytes of a row of `columns` elements, a multiple of 16, in the format `name`."""
    return (columns * BITS[name] // 8 + 2 * -(-columns // KV_BLOCK) + 3) // 4 * 4


def pack_rows(x: Tensor, name: str) -> Tensor:
    """x [..., columns] as uint8 [..., row_bytes]: bit for bit what ops.rope_and_cache writes.

    A block with NaN or infinity becomes NaN; what is larger than the largest scale can say is cut to that.
    """
    columns, bits = x.shape[-1], BITS[name]
    wide = torch.nn.functional.pad(x.float(), (0, -columns % KV_BLOCK)).unflatten(-1, (-1, KV_BLOCK))
    if bits == 8:
        scale = wide.abs().amax(-1) / 127
    else:
        low, high = wide.amin(-1), wide.amax(-1)
        scale = torch.where(high >= -low, high, low) / -8
    scale = scale.clamp(-LARGEST, LARGEST).half().float()
    scale = torch.where(wide.isfinite().all(-1), scale, torch.nan)
    inverse = torch.where(scale == 0, 0.0, 1 / scale)[..., None]
    zero, most = (128, 255) if bits == 8 else (8, 15)
    codes = torch.floor((wide * inverse).nan_to_num(0.0) + (zero + 0.5)).clamp(1 if bits == 8 else 0, most)
    flat = codes.flatten(-2)[..., :columns].to(torch.uint8)
    if bits == 4:
        flat = flat[..., 0::2] | flat[..., 1::2] << 4
    packed = torch.cat((flat, scale.half().view(torch.uint8)), -1)
    return torch.nn.functional.pad(packed, (0, row_bytes(columns, name) - packed.shape[-1]))


def columns_of(nbytes: int, name: str) -> int:
    """How many elements a row of so many bytes has."""
    found = [n for n in range(16, 513, 16) if row_bytes(n, name) == nbytes]
    if not found:
        raise ValueError(f"{nbytes} bytes are no row of {name}")
    return found[0]


def unpack_rows(packed: Tensor, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """uint8 [..., row_bytes] as `dtype` [..., columns]; exact in float32."""
    columns, bits = columns_of(packed.shape[-1], name), BITS[name]
    codes_end, blocks = columns * bits // 8, -(-columns // KV_BLOCK)
    codes, scale = packed[..., :codes_end], packed[..., codes_end : codes_end + 2 * blocks]
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    wide = codes.float() - (128 if bits == 8 else 8)
    scales = scale.contiguous().view(torch.float16).float().repeat_interleave(KV_BLOCK, -1)[..., :columns]
    return (wide * scales).to(dtype)
