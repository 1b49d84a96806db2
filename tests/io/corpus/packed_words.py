"""Packed folders of mlx (PM), GPTQ (PG) and AWQ (PA): words of codes, scales and biases or zeros beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from .case import Content, Table
from .folders import INDEX, ONE, TWO
from .packed_bytes import (
    HIDDEN,
    KV,
    LAYER,
    Folder,
    Q,
    affine,
    affine_experts,
    awq,
    changed,
    f16,
    f32,
    filled,
    floats,
    gpt_oss,
    gpt_oss_of_mlx,
    gptq,
    i32,
    model,
    safetensors,
)  # fmt: skip

P = Table()
Change = Callable[[Folder], object]
NAN, INF = f16(float("nan")), f16(float("inf"))
W, S, B = f"{Q}.weight", f"{Q}.scales", f"{Q}.biases"
QW, QZ, G = f"{Q}.qweight", f"{Q}.qzeros", f"{Q}.g_idx"
LAST = f"{LAYER}mlp.down_proj"


def settings(**values: Any) -> Change:
    return lambda folder: folder.quantization.update(values)


def mlx(id: str, what: str, codes: str, change: Change, says: str = Q, base: Callable[[], Folder] = affine) -> None:
    P.reject(f"PM{id}", f"mlx: {what}", codes, changed(change, base), says)


def of_gptq(id: str, what: str, codes: str, change: Change, says: str = Q, base: Callable[[], Folder] = gptq) -> None:
    P.reject(f"PG{id}", f"GPTQ: {what}", codes, changed(change, base), says)


def of_awq(id: str, what: str, codes: str, change: Change, says: str = Q) -> None:
    P.reject(f"PA{id}", f"AWQ: {what}", codes, changed(change, awq), says)


def of_mode(mode: str) -> Callable[[], Folder]:
    return lambda: floats(mode)


def sound(base: Callable[..., Folder], *values: Any) -> Callable[[], Any]:
    return lambda: base(*values).content()


def in_shards(folder: Folder, *, twice: str = "") -> dict[str, Content]:
    """The tensors in two files, under an index; one of them in both."""
    names = [name for name in folder.tensors if name != twice]
    both = [twice] if twice else []
    halves = [*names[::2], *both], [*names[1::2], *both]
    shards = {n: {name: folder.tensors[name] for name in half} for n, half in zip((ONE, TWO), halves, strict=True)}
    index = {"weight_map": {name: shard for shard, part in shards.items() for name in part}}
    files = {name: content for name, content in folder.content().items() if name != "model.safetensors"}
    return files | {n: safetensors(part) for n, part in shards.items()} | {INDEX: json.dumps(index).encode()}


P.accept("PM00", "mlx: sound, 4 bits in groups of 64", sound(affine))
P.accept("PM02", "mlx: sound, 3 bits in groups of 32", sound(affine, 3, 32))
P.accept("PM04", "mlx: sound, 8 bits in groups of 64", sound(affine, 8, 64))
P.accept("PM06", "mlx: sound, mxfp4", sound(floats, "mxfp4"))
P.accept("PM08", "mlx: sound, nvfp4", sound(floats, "nvfp4"))
P.accept("PM10", "mlx: sound, mxfp8", sound(floats, "mxfp8"))
P.accept("PM12", "mlx: sound, in two shards", lambda: in_shards(affine()))
P.accept("PM14", "mlx: settings twice, the same", changed(
    lambda f: f.config.update(quantization=dict(f.quantization)), affine))  # fmt: skip
P.accept("PM16", "mlx: a layer that isn't packed is said not to be, though it isn't there",
         changed(settings(**{"lm_head": False}), affine), policy=True)  # fmt: skip
mlx("01", "settings twice, with other bits", "QUANT_CONFIG",
    lambda f: f.config.update(quantization={**f.quantization, "bits": 8}), "quantization_config")  # fmt: skip
for id, bits in (("03", 7), ("05", 0), ("07", -4), ("09", 4.0), ("11", True), ("13", "4"), ("15", None),
                 ("17", 1 << 70), ("19", [4]), ("21", 1e400)):  # fmt: skip
    mlx(id, f"bits {bits!r}", "QUANT_CONFIG", settings(bits=bits), "bits")
for id, size in (("23", 0), ("25", 16), ("27", -64), ("29", 64.0), ("31", True), ("33", "64"), ("35", 1 << 62),
                 ("37", 48)):  # fmt: skip
    mlx(id, f"group_size {size!r}", "QUANT_CONFIG", settings(group_size=size), "group_size")
mlx("38", "no bits", "QUANT_CONFIG", lambda f: f.quantization.pop("bits"), "bits")
mlx("39", "no group_size, so no method", "QUANT_METHOD", lambda f: f.quantization.pop("group_size"), "quant_method")
mlx("40", "unknown mode", "QUANT_CONFIG", settings(mode="mxfp6"), "mode")
mlx("41", "mode is a list", "QUANT_CONFIG", settings(mode=["affine"]), "mode")
mlx("42", "other bits than the tensors have", "PACK_SHAPE|PACK_GROUP", settings(bits=8))
mlx("43", "another group size than the tensors have", "PACK_SHAPE|PACK_GROUP", settings(group_size=32))
mlx("44", "mode mxfp4 over affine tensors", "QUANT_CONFIG|PACK_TYPE", settings(mode="mxfp4", group_size=32))
mlx("45", "settings of a layer that isn't there", "QUANT_CONFIG",
    settings(**{"model.layers.7.mlp.up_proj": {"bits": 8, "group_size": 64}}), "layers.7.mlp.up_proj")  # fmt: skip
mlx("46", "a layer's own bits, absurd", "QUANT_CONFIG", settings(**{Q: {"bits": 9, "group_size": 64}}), f"{Q}.bits")
mlx("47", "a layer's own bits, which its tensors don't have", "PACK_SHAPE|PACK_GROUP", settings(
    **{Q: {"bits": 8, "group_size": 64}}))  # fmt: skip
mlx("48", "a layer's settings are false, but it is packed", "QUANT_CONFIG", settings(**{Q: False}))
mlx("49", "a layer's settings are a number", "QUANT_CONFIG", settings(**{Q: 4}))
mlx("50", "scales absent", "PACK_PART", lambda f: f.without(S), S)
mlx("51", "biases absent", "PACK_PART", lambda f: f.without(B), B)
mlx("52", "weight absent", "PACK_PART", lambda f: f.without(W), W)
mlx("53", "all three absent", "TENSOR_MISSING", lambda f: f.without(W, S, B), W)
mlx("54", "scales of f32, biases of f16", "PACK_TYPE", lambda f: f.put(S, filled("F32", f.tensors[S][1], f32(1))), B)
mlx("55", "scales of integers", "PACK_TYPE", lambda f: f.put(S, filled("I32", f.tensors[S][1])), S)
mlx("56", "words of int32", "PACK_TYPE", lambda f: f.put(W, ("I32", *f.tensors[W][1:])), W)
mlx("57", "words of bytes", "PACK_TYPE", lambda f: f.put(W, filled("U8", [128, 64])), W)
mlx("58", "scales of one group too few", "PACK_SHAPE", lambda f: f.shaped(S, 128, 1), S)
mlx("59", "scales transposed", "PACK_SHAPE", lambda f: f.shaped(S, 2, 128), S)
mlx("60", "scales with a dimension more", "PACK_SHAPE", lambda f: f.shaped(S, 128, 2, 1), S)
mlx("61", "biases of other rows", "PACK_SHAPE", lambda f: f.shaped(B, 127, 2), B)
mlx("62", "a scalar for scales", "PACK_SHAPE", lambda f: f.shaped(S), S)
mlx("63", "rows of words that are no whole groups", "PACK_GROUP|PACK_SHAPE", lambda f: f.shaped(W, 128, 15), W)
mlx("64", "words in one dimension", "PACK_GROUP|PACK_SHAPE", lambda f: f.shaped(W, 2048), W)
mlx("65", "no rows", "PACK_GROUP|PACK_SHAPE", lambda f: [f.shaped(W, 0, 16), f.shaped(S, 0, 2), f.shaped(B, 0, 2)], W)
mlx("66", "no columns", "PACK_GROUP|PACK_SHAPE",
    lambda f: [f.shaped(W, 128, 0), f.shaped(S, 128, 0), f.shaped(B, 128, 0)], W)  # fmt: skip
mlx("67", "whole in itself, of other rows than the model's", "SHAPE", lambda f: [
    f.shaped(W, 64, 16), *(f.put(n, filled("F16", [64, 2], f16(1))) for n in (S, B))], W)  # fmt: skip
mlx("68", "first scale NaN", "NONFINITE", lambda f: f.first(S, NAN), S)
mlx("69", "last scale infinite", "NONFINITE", lambda f: f.last(S, INF), S)
mlx("70", "first bias infinite", "NONFINITE", lambda f: f.first(B, INF), B)
mlx("71", "last bias NaN", "NONFINITE", lambda f: f.last(B, NAN), B)
mlx("72", "last scale of the last matrix NaN", "NONFINITE", lambda f: f.last(f"{LAST}.scales", NAN), LAST)
mlx("73", "a norm's NaN beside sound matrices", "NONFINITE", lambda f: f.first("model.norm.weight", NAN), "model.norm")
mlx("74", "a matrix also dense", "NAME_DUP|TENSOR_EXTRA|PACK_TYPE",
    lambda f: f.put(Q.replace("mlp.", "block_sparse_moe.") + ".weight.dense", filled("F16", [2])), "dense")  # fmt: skip
mlx("75", "a parameter under two names", "NAME_DUP",
    lambda f: f.put(f"{LAYER}mlp.gate.weight", filled("F16", [2, HIDDEN])), "gate", affine_experts)  # fmt: skip
mlx("76", "a tensor too many", "TENSOR_EXTRA", lambda f: f.put(f"{Q}.evil", filled("F16", [2], f16(1))), "evil")
mlx("77", "a tensor too many, of words", "TENSOR_TYPE|TENSOR_EXTRA|PACK_PART",
    lambda f: f.put(f"{Q}.evil", filled("U32", [2])), "evil")  # fmt: skip
mlx("78", "words without scales", "PACK_PART", lambda f: f.put("lm_head.weight", filled("U32", [32, 16])), "lm_head")
mlx("79", "scales without a weight", "PACK_PART", lambda f: f.put("x.scales", filled("F16", [2, 2])), "x.weight")
mlx("80", "a packed norm", "SHAPE|PACK_GROUP|TENSOR_TYPE|TENSOR_EXTRA", lambda f: f.put(
    "model.norm.weight", filled("U32", [1, 16])).put("model.norm.scales", filled("F16", [1, 2], f16(1))).put(
    "model.norm.biases", filled("F16", [1, 2], f16(1))), "model.norm")  # fmt: skip
mlx("81", "the same tensor in two shards", "IDX_DUP", lambda f: f.files.update(
    {"model.safetensors": None} | {n: c for n, c in in_shards(f, twice=S).items() if ".s" in n}), S)  # fmt: skip
mlx("82", "mxfp4: first scale 255, which is NaN", "NONFINITE", lambda f: f.first(S, b"\xff"), S, of_mode("mxfp4"))
mlx("83", "mxfp4: last scale 255", "NONFINITE", lambda f: f.last(S, b"\xff"), S, of_mode("mxfp4"))
mlx("84", "mxfp8: last scale 255", "NONFINITE", lambda f: f.last(S, b"\xff"), S, of_mode("mxfp8"))
mlx("94", "mxfp4: a scale of 253, with which 6 is infinite", "NONFINITE", lambda f: f.last(S, b"\xfd"), S,
    of_mode("mxfp4"))  # fmt: skip
mlx("95", "mxfp8: a scale of 247, with which 480 is infinite", "NONFINITE", lambda f: f.last(S, b"\xf7"), S,
    of_mode("mxfp8"))  # fmt: skip
mlx("85", "nvfp4: first scale E4M3's NaN", "NONFINITE", lambda f: f.first(S, b"\x7f"), S, of_mode("nvfp4"))
mlx("86", "nvfp4: last scale negative", "NONFINITE", lambda f: f.last(S, b"\xb8"), S, of_mode("nvfp4"))
mlx("87", "mxfp4: group size 64", "QUANT_CONFIG", settings(group_size=64), "group_size", of_mode("mxfp4"))
mlx("88", "mxfp4: 8 bits", "QUANT_CONFIG", settings(bits=8), "bits", of_mode("mxfp4"))
mlx("89", "mxfp4: biases too", "TENSOR_EXTRA", lambda f: f.put(B, filled("U8", [128, 4])), B, of_mode("mxfp4"))
mlx("90", "mxfp4: scales of f16", "PACK_TYPE", lambda f: f.put(S, filled("F16", [128, 4], f16(1))), S, of_mode("mxfp4"))
mlx("91", "nvfp4: scales of groups of 32", "PACK_SHAPE", lambda f: f.shaped(S, 128, 4), S, of_mode("nvfp4"))
mlx("92", "nvfp4: rows of no whole blocks of 64", "PACK_GROUP", lambda f: [
    f.shaped(W, 128, 10), f.shaped(S, 128, 5)], W, of_mode("nvfp4"))  # fmt: skip
mlx("93", "mxfp8: the tensors of mxfp4", "PACK_SHAPE|PACK_GROUP|SHAPE",
    settings(mode="mxfp8", bits=8), "", of_mode("mxfp4"))  # fmt: skip

GB, UB = (f"{LAYER}mlp.experts.{name}_proj.bias" for name in ("gate", "up"))
P.accept("PM107", "experts of a matrix in one tensor", sound(affine_experts))
P.accept("PM100", "experts with biases", lambda: gpt_oss_of_mlx().content())
mlx("101", "a bias of experts absent", "PACK_PART", lambda f: f.without(UB), UB, gpt_oss_of_mlx)
mlx("102", "biases of two shapes", "PACK_SHAPE", lambda f: f.put(UB, filled("F16", [2, 63], f16(0.1))), UB,
    gpt_oss_of_mlx)  # fmt: skip
mlx("103", "biases of whole numbers", "PACK_TYPE", lambda f: [
    f.put(name, filled("I32", [2, 64])) for name in (GB, UB)], GB, gpt_oss_of_mlx)  # fmt: skip
mlx("104", "biases of scalars", "SHAPE", lambda f: [
    f.put(name, filled("F16", [], f16(0.1))) for name in (GB, UB)], GB, gpt_oss_of_mlx)  # fmt: skip
mlx("105", "an infinite bias", "NONFINITE", lambda f: f.first(UB, INF), UB, gpt_oss_of_mlx)
KEYS, VALUES = f"{LAYER}self_attn.embed_q.weight", f"{LAYER}self_attn.unembed_out.weight"
for id, what, codes, shapes in (
    ("106", "without values", "PACK_PART", [(2, 16, 64)]),
    ("113", "of one head", "PACK_SHAPE", [(2, 16), (2, 32, 16)]),
    ("108", "of two sizes", "PACK_SHAPE", [(2, 16, 64), (2, 32, 32)]),
    ("109", "of two numbers of heads", "PACK_SHAPE", [(2, 16, 64), (3, 32, 16)]),
    ("110", "of a model that has none", "TENSOR_EXTRA", [(2, 16, 64), (2, 32, 16)]),
):
    mlx(id, f"keys of latent attention {what}", codes, lambda f, shapes=shapes: [
        f.put(name, filled("F16", [*shape], f16(1))) for name, shape in zip((KEYS, VALUES), shapes, strict=False)
    ], "self_attn")  # fmt: skip
mlx("111", "Falcon-H1 with biases, which mlx does not scale", "CONFIG",
    lambda f: f.config.update(model_type="falcon_h1", projectors_bias=True), "projectors_bias")  # fmt: skip
for id, factor in (("112", 0), ("114", "1"), ("115", 1e7)):
    mlx(id, f"Falcon-H1, tied, with embeddings multiplied by {factor!r}", "CONFIG", lambda f, factor=factor:
        f.config.update(model_type="falcon_h1", tie_word_embeddings=True, embedding_multiplier=factor),
        "embedding_multiplier")  # fmt: skip

X = f"{LAYER}mlp.experts.gate_up_proj"
XB, XS, XD = f"{X}_blocks", f"{X}_scales", f"{LAYER}mlp.experts.down_proj"


def oss(id: str, what: str, codes: str, change: Change, says: str = X) -> None:
    P.reject(f"PX{id}", f"gpt-oss: {what}", codes, changed(change, gpt_oss), says)


P.accept("PX00", "gpt-oss: sound", sound(gpt_oss))
oss("01", "scales absent", "PACK_PART", lambda f: f.without(XS), XS)
oss("02", "blocks absent", "TENSOR_TYPE|TENSOR_EXTRA", lambda f: f.without(XB), XS)
oss("03", "both absent", "TENSOR_MISSING", lambda f: f.without(XB, XS), "gate_proj")
oss("04", "biases absent", "TENSOR_MISSING", lambda f: f.without(f"{X}_bias"), f"{X}_bias")
oss("05", "sinks absent", "TENSOR_MISSING", lambda f: f.without(f"{LAYER}self_attn.sinks"), "sinks")
oss("06", "blocks of int8", "PACK_TYPE", lambda f: f.put(XB, ("I8", *f.tensors[XB][1:])), XB)
oss("07", "scales of f16", "PACK_TYPE", lambda f: f.put(XS, filled("F16", [2, 128, 4], f16(1))), XS)
oss("08", "blocks in three dimensions", "PACK_SHAPE", lambda f: [
    f.shaped(XB, 2, 128, 16), f.put(XS, filled("U8", [2, 128], b"\x78"))], XB)  # fmt: skip
oss("09", "groups of 16 weights", "PACK_SHAPE", lambda f: f.shaped(XB, 2, 128, 8, 8), XB)
oss("10", "an odd number of gates and ups", "PACK_SHAPE", lambda f: [
    f.shaped(XB, 2, 127, 4, 16), f.put(XS, filled("U8", [2, 127, 4], b"\x78"))], XB)  # fmt: skip
oss("11", "no experts", "PACK_SHAPE", lambda f: [f.shaped(XB, 0, 128, 4, 16), f.shaped(XS, 0, 128, 4)], XB)
oss("12", "no groups", "PACK_SHAPE", lambda f: [f.shaped(XB, 2, 128, 0, 16), f.shaped(XS, 2, 128, 0)], XB)
oss("13", "scales of another expert more", "PACK_SHAPE", lambda f: f.shaped(XS, 3, 128, 4), XS)
oss("14", "scales transposed", "PACK_SHAPE", lambda f: f.shaped(XS, 2, 4, 128), XS)
oss("15", "whole in itself, of an expert more than the model's", "SHAPE", lambda f: [
    f.shaped(XB, 3, 128, 4, 16), f.put(XS, filled("U8", [3, 128, 4], b"\x78"))], XB)  # fmt: skip
oss("16", "whole in itself, of other inputs than the model's", "SHAPE", lambda f: [
    f.shaped(XB, 2, 128, 2, 16), f.put(XS, filled("U8", [2, 128, 2], b"\x78"))], XB)  # fmt: skip
oss("17", "first scale 255, which is NaN", "NONFINITE", lambda f: f.first(XS, b"\xff"), XS)
oss("18", "last scale 253, with which 6 is infinite", "NONFINITE", lambda f: f.last(f"{XD}_scales", b"\xfd"), XD)
oss("19", "also dense", "NAME_DUP", lambda f: f.put(XD, filled("F16", [2, 64, HIDDEN], f16(1))), XD)
oss("20", "gate and up also dense", "TENSOR_EXTRA", lambda f: f.put(X, filled("F16", [2, HIDDEN, 128], f16(1))))
oss("21", "a gate of its own too", "NAME_DUP|TENSOR_TYPE", lambda f: f.put(
    f"{LAYER}mlp.experts.gate_proj", filled("F16", [2, 64, HIDDEN], f16(1))), "gate_proj")  # fmt: skip
oss("22", "a packed projection of attention", "PACK_SHAPE|SHAPE|TENSOR_EXTRA", lambda f: [
    f.put(f"{Q}_blocks", filled("U8", [1, 128, 4, 16])), f.put(f"{Q}_scales", filled("U8", [1, 128, 4], b"\x78"))], Q,
)  # fmt: skip
oss("23", "an infinite sink", "NONFINITE", lambda f: f.first(f"{LAYER}self_attn.sinks", INF), "sinks")

P.accept("PG00", "GPTQ: sound, 4 bits in the order of activations", sound(gptq))
P.accept("PG02", "GPTQ: sound, 3 bits in groups of 64", sound(gptq, 3, 64))
P.accept("PG04", "GPTQ: sound, without g_idx and desc_act", changed(lambda f: [
    settings(desc_act=False)(f), *[f.without(n) for n in list(f.tensors) if n.endswith("g_idx")]], gptq))  # fmt: skip
for id, bits in (
    ("01", 5),
    ("03", 0),
    ("05", -4),
    ("07", 4.0),
    ("09", True),
    ("11", "4"),
    ("13", None),
    ("15", 1 << 64),
):
    of_gptq(id, f"bits {bits!r}", "QUANT_CONFIG", settings(bits=bits), "bits")
for id, size in (("17", 0), ("19", -2), ("21", 7), ("23", True), ("25", 32.0), ("27", 1 << 62), ("29", None)):
    of_gptq(id, f"group_size {size!r}", "QUANT_CONFIG", settings(group_size=size), "group_size")
of_gptq("31", "group_size 24, which is no block", "PACK_GROUP", settings(group_size=24))
of_gptq("32", "group_size 8, which is no block", "PACK_GROUP", settings(group_size=8))
of_gptq("33", "group_size 96, which doesn't divide the rows", "PACK_GROUP", settings(group_size=96))
of_gptq("35", "group_size 64, the tensors' is 32", "PACK_SHAPE", settings(group_size=64))
of_gptq("37", "group_size -1, the tensors' is 32", "PACK_SHAPE|PACK_GROUP", settings(group_size=-1))
of_gptq("39", "8 bits, the tensors have 4", "PACK_SHAPE|PACK_GROUP|SHAPE", settings(bits=8))
of_gptq("41", "3 bits, the tensors have 4", "PACK_SHAPE|PACK_GROUP|SHAPE", settings(bits=3))
of_gptq("43", "another checkpoint_format", "QUANT_CONFIG", settings(checkpoint_format="marlin"), "checkpoint_format")
of_gptq(
    "45", "settings for some layers by patterns", "QUANT_CONFIG", settings(dynamic={"+:.*": {"bits": 8}}), "dynamic"
)
of_gptq("47", "desc_act is a text", "QUANT_CONFIG", settings(desc_act="true"), "desc_act")
of_gptq("49", "desc_act, but g_idx absent", "PACK_PART", lambda f: f.without(G), G)
of_gptq("51", "scales absent", "PACK_PART", lambda f: f.without(S), S)
of_gptq("53", "qzeros absent", "PACK_PART", lambda f: f.without(QZ), QZ)
of_gptq("55", "qweight absent", "TENSOR_TYPE|TENSOR_EXTRA|TENSOR_MISSING|PACK_PART", lambda f: f.without(QW))
of_gptq("57", "g_idx: a group too high", "PACK_ORDER", lambda f: f.first(G, i32(4)), G)
of_gptq("59", "g_idx: a negative group", "PACK_ORDER", lambda f: f.first(G, i32(-1)), G)
of_gptq("61", "g_idx: 2^31 - 1 last", "PACK_ORDER", lambda f: f.last(G, i32(2**31 - 1)), G)
of_gptq("63", "g_idx: one too many in a group", "PACK_ORDER", lambda f: f.first(G, i32(1)), G)
of_gptq("65", "g_idx: all of one group", "PACK_ORDER", lambda f: f.put(G, ("I32", [128], bytes(512))), G)
of_gptq("67", "g_idx: one too short", "PACK_SHAPE", lambda f: f.shaped(G, 127), G)
of_gptq("69", "g_idx: of two dimensions", "PACK_SHAPE", lambda f: f.shaped(G, 128, 1), G)
of_gptq("71", "g_idx: empty", "PACK_SHAPE", lambda f: f.shaped(G, 0), G)
of_gptq("73", "g_idx: floats", "PACK_TYPE", lambda f: f.put(G, filled("F32", [128], f32(0))), G)
of_gptq("75", "g_idx: bytes", "PACK_TYPE", lambda f: f.put(G, filled("U8", [128], b"\0")), G)
of_gptq("77", "qzeros a column short", "PACK_SHAPE", lambda f: f.shaped(QZ, 4, 15), QZ)
of_gptq("79", "qzeros of a group too few", "PACK_SHAPE", lambda f: f.shaped(QZ, 3, 16), QZ)
of_gptq("81", "qzeros transposed", "PACK_SHAPE", lambda f: f.shaped(QZ, 16, 4), QZ)
of_gptq("83", "qzeros of int64", "PACK_TYPE", lambda f: f.put(QZ, filled("I64", [4, 16])), QZ)
of_gptq("85", "scales of a group too few", "PACK_SHAPE", lambda f: f.shaped(S, 3, 128), S)
of_gptq("87", "scales: an infinity first", "NONFINITE", lambda f: f.first(S, INF), S)
of_gptq("89", "scales: a NaN last", "NONFINITE", lambda f: f.last(S, NAN), S)
of_gptq("91", "scales of f32 that f16 can't hold", "PACK_SCALE",
        lambda f: f.put(S, filled("F32", [4, 128], f32(1e-9))), S)  # fmt: skip
of_gptq("93", "qweight of floats", "PACK_TYPE", lambda f: f.put(QW, filled("F32", [16, 128], f32(1))), QW)
of_gptq("95", "qweight in one dimension", "PACK_SHAPE", lambda f: f.shaped(QW, 2048), QW)
of_gptq("97", "qweight without rows", "PACK_SHAPE", lambda f: f.shaped(QW, 0, 128), QW)
of_gptq("98", "qweight a row short", "PACK_SHAPE|PACK_GROUP", lambda f: f.shaped(QW, 15, 128), QW)
of_gptq("99", "qweight of outputs that are no whole words of zeros", "PACK_SHAPE", lambda f: f.shaped(QW, 16, 124), QW)
of_gptq("A1", "a dense weight beside the packed one", "NAME_DUP", lambda f: f.put(W, filled("F16", [128, 128])), W)
of_gptq("A3", "qweight of more than 2^18 columns", "PACK_SHAPE", lambda f: f.shaped(QW, 4, (1 << 18) + 8), "two dimen")
of_gptq(
    "A5", "g_idx without a qweight", "TENSOR_TYPE|TENSOR_EXTRA", lambda f: f.put("x.g_idx", filled("I32", [4])), "x"
)
of_gptq("A7", "3 bits: rows that are no whole runs", "PACK_SHAPE", lambda f: f.shaped(QW, 13, 128), QW,
        lambda: gptq(3, 64))  # fmt: skip
of_gptq("A9", "the embedding's shape is another", "SHAPE",
        lambda f: f.put("model.embed_tokens.weight", filled("F16", [16, 128], f16(1))), "embed_tokens")  # fmt: skip

P.accept("PA00", "AWQ: sound", sound(awq))
P.accept("PA02", "AWQ: sound, one group for a row", sound(awq, 64))
for id, bits in (("01", 8), ("03", 0), ("05", "4"), ("07", False)):
    of_awq(id, f"bits {bits!r}", "QUANT_CONFIG", settings(bits=bits), "bits")
for id, size in (("09", 0), ("11", -32), ("13", 33), ("15", "32")):
    of_awq(id, f"group_size {size!r}", "QUANT_CONFIG", settings(group_size=size), "group_size")
of_awq("17", "version gemv", "QUANT_CONFIG", settings(version="gemv"), "version")
of_awq("19", "version is a number", "QUANT_CONFIG", settings(version=1), "version")
of_awq("21", "qzeros absent", "PACK_PART", lambda f: f.without(QZ), QZ)
of_awq("23", "scales absent", "PACK_PART", lambda f: f.without(S), S)
of_awq("25", "qweight absent", "TENSOR_TYPE|TENSOR_EXTRA|PACK_PART", lambda f: f.without(QW))
of_awq("27", "scales of other outputs", "PACK_SHAPE", lambda f: f.shaped(S, 4, 120), S)
of_awq("29", "qzeros of other outputs", "PACK_SHAPE", lambda f: f.shaped(QZ, 4, 15), QZ)
of_awq("31", "qweight of floats", "PACK_TYPE", lambda f: f.put(QW, filled("F16", [128, 16])), QW)
of_awq("33", "qweight of rows that are no whole groups", "PACK_GROUP", lambda f: f.shaped(QW, 100, 16), QW)
of_awq("35", "qweight transposed", "PACK_GROUP|PACK_SHAPE|SHAPE", lambda f: f.shaped(QW, 16, 128), QW)
of_awq("37", "scales: a NaN last", "NONFINITE", lambda f: f.last(S, NAN), S)
of_awq("39", "scales: an infinity first", "NONFINITE", lambda f: f.first(S, INF), S)
of_awq("41", "a g_idx, which is GPTQ's", "TENSOR_TYPE|TENSOR_EXTRA", lambda f: f.put(G, filled("I32", [128])), G)
of_awq("43", "whole in itself, of other outputs than the model's", "SHAPE", lambda f: [
    f.shaped(QW, 128, 8), f.shaped(QZ, 4, 8), f.put(S, filled("F16", [4, KV], f16(1)))])  # fmt: skip
of_awq("45", "GPTQ's tensors under the method's name", "PACK_SHAPE|PACK_GROUP", lambda f: f.tensors.update(
    gptq().tensors))  # fmt: skip
of_awq("47", "no layer is packed", "TENSOR_MISSING", lambda f: f.tensors.update(model(None, lambda *_: {}).tensors) or [
    f.without(n) for n in list(f.tensors) if LAYER in n and "norm" not in n])  # fmt: skip
