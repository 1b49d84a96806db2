"""GGUF files byte by byte: nothing here looks after anything, so that every mistake can be written down."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
_PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
MAX = 2**64 - 1

# Tensor types: (id, elements of a block, bytes of a block).
TF32, TF16, TQ4_0, TQ8_0, TQ4_K, TQ6_K, TI8, TI32, TBF16 = 0, 1, 2, 8, 12, 14, 24, 26, 30


def text(data: bytes | str, length: int | None = None) -> bytes:
    """A string, said to be `length` bytes long."""
    raw = data.encode() if isinstance(data, str) else data
    return struct.pack("<Q", (len(raw) if length is None else length) & MAX) + raw


def scalar(kind: int, value: float) -> bytes:
    """A value with its type before it."""
    return struct.pack("<I", kind) + struct.pack(f"<{_PACK[kind]}", value)


def string(value: bytes | str, length: int | None = None) -> bytes:
    return struct.pack("<I", STR) + text(value, length)


def array(kind: int, payload: bytes, count: int) -> bytes:
    """An array of `count` elements, whatever is in `payload`."""
    return struct.pack("<IIQ", ARR, kind, count & MAX) + payload


def numbers(kind: int, values: list[float]) -> bytes:
    return array(kind, struct.pack(f"<{len(values)}{_PACK[kind]}", *values), len(values))


def strings(values: list[str]) -> bytes:
    return array(STR, b"".join(text(value) for value in values), len(values))


def key(name: bytes | str, value: bytes) -> bytes:
    return text(name) + value


def info(name: bytes | str, dims: list[int], kind: int = TF32, offset: int = 0, n_dims: int | None = None) -> bytes:
    """What stands in the header about a tensor. dims: fastest first, as the format has them."""
    n = len(dims) if n_dims is None else n_dims
    sizes = struct.pack(f"<{len(dims)}Q", *(dim & MAX for dim in dims))
    return text(name) + struct.pack("<I", n) + sizes + struct.pack("<IQ", kind & 0xFFFFFFFF, offset & MAX)


ARCHITECTURE = key("general.architecture", string("llama"))


def pad(size: int, alignment: int) -> int:
    """Bytes to the next multiple."""
    return -size % alignment


@dataclass
class Gguf:
    """A file: parts as they are to be written. n_tensors, n_keys: what the header says, the truth by default."""

    keys: list[bytes] = field(default_factory=lambda: [ARCHITECTURE])
    infos: list[bytes] = field(default_factory=list)
    data: bytes = b""
    n_tensors: int | None = None
    n_keys: int | None = None
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32

    def header(self) -> bytes:
        n_tensors = len(self.infos) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        counts = struct.pack("<IQQ", self.version, n_tensors & MAX, n_keys & MAX)
        return self.magic + counts + b"".join(self.keys) + b"".join(self.infos)

    def bytes(self) -> bytes:
        header = self.header()
        return header + bytes(pad(len(header), self.alignment)) + self.data


FLOATS = struct.pack("<8f", *range(8))


def two(**change: object) -> Gguf:
    """A sound file of two tensors of 32 bytes each, then changed."""
    file = Gguf(infos=[info("a.weight", [8]), info("b.weight", [8], offset=32)], data=2 * FLOATS)
    for name, value in change.items():
        setattr(file, name, value)
    return file


def one(name: bytes | str = "a.weight", dims: list[int] | None = None, data: bytes = FLOATS, **rest: int) -> bytes:
    """A file of one tensor, [8] of F32 unless said otherwise."""
    return Gguf(infos=[info(name, [8] if dims is None else dims, **rest)], data=data).bytes()


def with_key(*keys: bytes, **change: object) -> bytes:
    """The sound file of two tensors with more keys."""
    return two(keys=[ARCHITECTURE, *keys], **change).bytes()


def placed(*tensors: tuple[str, int, int], size: int) -> bytes:
    """F32 vectors (name, offset, elements) over `size` bytes of data."""
    infos = [info(name, [n], offset=offset) for name, offset, n in tensors]
    return Gguf(infos=infos, data=bytes(size)).bytes()
