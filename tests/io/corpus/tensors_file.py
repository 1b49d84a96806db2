"""Safetensors (S): the header's length, its JSON, what it says about tensors."""

from __future__ import annotations

import json
import struct
from typing import Any

from .case import Sparse, Table

S = Table()


def raw(header: bytes | str, data: bytes = b"", length: int | None = None) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def of(size: int = 8, /, **tensors: Any) -> bytes:
    """A file of these tensors over `size` bytes of zeros."""
    return raw(json.dumps(tensors), bytes(size))


def literal(value: str, size: int = 8) -> bytes:
    """A file of one tensor "a", which is this JSON."""
    return raw('{"a":' + value + "}", bytes(size))


GOOD = of(16, a=tensor(), b=tensor(offsets=(8, 16)))
MOST = 2**63 - 1
A = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]'

S.accept("S00", "sound: two tensors", lambda: GOOD)
S.reject("S01", "empty file", "ST_SHORT", lambda: b"")
S.reject("S02", "seven bytes", "ST_SHORT", lambda: GOOD[:7])
S.reject("S03", "header length 0", "ST_JSON", lambda: bytes(8))
S.reject("S04", "header length one past the end", "ST_HLEN", lambda: raw("{}", length=3))
S.reject("S05", "header length 2^64-8: 8+n wraps to 0", "ST_HLEN", lambda: raw("{}", length=2**64 - 8))
S.reject("S06", "header length 2^63", "ST_HLEN", lambda: raw("{}", length=1 << 63))
S.reject("S07", "header length 100 000 001, bytes present (sparse)", "ST_HLEN",
         lambda: Sparse(raw("{", length=100_000_001), 100_000_100))  # fmt: skip
S.reject("S08", "header cut: file ends in the middle of it", "ST_HLEN", lambda: GOOD[:40])
S.reject("S09", 'header "{"', "ST_JSON", lambda: raw("{"))
S.reject("S10", "header is a list", "ST_JSON", lambda: raw("[]"))
S.reject("S11", "header begins with white space", "ST_BRACE", lambda: raw(" {}"), policy=True)
S.reject("S12", "header not UTF-8", "ST_UTF8|ST_JSON", lambda: raw(b'{"\xff":' + A.encode() + b"}}", bytes(8)))
S.reject("S13", 'the name "a" twice', "ST_DUP", lambda: raw('{"a":' + A + '},"a":' + A + "}}", bytes(8)))
S.reject("S14", "two tensors in the same bytes", "ST_OVERLAP", lambda: of(8, a=tensor(), b=tensor()))
S.reject("S300", 'the name "a" for two neighbours', "ST_DUP",
         lambda: raw('{"a":' + A + '},"a":' + A.replace("[0,8]", "[8,16]") + "}}", bytes(16)))  # fmt: skip
S.reject("S15", "100 000 tensors over the same 1 MiB", "ST_OVERLAP", lambda: raw(
    json.dumps({f"t{i}": tensor("U8", [1 << 20], [0, 1 << 20]) for i in range(100_000)}), bytes(1 << 20)))  # fmt: skip
S.reject("S16", "partial overlap", "ST_OVERLAP", lambda: of(12, a=tensor(), b=tensor(offsets=(4, 12))))
S.reject("S17", "first tensor starts at 8", "ST_HOLE", lambda: of(16, a=tensor(offsets=(8, 16))))
S.reject("S18", "hole of 8 bytes between two", "ST_HOLE", lambda: of(24, a=tensor(), b=tensor(offsets=(16, 24))))
S.reject("S19", "last byte missing", "ST_TRUNC", lambda: GOOD[:-1])
S.reject("S20", "bytes behind the last tensor", "ST_TRAILING", lambda: GOOD + b"x")
S.reject("S21", "negative offset", "ST_OFFS", lambda: of(8, a=tensor(offsets=(-8, 0))), "a")
S.reject("S22", "offsets the wrong way round", "ST_OFFS", lambda: of(8, a=tensor(offsets=(8, 0))), "a")
S.reject("S23", "offsets are floats", "ST_JSON", lambda: of(8, a=tensor(offsets=(0.0, 8.0))), "a")
S.reject("S24", "one offset", "ST_JSON", lambda: of(8, a=tensor(offsets=(0,))), "a")
S.reject("S25", "three offsets", "ST_JSON", lambda: of(8, a=tensor(offsets=(0, 8, 8))), "a")
S.reject("S26", "offset 2^64", "ST_OFFS|ST_JSON|ST_SIZE", lambda: of(8, a=tensor(offsets=(0, 1 << 64))), "a")
S.reject("S27", "shape [2, 2^64-2] overflows", "ST_OVF|ST_JSON", lambda: of(8, a=tensor(shape=(2, 2**64 - 2))), "a")
S.reject("S28", "shape [2^32, 2^32] overflows to 0", "ST_OVF",
         lambda: of(0, a=tensor(shape=(1 << 32, 1 << 32), offsets=(0, 0))), "a")  # fmt: skip
S.reject("S29", "shape needs 16 bytes, offsets give 8", "ST_SIZE", lambda: of(8, a=tensor(shape=(4,))), "a")
S.reject("S30", "shape needs 4 bytes, offsets give 8", "ST_SIZE", lambda: of(8, a=tensor(shape=(1,))), "a")
S.reject("S31", 'dtype "F33"', "ST_DTYPE", lambda: of(8, a=tensor("F33")), "a")
S.reject("S32", 'dtype "f32" in lower case', "ST_DTYPE", lambda: of(8, a=tensor("f32")), "a")
S.reject("S33", "__metadata__ value is a number", "ST_JSON", lambda: of(8, a=tensor(), __metadata__={"x": 1}))
S.reject("S34", "__metadata__ is a list", "ST_JSON", lambda: of(8, a=tensor(), __metadata__=["x"]))
S.reject("S35", 'header = 100 000 "["', "ST_JSON", lambda: raw("[" * 100_000))
S.reject("S36", 'header = 100 000 {"a":', "ST_JSON", lambda: raw('{"a":' * 100_000))
S.reject("S37", "data_offsets absent", "ST_JSON", lambda: of(8, a={"dtype": "F32", "shape": [2]}), "a")
S.reject("S38", "shape absent", "ST_JSON", lambda: of(8, a={"dtype": "F32", "data_offsets": [0, 8]}), "a")
S.reject("S39", "an unknown field in a tensor", "ST_EXTRA", lambda: literal(A + ',"x":1}'), "a", policy=True)
S.reject("S40", "BOOL byte 2", "BOOL", lambda: raw(json.dumps({"a": tensor("BOOL", [2], [0, 2])}), b"\1\2"), "a")
S.reject("S41", "F32 NaN", "NONFINITE",
         lambda: raw(json.dumps({"a": tensor()}), struct.pack("<2f", 1, float("nan"))), "a", policy=True)  # fmt: skip
S.reject("S42", "dtype a number", "ST_JSON|ST_DTYPE", lambda: of(8, a=tensor(11)), "a")
S.reject("S43", "F4 of 3 elements (12 bits)", "ST_SUBBYTE|ST_DTYPE", lambda: of(2, a=tensor("F4", [3], [0, 2])), "a")
S.reject("S44", 'name "../../x"', "ST_NAME", lambda: raw(json.dumps({"../../x": tensor()}), bytes(8)), policy=True)
S.reject("S45", r"name with lone surrogate \ud800", "ST_NAME", lambda: raw(r'{"\ud800":' + A + "}}", bytes(8)))
S.reject("S46", "name with a zero byte", "ST_NAME", lambda: raw(r'{"a\u0000b":' + A + "}}", bytes(8)))
S.accept("S47", "1 000 000 zero-size tensors: bounded time and memory", lambda: raw(
    "{" + ",".join(f'"t{i:06}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(1_000_000)) + "}"
), policy=True)  # fmt: skip
S.reject("S48", "a GGUF renamed .safetensors", "MAGIC", lambda: b"GGUF" + bytes(40))
S.reject("S49", "a pickle renamed .safetensors", "MAGIC", lambda: b"\x80\x04\x95" + bytes(40))
S.reject("S50", "a list in place of a tensor", "ST_JSON", lambda: of(8, a=[1, 2]), "a")
S.reject("S52", "a ZIP renamed .safetensors", "MAGIC", lambda: b"PK\x03\x04" + bytes(60))
S.reject("S54", "null in place of a tensor", "ST_JSON", lambda: of(8, a=None), "a")
S.reject("S56", "shape a number", "ST_JSON", lambda: of(8, a=tensor(shape=2)), "a")
S.reject("S58", "shape with a truth value", "ST_JSON", lambda: of(4, a=tensor(shape=(True,), offsets=(0, 4))), "a")
S.reject("S60", "shape with a negative size", "ST_JSON|ST_OVF", lambda: of(8, a=tensor(shape=(-2, -1))), "a")
S.reject("S62", "shape of nested lists", "ST_JSON", lambda: of(8, a=tensor(shape=([2],))), "a")
S.reject(
    "S64", "offsets an object", "ST_JSON", lambda: literal('{"dtype":"F32","shape":[2],"data_offsets":{"0":8}}'), "a"
)
S.reject("S66", "field dtype twice", "ST_DUP|ST_JSON", lambda: literal(A + ',"dtype":"F32"}'), "a")
S.reject("S68", "__metadata__ twice", "ST_DUP", lambda: raw('{"__metadata__":{"a":"b"},"__metadata__":{}}'))
S.reject("S70", "a name twice in __metadata__", "ST_DUP", lambda: raw('{"__metadata__":{"a":"b","a":"c"}}'))
S.reject("S72", "NaN as a size", "ST_JSON", lambda: literal('{"dtype":"F32","shape":[NaN],"data_offsets":[0,8]}'))
S.reject("S74", "size of 5 000 digits", "ST_JSON|ST_OVF",
         lambda: literal('{"dtype":"F32","shape":[' + "9" * 5000 + '],"data_offsets":[0,8]}'))  # fmt: skip
S.reject("S76", "size of 4 000 digits", "ST_JSON|ST_OVF",
         lambda: literal('{"dtype":"F32","shape":[' + "9" * 4000 + '],"data_offsets":[0,8]}'))  # fmt: skip
S.reject("S78", "a comma too many", "ST_JSON", lambda: raw('{"a":' + A + "},}", bytes(8)))
S.reject("S80", "text behind the object", "ST_JSON", lambda: raw('{"a":' + A + "}} x", bytes(8)))
S.reject("S82", "zero bytes behind the object", "ST_JSON", lambda: raw('{"a":' + A + "}}\0\0", bytes(8)))
S.reject("S84", "a size of 1e3", "ST_JSON", lambda: literal('{"dtype":"F32","shape":[1e3],"data_offsets":[0,8]}'))
S.reject("S86", "empty shape, 8 bytes", "ST_SIZE", lambda: of(8, a=tensor(shape=())), "a")
S.reject("S88", "shape of 65 dimensions", "ST_NDIMS", lambda: of(4, a=tensor(shape=(1,) * 65, offsets=(0, 4))), "a")
S.reject("S90", "shape of 10^6 sizes", "ST_NDIMS|ST_OVF|ST_JSON",
         lambda: of(4, a=tensor(shape=(3,) * 10**6, offsets=(0, 4))), "a")  # fmt: skip
S.reject("S92", "shape [0, 2^63]: no elements, a size past the limit", "ST_OVF",
         lambda: of(0, a=tensor(shape=(0, 1 << 63), offsets=(0, 0))), "a")  # fmt: skip
S.reject("S94", "empty name", "ST_NAME", lambda: raw('{"":' + A + "}}", bytes(8)))
S.reject("S96", "absolute path as a name", "ST_NAME", lambda: raw('{"/etc/passwd":' + A + "}}", bytes(8)))
S.reject("S98", "an escape sequence in a name", "ST_NAME", lambda: raw(r'{"\u001b[31m":' + A + "}}", bytes(8)))
S.reject("S100", "tensors of 2^63-1 bytes, twice", "ST_OVF|ST_OFFS|ST_OVERLAP|ST_TRUNC|ST_SIZE",
         lambda: of(8, a=tensor("U8", [MOST], [0, MOST]), b=tensor("U8", [1], [MOST, 1 << 63])))  # fmt: skip
S.reject("S102", "a tensor of 2^50 bytes in a small file", "ST_TRUNC",
         lambda: of(8, a=tensor("U8", [1 << 50], [0, 1 << 50])))  # fmt: skip
S.reject("S104", "BOM before the header", "ST_JSON|ST_BRACE", lambda: raw(b"\xef\xbb\xbf{}"))
S.reject("S106", "header in UTF-16", "ST_JSON|ST_UTF8|ST_BRACE", lambda: raw("{}".encode("utf-16-le")))
S.reject("S108", "9 MiB of white space behind a broken object", "ST_JSON", lambda: raw("{" + " " * (9 << 20) + "x"))
S.reject("S110", "BF16 Inf", "NONFINITE", lambda: raw(json.dumps({"a": tensor("BF16", [1], [0, 2])}), b"\x80\x7f"), "a")
S.reject(
    "S112", "F8_E5M2 NaN", "NONFINITE", lambda: raw(json.dumps({"a": tensor("F8_E5M2", [1], [0, 1])}), b"\x7f"), "a"
)
S.reject(
    "S114", "F8_E4M3 NaN", "NONFINITE", lambda: raw(json.dumps({"a": tensor("F8_E4M3", [1], [0, 1])}), b"\xff"), "a"
)
S.reject("S116", "F64 Inf", "NONFINITE",
         lambda: raw(json.dumps({"a": tensor("F64", [1], [0, 8])}), struct.pack("<d", float("inf"))), "a")  # fmt: skip
S.reject("S118", "F16 -Inf", "NONFINITE", lambda: raw(json.dumps({"a": tensor("F16", [1], [0, 2])}), b"\x00\xfc"), "a")
S.reject("S136", "shape [0, 2^62, 2^62]: no elements, strides past the limit", "ST_OVF",
         lambda: of(0, a=tensor(shape=(0, 1 << 62, 1 << 62), offsets=(0, 0))), "a")  # fmt: skip
S.reject("S138", "dtype empty", "ST_DTYPE", lambda: of(8, a=tensor("")), "a")
B = '"b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}'
S.reject(
    "S140", "no comma between sizes", "ST_JSON", lambda: literal('{"dtype":"F32","shape":[1 2],"data_offsets":[0,8]}')
)
S.reject("S142", "no comma between tensors", "ST_JSON", lambda: raw('{"a":' + A + "}" + B + "}", bytes(16)))
S.reject("S144", "no comma between texts", "ST_JSON", lambda: raw('{"__metadata__":{"a":"b""c":"d"}}'))
S.reject("S146", "no comma between fields", "ST_JSON", lambda: literal(A.replace('"F32",', '"F32"') + "}"))
S.reject("S148", "no colon behind a name", "ST_JSON", lambda: raw('{"a"' + A + "}}", bytes(8)))
S.reject("S150", "no colon between texts", "ST_JSON", lambda: raw('{"__metadata__":{"a""b"}}'))
S.reject("S152", "no colon behind a field", "ST_JSON", lambda: literal(A.replace('"dtype":', '"dtype"') + "}"))
S.reject("S154", "a list that is not begun", "ST_JSON", lambda: literal(A.replace("[2]", "2]") + "}"))
S.reject("S156", "a header that is not begun", "ST_JSON", lambda: raw('"a":' + A + "}}", bytes(8)))
S.reject("S158", "a tensor that is not begun", "ST_JSON", lambda: literal(A[1:] + "}"))
S.reject("S160", "texts that are not begun", "ST_JSON", lambda: raw('{"__metadata__":"a":"b"}}'))
S.reject("S162", "an escape that is no number", "ST_JSON", lambda: raw(r'{"\u00g1":' + A + "}}", bytes(8)))
S.reject("S164", "half of a surrogate pair, a letter", "ST_NAME", lambda: raw(r'{"\ud800\u0041":' + A + "}}", bytes(8)))
S.reject("S166", "nothing where a size should be", "ST_JSON",
         lambda: literal('{"dtype":"F32","shape":[,2],"data_offsets":[0,0]}', 0))  # fmt: skip
S.reject("S168", "a size with a zero before it", "ST_JSON", lambda: literal(A.replace("[2]", "[02]") + "}"))
S.reject("S170", "an unknown field that is an object", "ST_JSON", lambda: literal(A + ',"x":{}}'), "a")
S.reject("S172", "a name with U+0085", "ST_NAME", lambda: raw('{"a\u0085":' + A + "}}", bytes(8)))
S.reject("S174", "F64 of 2^61: bytes wrap to 0", "ST_OVF", lambda: of(0, a=tensor("F64", [1 << 61], [0, 0])), "a")
S.accept("S120", "header padded with spaces", lambda: raw(json.dumps({"a": tensor()}) + "     ", bytes(8)))
S.accept("S122", "no tensors", lambda: raw("{}"))
S.accept("S124", "__metadata__ with texts", lambda: of(8, a=tensor(), __metadata__={"format": "pt"}))
S.accept("S126", "a scalar", lambda: of(4, a=tensor(shape=(), offsets=(0, 4))))
S.accept("S128", "tensors listed in another order than they lie", lambda: of(16, b=tensor(offsets=(8, 16)), a=tensor()))
S.accept("S130", "an empty tensor between two", lambda: of(
    16, a=tensor(), e=tensor(shape=(0, 3), offsets=(8, 8)), b=tensor(offsets=(8, 16))))  # fmt: skip
S.accept("S132", "a name of letters beyond ASCII", lambda: raw('{"größe":' + A + "}}", bytes(8)))
S.accept("S134", "each dtype of torch's", lambda: of(
    56, **{name: tensor(name, [1], [at, at + size]) for name, at, size in (
        ("U64", 0, 8), ("I64", 8, 8), ("F64", 16, 8), ("U32", 24, 4), ("I32", 28, 4), ("F32", 32, 4), ("U16", 36, 2),
        ("I16", 38, 2), ("F16", 40, 2), ("BF16", 42, 2), ("U8", 44, 1), ("I8", 45, 1), ("BOOL", 46, 1),
        ("F8_E4M3", 47, 1), ("F8_E5M2", 48, 1), ("F8_E8M0", 49, 1))}, tail=tensor("U8", [6], [50, 56])))  # fmt: skip
