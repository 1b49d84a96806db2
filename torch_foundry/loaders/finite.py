"""Looking for NaN and infinities in what was just read: in floating-point tensors, and in the scales of blocks."""

from __future__ import annotations

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
    if not data.numel():
        return None
    if name in _EXPONENTS:
        at = torch.ops.torch_foundry.find_nonfinite(data, *_EXPONENTS[name])
        return at if at >= 0 else None
    if name in _BYTES:
        return _first(data == _BYTES[name], 1)
    if name not in SCALES:
        return None
    blocks = data.view(-1, block_bytes)
    bad = [at for where, kind in SCALES[name] if (at := _first(_bad(blocks, where, kind), block_bytes)) is not None]
    return min(bad) if bad else None


def _first(bad: torch.Tensor, step: int) -> int | None:
    return int(bad.nonzero()[0]) * step if bool(bad.any()) else None


def _bad(blocks: torch.Tensor, at: int, kind: str) -> torch.Tensor:
    """Which of the blocks (uint8 [n, bytes]) have a bad scale at this byte: bool [n]."""
    if kind == "f16":
        return (blocks[:, at + 1] & 0x7C) == 0x7C
    if kind == "f32":
        return (blocks[:, at + 2 : at + 4].view(torch.int16)[:, 0] & 0x7F80) == 0x7F80
    if kind == "nibbles":  # the exponent lies in the top nibble of the last word and two bits of the one before
        return ((blocks[:, at + 7] & 0x70) == 0x70) & ((blocks[:, at + 5] & 0xC0) == 0xC0)
    if kind == "e8m0":  # 255 is NaN; with 253 and 254 the largest element overflows float32
        return blocks[:, at] >= 253
    assert kind == "ue4m3", kind  # ggml reads this NaN as 0, and never writes it
    return (blocks[:, at] & 0x7F) == 0x7F
