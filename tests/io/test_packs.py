"""Packed weights of others: what their tensors become is, bit for bit, what the formats' own formulas say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.io.quantised import (
    BNB,
    CPU,
    RECORDED,
    of_awq,
    of_bitsandbytes,
    of_gptq,
    of_mlx,
    read,
)
from torch_foundry import quant
from torch_foundry.io.packed import blocks as blocks_module
from torch_foundry.io.weights import Weight


def values(weight: Weight, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix that a weight stands for, in the order of the model's inputs."""
    blocks = weight.load(CPU)
    assert blocks.dtype == torch.uint8 and blocks.is_contiguous()
    flat = quant.dequantize(blocks.flatten(0, -2), weight.format, weight.shape[-1], dtype).view(weight.shape)
    return flat if weight.order is None else flat[:, weight.order.argsort()]


@pytest.fixture(params=[1 << 22, 100], ids=["at once", "in rows"])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "_CHUNK", request.param)


# ---------------------------------------------------------------------------------------------------------------- mlx

MLX = [(f"affine{bits}_g{group}", "affine", bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
MLX += [("mxfp4", "mxfp4", 4, 32), ("mxfp8", "mxfp8", 8, 32), ("nvfp4", "nvfp4", 4, 16)]


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("name, mode, bits, group", MLX)
def test_mlx(tmp_path: Path, name: str, mode: str, bits: int, group: int) -> None:
    tensors, expected = of_mlx(name)
    tensors["norm.weight"] = torch.randn(7)
    weights = read(tmp_path, tensors, {"mode": mode, "bits": bits, "group_size": group})
    assert set(weights) == {"layer.weight", "norm.weight"} and weights["layer.weight"].source == "layer.weight"
    assert torch.equal(values(weights["layer.weight"]), expected)
    assert torch.equal(weights["norm.weight"].load(CPU), tensors["norm.weight"])


def test_mlx_layers_with_settings_of_their_own(tmp_path: Path) -> None:
    first, expected = of_mlx("affine4_g64", "a")
    second, other = of_mlx("affine6_g32", "b")
    settings = {"bits": 4, "group_size": 64, "b": {"bits": 6, "group_size": 32}, "c": False, "a": True}
    weights = read(tmp_path, {**first, **second, "c.weight": torch.ones(2, 2)}, settings, "quantization")
    assert torch.equal(values(weights["a.weight"]), expected)
    assert torch.equal(values(weights["b.weight"]), other)
    assert weights["c.weight"].format == "f32"


def test_mlx_experts_are_stacked(tmp_path: Path) -> None:
    tensors, expected = of_mlx("affine4_g32", "mlp.switch_mlp.up_proj")
    stacked = {name: torch.stack((tensor, tensor.flip(0))) for name, tensor in tensors.items()}
    weights = read(tmp_path, stacked, {"bits": 4, "group_size": 32})
    (name,) = weights
    assert name == "mlp.experts.up_proj"
    assert torch.equal(values(weights[name]), torch.stack((expected, expected.flip(0))))


# -------------------------------------------------------------------------------------------------------- GPTQ and AWQ


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [32, 64, 128, 256])
@pytest.mark.parametrize("ordered, version", [(False, 1), (True, 1), (False, 2)])
def test_gptq(tmp_path: Path, bits: int, group: int, ordered: bool, version: int) -> None:
    tensors, expected = of_gptq(bits, group, ordered, version)
    settings = {"quant_method": "gptq", "bits": bits, "group_size": -1 if group == 256 else group, "sym": False}
    settings |= {"checkpoint_format": "gptq_v2"} if version == 2 else {"desc_act": ordered}
    weights = read(tmp_path, tensors, settings)
    assert set(weights) == {"layer.weight", "layer.bias"}
    assert (weights["layer.weight"].order is not None) == (ordered and group < 256)
    assert torch.equal(values(weights["layer.weight"], torch.float16), expected)


def test_gptq_without_an_index_and_with_other_scales(tmp_path: Path) -> None:
    tensors, expected = of_gptq(4, 64, False, 1, torch.bfloat16)
    del tensors["layer.g_idx"]
    weights = read(tmp_path, tensors, {"quant_method": "gptq", "bits": 4, "group_size": 64})
    assert torch.equal(values(weights["layer.weight"], torch.float16), expected)


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_awq(tmp_path: Path, group: int) -> None:
    tensors, expected = of_awq(group)
    settings = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "GEMM", "zero_point": True}
    weights = read(tmp_path, tensors, settings)
    assert set(weights) == {"layer.weight"}
    assert torch.equal(values(weights["layer.weight"], torch.float16), expected)


# --------------------------------------------------------------------------------------------------------- bitsandbytes


@pytest.mark.usefixtures("_chunks")
def test_bitsandbytes_with_nested_scales(tmp_path: Path) -> None:
    tensors, expected = of_bitsandbytes()
    weights = read(tmp_path, {**tensors, "norm.weight": torch.ones(3)}, BNB)
    assert set(weights) == {"layer.weight", "norm.weight"}
    assert torch.equal(values(weights["layer.weight"], torch.float16), expected)


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("size", [64, 256])
def test_bitsandbytes_with_plain_scales(tmp_path: Path, kind: str, size: int) -> None:
    """Blocks of a size that runs over the ends of rows."""
    g = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 16, (6, 64), generator=g)
    absmax = torch.rand(-(-384 // size), generator=g)
    table = load_file(RECORDED / "bitsandbytes" / "values.safetensors")["nested.weight.quant_map"]
    if kind == "fp4":
        half = torch.tensor([0.0, 0.0052083334885537624, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25])
        table = torch.cat((half, -half))
    state = {"quant_type": kind, "blocksize": size, "shape": [6, 64], "dtype": "float32"}
    tensors = {
        "layer.weight": (codes.flatten()[::2] << 4 | codes.flatten()[1::2]).to(torch.uint8).view(-1, 1),
        "layer.weight.absmax": absmax,
        "layer.weight.quant_map": table,
        f"layer.weight.quant_state.bitsandbytes__{kind}": torch.tensor(
            list(json.dumps(state).encode()), dtype=torch.uint8
        ),
    }
    weights = read(tmp_path, tensors, {**BNB, "bnb_4bit_quant_type": kind})
    expected = (table[codes].flatten() * absmax[torch.arange(384) // size]).view(6, 64)
    assert torch.equal(values(weights["layer.weight"]), expected)


# ----------------------------------------------------------------------------------------------------------------- own


def test_own(tmp_path: Path) -> None:
    order = torch.randperm(64)
    packed = quant.quantize(torch.randn(5, 64), "q4_0")
    tensors = {"a.weight": packed, "b.weight": packed.clone(), "b.order": order, "b.bias": torch.ones(5)}
    settings = {"quant_method": "foundry", "formats": {"a.weight": "q4_0", "b.weight": "q4_0"}}
    weights = read(tmp_path, tensors, settings)
    assert set(weights) == {"a.weight", "b.weight", "b.bias"} and weights["a.weight"].shape == (5, 64)
    assert torch.equal(weights["a.weight"].load(CPU), packed)
    assert weights["b.weight"].order is not None and torch.equal(weights["b.weight"].order, order)
