"""Folders as NVIDIA's ModelOpt writes them, by a writer of our own; its own files had these tensors and settings."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import torch_foundry
from tests.hf import tiny_models
from tests.io import words
from torch_foundry.core.load_errors import LoadError
from torch_foundry.nn import FoundryLinear

SIZES = {"hidden_size": 256, "intermediate_size": 320}
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# The algorithm as config.json names it, and the format that it becomes here.
ALGORITHMS = {
    "NVFP4": "nvfp4_f32",
    "W4A16_NVFP4": "nvfp4_f32",
    "FP8": "fp8_g64",  # 320 columns are no multiple of 128
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8_g64",
    "fp8_pb_wo": "fp8_g64",
    "MXFP8": "fp8_g32",
}


def nvfp4(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Tensors of a matrix, and the values that they stand for."""
    whole = weight.abs().max() / (6 * 448)
    groups = weight.unflatten(1, (-1, 16))
    scales = (groups.abs().amax(-1) / 6 / whole).to(torch.float8_e4m3fn)
    steps = groups / (scales.float() * whole)[..., None].clamp(min=1e-9)
    codes = (steps.abs()[..., None] - E2M1).abs().argmin(-1)
    values = E2M1[codes] * steps.sign() * (scales.float() * whole)[..., None]
    nibbles = (codes + 8 * (steps < 0)).flatten(1).to(torch.uint8)
    packed = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    tensors = {"weight": packed, "weight_scale": scales, "weight_scale_2": whole, "input_scale": torch.tensor(0.5)}
    return tensors, values.flatten(1)


def fp8(weight: Tensor, algorithm: str) -> tuple[dict[str, Tensor], Tensor]:
    """The same of FP8: a scale for the matrix, a row, a square or 32 weights."""
    n, k = weight.shape
    rows, columns = {"FP8": (n, k), "fp8_pb_wo": (128, 128), "MXFP8": (1, 32)}.get(algorithm, (1, k))
    padded = torch.nn.functional.pad(weight, (0, -k % columns, 0, -n % rows))
    squares = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    scales = squares.abs().amax((1, 3), keepdim=True) / 448
    if algorithm == "MXFP8":
        scales = scales.log2().ceil().exp2()
    codes = (squares / scales).to(torch.float8_e4m3fn)
    values = (codes.float() * scales).flatten(2, 3).flatten(0, 1)[:n, :k]
    grid = scales.squeeze(3).squeeze(1)
    stored = {
        "FP8": lambda: grid[0, 0],
        "fp8_pb_wo": lambda: grid[:, None, :, None].contiguous(),
        "MXFP8": lambda: (grid.log2() + 127).to(torch.uint8),
    }.get(algorithm, lambda: grid[:, 0].contiguous())()
    weight = codes.flatten(2, 3).flatten(0, 1)[:n, :k].contiguous()
    return {"weight": weight, "weight_scale": stored.clone(), "input_scale": torch.tensor(0.5)}, values


def write(algorithm: str, folder: Path, family: str = "llama", *, beside: bool = False, **sizes: Any) -> Any:
    """A folder; the stock model with the values that its weights have. beside: settings in hf_quant_config.json."""
    model = tiny_models.build(family, **SIZES, **sizes)
    model.save_pretrained(folder)
    words.small().save_pretrained(folder)
    tensors: dict[str, Tensor] = {}
    state = model.state_dict()
    for name, weight in state.items():
        if weight.dim() != 2 or "embed" in name or "lm_head" in name:
            tensors[name] = weight
            continue
        made, state[name] = nvfp4(weight) if "NVFP4" in algorithm else fp8(weight, algorithm)
        tensors |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in made.items()}
    first = "model.layers.0.self_attn."
    tensors |= {f"{first}k_proj.k_scale": torch.tensor(1.0), f"{first}v_proj.v_scale": torch.tensor(1.0)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    said = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    if beside:
        text = json.dumps({"producer": {"name": "modelopt"}, "quantization": said})
        (folder / "hf_quant_config.json").write_text(text)
    else:
        config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}
        (folder / "config.json").write_text(json.dumps(config))
    model.load_state_dict(state)
    return model


def load(folder: Path) -> Any:
    return torch_foundry.load(folder, device="cpu", dtype=torch.float32, progress=False)[0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_is_read_packed(algorithm: str, tmp_path: Path) -> None:
    stock = write(algorithm, tmp_path, beside=algorithm == "NVFP4")
    model = load(tmp_path)
    found = {m.format for m in model.modules() if isinstance(m, FoundryLinear)}
    assert found <= {ALGORITHMS[algorithm], "fp8_g128"} and ALGORITHMS[algorithm] in found
    dense = torch_foundry.unpatch(copy.deepcopy(model), dequantize=True).state_dict()
    for name, weight in stock.state_dict().items():
        torch.testing.assert_close(dense[name], weight, rtol=1e-6, atol=0, msg=name)
    assert tiny_models.tokens(model) == tiny_models.tokens(stock)


def test_settings_beside_the_config(tmp_path: Path) -> None:
    """They count where config.json has none, and only if they name an algorithm."""
    write("FP8", tmp_path, beside=True)
    load(tmp_path)
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "W4A16_AWQ"}}))
    with pytest.raises(LoadError, match=r"quant_algo: expected one of nvfp4, .*, found 'W4A16_AWQ'"):
        load(tmp_path)
    beside.write_text(json.dumps({"quantization": {"quant_algo": None}}))
    with pytest.raises(LoadError, match="f32, f16 or bf16, found f8_e4m3"):
        load(tmp_path)
    beside.write_text(json.dumps({"quantization": []}))
    with pytest.raises(LoadError, match=r"hf_quant_config.json: quantization: expected an object, found list"):
        load(tmp_path)
