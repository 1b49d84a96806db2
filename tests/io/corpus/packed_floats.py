"""Packed folders of 8-bit floats (PE), with scales for squares of weights, for rows or for a matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .case import Table
from .packed_bytes import (
    HIDDEN,
    KV,
    LAYER,
    Folder,
    Q,
    changed,
    f16,
    f32,
    filled,
    finite_fp8,
    fp8,
    fp8_experts,
    fp8_rows,
)  # fmt: skip

P = Table()
Change = Callable[[Folder], object]
W, S, R = f"{Q}.weight", f"{Q}.weight_scale_inv", f"{Q}.weight_scale"
LAST = f"{LAYER}mlp.down_proj.weight"
X = f"{LAYER}mlp.experts.gate_up_proj"
NAN, INF = float("nan"), float("inf")


def settings(**values: Any) -> Change:
    return lambda folder: folder.quantization.update(values)


def of_group(**values: Any) -> Change:
    return lambda folder: folder.quantization["config_groups"]["group_0"]["weights"].update(values)


def scales(dtype: str, shape: list[int], value: bytes) -> Change:
    """All scales of the matrix, of that type and shape, without a size of squares."""
    return lambda f: [settings(weight_block_size=None)(f), f.put(S, filled(dtype, shape, value))]


def one(id: str, what: str, codes: str, change: Change, says: str = S, base: Callable[[], Folder] = fp8) -> None:
    P.reject(f"PE{id}", f"FP8: {what}", codes, changed(change, base), says)


def row(id: str, what: str, codes: str, change: Change, says: str = "config_groups") -> None:
    one(id, f"compressed-tensors: {what}", codes, change, says, fp8_rows)


def expert(id: str, what: str, codes: str, change: Change, says: str = X) -> None:
    one(id, f"experts: {what}", codes, change, says, fp8_experts)


P.accept("PE00", "FP8: sound, a scale for a square", lambda: fp8().content())
P.accept("PE02", "FP8: sound, smaller squares", lambda: fp8(64).content())
P.accept("PE04", "FP8: sound, a scale for a row", lambda: fp8_rows().content())
P.accept("PE06", "FP8: sound, experts", lambda: fp8_experts().content())
P.accept("PE08", "FP8: a matrix with one scale", changed(scales("BF16", [], b"\x80\x3c"), fp8))
P.accept("PE10", "FP8: a matrix with one scale, in one dimension", changed(scales("F32", [1], f32(0.01)), fp8))
P.accept("PE12", "FP8: powers of two for groups of 32", changed(scales("F8_E8M0", [HIDDEN, 4], b"\x78"), fp8))
P.accept("PE14", "FP8: the same as bytes", changed(scales("U8", [HIDDEN, 4], b"\x78"), fp8))
P.accept("PE16", "FP8: fbgemm's method", changed(settings(quant_method="fbgemm_fp8", weight_block_size=None), fp8))
for at, size in enumerate((128, [128], [128, 128, 128], [0, 128], [128, -128], [128, 128.0], ["128", 128], [True, 128],
                           [128, 1 << 62], [1 << 62, 128])):  # fmt: skip
    one(f"{2 * at + 1:02}", f"weight_block_size {size!r}", "QUANT_CONFIG", settings(weight_block_size=size),
        "weight_block_size")  # fmt: skip
one("21", "squares of 128 x 48", "QUANT_CONFIG", settings(weight_block_size=[128, 48]), "weight_block_size")
one("23", "unknown scheme of activations", "QUANT_CONFIG", settings(activation_scheme="rotated"), "activation_scheme")
one("25", "scales absent", "PACK_PART", lambda f: f.without(S))
one("27", "weight absent", "TENSOR_MISSING|TENSOR_EXTRA", lambda f: f.without(W), Q)
one("29", "scales under both names", "TENSOR_EXTRA", lambda f: f.put(R, filled("F32", [1, 1], f32(1))), R)
one("31", "scales of whole numbers", "PACK_TYPE", lambda f: f.put(S, filled("I32", [1, 1])))
one("33", "scales of 8-bit floats", "PACK_TYPE", lambda f: f.put(S, filled("F8_E4M3", [1, 1], b"\x38")))
one("35", "codes of int8", "TENSOR_TYPE", lambda f: f.put(W, filled("I8", [HIDDEN, HIDDEN])), W)
one("37", "codes of E5M2", "TENSOR_TYPE", lambda f: f.put(W, ("F8_E5M2", *f.tensors[W][1:])), W)
one("39", "scales of another square more", "PACK_SHAPE", lambda f: f.put(S, filled("F32", [2, 1], f32(1))))
one("41", "a scale for the matrix where squares are said", "PACK_SHAPE", lambda f: f.put(S, filled("F32", [], f32(1))))
one("43", "scales transposed", "PACK_SHAPE", lambda f: f.put(
    f"{LAST}_scale_inv", filled("F32", [2, 1], f32(1))), LAST)  # fmt: skip
one("45", "no size of squares, and scales for 3 rows of 128", "PACK_SHAPE", scales("F32", [3, 1], f32(1)))
one("47", "no size of squares, and scales for 3 columns of 128", "PACK_SHAPE", scales("F32", [1, 3], f32(1)))
one("49", "no size of squares, and no scale", "PACK_SHAPE", scales("F32", [0, 1], b""))
one("51", "no size of squares, and scales in three dimensions", "PACK_SHAPE", scales("F32", [1, 1, 1], f32(1)))
one("53", "groups of 8 weights", "PACK_GROUP", scales("F32", [HIDDEN, 16], f32(1)), W)
one("55", "rows of 100 weights", "PACK_GROUP", lambda f: f.put(W, finite_fp8([HIDDEN, 100])), W)
one("57", "no rows", "PACK_SHAPE", lambda f: [f.put(W, finite_fp8([0, HIDDEN])), f.put(S, filled("F32", [0, 1]))], W)
one("59", "no columns", "PACK_SHAPE|PACK_GROUP", lambda f: [
    f.put(W, finite_fp8([HIDDEN, 0])), f.put(S, filled("F32", [1, 0]))], W)  # fmt: skip
one("61", "a matrix in one dimension", "PACK_SHAPE", lambda f: f.put(W, finite_fp8([HIDDEN * HIDDEN])), W)
one("63", "a matrix in four dimensions", "PACK_SHAPE", lambda f: [
    f.put(W, finite_fp8([1, 1, HIDDEN, HIDDEN])), f.put(S, filled("F32", [1, 1, 1, 1], f32(1)))], W)  # fmt: skip
one("65", "a matrix in three dimensions", "SHAPE", lambda f: [
    f.put(W, finite_fp8([1, HIDDEN, HIDDEN])), f.put(S, filled("F32", [1, 1, 1], f32(1)))], W)  # fmt: skip
one("67", "whole in itself, of other rows than the model's", "SHAPE", lambda f: f.put(W, finite_fp8([KV, HIDDEN])), W)
one("69", "first code NaN", "NONFINITE", lambda f: f.first(W, b"\x7f"), W)
one("71", "last code of the last matrix NaN", "NONFINITE", lambda f: f.last(LAST, b"\xff"), LAST)
one("73", "a scale NaN", "NONFINITE", lambda f: f.first(S, f32(NAN)))
one("75", "the last scale infinite", "NONFINITE", lambda f: f.last(f"{LAST}_scale_inv", f32(-INF)), LAST)
one("77", "a scale with which 448 is infinite", "NONFINITE", lambda f: f.first(S, f32(1e36)))
one("79", "powers of two: 255", "NONFINITE", scales("F8_E8M0", [1, 1], b"\xff"))
one("81", "powers of two as bytes: 255", "NONFINITE", scales("U8", [1, 1], b"\xff"))
one("83", "a packed norm", "PACK_SHAPE", lambda f: f.put("model.norm.weight", finite_fp8([HIDDEN])), "model.norm")
one("85", "a tensor too many", "TENSOR_EXTRA", lambda f: f.put(f"{Q}.evil", filled("F16", [2], f16(1))), "evil")

row("01R", "packed codes", "QUANT_CONFIG", settings(format="pack-quantized"), "format")
row("03R", "no groups", "QUANT_CONFIG", settings(config_groups={}))
row("05R", "groups of a list", "QUANT_CONFIG", settings(config_groups=[1]))
row("07R", "a group that is none", "QUANT_CONFIG", settings(config_groups={"group_0": 4}))
row("09R", "a group without weights", "QUANT_CONFIG", settings(config_groups={"group_0": {"weights": None}}))
row("11R", "whole numbers", "QUANT_CONFIG", of_group(type="int"))
row("13R", "four bits", "QUANT_CONFIG", of_group(num_bits=4))
row("15R", "with offsets", "QUANT_CONFIG", of_group(symmetric=False), "symmetric")
row("17R", "squares of a number", "QUANT_CONFIG", of_group(block_structure=128), "block_structure")
row("19R", "weights that are rotated", "QUANT_CONFIG", settings(transform_config={"r1": {}}), "transform_config")
row("21R", "groups of two sizes of squares", "QUANT_CONFIG", lambda f: f.quantization["config_groups"].update(
    group_1={"weights": {"type": "float", "num_bits": 8, "block_structure": [128, 128]}}))  # fmt: skip
row("23R", "a row's scale absent", "PACK_PART", lambda f: f.without(R), S)
row("25R", "scales of a row too few", "PACK_SHAPE", lambda f: f.put(R, filled("BF16", [127, 1], b"\x80\x3c")), R)

expert("01X", "an odd number of gates and ups", "PACK_SHAPE", lambda f: f.put(X, finite_fp8([2, 383, HIDDEN])))
expert("03X", "scales of an expert more", "PACK_SHAPE", lambda f: f.put(
    f"{X}_scale_inv", filled("F32", [3, 3, 1], f32(1))))  # fmt: skip
expert("05X", "whole in itself, of an expert more than the model's", "SHAPE", lambda f: [
    f.put(X, finite_fp8([3, 384, HIDDEN])), f.put(f"{X}_scale_inv", filled("F32", [3, 3, 1], f32(1)))])  # fmt: skip
expert("07X", "an expert more in scales, no size of squares", "PACK_SHAPE", lambda f: [
    settings(weight_block_size=None)(f), f.put(f"{X}_scale_inv", filled("F32", [3, 3, 1], f32(1)))])  # fmt: skip
expert("09X", "the second expert's last scale NaN", "NONFINITE", lambda f: f.last(f"{X}_scale_inv", f32(NAN)))
expert("11X", "a gate of its own too", "NAME_DUP|TENSOR_TYPE", lambda f: f.put(
    f"{LAYER}mlp.experts.gate_proj", filled("F16", [2, 192, HIDDEN], f16(1))), "gate_proj")  # fmt: skip
