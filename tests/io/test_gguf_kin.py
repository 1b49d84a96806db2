"""GGUF files of architectures that differ little from others: what makes them another model is refused."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

import torch_foundry
from tests.hf import tiny_models
from tests.io.gguf_models import ALL, contents, make, write_file
from torch_foundry import LoadError, save_gguf

stock = functools.cache(make)


@pytest.mark.parametrize(
    ("name", "key", "value", "code"),
    [
        ("qwen2vl", "rope.dimension_sections", None, "HP_MISSING"),
        ("qwen3vl", "rope.dimension_sections", [6, 5, 4, 0], "HP_RANGE"),
        ("qwen3vlmoe", "rope.dimension_sections", [4, 4, 4, 4], "HP_RANGE"),  # whose fourth is 0 in a text
        # by softmax, which transformers doesn't have for these
        *((name, "expert_gating_func", 1, "HP_RANGE") for name in ("dots1", "exaone-moe", "minimax-m2", "afmoe")),
        ("mellum", "expert_weights_norm", False, "HP_RANGE"),
        ("afmoe", "expert_weights_norm", None, "HP_MISSING"),  # llama.cpp takes it for False
        ("afmoe", "expert_weights_norm", False, "HP_RANGE"),
        ("exaone-moe", "attention.sliding_window", None, "HP_MISSING"),
        ("ernie4_5-moe", "interleave_moe_layer_step", 2, "HP_RANGE"),
        ("ernie4_5-moe", "expert_gating_func", 2, "HP_RANGE"),
        ("hunyuan-moe", "expert_shared_count", 2, "HP_RANGE"),
        *((name, "attention.layer_norm_epsilon", None, "HP_MISSING") for name in ("nemotron", "phi2", "olmo")),
        ("olmo", "attention.layer_norm_epsilon", 1e-6, "HP_RANGE"),
        ("stablelm-parallel", "use_parallel_residual", False, "TENSOR_MISSING"),
        ("stablelm", "use_parallel_residual", True, "TENSOR_EXTRA"),
        ("command-r", "logit_scale", None, "HP_MISSING"),
        ("cohere2", "attention.sliding_window", 0, "HP_RANGE"),
        ("starcoder2", "use_parallel_residual", True, "HP_RANGE"),
        ("olmo", "attention.clamp_kqv", -1.0, "HP_RANGE"),
        ("gemma3n", "altup.num_inputs", 3, "HP_RANGE"),
        ("gemma3n", "altup.active_idx", 4, "HP_RANGE"),
        ("gemma3n", "attention.shared_kv_layers", 3, "HP_RANGE"),  # none of the kind would be left
        ("gemma3n", "attention.shared_kv_layers", None, "HP_MISSING"),
        ("gemma3n", "activation_sparsity_scale", None, "HP_MISSING"),
        ("gemma3n", "activation_sparsity_scale", [0.0, 1.0], "HP_TYPE"),
        ("gemma3n", "activation_sparsity_scale", [math.inf] * 4, "HP_TYPE"),
        ("gemma3n", "feed_forward_length", [96, 96, 96, 0], "HP_RANGE"),
        ("granite_swa", "attention.sliding_window_pattern", None, "HP_MISSING"),
        ("granite_swa", "attention.sliding_window", None, "HP_MISSING"),
        ("granite_swa", "attention.rope_pattern", [True], "HP_TYPE"),
        ("granite_swa", "attention.rope_pattern", [1, 0], "HP_TYPE"),
        ("gptneox-parallel", "use_parallel_residual", None, "HP_MISSING"),
        ("falcon", "attention.head_count_kv", 2, "HP_RANGE"),  # of 40B, whose layers are others
        ("apertus", "xielu.alpha_n", None, "HP_MISSING"),
        ("apertus", "xielu.alpha_p", [0.5], "HP_TYPE"),
        ("apertus", "xielu.alpha_p", [0.5, math.inf], "HP_TYPE"),
        ("apertus", "xielu.beta", [0.5, 0.25], "HP_RANGE"),  # which is in transformers' code
        ("deepseek2-dense", "expert_count", 4, "HP_MISSING"),
    ],
)
def test_settings_of_others_are_refused(name: str, key: str, value: Any, code: str, tmp_path: Path) -> None:
    keys, tensors = contents(name, stock(name), lambda _: "f32")
    arch = ALL[name].arch
    full = key if key.startswith("xielu") else f"{arch}.{key}"
    keys[full] = value
    write_file(tmp_path / "a.gguf", arch, {k: v for k, v in keys.items() if v is not None}, tensors)
    with pytest.raises(LoadError) as caught:
        load(tmp_path / "a.gguf")
    assert caught.value.code == code
    if not code.startswith("TENSOR"):
        assert caught.value.field in (full, f"{arch}.expert_used_count")


def load(path: Path, patch: bool = False) -> Any:
    return torch_foundry.load(path, device="cpu", progress=False, patch=patch)[0]


def test_gemma_3n(tmp_path: Path) -> None:
    """Streams' matrices lie in one tensor; layers that share keys may have some of their own, which nothing uses."""
    keys, tensors = contents("gemma3n", stock("gemma3n"), lambda _: "f32")
    for kind in ("k", "v"):
        tensors[f"blk.3.attn_{kind}.weight"] = tensors[f"blk.1.attn_{kind}.weight"]
    write_file(tmp_path / "a.gguf", "gemma3n", keys, tensors)
    model, expected = load(tmp_path / "a.gguf", patch=True), stock("gemma3n")
    assert model.config.activation_sparsity_pattern == expected.config.activation_sparsity_pattern
    state = model.state_dict()
    assert state.keys() == expected.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in expected.state_dict().items())
    model.generation_config.eos_token_id = None
    assert tiny_models.tokens(model) == tiny_models.tokens(expected) and tiny_models.fused_all(model)
    with pytest.raises(ValueError, match=r"expected one of .*, got Gemma3nText"):
        save_gguf(model, tmp_path / "b.gguf")


@pytest.mark.parametrize("lost", ["altup_proj.weight", "blk.2.altup_router.weight", "blk.1.attn_k.weight"])
def test_what_gemma_3n_lacks(lost: str, tmp_path: Path) -> None:
    keys, tensors = contents("gemma3n", stock("gemma3n"), lambda _: "f32")
    del tensors[lost]
    write_file(tmp_path / "a.gguf", "gemma3n", keys, tensors)
    with pytest.raises(LoadError, match=f"{lost}: .*TENSOR_MISSING"):
        load(tmp_path / "a.gguf")


def test_packed_gemma_3n(tmp_path: Path) -> None:
    """Of the values that a dense file has."""

    def choose(key: str) -> str:
        return "f32" if any(part in key for part in ("altup", "laurel_r", ".proj.")) else "q8_0"

    keys, tensors = contents("gemma3n", stock("gemma3n"), choose)
    write_file(tmp_path / "a.gguf", "gemma3n", keys, tensors)
    values = {k: (gguf.dequantize(data, kind), gguf.GGMLQuantizationType.F32) for k, (data, kind) in tensors.items()}
    write_file(tmp_path / "b.gguf", "gemma3n", keys, values)
    packed, dense = load(tmp_path / "a.gguf", patch=True), load(tmp_path / "b.gguf")
    with torch.no_grad():
        found, expected = (model(tiny_models.PROMPT).logits for model in (packed, dense))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_falcon(tmp_path: Path) -> None:
    """Whose linear layers are of a class of their own, so that what is packed becomes dense."""
    keys, tensors = contents("falcon", stock("falcon"), lambda _: "f32")
    write_file(tmp_path / "a.gguf", "falcon", keys, tensors)
    model, expected = load(tmp_path / "a.gguf", patch=True), stock("falcon")
    assert all(torch.equal(model.state_dict()[key], value) for key, value in expected.state_dict().items())
    model.generation_config.eos_token_id = None
    assert tiny_models.tokens(model) == tiny_models.tokens(expected) and tiny_models.fused_all(model)
    save_gguf(model, tmp_path / "b.gguf")
    again = {each.name: each.data for each in gguf.GGUFReader(tmp_path / "b.gguf").tensors}
    assert again.keys() == tensors.keys() and all((again[key] == tensors[key][0]).all() for key in again)
    keys, tensors = contents("falcon", stock("falcon"), lambda _: "q8_0")
    write_file(tmp_path / "c.gguf", "falcon", keys, tensors)
    weight = load(tmp_path / "c.gguf").transformer.h[1].mlp.dense_h_to_4h.weight
    assert torch.equal(weight, torch.from_numpy(gguf.dequantize(*tensors["blk.1.ffn_up.weight"])))


def test_wide_experts_beside_another_that_is_narrow(tmp_path: Path) -> None:
    """HunYuan's config has one width for both."""
    keys, tensors = contents("hunyuan-moe", stock("hunyuan-moe"), lambda _: "f32")
    keys["hunyuan-moe.expert_feed_forward_length"] = 64
    write_file(tmp_path / "a.gguf", "hunyuan-moe", keys, tensors)
    with pytest.raises(LoadError, match=r"ffn_gate_exps.weight: .*SHAPE"):
        load(tmp_path / "a.gguf")


def test_a_correction_in_a_row(tmp_path: Path) -> None:
    """As llama.cpp's converter leaves ERNIE's."""
    keys, tensors = contents("ernie4_5-moe", stock("ernie4_5-moe"), lambda _: "f32")
    name = "blk.1.exp_probs_b.bias"
    data, kind = tensors[name]
    write_file(tmp_path / "a.gguf", "ernie4_5-moe", keys, {**tensors, name: (data[None], kind)})
    found = load(tmp_path / "a.gguf").model.layers[1].mlp.gate.moe_statics.e_score_correction_bias
    assert found.shape == (1, 4) and found.flatten().tolist() == data.tolist()
