"""FP8 in safetensors: our blocks have, bit for bit, the values that transformers makes of a file's codes and scales."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.hf import tiny_models
from tests.io import words
from tests.io.quantised import CPU, Tensors, read
from torch_foundry import quant
from torch_foundry.io.packed import blocks as blocks_module
from torch_foundry.io.weights import Weight
from torch_foundry.nn import FoundryExperts, FoundryLinear

NUMBERS = torch.tensor([code for code in range(256) if code & 0x7F != 0x7F], dtype=torch.uint8)
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
}


def fp8(square: list[int] | None) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": square}


def codes(*shape: int) -> Tensor:
    g = torch.Generator().manual_seed(0)
    return NUMBERS[torch.randint(0, len(NUMBERS), shape, generator=g)].view(torch.float8_e4m3fn)


def scales(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 0.1


def values(weight: Weight, dtype: torch.dtype) -> Tensor:
    blocks = weight.load(CPU).flatten(0, -2)
    return quant.dequantize(blocks, weight.format, weight.shape[-1], dtype).view(weight.shape)


def of_transformers(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return Fp8Dequantize(None)._dequantize_one(weight, scale, dtype)


@pytest.fixture(params=[1 << 22, 100], ids=["at once", "in rows"])
def _chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "_CHUNK", request.param)


CASES: dict[str, tuple[dict[str, Any], str, tuple[int, ...], Tensor, str]] = {
    "squares": (fp8([128, 128]), "_scale_inv", (256, 384), scales(2, 3), "fp8_g128"),
    "squares of bfloat16": (fp8([128, 128]), "_scale_inv", (128, 128), scales(1, 1).bfloat16(), "fp8_g128"),
    "smaller squares": (fp8([64, 64]), "_scale_inv", (128, 192), scales(2, 3), "fp8_g64"),
    "by their shape": (fp8(None), "_scale_inv", (6, 256), scales(2, 2), "fp8_g128"),
    "powers of two": (fp8([1, 32]), "_scale_inv", (3, 96), scales(3, 3).to(torch.float8_e8m0fnu), "fp8_g32"),
    "the same as bytes": (
        fp8([1, 32]), "_scale_inv", (3, 96), scales(3, 3).to(torch.float8_e8m0fnu).view(torch.uint8), "fp8_g32",
    ),
    "a matrix": (fp8(None), "_scale_inv", (5, 96), torch.tensor(0.25).bfloat16(), "fp8_g32"),
    "a matrix in one dimension": (fp8(None), "_scale", (5, 128), torch.tensor([0.1]), "fp8_g128"),
    "rows": ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "_scale", (5, 64), scales(5, 1), "fp8_g64"),
    "rows of compressed-tensors": (COMPRESSED, "_scale", (5, 128), scales(5, 1).bfloat16(), "fp8_g128"),
    "experts": (fp8([128, 128]), "_scale_inv", (3, 256, 128), scales(3, 2, 1), "fp8_g128"),
}  # fmt: skip


@pytest.mark.usefixtures("_chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_transformers(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    settings, suffix, shape, scale, fmt = CASES[case]
    weight = codes(*shape)
    tensors = {"x.weight": weight, f"x.weight{suffix}": scale, "x.input_scale": torch.ones(1), "n": torch.ones(3)}
    found = read(tmp_path, tensors, settings)
    assert set(found) == {"x.weight", "n"} and found["x.weight"].format == fmt
    assert torch.equal(values(found["x.weight"], dtype), of_transformers(weight, scale, dtype))


@pytest.mark.usefixtures("_chunks")
def test_squares_that_reach_over_the_edge(tmp_path: Path) -> None:
    """As DeepSeek's kv_a_proj_with_mqa, whose 576 rows are four squares and a half; transformers refuses those."""
    weight, scale = codes(96, 192), scales(2, 3)
    found = read(tmp_path, {"x.weight": weight, "x.weight_scale_inv": scale}, fp8([64, 64]))
    wide = scale.repeat_interleave(64, 0)[:96].repeat_interleave(64, 1)
    assert torch.equal(values(found["x.weight"], torch.float32), weight.float() * wide)


@pytest.mark.usefixtures("_chunks")
def test_gate_and_up_in_one_tensor(tmp_path: Path) -> None:
    """In one square, too, if they are no whole ones."""
    weight, scale = codes(3, 384, 128), scales(3, 3, 1)
    found = read(
        tmp_path, {"m.experts.gate_up_proj": weight, "m.experts.gate_up_proj_scale_inv": scale}, fp8([128, 128])
    )
    both = torch.cat([values(found[f"m.experts.{name}_proj"], torch.float32) for name in ("gate", "up")], 1)
    assert torch.equal(both, of_transformers(weight, scale, torch.float32))


def packed(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [.., N, K] and a scale for each square of 64, and the values that they stand for."""
    squares = weight.unflatten(-1, (-1, 64)).unflatten(-3, (-1, 64))
    scale = squares.abs().amax((-3, -1)) / 448
    wide = scale.repeat_interleave(64, -2).repeat_interleave(64, -1)
    found = (weight / wide).to(torch.float8_e4m3fn)
    return found, scale, found.float() * wide


@pytest.mark.parametrize("fused", [False, True], ids=["one by one", "in one tensor"])
def test_models_with_experts(fused: bool, tmp_path: Path) -> None:
    """Everything stays packed in little more than the file; results are those of the values."""
    twin = tiny_models.random_model(
        tiny_models.config("Qwen3MoeConfig", hidden_size=128, num_experts=4, num_experts_per_tok=2,
                           moe_intermediate_size=64, intermediate_size=128)
    )  # fmt: skip
    state: Tensors = {}
    for name, tensor in twin.state_dict().items():
        if tensor.ndim < 2 or "embed" in name or "lm_head" in name or name.endswith("gate.weight"):
            state[name] = tensor.bfloat16()
            tensor.copy_(state[name])
            continue
        weight, scale, meant = packed(tensor)
        tensor.copy_(meant)
        if fused or tensor.ndim == 2:
            state |= {name: weight, f"{name}_scale_inv": scale}
            continue
        parts = ("gate_proj", "up_proj") if "gate_up" in name else ("down_proj",)
        for e in range(4):
            for part, own, its in zip(parts, weight[e].chunk(len(parts)), scale[e].chunk(len(parts)), strict=True):
                path = f"{name.rpartition('.')[0]}.{e}.{part}.weight"
                state |= {path: own, f"{path}_scale_inv": its}
    twin.config.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": fp8([64, 64])}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "model.safetensors")
    words.small().save_pretrained(tmp_path)

    model = torch_foundry.load(tmp_path, device="cpu", progress=False)[0]
    held = [module for module in model.modules() if isinstance(module, FoundryExperts)]
    assert len(held) == 2 and {module.formats for module in held} == {("fp8_g64",) * 3}
    assert {m.format for m in model.modules() if isinstance(m, FoundryLinear)} == {"fp8_g64"}
    prompt = tiny_models.ids(2, 9)
    with torch.no_grad():
        assert_found_as_exact(model(prompt).logits, lambda each: each(prompt).logits, twin)
    assert tiny_models.tokens(model) == tiny_models.tokens(twin) and tiny_models.fused_all(model)
    stock = torch_foundry.unpatch(model, dequantize=True)
    for name, value in stock.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name
