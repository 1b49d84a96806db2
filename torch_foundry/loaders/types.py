"""The element types of GGUF and of safetensors under one set of names."""

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
