"""Packed folders of compressed-tensors (PI): words or bytes of integers, and 4-bit floats."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from .case import Table
from .packed_bytes import HIDDEN, Folder, Q, Tensor, changed, f16, f32, filled, model

P = Table()
Change = Callable[[Folder], object]
W, S, Z, SIZE, ALL = (f"{Q}.weight_{part}" for part in ("packed", "scale", "zero_point", "shape", "global_scale"))
ROWS = 128


def of(form: str, number: dict[str, Any], matrix: Callable[[int, int], dict[str, Tensor]]) -> Folder:
    groups = {"group_0": {"targets": ["Linear"], "weights": {"strategy": "group", "symmetric": True, **number}}}
    return model(
        {"quant_method": "compressed-tensors", "format": form, "ignore": ["lm_head"], "config_groups": groups},
        lambda name, n, k: {f"{name}.{part}": tensor for part, tensor in matrix(n, k).items()},
    )


def words(bits: int = 4, zeros: bool = False) -> Folder:
    def matrix(n: int, k: int) -> dict[str, Tensor]:
        made = {
            "weight_packed": filled("I32", [n, k * bits // 32]),
            "weight_scale": filled("BF16", [n, k // 64], b"\x80\x3c"),
            "weight_shape": ("I64", [2], struct.pack("<2q", n, k)),
        }
        return made | ({"weight_zero_point": filled("I32", [n * bits // 32, k // 64])} if zeros else {})

    return of("pack-quantized", {"num_bits": bits, "type": "int", "group_size": 64, "symmetric": not zeros}, matrix)


def bytes_(zeros: bool = False) -> Folder:
    def matrix(n: int, k: int) -> dict[str, Tensor]:
        made = {"weight": filled("I8", [n, k]), "weight_scale": filled("F16", [n, 1], f16(0.01))}
        return made | ({"weight_zero_point": filled("I8", [n, 1], b"\x07")} if zeros else {})

    return of("int-quantized", {"num_bits": 8, "type": "int"}, matrix)


def floats(mode: str) -> Folder:
    group, kind, scale = (16, "F8_E4M3", b"\x38") if mode == "nvfp4" else (32, "U8", b"\x70")

    def matrix(n: int, k: int) -> dict[str, Tensor]:
        made = {"weight_packed": filled("U8", [n, k // 2]), "weight_scale": filled(kind, [n, k // group], scale)}
        return made | ({"weight_global_scale": filled("F32", [1], f32(64))} if mode == "nvfp4" else {})

    return of(f"{mode}-pack-quantized", {"num_bits": 4, "type": "float", "group_size": group}, matrix)


def settings(**values: Any) -> Change:
    return lambda folder: folder.quantization.update(values)


def of_group(**values: Any) -> Change:
    return lambda folder: folder.quantization["config_groups"]["group_0"]["weights"].update(values)


def size(n: int, k: int) -> Change:
    return lambda folder: folder.put(SIZE, ("I64", [2], struct.pack("<2q", n, k)))


def one(id: str, what: str, codes: str, change: Change, says: str = W, base: Callable[[], Folder] = words) -> None:
    P.reject(f"PI{id}", f"compressed-tensors: {what}", codes, changed(change, base), says)


for id, bits in (("00", 4), ("02", 8), ("04", 2), ("06", 6)):
    P.accept(f"PI{id}", f"compressed-tensors: sound, words of {bits} bits", lambda bits=bits: words(bits).content())
P.accept("PI08", "compressed-tensors: sound, with zeros", lambda: words(zeros=True).content())
P.accept("PI10", "compressed-tensors: sound, bytes", lambda: bytes_().content())
P.accept("PI12", "compressed-tensors: sound, bytes with zeros", lambda: bytes_(zeros=True).content())
P.accept("PI14", "compressed-tensors: sound, nvfp4", lambda: floats("nvfp4").content())
P.accept("PI16", "compressed-tensors: sound, mxfp4", lambda: floats("mxfp4").content())
P.accept("PI18", "compressed-tensors: sound, of several formats", changed(settings(format="mixed-precision"), words))

one("01", "a format of sparse weights", "QUANT_CONFIG", settings(format="marlin-24"), "format")
one(
    "03", "weights that were rotated", "QUANT_CONFIG", settings(transform_config={"config_groups": {}, "a": 1}), "trans"
)
one("05", "no groups", "QUANT_CONFIG", settings(config_groups={}), "config_groups")
one("91", "groups in a list", "QUANT_CONFIG", settings(config_groups=[{}]), "config_groups")
SQUARES = {str(n): {"weights": {"type": "float", "num_bits": 8, "block_structure": [n, n]}} for n in (64, 128)}
one("93", "groups of several squares", "QUANT_CONFIG", settings(config_groups=SQUARES), "config_groups")
one("07", "a group without weights", "QUANT_CONFIG", settings(config_groups={"a": {"weights": None}}), "type")
one("09", "seven bits", "QUANT_CONFIG", of_group(num_bits=7), "num_bits")
one("11", "numbers of no kind", "QUANT_CONFIG", of_group(type="complex"), "type")
one("13", "floats around zeros", "QUANT_CONFIG", of_group(symmetric=False), "symmetric", lambda: floats("nvfp4"))
one("15", "floats of 6 bits", "QUANT_CONFIG", of_group(num_bits=6), "num_bits", lambda: floats("nvfp4"))
one("17", "words in one dimension", "PACK_SHAPE", lambda f: f.shaped(W, 2048))
one("19", "no rows", "PACK_SHAPE", lambda f: f.shaped(W, 0, 16))
one("21", "words of 64 bits", "PACK_TYPE", lambda f: f.put(W, filled("I64", [ROWS, 16])))
one("23", "the shape absent", "PACK_PART", lambda f: f.without(SIZE), SIZE)
one("25", "the shape of floats", "PACK_TYPE", lambda f: f.put(SIZE, filled("F32", [2], f32(128))), SIZE)
one("27", "a shape of three sizes", "PACK_SHAPE", lambda f: f.put(SIZE, filled("I64", [3])), SIZE)
one("29", "other rows than the words'", "PACK_SHAPE", size(ROWS + 1, HIDDEN), SIZE)
one("31", "codes of no known number of bits", "PACK_SHAPE", size(ROWS, HIDDEN - 3), SIZE)
one("33", "no columns", "PACK_SHAPE", size(ROWS, 0), SIZE)
one("35", "columns below 0", "PACK_SHAPE", size(ROWS, -HIDDEN), SIZE)
one("37", "scales absent", "PACK_PART", lambda f: f.without(S), S)
one("39", "scales of whole numbers", "PACK_TYPE", lambda f: f.put(S, filled("I32", [ROWS, 2])), S)
one("41", "scales of other rows", "PACK_SHAPE", lambda f: f.put(S, filled("BF16", [ROWS - 1, 2], b"\x80\x3c")), S)
one("43", "scales of one dimension", "PACK_SHAPE", lambda f: f.put(S, filled("BF16", [ROWS], b"\x80\x3c")), S)
one("45", "scales of no group", "PACK_SHAPE", lambda f: f.put(S, filled("BF16", [ROWS, 0], b"")), S)
one("47", "scales of groups of no whole length", "PACK_SHAPE",
    lambda f: f.put(S, filled("BF16", [ROWS, 3], b"\x80\x3c")), S)  # fmt: skip
one("49", "groups of 16", "PACK_GROUP", lambda f: f.put(S, filled("BF16", [ROWS, 8], b"\x80\x3c")))
one("51", "first scale NaN", "NONFINITE", lambda f: f.first(S, b"\xc0\x7f"), S)
one("53", "last scale too large for its zero", "NONFINITE", lambda f: f.last(S, b"\x7f\x7f"), S)
one("95", "a scale that holds for 8 but not for 15", "NONFINITE", lambda f: f.last(S, b"\xee\x7d"), S)
one("97", "a scale of float16 that doesn't hold for 128", "NONFINITE", lambda f: f.last(S, f16(1000)), S, bytes_)
one("55", "zeros of floats", "PACK_TYPE", lambda f: f.put(Z, filled("F16", [16, 2], f16(1))), Z)
one("57", "zeros of other rows", "PACK_SHAPE", lambda f: f.shaped(Z, 15, 2), Z, lambda: words(zeros=True))
one("59", "zeros beside codes of 6 bits", "PACK_TYPE", lambda f: f.put(Z, filled("I32", [24, 2])), Z, lambda: words(6))
one("61", "a scale that float16 can't hold, with zeros", "PACK_SCALE", lambda f: f.last(S, b"\x01\x7f"), S,
    lambda: words(zeros=True))  # fmt: skip
one("63", "whole in itself, of other columns than the model's", "SHAPE", lambda f: [
    f.shaped(W, ROWS, 8), f.put(S, filled("BF16", [ROWS, 1], b"\x80\x3c")), size(ROWS, HIDDEN // 2)(f)], Q)  # fmt: skip
one("65", "bytes with scales of other rows", "PACK_SHAPE",
    lambda f: f.put(S, filled("F16", [ROWS, 3], f16(0.01))), S, bytes_)  # fmt: skip
one("67", "bytes with zeros of words", "PACK_SHAPE", lambda f: f.put(Z, filled("I32", [4, 1])), Z, bytes_)
one("69", "nvfp4 without a scale of all", "PACK_PART", lambda f: f.without(ALL), ALL, lambda: floats("nvfp4"))
one("71", "nvfp4 with two scales of all", "PACK_SHAPE",
    lambda f: f.put(ALL, filled("F32", [2], f32(64))), ALL, lambda: floats("nvfp4"))  # fmt: skip
for id, value in (("73", 0.0), ("75", -1.0), ("77", 1e-45)):
    one(id, f"nvfp4 with {value} as the scale of all", "NONFINITE",
        lambda f, value=value: f.put(ALL, filled("F32", [1], f32(value))), ALL, lambda: floats("nvfp4"))  # fmt: skip
one("79", "nvfp4 with scales of other columns", "PACK_SHAPE",
    lambda f: f.put(S, filled("F8_E4M3", [ROWS, 4], b"\x38")), S, lambda: floats("nvfp4"))  # fmt: skip
one("81", "nvfp4: a scale below 0", "NONFINITE", lambda f: f.last(S, b"\xb8"), S, lambda: floats("nvfp4"))
one(
    "83", "mxfp4 with scales of other columns", "PACK_SHAPE", lambda f: f.shaped(S, ROWS, 8), S, lambda: floats("mxfp4")
)
one("85", "mxfp4: first scale 255", "NONFINITE", lambda f: f.first(S, b"\xff"), S, lambda: floats("mxfp4"))
one("87", "mxfp4 with scales of float16", "PACK_TYPE",
    lambda f: f.put(S, filled("F16", [ROWS, 4], f16(1))), S, lambda: floats("mxfp4"))  # fmt: skip
one(
    "89",
    "a matrix packed and dense",
    "NAME_DUP",
    lambda f: f.put(f"{Q}.weight", filled("F16", [ROWS, HIDDEN], f16(1))),
    Q,
)
