"""Looking for NaN and infinities in what was just read: in floating-point tensors, and in the scales of blocks."""

from __future__ import annotations

import re

import torch

from torch_foundry import _ext  # noqa: F401  (loads the op)

# Where the scales of a block are, by format: (byte, how they are written).
SCALES: dict[str, tuple[tuple[int, str], ...]] = {
    "q4_0": ((0, "f16"),),
    "q4_1": ((0, "f16"), (2, "f16")),
    "q5_0": ((0, "f16"),),
    "q5_1": ((0, "f16"), (2, "f16")),
    "q8_0": ((0, "f16"),),
    "q8_1": ((0, "f32"), (4, "f32")),
    "q2_k": ((80, "f16"), (82, "f16")),
    "q3_k": ((108, "f16"),),
    "q4_k": ((0, "f16"), (2, "f16")),
    "q5_k": ((0, "f16"), (2, "f16")),
    "q6_k": ((208, "f16"),),
    "q8_k": ((0, "f32"),),
    "iq2_xxs": ((0, "f16"),),
    "iq2_xs": ((0, "f16"),),
    "iq3_xxs": ((0, "f16"),),
    "iq1_s": ((0, "f16"),),
    "iq4_nl": ((0, "f16"),),
    "iq3_s": ((0, "f16"),),
    "iq2_s": ((0, "f16"),),
    "iq4_xs": ((0, "f16"),),
    "iq1_m": ((48, "nibbles"),),  # a half in the high nibbles of four 16-bit words
    "tq1_0": ((52, "f16"),),
    "tq2_0": ((64, "f16"),),
    "mxfp4": ((0, "e8m0"),),
    "nvfp4": ((0, "ue4m3"), (1, "ue4m3"), (2, "ue4m3"), (3, "ue4m3")),
    "q1_0": ((0, "f16"),),
}
_OF_PACKS: dict[str, tuple[tuple[int, str], ...]] = {
    "mxfp8": ((0, "e8m0 of 480"),),
    "nf4": ((0, "f32"),),
    "fp4": ((0, "f32"),),
    "nvfp4_f32": ((0, "f32"), *((at, "ue4m3") for at in (4, 5, 6, 7))),
}
# Powers of two as scales: 255 is NaN, and with smaller ones the largest element (6, or 480) overflows float32.
LARGEST_EXPONENTS = {"e8m0": 252, "e8m0 of 480": 246}
_AFFINE = re.compile(r"affine\d_g\d+_(f16|bf16|f32)$")
# Floats whose NaN and infinities have all of some bits set: (bytes, these bits).
_EXPONENTS = {
    "f16": (2, 0x7C00),
    "bf16": (2, 0x7F80),
    "f32": (4, 0x7F800000),
    "c64": (4, 0x7F800000),
    "f64": (8, 0x7FF0000000000000),
    "f8_e5m2": (1, 0x7C),
    "f8_e4m3": (1, 0x7F),
}
_BYTES = {"f8_e8m0": 0xFF, "f8_e4m3fnuz": 0x80, "f8_e5m2fnuz": 0x80}  # floats of which only these are NaN


def nonfinite(data: torch.Tensor, name: str, block_bytes: int) -> int | None:
    """Byte of the first element or block with a NaN or an infinity; None if there is none, or can't be.

    data: uint8 [n], whole elements or blocks of the type `name`, each of `block_bytes` bytes.
    """
    if name in _EXPONENTS:
        found = [_find(data, block_bytes, 0, _EXPONENTS[name])]
    elif name in _BYTES:
        found = [_first(data == _BYTES[name], 1)]
    else:
        found = [_scale(data, block_bytes, *scale) for scale in scales(name)]
    return min((at for at in found if at is not None), default=None)


def scales(name: str) -> tuple[tuple[int, str], ...]:
    """Where the scales of a block are, as in `SCALES`, also of formats that only packed safetensors have."""
    if affine := _AFFINE.match(name):
        return (0, affine[1]), (_EXPONENTS[affine[1]][0], affine[1])
    if name.startswith("int"):
        return ((0, "f16"),)
    return SCALES.get(name) or _OF_PACKS.get(name, ())


def _find(data: torch.Tensor, stride: int, offset: int, bits: tuple[int, int]) -> int | None:
    at = torch.ops.torch_foundry.find_nonfinite(data, stride, offset, *bits)
    return at if at >= 0 else None


def _first(bad: torch.Tensor, step: int) -> int | None:
    return int(bad.nonzero()[0]) * step if bool(bad.any()) else None


def _scale(data: torch.Tensor, stride: int, offset: int, kind: str) -> int | None:
    """Byte of the first block of `stride` bytes whose scale at `offset` is bad."""
    if kind in LARGEST_EXPONENTS:
        return _first(data.view(-1, stride)[:, offset] > LARGEST_EXPONENTS[kind], stride)
    if kind == "nibbles":  # the exponent lies in the top nibble of the last word and in two bits of the one before
        return _find(data, stride, offset + 4, (4, 0x7000C000))
    if kind == "ue4m3":  # ggml reads this NaN as 0, and never writes it
        return _find(data, stride, offset, (1, 0x7F))
    return _find(data, stride, offset, _EXPONENTS[kind])
