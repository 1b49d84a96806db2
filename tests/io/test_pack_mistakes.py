"""Packed weights with a mistake: each has its code, and names the tensor or the setting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.io.quantised import (
    BNB,
    CPU,
    NESTED,
    STATE,
    Tensors,
    of_awq,
    of_bitsandbytes,
    of_gptq,
    of_mlx,
    read,
)
from torch_foundry import quant
from torch_foundry.io import LoadError
from torch_foundry.io.packed import read_weights
from torch_foundry.io.parameters import ParameterNames
from torch_foundry.io.safetensors import open_safetensors
from torch_foundry.io.weights import WeightReader


def without(*names: str) -> Callable[[Tensors], None]:
    return lambda tensors: [tensors.pop(name) for name in names] and None


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


def set_first(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return change


def state(**changes: Any) -> Callable[[Tensors], None]:
    def change(tensor: Tensor) -> Tensor:
        described = json.loads(bytes(tensor.tolist())) | changes
        return torch.tensor(
            list(json.dumps({k: v for k, v in described.items() if v != ""}).encode()), dtype=torch.uint8
        )

    return changed(STATE, change)


def nothing(_: Tensors) -> None:
    pass


AFFINE = {"bits": 4, "group_size": 64}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 64}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64}
OWN = {"quant_method": "foundry", "formats": {"layer.weight": "q4_0"}}
SOURCES: dict[str, Callable[[], Tensors]] = {
    "affine": lambda: of_mlx("affine4_g64")[0],
    "mxfp4": lambda: of_mlx("mxfp4")[0],
    "nvfp4": lambda: of_mlx("nvfp4")[0],
    "gptq": lambda: of_gptq(4, 64, True, 1)[0],
    "awq": lambda: of_awq(64)[0],
    "bnb": lambda: of_bitsandbytes()[0],
    "oss": lambda: {
        f"x.{name}": torch.full(shape, 120, dtype=torch.uint8)
        for matrix, rows in (("gate_up_proj", 6), ("down_proj", 3))
        for name, shape in ((f"{matrix}_blocks", (2, rows, 2, 16)), (f"{matrix}_scales", (2, rows, 2)))
    },
    "own": lambda: {"layer.weight": quant.quantize(torch.randn(5, 64), "q4_0"), "layer.order": torch.arange(64)},
}
OSS = {"quant_method": "mxfp4"}
GATE_UP = "x.gate_up_proj"
NV = {"mode": "nvfp4", "bits": 4, "group_size": 16}
MX = {"mode": "mxfp4", "bits": 4, "group_size": 32}
MISTAKES = [
    # settings
    ("affine", [], nothing, "QUANT_CONFIG", "quantization_config"),
    ("affine", {}, nothing, "QUANT_METHOD", "quantization_config.quant_method"),
    ("affine", {"quant_method": "hqq"}, nothing, "QUANT_METHOD", "quantization_config.quant_method"),
    ("affine", {"quant_method": ["awq"]}, nothing, "QUANT_METHOD", "quantization_config.quant_method"),
    ("affine", {**AFFINE, "bits": 7}, nothing, "QUANT_CONFIG", "quantization_config.bits"),
    ("affine", {**AFFINE, "bits": 4.0}, nothing, "QUANT_CONFIG", "quantization_config.bits"),
    ("affine", {**AFFINE, "bits": True}, nothing, "QUANT_CONFIG", "quantization_config.bits"),
    ("affine", {**AFFINE, "group_size": 16}, nothing, "QUANT_CONFIG", "quantization_config.group_size"),
    ("affine", {**AFFINE, "mode": "other"}, nothing, "QUANT_CONFIG", "quantization_config.mode"),
    ("affine", {**AFFINE, "layer": False}, nothing, "QUANT_CONFIG", "quantization_config.layer"),
    ("affine", {**AFFINE, "layer": {"bits": 9}}, nothing, "QUANT_CONFIG", "quantization_config.layer.bits"),
    ("mxfp4", {**MX, "group_size": 64}, nothing, "QUANT_CONFIG", "quantization_config.group_size"),
    ("gptq", {**GPTQ, "bits": 5}, nothing, "QUANT_CONFIG", "quantization_config.bits"),
    ("gptq", {**GPTQ, "group_size": None}, nothing, "QUANT_CONFIG", "quantization_config.group_size"),
    ("gptq", {**GPTQ, "group_size": 0}, nothing, "QUANT_CONFIG", "quantization_config.group_size"),
    ("gptq", {**GPTQ, "checkpoint_format": "marlin"}, nothing, "QUANT_CONFIG", "quantization_config.checkpoint_format"),
    ("gptq", {**GPTQ, "dynamic": {"a": 1}}, nothing, "QUANT_CONFIG", "quantization_config.dynamic"),
    ("awq", {**AWQ, "version": "gemv"}, nothing, "QUANT_CONFIG", "quantization_config.version"),
    ("awq", {**AWQ, "bits": 8}, nothing, "QUANT_CONFIG", "quantization_config.bits"),
    ("bnb", {**BNB, "load_in_4bit": False, "load_in_8bit": True}, nothing, "QUANT_METHOD", "quantization_config"),
    ("bnb", {**BNB, "load_in_4bit": 1}, nothing, "QUANT_CONFIG", "quantization_config.load_in_4bit"),
    ("own", {**OWN, "formats": ["q4_0"]}, nothing, "QUANT_CONFIG", "quantization_config.formats"),
    (
        "own",
        {**OWN, "formats": {"layer.weight": "q0"}},
        nothing,
        "QUANT_CONFIG",
        "quantization_config.formats.layer.weight",
    ),
    ("own", {**OWN, "formats": {"other": "q4_0"}}, nothing, "PACK_PART", "other"),
    # mlx
    ("affine", AFFINE, without("layer.scales"), "PACK_PART", "layer.scales"),
    ("affine", AFFINE, without("layer.biases"), "PACK_PART", "layer.biases"),
    ("affine", AFFINE, without("layer.weight"), "PACK_PART", "layer.weight"),
    ("affine", AFFINE, changed("layer.scales", lambda t: t.half()), "PACK_TYPE", "layer.biases"),
    ("affine", AFFINE, changed("layer.scales", lambda t: t.to(torch.uint8)), "PACK_TYPE", "layer.scales"),
    ("affine", AFFINE, changed("layer.scales", lambda t: t[:, :1]), "PACK_SHAPE", "layer.scales"),
    ("affine", AFFINE, changed("layer.biases", lambda t: t[:1]), "PACK_SHAPE", "layer.biases"),
    ("affine", AFFINE, changed("layer.weight", lambda t: t.view(torch.int32)), "PACK_TYPE", "layer.weight"),
    ("affine", AFFINE, changed("layer.weight", lambda t: t[:, 1:]), "PACK_GROUP", "layer.weight"),
    ("affine", AFFINE, changed("layer.weight", lambda t: t[0]), "PACK_GROUP", "layer.weight"),
    ("affine", AFFINE, changed("layer.scales", set_first(float("nan"))), "NONFINITE", "layer.scales"),
    ("affine", AFFINE, changed("layer.biases", set_first(float("inf"))), "NONFINITE", "layer.biases"),
    ("affine", {**AFFINE, "group_size": 32}, nothing, "PACK_SHAPE", "layer.scales"),
    ("affine", AFFINE, lambda t: t.update({"i": torch.ones(2, dtype=torch.int64)}), "TENSOR_TYPE", "i"),
    ("mxfp4", MX, changed("layer.scales", set_first(255)), "NONFINITE", "layer.scales"),
    ("mxfp4", MX, changed("layer.scales", lambda t: t.half()), "PACK_TYPE", "layer.scales"),
    (
        "nvfp4",
        {"mode": "nvfp4", "bits": 4, "group_size": 16},
        changed("layer.scales", set_first(127)),
        "NONFINITE",
        "layer.scales",
    ),
    # gpt-oss
    ("oss", OSS, without(f"{GATE_UP}_scales"), "PACK_PART", f"{GATE_UP}_scales"),
    ("oss", OSS, without(f"{GATE_UP}_blocks"), "TENSOR_TYPE", f"{GATE_UP}_scales"),
    ("oss", OSS, changed(f"{GATE_UP}_blocks", lambda t: t.view(torch.int8)), "PACK_TYPE", f"{GATE_UP}_blocks"),
    ("oss", OSS, changed(f"{GATE_UP}_scales", lambda t: t.half()), "PACK_TYPE", f"{GATE_UP}_scales"),
    ("oss", OSS, changed(f"{GATE_UP}_blocks", lambda t: t[:, 1:]), "PACK_SHAPE", f"{GATE_UP}_blocks"),
    ("oss", OSS, changed(f"{GATE_UP}_blocks", lambda t: t[..., :8]), "PACK_SHAPE", f"{GATE_UP}_blocks"),
    ("oss", OSS, changed(f"{GATE_UP}_blocks", lambda t: t.flatten(2)), "PACK_SHAPE", f"{GATE_UP}_blocks"),
    ("oss", OSS, changed(f"{GATE_UP}_blocks", lambda t: t[:0]), "PACK_SHAPE", f"{GATE_UP}_blocks"),
    ("oss", OSS, changed("x.down_proj_scales", lambda t: t[:, :, :1]), "PACK_SHAPE", "x.down_proj_scales"),
    ("oss", OSS, changed("x.down_proj_scales", set_first(255)), "NONFINITE", "x.down_proj_scales"),
    ("oss", OSS, changed(f"{GATE_UP}_scales", set_first(253)), "NONFINITE", f"{GATE_UP}_scales"),
    ("oss", OSS, lambda t: t.update({"x.down_proj": torch.ones(2, 3, 64)}), "NAME_DUP", "x.down_proj"),
    ("oss", OSS, lambda t: t.update({"x.up_proj": torch.ones(2, 3, 64)}), "NAME_DUP", "x.up_proj"),
    # GPTQ and AWQ
    ("gptq", GPTQ, without("layer.scales"), "PACK_PART", "layer.scales"),
    ("gptq", GPTQ, without("layer.qzeros"), "PACK_PART", "layer.qzeros"),
    ("gptq", GPTQ, changed("layer.qweight", lambda t: t.float()), "PACK_TYPE", "layer.qweight"),
    ("gptq", GPTQ, changed("layer.qweight", lambda t: t[1:]), "PACK_SHAPE", "layer.qweight"),
    ("gptq", GPTQ, changed("layer.qweight", lambda t: t[0]), "PACK_SHAPE", "layer.qweight"),
    ("gptq", GPTQ, changed("layer.qweight", lambda t: t[:-4]), "PACK_GROUP", "layer.qweight"),
    ("gptq", GPTQ, changed("layer.qweight", lambda t: t[:, :60]), "PACK_SHAPE", "layer.qweight"),
    ("gptq", GPTQ, changed("layer.qzeros", lambda t: t[:, 1:]), "PACK_SHAPE", "layer.qzeros"),
    ("gptq", GPTQ, changed("layer.scales", lambda t: t[1:]), "PACK_SHAPE", "layer.scales"),
    ("gptq", GPTQ, changed("layer.scales", set_first(float("inf"))), "NONFINITE", "layer.scales"),
    ("gptq", GPTQ, changed("layer.scales", lambda t: t.float() + 1e-7), "PACK_SCALE", "layer.scales"),
    ("gptq", GPTQ, changed("layer.g_idx", set_first(4)), "PACK_ORDER", "layer.g_idx"),
    ("gptq", GPTQ, changed("layer.g_idx", set_first(-1)), "PACK_ORDER", "layer.g_idx"),
    ("gptq", GPTQ, changed("layer.g_idx", torch.zeros_like), "PACK_ORDER", "layer.g_idx"),
    ("gptq", GPTQ, changed("layer.g_idx", lambda t: t[1:]), "PACK_SHAPE", "layer.g_idx"),
    ("gptq", {**GPTQ, "group_size": 24}, nothing, "PACK_GROUP", "layer.qweight"),
    ("awq", AWQ, without("layer.qzeros"), "PACK_PART", "layer.qzeros"),
    ("awq", AWQ, changed("layer.qweight", lambda t: t[:-8]), "PACK_GROUP", "layer.qweight"),
    ("awq", AWQ, changed("layer.scales", lambda t: t[:, :8]), "PACK_SHAPE", "layer.scales"),
    # bitsandbytes
    ("bnb", BNB, without("layer.weight.absmax"), "PACK_PART", "layer.weight.absmax"),
    (
        "bnb",
        BNB,
        without(STATE),
        "PACK_PART",
        STATE,
    ),
    ("bnb", BNB, changed("layer.weight.quant_map", set_first(-0.9)), "PACK_TABLE", "layer.weight.quant_map"),
    ("bnb", BNB, changed("layer.weight", lambda t: t[1:]), "PACK_SHAPE", "layer.weight"),
    ("bnb", BNB, changed("layer.weight.absmax", lambda t: t[1:]), "PACK_SHAPE", "layer.weight.absmax"),
    ("bnb", BNB, changed(NESTED, lambda t: t[1:]), "PACK_SHAPE", NESTED),
    (
        "bnb",
        BNB,
        changed("layer.weight.nested_absmax", set_first(float("nan"))),
        "NONFINITE",
        "layer.weight.nested_absmax",
    ),
    ("bnb", BNB, state(nested_offset=1e300), "NONFINITE", "layer.weight.absmax"),
    *(
        ("bnb", BNB, state(**change), code, field)
        for change, code, field in (
            ({"blocksize": 63}, "PACK_STATE", STATE),
            ({"blocksize": True}, "PACK_STATE", STATE),
            ({"quant_type": "fp4"}, "PACK_STATE", STATE),
            ({"shape": [40]}, "PACK_STATE", STATE),
            ({"shape": [-40, 512]}, "PACK_STATE", STATE),
            ({"shape": [1 << 39, 1 << 39]}, "PACK_SHAPE", "layer.weight"),
            ({"shape": [640, 32]}, "PACK_GROUP", "layer.weight"),
            ({"nested_blocksize": 0}, "PACK_STATE", STATE),
            ({"nested_offset": ""}, "PACK_STATE", STATE),
        )
    ),
    # our own
    ("own", OWN, changed("layer.weight", lambda t: t[:, 1:]), "PACK_SHAPE", "layer.weight"),
    ("own", OWN, changed("layer.weight", lambda t: t.short()), "PACK_TYPE", "layer.weight"),
    ("own", OWN, changed("layer.order", set_first(1)), "PACK_ORDER", "layer.order"),
    ("own", OWN, changed("layer.order", lambda t: t[1:]), "PACK_SHAPE", "layer.order"),
]


@pytest.mark.parametrize("source, settings, change, code, field", MISTAKES)
def test_mistakes(
    tmp_path: Path, source: str, settings: Any, change: Callable[[Tensors], None], code: str, field: str
) -> None:
    """Each has its code and names the tensor or the setting; nothing else is raised, and the good file loads."""
    tensors = SOURCES[source]()
    change(tensors)
    with pytest.raises(LoadError) as caught:
        for weight in read(tmp_path, tensors, settings).values():
            weight.load(CPU)
    assert (caught.value.code, caught.value.field) == (code, field), str(caught.value)


@pytest.mark.parametrize("kind", [b"{", b"[]", b"\xff", b"[" * 5000, b'{"shape": [NaN, 1]}'])
def test_states_that_are_no_json(tmp_path: Path, kind: bytes) -> None:
    tensors = of_bitsandbytes()[0]
    tensors[STATE] = torch.tensor(list(kind), dtype=torch.uint8)
    with pytest.raises(LoadError) as caught:
        read(tmp_path, tensors, BNB)
    assert (caught.value.code, caught.value.field) == ("PACK_STATE", STATE)


def test_no_settings_mean_dense(tmp_path: Path) -> None:
    save_file({"a.weight": torch.ones(2, 3)}, tmp_path / "model.safetensors")
    source = WeightReader(open_safetensors(tmp_path), False, lambda name: True)
    weights = read_weights(source, {"model_type": "x"}, "config.json", ParameterNames("llama"))
    assert weights["a.weight"].format == "f32"
