"""Folders that compressed-tensors itself writes, by its presets, and what it makes of them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

import torch_foundry
from tests.hf import tiny_models
from tests.io import words
from torch_foundry.nn import FoundryLinear

SIZES = {"hidden_size": 256, "intermediate_size": 256}  # two groups of 128 in a row
# The preset, and the format that it becomes here; scales are float32 where they have no type of their own.
PRESETS = {
    **{
        "W4A16": "affine4_g128_f32",
        "W4A16_ASYM": "int4_g128",
        "W8A16": "affine8_g128_f32",
        "W6A16": "affine6_g128_f32",
    },
    **{
        "W3A16": "affine3_g128_f32",
        "W2A16": "affine2_g128_f32",
        "W5A16": "affine5_g128_f32",
        "W8A8": "affine8_g128_f32",
    },
    **{"FP8": "fp8_g128", "FP8_DYNAMIC": "fp8_g128", "MXFP8A16": "fp8_g32"},
    **{"NVFP4A16": "nvfp4_f32", "NVFP4": "nvfp4_f32", "MXFP4A16": "mxfp4"},
}


def compressed(preset: str, folder: Path) -> Any:
    """Write a model packed by a preset; the stock model with the values that its weights then have."""
    model = tiny_models.build("llama", **SIZES)
    model.requires_grad_(False)
    scheme = preset_name_to_scheme(preset, ["Linear"])
    groups = {"group_0": scheme}
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
    for module in model.modules():
        if hasattr(module, "quantization_scheme"):
            set_scales(module, scheme.weights)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(folder)
    words.small().save_pretrained(folder)
    compressor.decompress_model(model)
    stock = tiny_models.build("llama", **SIZES)
    state = model.state_dict()
    stock.load_state_dict({name: state[name].float() for name in stock.state_dict()})
    return stock


def set_scales(module: Any, numbers: Any) -> None:
    """Those from the least and the largest weight; of a bfloat16, as models are published, and zeros."""
    weight, factor = module.weight, None
    parts = weight.unflatten(1, (-1, numbers.group_size)) if numbers.group_size else weight.unsqueeze(1)
    parts = weight.reshape(1, 1, -1) if numbers.strategy == "tensor" else parts
    if hasattr(module, "weight_global_scale"):
        factor = generate_gparam(weight.min().reshape(1), weight.max().reshape(1))
        module.weight_global_scale.copy_(factor)
    scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), numbers, global_scale=factor)
    module.weight_scale.copy_(scale.bfloat16().reshape(module.weight_scale.shape))
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.copy_(zero.reshape(module.weight_zero_point.shape))


@pytest.mark.parametrize("preset", PRESETS)
def test_what_it_writes_is_read_packed(preset: str, tmp_path: Path) -> None:
    stock = compressed(preset, tmp_path)
    model, _ = torch_foundry.load(tmp_path, device="cpu", dtype=torch.float32, progress=False)
    assert {m.format for m in model.modules() if isinstance(m, FoundryLinear)} == {PRESETS[preset]}
    dense = torch_foundry.unpatch(copy.deepcopy(model), dequantize=True).state_dict()
    rounding = 2**-8 if preset.startswith("NVFP4") else 0  # which it makes bfloat16
    for name, weight in stock.state_dict().items():
        torch.testing.assert_close(dense[name], weight, rtol=rounding, atol=0, msg=name)
    assert tiny_models.tokens(model) == tiny_models.tokens(stock)
