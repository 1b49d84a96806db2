"""Sound GGUF files as lists of fields."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

from tests.io.corpus.gguf_bytes import _PACK, ARR, BOOL, STR

# Types of tensors: (elements, bytes) of a block.
TENSORS = {
    0: (1, 4),
    1: (1, 2),
    30: (1, 2),
    24: (1, 1),
    2: (32, 18),
    8: (32, 34),
    12: (256, 144),
    14: (256, 210),
    39: (32, 17),
}


@dataclass
class Field:
    """kind: what it is; integers have a width, texts do not."""

    kind: str
    data: bytes

    @property
    def value(self) -> int:
        return int.from_bytes(self.data, "little")

    def put(self, value: int) -> None:
        width = len(self.data)
        self.data = (value % (1 << 8 * width)).to_bytes(width, "little") if width else b""


Entry = list[Field]


@dataclass
class Mutant:
    """A file in parts: its first four fields, an entry for each key and tensor, and what follows the header."""

    head: Entry
    keys: list[Entry]
    tensors: list[Entry]
    data: bytes
    alignment: int = 32

    def fields(self, kind: str) -> Entry:
        return [field for entry in (self.head, *self.keys, *self.tensors) for field in entry if field.kind == kind]

    def header(self) -> bytes:
        return b"".join(field.data for entry in (self.head, *self.keys, *self.tensors) for field in entry)

    def bytes(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data


def text_fields(kind: str, text: bytes) -> Entry:
    return [Field(f"{kind} length", struct.pack("<Q", len(text))), Field(kind, text)]


def _value(rng: random.Random, kind: int) -> Entry:
    if kind == STR:
        return text_fields("string", rng.choice((b"", b"llama", "grüße".encode(), b"a" * rng.randrange(300))))
    return [Field("truth" if kind == BOOL else "scalar", struct.pack(f"<{_PACK[kind]}", rng.randrange(2)))]


def sound(rng: random.Random) -> Mutant:
    """A file that every reader takes."""
    alignment = rng.choice((32, 32, 32, 64, 8))
    keys: list[Entry] = []
    if alignment != 32:
        value = [Field("key type", struct.pack("<I", 4)), Field("alignment", struct.pack("<I", alignment))]
        keys.append(text_fields("key", b"general.alignment") + value)
    for index in range(rng.randrange(6)):
        kind = rng.randrange(13)
        entry = text_fields("key", b"general.architecture" if kind == STR else b"llama.key_%d" % index)
        if index and kind == STR:
            entry = text_fields("key", b"text_%d" % index)
        entry.append(Field("key type", struct.pack("<I", kind)))
        if kind == ARR:
            of, count = rng.choice((0, 4, 6, 7, 8, 8, 10, 12)), rng.randrange(5)
            entry += [Field("array type", struct.pack("<I", of)), Field("array length", struct.pack("<Q", count))]
            entry += [field for _ in range(count) for field in _value(rng, of)]
        else:
            entry += _value(rng, kind)
        keys.append(entry)
    tensors, data = [], b""
    for index in range(rng.randrange(5)):
        kind = rng.choice(list(TENSORS))
        block, nbytes = TENSORS[kind]
        dims = [block * rng.randrange(1, 4), *(rng.randrange(1, 4) for _ in range(rng.randrange(3)))]
        count = 1
        for dim in dims:
            count *= dim
        entry = text_fields("name", b"blk.%d.attn_q.weight" % index)
        entry.append(Field("dimensions", struct.pack("<I", len(dims))))
        entry += [Field("dim", struct.pack("<Q", dim)) for dim in dims]
        entry += [Field("tensor type", struct.pack("<I", kind)), Field("offset", struct.pack("<Q", len(data)))]
        tensors.append(entry)
        data += bytes(count // block * nbytes)
        data += bytes(-len(data) % alignment)
    counts = (("version", "I", rng.choice((2, 3, 3))), ("n_tensors", "Q", len(tensors)), ("n_keys", "Q", len(keys)))
    head = [Field("magic", b"GGUF"), *(Field(name, struct.pack(f"<{letter}", value)) for name, letter, value in counts)]
    return Mutant(head, keys, tensors, data, alignment)
