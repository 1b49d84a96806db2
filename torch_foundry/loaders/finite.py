"""Looking for NaN and infinities in what was just read: in floating-point tensors, and in the scales of blocks."""

from __future__ import annotations

import torch

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
# Exponent bits that are all set in NaN and infinity, and the integers to look at them with.
_EXPONENT = {"f16": (torch.int16, 0x7C00), "bf16": (torch.int16, 0x7F80), "f32": (torch.int32, 0x7F800000)}
_WIDE = {"f64": torch.float64, "c64": torch.float32}
_ONE_BYTE = {  # floats of one byte: (mask, its value in NaN and infinity)
    "f8_e4m3": (0x7F, 0x7F),
    "f8_e8m0": (0xFF, 0xFF),
    "f8_e4m3fnuz": (0xFF, 0x80),
    "f8_e5m2fnuz": (0xFF, 0x80),
    "f8_e5m2": (0x7C, 0x7C),
    "e8m0": (0xFF, 0xFF),
    "ue4m3": (0x7F, 0x7F),
}


def nonfinite(data: torch.Tensor, name: str, block_bytes: int) -> int | None:
    """Byte of the first element or block with a NaN or an infinity; None if there is none, or can't be.

    data: uint8 [n], whole elements or blocks of the type `name`, each of `block_bytes` bytes.
    """
    if not data.numel():
        return None
    scales = SCALES.get(name, ((0, name),))
    found = [_bad(data.view(-1, block_bytes), at, kind) for at, kind in scales]
    where = [int(bad.nonzero()[0]) for bad in found if bad is not None and bool(bad.any())]
    return min(where) * block_bytes if where else None


def _bad(blocks: torch.Tensor, at: int, kind: str) -> torch.Tensor | None:
    """Which of the blocks (uint8 [n, bytes]) have a bad value of this kind at this byte: bool [n]."""
    if kind in _ONE_BYTE:
        mask, value = _ONE_BYTE[kind]
        return (blocks[:, at] & mask) == value
    if kind in _EXPONENT:
        dtype, mask = _EXPONENT[kind]
        return (blocks[:, at : at + dtype.itemsize].view(dtype)[:, 0] & mask) == mask
    if kind in _WIDE:
        return ~torch.isfinite(blocks.view(_WIDE[kind])).all(dim=1)
    if kind == "nibbles":  # the exponent lies in the top nibble and the high bit of the next
        return ((blocks[:, at + 7] & 0x70) == 0x70) & ((blocks[:, at + 5] & 0xC0) == 0xC0)
    return None
