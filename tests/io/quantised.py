"""Layers as others quantise them: their tensors, and the values that the formats' own formulas say they have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from torch_foundry.io.packed import read_weights
from torch_foundry.io.parameters import ParameterNames
from torch_foundry.io.safetensors import open_safetensors
from torch_foundry.io.weights import Weight, WeightReader

CPU = torch.device("cpu")
RECORDED = Path(__file__).parents[1] / "quant"
STATE = "layer.weight.quant_state.bitsandbytes__nf4"
NESTED = "layer.weight.nested_absmax"
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
Tensors = dict[str, Tensor]


def read(folder: Path, tensors: Tensors, settings: Any, key: str = "quantization_config") -> Mapping[str, Weight]:
    """The weights of a file with these tensors and settings."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    source = WeightReader(open_safetensors(folder), False, lambda name: True)
    return read_weights(source, {"model_type": "x", key: settings}, "config.json", ParameterNames("llama"))


def of_mlx(name: str, target: str = "layer") -> tuple[Tensors, Tensor]:
    """Tensors as mlx writes them, and the values that it says they have."""
    recorded = load_file(RECORDED / "mlx" / "values.safetensors")
    names = {"codes": "weight", "scales": "scales", "biases": "biases"}
    found = {f"{target}.{to}": recorded[f"{name}.{of}"] for of, to in names.items() if f"{name}.{of}" in recorded}
    return found, recorded[f"{name}.values"]


def bit_stream(codes: Tensor, bits: int) -> Tensor:
    """Codes [..., n] as int32 words [..., n * bits / 32], the first code in the lowest bits."""
    ones = (codes.long().unsqueeze(-1) >> torch.arange(bits)) & 1
    words = (ones.reshape(*codes.shape[:-1], -1, 32) << torch.arange(32)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def of_gptq(bits: int, group: int, ordered: bool, version: int, dtype: torch.dtype = torch.float16) -> Any:
    """Tensors of a layer of 256 inputs and 64 outputs, and its weight: (code - zero) * scale in float16."""
    g = torch.Generator().manual_seed(bits)
    inputs, outputs, top = 256, 64, 2**bits
    codes = torch.randint(0, top, (inputs, outputs), generator=g)
    zeros = torch.randint(0, top, (inputs // group, outputs), generator=g)
    scales = torch.rand(inputs // group, outputs, generator=g).to(dtype)
    index = torch.arange(inputs) // group
    if ordered:
        index = index[torch.randperm(inputs, generator=g)]
    stored = (zeros - 1) % top if version == 1 else zeros
    tensors = {
        "layer.qweight": bit_stream(codes.t(), bits).t(),
        "layer.qzeros": bit_stream(stored, bits),
        "layer.scales": scales,
        "layer.g_idx": index.int(),
        "layer.bias": torch.randn(outputs, generator=g).half(),
    }
    return tensors, ((codes - zeros[index]).half() * scales[index].half()).t()


def of_awq(group: int) -> tuple[Tensors, Tensor]:
    g = torch.Generator().manual_seed(0)
    codes, zeros = (torch.randint(0, 16, (rows, 64), generator=g) for rows in (256, 256 // group))
    scales = torch.rand(256 // group, 64, generator=g).half()

    def packed(matrix: Tensor) -> Tensor:  # the outputs of eight nibbles: 0, 2, 4, 6, 1, 3, 5, 7
        return bit_stream(matrix.view(-1, 8, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1), 4)

    tensors = {"layer.qweight": packed(codes), "layer.qzeros": packed(zeros), "layer.scales": scales}
    index = torch.arange(256) // group
    return tensors, ((codes - zeros[index]).half() * scales[index]).t()


def as_bytes(value: Any) -> Tensor:
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)


def of_bitsandbytes() -> tuple[Tensors, Tensor]:
    recorded = load_file(RECORDED / "bitsandbytes" / "values.safetensors")
    tensors = {name.replace("nested.", "layer."): tensor for name, tensor in recorded.items() if "nested.w" in name}
    return tensors, recorded["nested.values"]
