"""GGUF: the header (H) and the metadata (K)."""

from __future__ import annotations

import struct

from .case import Sparse, Table
from .gguf_bytes import (
    ARCHITECTURE,
    ARR,
    BOOL,
    F32,
    F64,
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    MAX,
    STR,
    U8,
    U16,
    U32,
    U64,
    Gguf,
    array,
    info,
    key,
    numbers,
    pad,
    scalar,
    string,
    strings,
    text,
    two,
    with_key,
)

H, K = Table(), Table()
GOOD = two().bytes()

H.accept("H00", "sound: two tensors", lambda: GOOD)
H.reject("H01", "empty file", "TRUNCATED", lambda: b"", "magic")
H.reject("H02", "half of the magic", "TRUNCATED", lambda: b"GG", "magic")
H.reject("H03", "magic alone", "TRUNCATED", lambda: b"GGUF", "version")
H.reject("H04", "magic in lower case", "MAGIC", lambda: two(magic=b"gguf").bytes(), "magic")
H.reject("H05", 'legacy magic "tjgg" (GGJT)', "MAGIC", lambda: b"tjgg" + GOOD[4:], "magic")
H.reject("H06", "magic backwards", "MAGIC", lambda: b"FUGG" + GOOD[4:], "magic")
H.reject("H07", "safetensors renamed .gguf", "MAGIC", lambda: struct.pack("<Q", 2) + b"{}", "magic")
H.reject("H08", "version 0", "VERSION", lambda: two(version=0).bytes(), "version")
H.reject("H09", "version 1", "VERSION", lambda: two(version=1).bytes(), "version")
H.reject("H10", "version 4", "VERSION", lambda: two(version=4).bytes(), "version")
H.reject("H11", "big-endian version 3", "ENDIAN", lambda: two(version=0x03000000).bytes(), "version")
H.reject("H12", "file ends inside the version", "TRUNCATED", lambda: GOOD[:6], "version")
H.reject("H13", "file ends inside n_tensors", "TRUNCATED", lambda: GOOD[:12], "n_tensors")
H.reject("H14", "file ends inside n_kv", "TRUNCATED", lambda: Gguf().header()[:20], "n_kv")
H.reject("H15", "n_tensors = 2^64-1", "COUNT", lambda: two(n_tensors=MAX).bytes(), "n_tensors")
H.reject("H16", "n_kv = 2^64-1", "COUNT", lambda: two(n_keys=MAX).bytes(), "n_kv")
H.reject("H17", "n_tensors = 10^9 in a 400-byte file", "COUNT", lambda: two(n_tensors=10**9).bytes() + bytes(200))
H.reject("H18", "n_tensors = 2^63", "COUNT", lambda: two(n_tensors=1 << 63).bytes(), "n_tensors")
H.reject("H19", "n_kv = 10^9 in a 400-byte file", "COUNT", lambda: two(n_keys=10**9).bytes() + bytes(200), "n_kv")
H.reject(
    "H20", "n_kv one too few: a key is read as a tensor", "STRLEN|NDIMS|NAME_LEN|TRUNCATED|TYPE|DIM_RANGE|ELEM_OVF",
    lambda: with_key(key("x", scalar(U32, 5)), n_keys=1),
)  # fmt: skip
H.reject("H21", "n_kv one too many", "KV_TYPE|STRLEN|NAME_EMPTY|KEY_EMPTY", lambda: two(n_keys=2).bytes())
H.reject("H22", "n_tensors one too many", "STRLEN|NAME_EMPTY|TRUNCATED|COUNT", lambda: two(n_tensors=3).bytes())
H.reject(
    "H23", "n_tensors = 10^6 over 64 MiB of zeros", "COUNT|NAME_EMPTY",
    lambda: Sparse(Gguf(keys=[], n_tensors=10**6).header(), 24 + (64 << 20)),
)  # fmt: skip
H.reject(
    "H24", "n_kv = 10^6 over 64 MiB of zeros", "COUNT|KEY_EMPTY",
    lambda: Sparse(Gguf(keys=[], n_keys=10**6).header(), 24 + (64 << 20)),
)  # fmt: skip
H.reject("H26", "n_tensors one too few", "TRAILING|DATA_SHORT|HOLE", lambda: two(n_tensors=1).bytes())
H.reject("H28", "n_tensors = 2^24 over a sparse 4 GiB", "COUNT|NAME_EMPTY",
         lambda: Sparse(Gguf(keys=[], n_tensors=1 << 24).header(), 4 << 30))  # fmt: skip
H.reject("H30", "n_kv = 2^24 over a sparse 4 GiB", "COUNT|KEY_EMPTY",
         lambda: Sparse(Gguf(keys=[], n_keys=1 << 24).header(), 4 << 30))  # fmt: skip
H.reject("H32", "big-endian version 2", "ENDIAN", lambda: two(version=0x02000000).bytes(), "version")
H.reject("H34", "a pickle renamed .gguf", "MAGIC", lambda: b"\x80\x04\x95" + bytes(40), "magic")
H.reject("H36", "a ZIP renamed .gguf", "MAGIC", lambda: b"PK\x03\x04" + bytes(60), "magic")
H.reject("H38", "four zero bytes before the magic", "MAGIC", lambda: bytes(4) + GOOD, "magic")
H.accept("H40", "version 2", lambda: two(version=2).bytes())
H.accept("H42", "no tensors, no keys", lambda: Gguf(keys=[]).bytes())
H.accept("H44", "keys alone, not padded", lambda: Gguf().header())


def nested(depth: int) -> bytes:
    return struct.pack("<I", ARR) + struct.pack("<IQ", ARR, 1) * depth + struct.pack("<IQ", U8, 0)


def ends_in(value: bytes, keep: int) -> bytes:
    return Gguf(keys=[ARCHITECTURE, text("x") + value[:keep]]).header()


def raw_key(name: bytes, length: int) -> bytes:
    """A file whose second key says it is `length` bytes long."""
    return with_key(text(name, length) + scalar(U8, 1))


K.reject("K01", "key length 2^64-1", "STRLEN", lambda: raw_key(b"x", MAX))
K.reject("K02", "key length 2^63", "STRLEN", lambda: raw_key(b"x", 1 << 63))
K.reject("K03", "key length 2^64-8: offset+8+length wraps to offset", "STRLEN", lambda: raw_key(b"x", MAX - 7))
K.reject("K04", "key length one past the end", "STRLEN",
         lambda: Gguf(keys=[text("k" * 40, 41)]).header())  # fmt: skip
K.reject("K05", "key of 65 536 bytes", "KEYLEN", lambda: with_key(key("k" * 65536, scalar(U8, 1))))
K.reject("K06", "empty key", "KEY_EMPTY", lambda: with_key(key("", scalar(U8, 1))))
K.reject("K07", r'key b"\xff\xfe"', "UTF8", lambda: with_key(key(b"\xff\xfe", scalar(U8, 1))))
K.reject("K08", "key twice, other value", "KEY_DUP",
         lambda: with_key(key("x", scalar(U8, 1)), key("x", scalar(U8, 2))), "x")  # fmt: skip
K.reject("K09", "key with an embedded NUL", "KEY_NUL", lambda: with_key(key("x\0y", scalar(U8, 1))))
K.reject("K10", "key twice, other type", "KEY_DUP",
         lambda: with_key(key("general.architecture", scalar(U8, 1))))  # fmt: skip
K.reject("K11", "value type 13", "KV_TYPE", lambda: with_key(key("x", struct.pack("<I", 13) + bytes(8))), "x")
K.reject("K12", "value type 2^32-1", "KV_TYPE", lambda: with_key(key("x", b"\xff" * 4 + bytes(8))), "x")
K.reject("K13", "string value length 2^64-1", "STRLEN", lambda: with_key(key("x", string("ab", MAX))), "x")
K.reject("K14", "string value length 2^40", "STRLEN", lambda: with_key(key("x", string("ab", 1 << 40))), "x")
K.reject("K15", "string value one byte past the end", "STRLEN",
         lambda: Gguf(keys=[key("x", string("ab", 3))]).header(), "x")  # fmt: skip
K.reject("K16", "string value that is not UTF-8", "UTF8", lambda: with_key(key("x", string(b"ab\xc3("))), "x")
K.reject("K17", "bool value 2", "BOOL", lambda: with_key(key("x", struct.pack("<IB", BOOL, 2))), "x")
K.reject("K18", "bool value 255", "BOOL", lambda: with_key(key("x", struct.pack("<IB", BOOL, 255))), "x")
K.reject("K19", "array nested 5 000 deep", "ARR_NEST", lambda: with_key(key("x", nested(5000))), "x")
K.reject("K20", "array nested 10^6 deep", "ARR_NEST", lambda: with_key(key("x", nested(10**6))), "x")
K.reject("K21", "u8 array, length 2^64-1", "ARRLEN", lambda: with_key(key("x", array(U8, b"ab", MAX))), "x")
K.reject("K22", "f64 array, length 2^61: bytes wrap to 0", "ARRLEN",
         lambda: with_key(key("x", array(F64, bytes(8), 1 << 61))), "x")  # fmt: skip
K.reject("K23", "string array, length 2^31 in a small file", "ARRLEN",
         lambda: with_key(key("x", array(STR, text("a"), 1 << 31))), "x")  # fmt: skip
K.reject("K24", "u32 array one element past the end", "ARRLEN",
         lambda: Gguf(keys=[key("x", array(U32, bytes(8), 3))]).header(), "x")  # fmt: skip
K.reject("K25", "array element type 13", "KV_TYPE", lambda: with_key(key("x", array(13, bytes(8), 1))), "x")
K.accept("K26", "u8 array of 4 Mi elements: bounded cost",
         lambda: with_key(key("x", array(U8, bytes(4 << 20), 4 << 20))), policy=True)  # fmt: skip
K.accept("K27", "2 M empty strings: bounded cost",
         lambda: with_key(key("x", array(STR, bytes(16_000_000), 2_000_000))), policy=True)  # fmt: skip
K.reject("K28", "general.alignment = 0", "ALIGN", lambda: with_key(key("general.alignment", scalar(U32, 0))))
K.reject("K29", "general.alignment = 13", "ALIGN", lambda: with_key(key("general.alignment", scalar(U32, 13))))
K.reject("K30", "general.alignment = 2^31", "ALIGN|TRUNCATED|DATA_SHORT|OFF_RANGE|OFF_ALIGN",
         lambda: with_key(key("general.alignment", scalar(U32, 1 << 31))))  # fmt: skip
K.reject("K300", "general.alignment = 2^31 of a file without tensors", "ALIGN",
         lambda: Gguf(keys=[ARCHITECTURE, key("general.alignment", scalar(U32, 1 << 31))]).header())  # fmt: skip
K.reject("K31", "general.alignment of type i32", "ALIGN_TYPE",
         lambda: with_key(key("general.alignment", scalar(I32, 32))))  # fmt: skip
K.reject("K32", "general.alignment of type u64", "ALIGN_TYPE",
         lambda: with_key(key("general.alignment", scalar(U64, 32))))  # fmt: skip
K.reject("K33", "general.alignment = 1", "ALIGN",
         lambda: with_key(key("general.alignment", scalar(U32, 1))), policy=True)  # fmt: skip
K.reject("K34", "general.alignment a string", "ALIGN_TYPE", lambda: with_key(key("general.alignment", string("32"))))
K.reject("K35", "file ends after the type tag", "TRUNCATED", lambda: ends_in(scalar(U32, 1), 4), "x")
K.reject("K36", "file ends inside the type tag", "TRUNCATED", lambda: ends_in(scalar(U32, 1), 2), "x")
K.accept("K37", "200 000 keys: linear, not quadratic",
         lambda: with_key(*(key(f"k{i:06}", scalar(U32, i)) for i in range(200_000))), policy=True)  # fmt: skip
K.reject("K38", "file ends inside an array's length", "TRUNCATED", lambda: ends_in(array(U8, b"ab", 2), 10), "x")
K.accept("K39", 'key "GGUF.version"', lambda: with_key(key("GGUF.version", scalar(U32, 9))), policy=True)
K.reject("K40", "file ends inside a f64", "TRUNCATED", lambda: ends_in(scalar(F64, 1.0), 9), "x")
K.reject("K42", "file ends inside a string's length", "TRUNCATED", lambda: ends_in(string("abc"), 8), "x")
K.reject("K44", "truth values with a 2 among them", "BOOL",
         lambda: with_key(key("x", array(BOOL, b"\0\1\2\0", 4))), "x")  # fmt: skip
K.reject("K46", "array of strings, one not UTF-8", "UTF8",
         lambda: with_key(key("x", array(STR, text("ä") + text(b"\xe4"), 2))), "x")  # fmt: skip
K.reject("K48", "array of strings, the last past the end", "STRLEN|TRUNCATED",
         lambda: Gguf(keys=[key("x", array(STR, text("a") + text("b", 9), 2))]).header(), "x")  # fmt: skip
K.reject("K50", "array of strings, one of 2^64-1 bytes", "STRLEN",
         lambda: with_key(key("x", array(STR, text("a") + text("b", MAX), 2))), "x")  # fmt: skip
K.reject("K52", "array of strings that ends within a length", "TRUNCATED|ARRLEN",
         lambda: Gguf(keys=[key("x", array(STR, text("abcdefgh") + bytes(5), 2))]).header(), "x")  # fmt: skip
K.reject("K54", "array element type 2^32-1", "KV_TYPE", lambda: with_key(key("x", array(0xFFFFFFFF, b"", 1))), "x")
K.reject("K56", "empty array of arrays", "ARR_NEST", lambda: with_key(key("x", array(ARR, b"", 0))), policy=True)
K.reject("K58", "empty array of type 99", "KV_TYPE", lambda: with_key(key("x", array(99, b"", 0))), "x")
K.reject("K60", "string value of 1 GiB (sparse)", "STRLEN",
         lambda: Sparse(Gguf(keys=[key("x", string("", 1 << 30))]).header(), 2 << 30), "x")  # fmt: skip
K.reject("K62", "2^27 strings in a sparse 1 GiB", "ARRLEN",
         lambda: Sparse(Gguf(keys=[key("x", array(STR, b"", 1 << 27))]).header(), (1 << 30) + 99), "x")  # fmt: skip
K.reject("K64", "key twice among 1000", "KEY_DUP",
         lambda: with_key(*(key(f"k{i % 999}", scalar(U8, 1)) for i in range(1000))), "k0")  # fmt: skip
K.reject("K66", "UTF-8 of a surrogate in a key", "UTF8", lambda: with_key(key(b"a\xed\xa0\x80", scalar(U8, 1))))
K.reject("K68", "overlong UTF-8 in a value", "UTF8", lambda: with_key(key("x", string(b"\xc0\xaf"))), "x")
K.reject("K70", "alignment twice", "KEY_DUP",
         lambda: with_key(*2 * [key("general.alignment", scalar(U32, 32))]), "general.alignment")  # fmt: skip
K.accept("K72", "one of each type", lambda: with_key(
    *(key(f"n{kind}", scalar(kind, 1)) for kind in (U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64)),
    *(key(f"a{kind}", numbers(kind, [0, 1])) for kind in (U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64)),
    key("s", string("grüße")), key("as", strings(["", "a", "ß"])), key("empty", strings([])),
))  # fmt: skip
K.accept("K74", "extreme integers and floats", lambda: with_key(
    key("a", scalar(U64, MAX)), key("b", scalar(I64, -(1 << 63))), key("c", scalar(F64, 1e308))
))  # fmt: skip
K.accept("K76", "key of 65 535 bytes", lambda: with_key(key("k" * 65535, scalar(U8, 1))))
K.accept("K78", "string with a zero byte in it", lambda: with_key(key("x", string("a\0b"))), policy=True)


def aligned(alignment: int) -> bytes:
    size = len(FLOATS) + pad(len(FLOATS), alignment)
    return Gguf(
        keys=[key("general.alignment", scalar(U32, alignment))],
        infos=[info("a", [8]), info("b", [8], offset=size)],
        data=FLOATS.ljust(size, b"\0") + FLOATS,
        alignment=alignment,
    ).bytes()


K.accept("K80", "alignment 64", lambda: aligned(64))
K.accept("K82", "alignment 8", lambda: aligned(8))
K.accept("K84", "alignment 4096", lambda: aligned(4096))
K.reject("K86", "alignment 24: a multiple of 8, but no power of two", "ALIGN", lambda: aligned(24), policy=True)
K.accept("K88", "NaN as a value", lambda: with_key(key("x", scalar(F32, float("nan")))), policy=True)
