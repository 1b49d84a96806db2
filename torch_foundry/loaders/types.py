"""The element types of GGUF and of safetensors under one set of names."""

from __future__ import annotations

from dataclasses import dataclass

import torch

LIMIT = 2**63 - 1  # largest count of anything: sizes of files and of tensors are signed 64-bit integers


@dataclass(frozen=True, slots=True)
class Storage:
    """A type: `block` elements in `nbytes` bytes. dtype: of the tensor that reading gives; uint8 for rows of blocks."""

    name: str
    block: int
    nbytes: int
    dtype: torch.dtype = torch.uint8

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

# ggml's blocks as (type id, elements, bytes). 8-bit blocks of 9 and 15 only occur inside ggml, but have an id.
_BLOCKS = {
    "q4_0": (2, 32, 18),
    "q4_1": (3, 32, 20),
    "q5_0": (6, 32, 22),
    "q5_1": (7, 32, 24),
    "q8_0": (8, 32, 34),
    "q8_1": (9, 32, 40),
    "q2_k": (10, 256, 84),
    "q3_k": (11, 256, 110),
    "q4_k": (12, 256, 144),
    "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210),
    "q8_k": (15, 256, 292),
    "iq2_xxs": (16, 256, 66),
    "iq2_xs": (17, 256, 74),
    "iq3_xxs": (18, 256, 98),
    "iq1_s": (19, 256, 50),
    "iq4_nl": (20, 32, 18),
    "iq3_s": (21, 256, 110),
    "iq2_s": (22, 256, 82),
    "iq4_xs": (23, 256, 136),
    "iq1_m": (29, 256, 56),
    "tq1_0": (34, 256, 54),
    "tq2_0": (35, 256, 66),
    "mxfp4": (39, 32, 17),
    "nvfp4": (40, 64, 36),
    "q1_0": (41, 128, 18),
}
_PACKED = {"f4": (2, 1), "f6_e2m3": (4, 3), "f6_e3m2": (4, 3)}  # safetensors' elements smaller than a byte

TYPES: dict[str, Storage] = {
    **{name: Storage(name, 1, dtype.itemsize, dtype) for name, dtype in _DENSE.items()},
    **{name: Storage(name, block, nbytes) for name, (_, block, nbytes) in _BLOCKS.items()},
    **{name: Storage(name, block, nbytes) for name, (block, nbytes) in _PACKED.items()},
}

GGML: dict[int, Storage] = {
    **{0: TYPES["f32"], 1: TYPES["f16"], 30: TYPES["bf16"], 28: TYPES["f64"]},
    **{24: TYPES["i8"], 25: TYPES["i16"], 26: TYPES["i32"], 27: TYPES["i64"]},
    **{number: TYPES[name] for name, (number, _, _) in _BLOCKS.items()},
}
GGML_GONE = {
    **{4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"},
    **{36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"},
}

SAFETENSORS: dict[str, Storage] = {name.upper(): TYPES[name] for name in (*_DENSE, *_PACKED)}
