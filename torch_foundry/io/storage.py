"""The element types of GGUF and of safetensors under one set of names, and where in them NaN and infinities show."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torch_foundry.quant import FORMATS

LIMIT = 2**63 - 1  # largest count of anything: sizes of files and of tensors are signed 64-bit integers


@dataclass(frozen=True, slots=True)
class Storage:
    """A type: `block` elements in `nbytes` bytes. dtype: of the tensor that reading gives; uint8 for rows of blocks.

    floats: byte and type of each float in it that may be NaN or infinite; in blocks, their scales.
    """

    name: str
    block: int
    nbytes: int
    dtype: torch.dtype
    floats: tuple[tuple[int, str], ...]

    @property
    def packed(self) -> bool:
        """Whether reading gives bytes instead of elements."""
        return self.block > 1


_DENSE = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "bool": torch.bool,
    "c64": torch.complex64,
    "f8_e4m3": torch.float8_e4m3fn,
    "f8_e5m2": torch.float8_e5m2,
    "f8_e8m0": torch.float8_e8m0fnu,
    "f8_e4m3fnuz": torch.float8_e4m3fnuz,
    "f8_e5m2fnuz": torch.float8_e5m2fnuz,
}

_PACKED = {"f4": (2, 1), "f6_e2m3": (4, 3), "f6_e3m2": (4, 3)}  # safetensors' elements smaller than a byte: no NaN


def _dense(name: str, dtype: torch.dtype) -> Storage:
    floats = ((0, name),) if dtype.is_floating_point else ((0, "f32"), (4, "f32")) if dtype.is_complex else ()
    return Storage(name, 1, dtype.itemsize, dtype, floats)


def _blocks(name: str, block: int, nbytes: int, scales: tuple[tuple[int, str], ...] = ()) -> Storage:
    return Storage(name, block, nbytes, torch.uint8, scales)


TYPES: dict[str, Storage] = {
    **{name: _dense(name, dtype) for name, dtype in _DENSE.items()},
    **{name: _blocks(name, *sizes) for name, sizes in _PACKED.items()},
    **{f.name: _blocks(f.name, f.block_size, f.block_bytes, f.scales) for f in FORMATS.values() if f.packed},
    # blocks that only occur inside ggml, but have an id
    "q8_1": _blocks("q8_1", 32, 40, ((0, "f32"), (4, "f32"))),
    "q8_k": _blocks("q8_k", 256, 292, ((0, "f32"),)),
}

GGML: dict[int, Storage] = {
    **{f.gguf_type: TYPES[f.name] for f in FORMATS.values() if f.gguf_type is not None},
    **{9: TYPES["q8_1"], 15: TYPES["q8_k"], 28: TYPES["f64"]},
    **{24: TYPES["i8"], 25: TYPES["i16"], 26: TYPES["i32"], 27: TYPES["i64"]},
}
GGML_GONE = {
    **{4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"},
    **{36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"},
}

SAFETENSORS: dict[str, Storage] = {name.upper(): TYPES[name] for name in (*_DENSE, *_PACKED)}


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
