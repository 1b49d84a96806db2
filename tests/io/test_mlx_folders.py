"""Folders of mlx-community whose models mlx has in a form of its own: gpt-oss, GraniteMoE, LFM2, Qwen's hybrids."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Qwen3_5Config, Qwen3_5MoeConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import torch_foundry
from tests.hf import tiny_models
from tests.io import words
from tests.io.test_packed_folders import mlx
from torch_foundry import LoadError, quant
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear
from torch_foundry.nn.experts import matrices_of, set_matrices

AFFINE = "affine4_g32_bf16"
FAMILIES = ("granitemoe", "gpt_oss", "lfm2", "qwen3_5", "qwen3_5_moe", "qwen3_next")
WRAPPERS = {"qwen3_5": Qwen3_5Config, "qwen3_5_moe": Qwen3_5MoeConfig}  # published with a vision tower
Tensors = dict[str, Tensor]


def affine(name: str, dense: Tensor) -> tuple[Tensors, Tensor]:
    """Tensors of a matrix, or of a stack of them, and the values that they have."""
    rows = dense.reshape(-1, dense.shape[-1])
    blocks = quant.quantize(rows, AFFINE)
    parts = mlx(name, blocks.view(len(rows), -1, quant.get_format(AFFINE).block_bytes))
    parts = {key: part.view(*dense.shape[:-1], -1) for key, part in parts.items()}
    return parts, quant.dequantize(blocks, AFFINE).view(dense.shape)


def mxfp4(name: str, dense: Tensor) -> tuple[Tensors, Tensor]:
    generator = torch.Generator().manual_seed(dense.shape[1])
    count, rows, columns = dense.shape
    codes = torch.randint(0, 256, (count, rows, columns // 32, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(119, 124, codes.shape[:-1], generator=generator, dtype=torch.uint8)
    values = convert_moe_packed_tensors(codes, scales, dtype=torch.float32).transpose(1, 2)
    return {f"{name}.weight": codes.view(torch.uint32).flatten(-2), f"{name}.scales": scales}, values


def written(family: str, folder: Path) -> Any:
    """A folder as mlx-lm writes it; the stock model with the values that its weights have."""
    twin = copy.deepcopy(tiny_models.build(family, tie_word_embeddings=False))
    state = dict(twin.state_dict())
    prefix = "language_model." if family in WRAPPERS else ""
    found: Tensors = {}
    own: dict[str, Any] = {"bits": 4, "group_size": 32}
    for name, module in twin.named_modules():
        if type(module) in (nn.Linear, nn.Embedding) and module.weight.shape[1] % 32 == 0:
            parts, values = affine(prefix + name, state.pop(f"{name}.weight"))
            found |= parts
            module.weight.data.copy_(values)
        elif type(module).__name__.endswith("Experts"):
            place = name if family == "gpt_oss" else name.replace(".experts", ".switch_mlp")
            values = []
            for leaf, matrix in zip(("gate_proj", "up_proj", "down_proj"), matrices_of(module), strict=True):
                path = f"{prefix}{place}.{leaf}"
                parts, dense = (mxfp4 if family == "gpt_oss" else affine)(path, matrix.detach())
                found, values = found | parts, [*values, dense]
                own |= {path: {"bits": 4, "group_size": 32, "mode": "mxfp4"}} if family == "gpt_oss" else {}
            set_matrices(module, values)
            both, down = (state.pop(f"{name}.{leaf}_bias", None) for leaf in ("gate_up_proj", "down_proj"))
            for leaf in ("gate_up_proj", "down_proj"):
                del state[f"{name}.{leaf}"]
            if both is not None and down is not None:
                found |= {f"{name}.gate_proj.bias": both[:, ::2], f"{name}.up_proj.bias": both[:, 1::2]}
                found[f"{name}.down_proj.bias"] = down
    for name, tensor in state.items():
        name = name.replace("block_sparse_moe.router", "block_sparse_moe.router.layer")
        if "conv1d" in name or "conv.conv" in name:
            tensor = tensor.transpose(1, 2)
        if family.startswith("qwen3") and name.endswith("norm.weight") and "linear_attn" not in name:
            tensor = tensor + 1
        found[prefix + name] = tensor
    if prefix:
        found["vision_tower.patch_embed.proj.weight"] = torch.zeros(2, 2)
        WRAPPERS[family](text_config=twin.config.to_dict()).save_pretrained(folder)
    else:
        twin.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"quantization": own, "quantization_config": own}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous().clone() for name, tensor in found.items()}, folder / "model.safetensors")
    words.small().save_pretrained(folder)
    return twin


@pytest.mark.parametrize("family", FAMILIES)
def test_what_mlx_names_and_stores_otherwise(family: str, tmp_path: Path) -> None:
    twin = written(family, tmp_path)
    model, _ = torch_foundry.load(tmp_path, device="cpu", progress=False)
    assert type(model.config) is type(twin.config)
    formats = {m.format for m in model.modules() if isinstance(m, FoundryLinear | FoundryEmbedding)}
    experts = {m.formats for m in model.modules() if isinstance(m, FoundryExperts)}
    assert formats == {AFFINE}
    assert experts == (set() if family in ("lfm2", "qwen3_5") else {("mxfp4" if family == "gpt_oss" else AFFINE,) * 3})
    model.generation_config.eos_token_id = None
    assert tiny_models.tokens(model) == tiny_models.tokens(twin) and tiny_models.fused_all(model)
    torch_foundry.unpatch(model, dequantize=True)
    state = twin.state_dict()
    assert model.state_dict().keys() == state.keys()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=1e-6 if "norm" in name else 0, msg=name)


@pytest.mark.parametrize(
    ("family", "name", "shape", "code"),
    [
        ("gpt_oss", "model.layers.0.mlp.experts.up_proj.bias", None, "PACK_PART"),
        ("gpt_oss", "model.layers.0.mlp.experts.up_proj.bias", (6, 95), "PACK_SHAPE"),
        ("gpt_oss", "model.layers.0.mlp.experts.gate_proj.bias", (6,), "PACK_SHAPE"),
        ("gpt_oss", "model.layers.0.mlp.experts.down_proj.bias", (6, 63), "SHAPE"),
        ("qwen3_5", "language_model.model.layers.0.linear_attn.conv1d.weight", (191, 4, 1), "SHAPE"),
        ("qwen3_5", "language_model.model.layers.0.input_layernorm.weight", (63,), "SHAPE"),
    ],
)
def test_mistakes(family: str, name: str, shape: tuple[int, ...] | None, code: str, tmp_path: Path) -> None:
    written(family, tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    del state[name]
    if shape is not None:
        state[name] = torch.zeros(shape)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(LoadError) as caught:
        torch_foundry.load(tmp_path, device="cpu", progress=False)
    assert caught.value.code == code
