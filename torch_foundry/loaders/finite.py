"""Looking for NaN and infinities in what was just read: in floating-point tensors, and in the scales of blocks."""

from __future__ import annotations

import torch

from torch_foundry.loaders.types import Storage

# Powers of two as scales: 255 is NaN, and with smaller ones the largest element (6, or 480) overflows float32.
LARGEST_EXPONENTS = {"e8m0_6": 252, "e8m0_480": 246}
# Floats whose NaN and infinities have all of some bits set: (bytes, these bits).
_EXPONENTS = {
    "f16": (2, 0x7C00),
    "bf16": (2, 0x7F80),
    "f32": (4, 0x7F800000),
    "f64": (8, 0x7FF0000000000000),
    "f8_e5m2": (1, 0x7C),
    "f8_e4m3": (1, 0x7F),
}
_BYTES = {"f8_e8m0": 0xFF, "f8_e4m3fnuz": 0x80, "f8_e5m2fnuz": 0x80}  # floats of which only these are NaN


def nonfinite(data: torch.Tensor, storage: Storage) -> int | None:
    """Byte of the first element or block with a NaN or an infinity; None if there is none, or can't be.

    data: uint8 [n], whole elements or blocks of the type `storage`.
    """
    found = [_bad(data, storage.nbytes, *each) for each in storage.floats]
    return min((at for at in found if at is not None), default=None)


def _find(data: torch.Tensor, stride: int, offset: int, bits: tuple[int, int]) -> int | None:
    at = torch.ops.torch_foundry.find_nonfinite(data, stride, offset, *bits)
    return at if at >= 0 else None


def _first(bad: torch.Tensor, step: int) -> int | None:
    return int(bad.nonzero()[0]) * step if bool(bad.any()) else None


def _bad(data: torch.Tensor, stride: int, offset: int, kind: str) -> int | None:
    """Byte of the first block of `stride` bytes whose float at `offset` is bad."""
    if kind in _BYTES:
        return _first(data == _BYTES[kind], 1)
    if kind in LARGEST_EXPONENTS:
        return _first(data.view(-1, stride)[:, offset] > LARGEST_EXPONENTS[kind], stride)
    if kind == "nibbles":  # the exponent lies in the top nibble of the last word and in two bits of the one before
        return _find(data, stride, offset + 4, (4, 0x7000C000))
    if kind == "ue4m3":  # ggml reads this NaN as 0, and never writes it
        return _find(data, stride, offset, (1, 0x7F))
    return _find(data, stride, offset, _EXPONENTS[kind])
