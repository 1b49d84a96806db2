"""Packed folders of bitsandbytes (PB), whose quant states are JSON in tensors, and of our own (PO)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .case import Table
from .packed_bytes import (
    HIDDEN,
    NF4,
    STATE,
    Folder,
    Q,
    bitsandbytes,
    changed,
    f16,
    f32,
    filled,
    gptq,
    own,
    text,
)  # fmt: skip

P = Table()
Change = Callable[[Folder], object]
W, STATE = f"{Q}.weight", Q + STATE
ABSMAX, MAP, NESTED, NESTED_MAP = (
    f"{W}.{part}" for part in ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
)
NAN, INF = float("nan"), float("inf")
ORDER = f"{Q}.order"


def flat() -> Folder:
    return bitsandbytes(False)


def settings(**values: Any) -> Change:
    return lambda folder: folder.quantization.update(values)


def bnb(
    id: str, what: str, codes: str, change: Change, says: str = W, base: Callable[[], Folder] = bitsandbytes
) -> None:
    P.reject(f"PB{id}", f"bitsandbytes: {what}", codes, changed(change, base), says)


def foundry(id: str, what: str, codes: str, change: Change, says: str = W, base: Callable[[], Folder] = own) -> None:
    P.reject(f"PO{id}", f"our own: {what}", codes, changed(change, base), says)


def ordered() -> Folder:
    """One matrix with its columns in another order."""
    return own().put(ORDER, ("I64", [HIDDEN], b"".join(i.to_bytes(8, "little") for i in reversed(range(HIDDEN)))))


P.accept("PB00", "bitsandbytes: sound, with packed scales", lambda: bitsandbytes().content())
P.accept("PB02", "bitsandbytes: sound", lambda: flat().content())
P.accept("PB04", "bitsandbytes: double quantisation said, though states have none",
         changed(settings(bnb_4bit_use_double_quant=True), flat), policy=True)  # fmt: skip
bnb("01", "8 bits", "QUANT_METHOD", settings(load_in_4bit=False, load_in_8bit=True), "quantization_config")
bnb("03", "8 bits as well as 4", "QUANT_CONFIG", settings(load_in_8bit=True), "load_in_8bit")
bnb("05", "load_in_4bit is 1", "QUANT_CONFIG", settings(load_in_4bit=1), "load_in_4bit")
bnb("07", "load_in_4bit is a text", "QUANT_CONFIG", settings(load_in_4bit="yes"), "load_in_4bit")
bnb("09", "neither", "QUANT_METHOD", settings(load_in_4bit=False), "quantization_config")
bnb("11", "quant type fp4, the tensors' is nf4", "QUANT_CONFIG", settings(bnb_4bit_quant_type="fp4"), "quant_type")
bnb("13", "quant type unknown", "QUANT_CONFIG", settings(bnb_4bit_quant_type="int4"), "quant_type")
bnb("15", "quant type is a number", "QUANT_CONFIG", settings(bnb_4bit_quant_type=4), "quant_type")
bnb("17", "state absent", "PACK_PART", lambda f: f.without(STATE), STATE)
bnb("19", "absmax absent", "PACK_PART", lambda f: f.without(ABSMAX), ABSMAX)
bnb("21", "quant_map absent", "PACK_PART", lambda f: f.without(MAP), MAP)
bnb("23", "nested_absmax absent", "PACK_PART", lambda f: f.without(NESTED), NESTED)
bnb("25", "nested_quant_map absent", "PACK_PART", lambda f: f.without(NESTED_MAP), NESTED_MAP)
bnb("27", "weight absent", "PACK_PART", lambda f: f.without(W), W)
bnb("29", "a nested_absmax though scales aren't packed", "TENSOR_EXTRA", lambda f: f.put(
    NESTED, filled("F32", [1], f32(1))), NESTED, flat)  # fmt: skip
bnb("31", "a tensor too many beside the weight", "TENSOR_EXTRA",
    lambda f: f.put(f"{W}.evil", filled("F32", [1], f32(1))), "evil")  # fmt: skip
bnb("33", "two states of a weight", "NAME_DUP|PACK_STATE|QUANT_CONFIG", lambda f: f.put(
    STATE.replace("nf4", "fp4"), f.tensors[STATE]), "fp4")  # fmt: skip
bnb("35", "two states of a weight, neither of a type that is said", "NAME_DUP|PACK_STATE|QUANT_CONFIG", lambda f: [
    f.quantization.pop("bnb_4bit_quant_type"), f.put(STATE.replace("nf4", "fp4"), f.tensors[STATE])])  # fmt: skip
bnb("38", "a state of an unknown kind, which is its type", "PACK_STATE", lambda f: [
    f.quantization.pop("bnb_4bit_quant_type"), f.state(quant_type="int4"),
    f.put(STATE.replace("nf4", "int4"), f.tensors[STATE]), f.without(STATE)])  # fmt: skip
bnb("37", "a state of an unknown kind", "PACK_STATE|QUANT_CONFIG", lambda f: [
    f.quantization.pop("bnb_4bit_quant_type"), f.put(STATE.replace("nf4", "int4"), f.tensors[STATE]),
    f.without(STATE)])  # fmt: skip
for id, what, data in (
    ("39", "empty", b""), ("41", "a brace", b"{"), ("43", "a list", b"[]"), ("45", "not UTF-8", b'{"a": "\xff"}'),
    ("47", "4 000 brackets", b"[" * 4000), ("49", "a number", b"1"), ("51", "NaN", b"NaN"),
    ("53", "zeros", bytes(64)),
):  # fmt: skip
    bnb(id, f"state: {what}", "PACK_STATE", lambda f, data=data: f.put(STATE, text(data)), STATE)
bnb("55", "state: longer than any", "PACK_STATE",
    lambda f: f.put(STATE, text(b" " * 5000 + f.tensors[STATE][2])), STATE)  # fmt: skip
bnb("57", "state: the blocksize twice", "PACK_STATE", lambda f: f.put(STATE, text(
    f.tensors[STATE][2].replace(b'"blocksize": 64', b'"blocksize": 64, "blocksize": 128'))), STATE)  # fmt: skip
bnb("59", "state: a number of 5 000 digits", "PACK_STATE",
    lambda f: f.put(STATE, text(b'{"blocksize": ' + b"9" * 4900 + b"}")), STATE)  # fmt: skip
bnb("61", "state of floats", "PACK_TYPE", lambda f: f.put(STATE, filled("F32", [8])), STATE)
bnb("63", "state of two dimensions", "PACK_STATE", lambda f: f.put(STATE, ("U8", [1, *f.tensors[STATE][1]],
                                                                            f.tensors[STATE][2])), STATE)  # fmt: skip
for id, name, value in (
    ("65", "blocksize", 63), ("67", "blocksize", 0), ("69", "blocksize", -64), ("71", "blocksize", True),
    ("73", "blocksize", 64.0), ("75", "blocksize", ...), ("77", "blocksize", 1 << 40), ("79", "quant_type", "fp4"),
    ("81", "quant_type", ...), ("83", "quant_type", ["nf4"]), ("85", "shape", [128]), ("87", "shape", [-128, -128]),
    ("89", "shape", [128.0, 128.0]), ("91", "shape", ...), ("93", "shape", "128"), ("95", "shape", [1, 128, 128]),
    ("97", "nested_blocksize", 0), ("98", "nested_blocksize", (1 << 64) - 2),
    ("99", "nested_blocksize", -256), ("A1", "nested_blocksize", 256.0),
    ("A3", "nested_blocksize", ...), ("A5", "nested_offset", ...), ("A7", "nested_offset", "0.5"),
    ("A9", "nested_offset", INF), ("B1", "nested_offset", NAN), ("B3", "shape", [True, 16384]),
):  # fmt: skip
    shown = "absent" if value is ... else repr(value)
    bnb(id, f"state: {name} {shown}", "PACK_STATE", lambda f, n=name, v=value: f.state(**{n: v}), STATE)
bnb("B5", "state: the shape of more than there is", "PACK_SHAPE", lambda f: f.state(shape=[1 << 40, 1 << 40]))
bnb("B7", "state: the shape transposed into rows of half a block", "PACK_GROUP", lambda f: f.state(shape=[512, 32]))
bnb("B9", "state: the shape of another matrix as large", "SHAPE", lambda f: f.state(shape=[64, 256]))
bnb("C1", "state: a longer blocksize than there is absmax for", "PACK_SHAPE", lambda f: f.state(blocksize=128), ABSMAX)
bnb("C3", "state: nested_blocksize of 2", "PACK_SHAPE", lambda f: f.state(nested_blocksize=2), NESTED)
bnb("C5", "state: not nested, though absmax is packed", "PACK_TYPE",
    lambda f: f.state(nested_blocksize=..., nested_offset=...), ABSMAX)  # fmt: skip
bnb("C7", "state: nested, though absmax isn't packed", "PACK_TYPE",
    lambda f: f.state(nested_blocksize=256, nested_offset=0.5), ABSMAX, flat)  # fmt: skip
bnb("C9", "state: an offset that makes all scales infinite", "NONFINITE", lambda f: f.state(nested_offset=1e300), W)
bnb("D1", "quant_map: 15 values", "PACK_SHAPE", lambda f: f.put(MAP, ("F32", [15], f32(*NF4[:15]))), MAP)
bnb("D3", "quant_map: 17 values", "PACK_SHAPE", lambda f: f.put(MAP, ("F32", [17], f32(*NF4, 2.0))), MAP)
bnb("D5", "quant_map: another value", "PACK_TABLE", lambda f: f.first(MAP, f32(-0.9)), MAP)
bnb("D7", "quant_map: NaN", "PACK_TABLE|NONFINITE", lambda f: f.last(MAP, f32(NAN)), MAP)
bnb("D9", "quant_map: descending", "PACK_TABLE", lambda f: f.put(MAP, ("F32", [16], f32(*NF4[::-1]))), MAP)
bnb("E1", "quant_map: halves", "PACK_TYPE", lambda f: f.put(MAP, ("F16", [16], f16(*NF4))), MAP)
bnb("E3", "nested_quant_map: 255 values", "PACK_SHAPE", lambda f: f.shaped(NESTED_MAP, 255), NESTED_MAP)
bnb("E5", "nested_quant_map: first value the largest", "PACK_TABLE", lambda f: f.first(NESTED_MAP, f32(2)), NESTED_MAP)
bnb("E7", "nested_quant_map: last value the least", "PACK_TABLE", lambda f: f.last(NESTED_MAP, f32(-2)), NESTED_MAP)
bnb("E9", "nested_quant_map: NaN", "NONFINITE", lambda f: f.first(NESTED_MAP, f32(NAN), 400), NESTED_MAP)
bnb("F1", "nested_quant_map: infinity last", "NONFINITE", lambda f: f.last(NESTED_MAP, f32(INF)), NESTED_MAP)
bnb("F3", "nested_absmax: NaN", "NONFINITE", lambda f: f.first(NESTED, f32(NAN)), NESTED)
bnb("F5", "nested_absmax: two", "PACK_SHAPE", lambda f: f.put(NESTED, filled("F32", [2], f32(1))), NESTED)
bnb("F7", "nested_absmax of halves", "PACK_TYPE", lambda f: f.put(NESTED, filled("F16", [1], f16(1))), NESTED)
bnb("F9", "absmax: one short", "PACK_SHAPE", lambda f: f.shaped(ABSMAX, 255), ABSMAX)
bnb("G1", "absmax: NaN first", "NONFINITE", lambda f: f.first(ABSMAX, f32(NAN)), ABSMAX, flat)
bnb("G3", "absmax: infinity last", "NONFINITE", lambda f: f.last(ABSMAX, f32(INF)), ABSMAX, flat)
bnb("G5", "absmax of halves", "PACK_TYPE", lambda f: f.put(ABSMAX, filled("F16", [256], f16(1))), ABSMAX, flat)
bnb("G7", "weight: a byte short", "PACK_SHAPE", lambda f: f.shaped(W, 8191, 1))
bnb("G9", "weight of int8", "PACK_TYPE", lambda f: f.put(W, filled("I8", [8192, 1])))
bnb("H1", "weight of floats", "PACK_TYPE", lambda f: f.put(W, filled("F16", [128, 128], f16(1))))
bnb(
    "H3", "a packed norm", "PACK_PART", lambda f: f.put("model.norm.weight", filled("U8", [64, 1])), "model.norm.weight"
)
bnb("H5", "a name of 2 000 000 dots", "TENSOR_EXTRA", lambda f: f.put("." * 2_000_000, filled("F16", [1])), "...")
bnb("H7", "the last matrix's absmax NaN last", "NONFINITE", lambda f: f.last(
    "model.layers.0.mlp.down_proj.weight.absmax", f32(NAN)), "down_proj", flat)  # fmt: skip

P.accept("PO00", "our own: sound", lambda: own().content())
P.accept("PO02", "our own: sound, columns in another order", lambda: ordered().content())
P.accept("PO04", "our own: sound, affine4_g64_f16", lambda: own("affine4_g64_f16", 64, 36, f16(0.01, -0.1)).content())
foundry("01", "formats absent", "QUANT_CONFIG", lambda f: f.quantization.pop("formats"), "formats")
foundry("03", "formats is a list", "QUANT_CONFIG", settings(formats=["q4_0"]), "formats")
foundry("05", "a format is a number", "QUANT_CONFIG", lambda f: f.quantization["formats"].update({W: 4}), "formats")
foundry("06", "a format is a list", "QUANT_CONFIG", lambda f: f.quantization["formats"].update({W: [4]}), "formats")
foundry("07", "an unknown format", "QUANT_CONFIG", lambda f: f.quantization["formats"].update({W: "q9_9"}))
foundry("09", "a dense format", "QUANT_CONFIG", lambda f: f.quantization["formats"].update({W: "f16"}))
foundry("11", "a format for a tensor that isn't there", "PACK_PART", lambda f: f.quantization["formats"].update(
    {"other.weight": "q4_0"}), "other.weight")  # fmt: skip
foundry("13", "no format for a packed tensor", "TENSOR_TYPE", lambda f: f.quantization["formats"].pop(W))
foundry("15", "another format, with longer blocks", "PACK_SHAPE|SHAPE",
        lambda f: f.quantization["formats"].update({W: "q8_0"}))  # fmt: skip
foundry("17", "another format, as long", "NONFINITE|SHAPE", lambda f: [
    f.quantization["formats"].update({W: "q4_1"}),
    f.put(W, ("U8", [128, 80], (f16(1, NAN) + bytes(16)) * 512))])  # fmt: skip
foundry("19", "rows cut in a block", "PACK_SHAPE", lambda f: f.shaped(W, 128, 71))
foundry("21", "rows of one dimension", "PACK_SHAPE", lambda f: f.shaped(W, 128 * 72))
foundry("23", "no rows", "PACK_SHAPE", lambda f: f.shaped(W, 0, 72))
foundry("25", "no columns", "PACK_SHAPE", lambda f: f.shaped(W, 128, 0))
foundry("27", "a row less than the model's", "SHAPE", lambda f: f.put(W, ("U8", [127, 72], f.tensors[W][2][:-72])))
foundry("29", "blocks of int16", "PACK_TYPE", lambda f: f.put(W, ("I32", [128, 18], f.tensors[W][2])))
foundry("31", "first scale NaN", "NONFINITE", lambda f: f.first(W, f16(NAN)))
foundry("33", "last scale infinite", "NONFINITE", lambda f: f.first(W, f16(INF), 128 * 72 - 18))
foundry("35", "affine: first bias NaN", "NONFINITE", lambda f: f.first(W, f16(NAN), 2), W,
        lambda: own("affine4_g64_f16", 64, 36, f16(0.01, -0.1)))  # fmt: skip
foundry("37", "affine: last scale infinite", "NONFINITE", lambda f: f.first(W, f16(INF), 128 * 72 - 36), W,
        lambda: own("affine4_g64_f16", 64, 36, f16(0.01, -0.1)))  # fmt: skip
foundry("39", "int4: last scale NaN", "NONFINITE", lambda f: f.first(W, f16(NAN), 128 * 72 - 36), W,
        lambda: own("int4_g64", 64, 36, f16(0.01, 0)))  # fmt: skip
foundry("41", "nf4: first scale NaN", "NONFINITE", lambda f: f.first(W, f32(NAN)), W,
        lambda: own("nf4", 64, 36, f32(0.01)))  # fmt: skip
foundry("43", "mxfp8: last scale 255", "NONFINITE", lambda f: f.first(W, b"\xff", 128 * 132 - 33), W,
        lambda: own("mxfp8", 32, 33, b"\x70"))  # fmt: skip
foundry("44", "mxfp8: a scale of 247, with which 480 is infinite", "NONFINITE", lambda f: f.first(W, b"\xf7"), W,
        lambda: own("mxfp8", 32, 33, b"\x70"))  # fmt: skip
foundry("45", "order: a column twice", "PACK_ORDER", lambda f: f.first(ORDER, bytes(8)), ORDER, ordered)
foundry(
    "47", "order: a column past the end", "PACK_ORDER", lambda f: f.first(ORDER, b"\x80" + bytes(7)), ORDER, ordered
)
foundry("49", "order: a negative column", "PACK_ORDER", lambda f: f.last(ORDER, b"\xff" * 8), ORDER, ordered)
foundry("51", "order: one short", "PACK_SHAPE", lambda f: f.shaped(ORDER, 127), ORDER, ordered)
foundry("53", "order of floats", "PACK_TYPE", lambda f: f.put(ORDER, filled("F32", [128])), ORDER, ordered)
foundry("55", "an order without a matrix", "TENSOR_TYPE|TENSOR_EXTRA",
        lambda f: f.put("model.norm.order", filled("I64", [128])), "order")  # fmt: skip
foundry("57", "GPTQ's tensors under the method's name", "PACK_PART|PACK_TYPE|TENSOR_TYPE",
        lambda f: f.tensors.update(gptq().tensors) or f.without(W))  # fmt: skip
foundry("59", "a tensor too many", "TENSOR_EXTRA", lambda f: f.put(f"{W}.evil", filled("F16", [1], f16(1))), "evil")
foundry("61", "packed three dimensions", "SHAPE", lambda f: f.put(W, ("U8", [1, 128, 72], f.tensors[W][2])))
