"""GGUF: what the header says about tensors (T), and their data (D)."""

from __future__ import annotations

import struct
from collections.abc import Callable

from .case import Sparse, Table
from .gguf_bytes import (
    ARCHITECTURE,
    FLOATS,
    MAX,
    TBF16,
    TF16,
    TF32,
    TI8,
    TQ4_0,
    TQ4_K,
    TQ6_K,
    TQ8_0,
    Gguf,
    info,
    key,
    one,
    pad,
    placed,
    string,
    text,
    two,
)

T, D = Table(), Table()
GOOD = two().bytes()


def bare(*infos: bytes, data: bytes = b"") -> bytes:
    return Gguf(infos=list(infos), data=data).bytes()


def named(name: bytes | str, length: int) -> bytes:
    """A tensor whose name says it is `length` bytes long."""
    return bare(text(name, length) + info("", [8])[8:], data=FLOATS)


T.reject("T01", "name length 2^64-1", "STRLEN", lambda: named("a", MAX))
T.reject("T02", "name length 2^63", "STRLEN", lambda: named("a", 1 << 63))
T.reject("T03", "empty name", "NAME_EMPTY", lambda: one(""))
T.reject("T04", "name of 65 bytes", "NAME_LEN", lambda: one("n" * 65), policy=True)
T.reject("T05", "name with an embedded NUL", "NAME_NUL", lambda: one("token_embd.weight\0x"))
T.reject("T06", "name that is not UTF-8", "UTF8", lambda: one(b"a\xff"))
T.reject("T07", "n_dims = 0", "NDIMS", lambda: one(dims=[], data=bytes(32)), "a.weight", policy=True)
T.reject("T08", "n_dims = 5", "NDIMS", lambda: one(dims=[2, 2, 2, 1, 1]), "a.weight")
T.reject("T09", "n_dims = 10^6", "NDIMS", lambda: one(n_dims=10**6), "a.weight")
T.reject("T10", "n_dims = 2^32-1", "NDIMS", lambda: one(n_dims=2**32 - 1), "a.weight")
T.reject("T11", "dims [8, 0]", "ZERO_DIM", lambda: one(dims=[8, 0]), "a.weight")
T.reject("T12", "dims [0, 8]", "ZERO_DIM", lambda: one(dims=[0, 8]), "a.weight")
T.reject("T13", "dim = 2^64-1", "DIM_RANGE", lambda: one(dims=[MAX]), "a.weight")
T.reject("T14", "dim = 2^63", "DIM_RANGE", lambda: one(dims=[1 << 63]), "a.weight")
T.reject("T15", "dims 2^32 x 2^32: product wraps to 0", "ELEM_OVF", lambda: one(dims=[1 << 32, 1 << 32]), "a.weight")
T.reject("T16", "dims 2^21 each: product 2^84", "ELEM_OVF", lambda: one(dims=[1 << 21] * 4), "a.weight")
T.reject("T17", "F32 [4, 2^30-1, 2^30+1]: bytes = 2^64-16", "BYTES_OVF",
         lambda: one(dims=[4, 2**30 - 1, 2**30 + 1]), "a.weight")  # fmt: skip
T.reject("T18", "F32 of 2^62 elements: bytes wrap to 0", "BYTES_OVF", lambda: one(dims=[1 << 62]), "a.weight")
T.reject("T19", "two I8 of 2^63-64 elements: the sum wraps", "SUM_OVF",
         lambda: bare(info("a", [2**63 - 64], TI8), info("b", [2**63 - 64], TI8)))  # fmt: skip
T.reject("T20", "type 99", "TYPE", lambda: one(kind=99), "a.weight")
T.reject("T21", "type -1", "TYPE", lambda: one(kind=-1), "a.weight")
T.reject("T22", "removed type 4 (Q4_2)", "TYPE_GONE", lambda: one(kind=4), "a.weight")
T.reject("T23", "removed type 31 (Q4_0_4_4)", "TYPE_GONE", lambda: one(kind=31), "a.weight")
T.reject("T24", "Q4_0, row of 33", "BLOCK", lambda: one(dims=[33], kind=TQ4_0), "a.weight")
T.reject("T25", "Q4_K [128, 2]: the product divides, the row does not", "BLOCK",
         lambda: one(dims=[128, 2], kind=TQ4_K, data=bytes(160)), "a.weight")  # fmt: skip
T.reject("T26", "Q8_0 [1, 32]: the rows divide, the row does not", "BLOCK",
         lambda: one(dims=[1, 32], kind=TQ8_0, data=bytes(64)), "a.weight")  # fmt: skip
T.reject("T27", "offset 2^64-1", "OFF_RANGE", lambda: one(offset=MAX), "a.weight")
T.reject("T28", "offset 2^64-32: wraps back into the header", "OFF_RANGE", lambda: one(offset=MAX - 31), "a.weight")
T.reject("T29", "offset 2^40", "OFF_RANGE", lambda: one(offset=1 << 40), "a.weight")
T.reject("T30", "offset 2^63", "OFF_RANGE", lambda: one(offset=1 << 63), "a.weight")
T.reject("T31", "offset 4 with alignment 32", "OFF_ALIGN", lambda: one(offset=4, data=FLOATS + bytes(32)), "a.weight")
T.reject("T32", "full overlap", "OVERLAP", lambda: placed(("a", 0, 8), ("b", 0, 8), size=32))
T.reject("T33", "partial overlap: [0,128) and [32,160)", "OVERLAP",
         lambda: placed(("a", 0, 32), ("b", 32, 32), size=160), "b")  # fmt: skip
T.reject("T34", "hole of 32 bytes", "HOLE", lambda: placed(("a", 0, 8), ("b", 64, 8), size=96), "b")
T.reject("T35", "tensors in descending offset order", "ORDER",
         lambda: placed(("a", 32, 8), ("b", 0, 8), size=64), policy=True)  # fmt: skip
T.reject("T36", "the first tensor does not begin at 0", "HOLE", lambda: placed(("a", 32, 8), size=64), "a")
T.reject("T37", "file ends inside the offset", "TRUNCATED", lambda: Gguf(infos=[info("a", [8])]).header()[:-3])
T.reject("T38", "file ends inside the dims", "TRUNCATED", lambda: Gguf(infos=[info("a", [8, 8])]).header()[:-20])


def many(n: int) -> bytes:
    infos = [info(f"t{i:06}", [8], offset=32 * i) for i in range(n)]
    return Gguf(infos=infos, data=bytes(32 * n)).bytes()


T.accept("T39", "100 000 tensors of 32 bytes: linear time", lambda: many(100_000), policy=True)
T.reject("T40", "name with control characters", "NAME_CTRL", lambda: one("a\x1b[31m\r"))
T.reject("T41", "I8 [2^46]: 64 TiB in a 160-byte file", "DATA_SHORT|OFF_RANGE",
         lambda: one(dims=[1 << 46], kind=TI8), "a.weight")  # fmt: skip
T.reject("T42", "the same name twice", "NAME_DUP", lambda: placed(("a", 0, 8), ("a", 32, 8), size=64), "a")
T.reject("T44", "name of 64 bytes of which the last character is cut in two", "UTF8", lambda: one(b"n" * 63 + b"\xc3"))
T.reject("T46", "name length one past the end", "STRLEN", lambda: Gguf(infos=[text("a" * 64, 65)]).header())
T.reject("T48", "file ends inside n_dims", "TRUNCATED", lambda: Gguf(infos=[text("a" * 64) + b"\1"]).header())
T.reject("T50", "file ends inside the type", "TRUNCATED", lambda: Gguf(infos=[info("a", [8])]).header()[:-10])
T.reject("T52", "removed type 36 (IQ4_NL_4_4)", "TYPE_GONE", lambda: one(kind=36), "a.weight")
T.reject("T54", "type 256 + a known one", "TYPE", lambda: one(kind=256), "a.weight")
T.reject("T56", "three tensors in one place, names distinct", "OVERLAP",
         lambda: placed(("a", 0, 8), ("b", 0, 8), ("c", 0, 8), size=32))  # fmt: skip
T.reject("T58", "1000 tensors over the same 1 MiB", "OVERLAP",
         lambda: Gguf(infos=[info(f"t{i}", [1 << 18]) for i in range(1000)], data=bytes(1 << 20)).bytes())  # fmt: skip
T.reject("T60", "16 tensors of 2^62 bytes: the sum wraps to 0", "SUM_OVF",
         lambda: bare(*(info(f"t{i}", [1 << 62], TI8) for i in range(16))))  # fmt: skip
T.reject("T62", "Q4_K of 2^62 rows: bytes overflow", "BYTES_OVF|ELEM_OVF",
         lambda: one(dims=[256, 1 << 56], kind=TQ4_K), "a.weight")  # fmt: skip
T.reject("T64", "offset within the last tensor", "OVERLAP|DATA_SHORT|OFF_RANGE",
         lambda: placed(("a", 0, 16), ("b", 32, 16), size=64))  # fmt: skip
T.reject("T66", "offset = size of the data", "OFF_RANGE", lambda: one(offset=32), "a.weight")
T.reject("T68", "name of one line feed", "NAME_CTRL", lambda: one("\n"))
T.reject("T70", "name with DEL", "NAME_CTRL", lambda: one("a\x7f"))
T.reject("T72", "the second tensor misaligned behind a ragged first", "OFF_ALIGN|OVERLAP",
         lambda: bare(info("a", [3]), info("b", [8], offset=12), data=bytes(44)), "b")  # fmt: skip
T.reject("T82", "overlap behind tensors that are not in order", "OVERLAP",
         lambda: placed(("a", 64, 8), ("b", 0, 16), ("c", 32, 8), size=96), "c")  # fmt: skip
T.accept("T74", "name of 64 bytes", lambda: one("n" * 64))
T.accept("T76", "a ragged tensor, padded, then another",
         lambda: placed(("a", 0, 3), ("b", 32, 8), size=64))  # fmt: skip
T.accept("T78", "4 dimensions", lambda: one(dims=[1, 2, 2, 2]))
T.accept("T80", "name of letters beyond ASCII", lambda: one("gewicht.größe"))

BLOCK_BYTES = {
    2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 10: (256, 84), 11: (256, 110), 12: (256, 144),
    13: (256, 176), 14: (256, 210), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip
NAN16, INF16 = b"\x00\x7e", b"\x00\x7c"


def block(kind: int, at: int, scale: bytes, which: int = 1, of: int = 3) -> bytes:
    """A tensor of `of` rows of one block, of which one has `scale` at byte `at`."""
    elements, nbytes = BLOCK_BYTES[kind]
    data = bytearray(nbytes * of)
    data[which * nbytes + at : which * nbytes + at + len(scale)] = scale
    return one(dims=[elements, of], kind=kind, data=bytes(data) + bytes(pad(len(data), 32)))


def halves(*values: bytes) -> bytes:
    return one(dims=[len(values)], kind=TF16, data=b"".join(values))


D.reject("D01", "last byte missing", "DATA_SHORT", lambda: GOOD[:-1])
D.reject("D02", "no data at all", "DATA_SHORT|OFF_RANGE|TRUNCATED", lambda: two().header())
D.reject("D03", "file ends inside the first tensor", "DATA_SHORT|OFF_RANGE", lambda: GOOD[:-50])
D.reject("D04", "one byte behind the last tensor", "TRAILING", lambda: GOOD + b"x")
D.reject("D05", "valid GGUF followed by a ZIP", "TRAILING", lambda: GOOD + b"PK\x05\x06" + bytes(18))
D.reject("D06", "one page of zeros behind the last tensor", "TRAILING", lambda: GOOD + bytes(4096))
D.reject("D08", "a second GGUF behind the first", "TRAILING", lambda: GOOD + GOOD)
D.reject("D10", "Q8_0 block scale NaN", "NONFINITE", lambda: block(TQ8_0, 0, NAN16), "a.weight")
D.reject("D11", "Q8_0 block scale +Inf", "NONFINITE", lambda: block(TQ8_0, 0, INF16), "a.weight")
D.reject("D12", "Q4_K dmin -Inf", "NONFINITE", lambda: block(TQ4_K, 2, b"\x00\xfc"), "a.weight")
D.reject("D13", "Q6_K block scale a signalling NaN", "NONFINITE", lambda: block(TQ6_K, 208, b"\x01\x7c"), "a.weight")
D.reject("D14", "F32 holding one NaN", "NONFINITE",
         lambda: one(data=FLOATS[:-4] + struct.pack("<I", 0x7FC00000)), "a.weight")  # fmt: skip
D.reject("D15", "F16 holding one Inf", "NONFINITE", lambda: halves(bytes(2), INF16), "a.weight")
D.reject("D16", "BF16 holding one NaN", "NONFINITE",
         lambda: one(dims=[2], kind=TBF16, data=b"\0\0\xc0\x7f"), "a.weight")  # fmt: skip
D.accept("D17", "Q4_K d = 65504: its products overflow fp16, the file is sound",
         lambda: block(TQ4_K, 0, b"\xff\x7b"), policy=True)  # fmt: skip
D.accept("D19", "last tensor not padded to the alignment",
         lambda: one(dims=[3], data=FLOATS[:12]), policy=True)  # fmt: skip
D.reject("D20", "padding of the last tensor cut in half", "DATA_SHORT",
         lambda: one(dims=[3], data=FLOATS[:12] + bytes(10)), policy=True)  # fmt: skip
D.reject("D22", "F32 holding -Inf in its last element", "NONFINITE",
         lambda: one(data=FLOATS[:-4] + struct.pack("<f", -float("inf"))), "a.weight")  # fmt: skip
D.reject("D24", "F64 NaN", "NONFINITE", lambda: one(dims=[1], kind=28, data=struct.pack("<d", float("nan"))))
D.accept("D26", "last tensor padded", lambda: one(dims=[3], data=FLOATS[:12] + bytes(20)))
D.accept("D28", "largest finite half in a Q8_0 scale", lambda: block(TQ8_0, 0, b"\xff\x7b"))
D.accept("D30", "subnormal and negative zero", lambda: halves(b"\x01\0", b"\0\x80"))
D.accept("D32", "data bytes that would be NaN as a scale", lambda: block(TQ8_0, 2, 8 * NAN16))
D.accept("D34", "keys alone, then padding", lambda: Gguf(keys=[ARCHITECTURE, key("x", string("abc"))]).bytes())

# A scale that is NaN, in each type that has one: (byte within the block, the bad bytes).
SCALES = {
    2: (0, NAN16), 3: (2, NAN16), 6: (0, INF16), 7: (2, INF16), 10: (80, NAN16), 11: (108, NAN16), 13: (2, NAN16),
    16: (0, NAN16), 17: (0, INF16), 18: (0, NAN16), 19: (0, NAN16), 20: (0, NAN16), 21: (0, NAN16), 22: (0, NAN16),
    23: (0, NAN16), 34: (52, NAN16), 35: (64, NAN16), 39: (0, b"\xff"),
}  # fmt: skip


def _scaled(kind: int) -> Callable[[], bytes]:
    at, scale = SCALES[kind]
    return lambda: block(kind, at, scale)


for kind in SCALES:
    D.reject(f"D{36 + 2 * list(SCALES).index(kind)}", f"type {kind}: NaN or Inf as a scale", "NONFINITE", _scaled(kind))
D.reject("D72", "IQ1_M: the half in four nibbles is NaN", "NONFINITE",
         lambda: block(29, 48, b"\0\0\0\0\0\xe0\0\x70"), "a.weight")  # fmt: skip
D.reject("D74", "a NaN behind 5 MiB of sound data", "NONFINITE",
         lambda: one(dims=[5 << 18], data=bytes((5 << 20) - 4) + b"\0\0\xc0\x7f"), "a.weight")  # fmt: skip
D.reject("D76", "16 GiB promised, 4 GiB there (sparse)", "DATA_SHORT",
         lambda: Sparse(one(dims=[1 << 32], data=b""), 4 << 30), "a.weight")  # fmt: skip
D.accept("D78", "one tensor of 4 GiB (sparse), nothing read", lambda: Sparse(huge(), len(huge()) + (4 << 30)))


def huge() -> bytes:
    return one("huge", dims=[1 << 30], kind=TF32, data=b"")
