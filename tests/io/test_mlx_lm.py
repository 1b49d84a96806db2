"""Folders that mlx-lm itself writes, of the families that it knows, dense and packed, and its own models' logits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: make test-mlx")

import mlx.core as mx
import numpy as np
from mlx_lm import utils
from safetensors.torch import load_file, save_file

import torch_foundry
from tests.hf import tiny_models, tiny_wrappers
from tests.io import words
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear

pytestmark = pytest.mark.tier("models")
mx.set_default_device(mx.cpu)
SIZES = {"hidden_size": 128, "intermediate_size": 192}  # rows of whole groups, and heads of 32 wherever mlx computes it
IDS = torch.randint(5, 100, (1, 10), generator=torch.Generator().manual_seed(1))  # within all windows
ALIKE = 2e-5  # of logits, in deviations: two ways to add in float32
SPARSE: dict[str, Any] = {"mlp_only_layers": [], "decoder_sparse_step": 1}
NOPE: dict[str, Any] = {"mamba_d_head": 32, "position_embedding_type": "nope"}
# What mlx-lm asks for and configs of transformers 5 don't say, and what it takes for granted of the model.
SAID: dict[str, dict[str, Any]] = {
    **{name: {"num_experts": 6} for name in ("qwen2_moe", "qwen3_moe", "mellum")},
    **{name: {"full_attention_interval": 2, "num_experts": 6} for name in ("qwen3_next", "qwen3_5_moe")},
    "qwen3_5": {"full_attention_interval": 2},
    **{name: {"layer_types": ["mamba", "attention"]} for name in ("granite4", "granite4_moe")},
    **{name: {"sliding_window_pattern": 2} for name in ("gemma3", "cohere2")},
    "exaone4": {"sliding_window_pattern": "LG"},
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True},
    "solar_open": {"first_k_dense_replace": 0, "partial_rotary_factor": 1.0},
    "kimi_linear": {
        "linear_attn_config": {
            **{"kda_layers": [1], "full_attn_layers": [2], "num_heads": 3, "head_dim": 32},
            "short_conv_kernel_size": 4,
        },
        **{"first_k_dense_replace": 1, "moe_renormalize": True, "moe_router_activation_func": "sigmoid"},
        **{"moe_layer_freq": 1, "rope_theta": 1e4},
    },
}
OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "qwen3_next"), SPARSE),
    **{name: {"hidden_size": 64} for name in ("stablelm", "stablelm-parallel")},
    "granite4": {**NOPE, "shared_intermediate_size": SIZES["intermediate_size"]},
    "granite4_moe": NOPE,
    "cohere2": {"num_attention_heads": 4},
    "ministral3": {"rope_parameters": {**tiny_models.case("ministral3").options["rope_parameters"], "truncate": True}},
}
GELU = ("gemma", "gemma3", "starcoder2")  # which mlx computes in another way: 5e-4
# Families whose model mlx has another one for: only its dense files are compared, with transformers.
OTHERWISE = {
    "falcon_h1": "it does not multiply keys by their factor: with a factor of 1 it agrees",
    "glm": "it rotates whole heads: where that is right it agrees",
    "nemotron_h": "it has no least step, and other groups of experts; 0.04 of its state space isn't explained",
}
FAMILIES = (
    *("llama", "llama-biased", "qwen2", "qwen3", "mistral", "phi3", "gemma", "gemma2", "gemma3", "granite", "olmo2"),
    *("olmo3", "smollm3", "mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "seed_oss"),
    *("apertus", "nemotron", "starcoder2", "stablelm", "stablelm-parallel", "cohere", "cohere2", "exaone4", "glm"),
    *("ministral3", "ernie4_5", "glm4", "phimoe", "granitemoe", "mellum", "glm4_moe", "deepseek_v2", "deepseek_v3"),
    *("glm4_moe_lite", "mistral4", "mistral4-direct", "afmoe", "dots1", "solar_open", "laguna", "nemotron_h"),
    *("kimi_linear", "falcon_h1", "lfm2_moe", "granite4", "granite4_moe"),
)
WRAPPERS = ("gemma3", "gemma4", "gemma4_unified", "gemma3n", "mistral3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def published(config: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A config with the keys of transformers 4 too, which mlx-lm reads."""
    rope = config.get("rope_parameters") or {}
    if "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]
        config["rope_scaling"] = None if rope["rope_type"] == "default" else {**rope, "type": rope["rope_type"]}
        config.update({key: value for key, value in rope.items() if key == "partial_rotary_factor"})
    elif rope:  # for each kind of layers
        config["rope_theta"] = rope["full_attention"]["rope_theta"]
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    for own in config.get("per_layer_config", {}).values():
        config |= {f"global_{key}": value for key, value in own.items() if key == "head_dim"}
        config["num_global_key_value_heads"] = own.get("num_key_value_heads")
    return config | more


def family(name: str, folder: Path) -> tuple[Any, dict[str, Any]]:
    """A stock model of a family, its tensors in `folder`, and its config."""
    stock = tiny_models.build(name, **{**SIZES, **OPTIONS.get(name, {})})
    stock.save_pretrained(folder)
    config = published(json.loads((folder / "config.json").read_text()), SAID.get(name, {}))
    if name == "kimi_linear":  # as it is published, where layers without experts have an MLP
        state = load_file(folder / "model.safetensors")
        state = {key.replace("layers.0.block_sparse_moe.", "layers.0.mlp."): value for key, value in state.items()}
        save_file(state, folder / "model.safetensors", {"format": "pt"})
    if not name.startswith("qwen3_5"):
        return stock, config
    # mlx-lm knows these as decoders of wrappers, whose tensors are the model's own
    state = {key.replace("model.", "model.language_model.", 1): value for key, value in stock.state_dict().items()}
    save_file({key: value.clone() for key, value in state.items()}, folder / "model.safetensors", {"format": "pt"})
    return stock, {"model_type": name, "text_config": config, "tie_word_embeddings": False}


def wrapper(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, Any]]:
    """The same of a model that is shown images."""
    case = tiny_wrappers.WRAPPERS[name]
    tied = {"tie_word_embeddings": name.startswith("gemma")}
    text = case.text | tied | ({"num_kv_shared_layers": 0} if name == "gemma3n" else {})  # mlx wants their keys
    monkeypatch.setitem(tiny_wrappers.WRAPPERS, name, replace(case, text=text, options=case.options | tied))
    monkeypatch.setitem(tiny_wrappers.TEXT, "intermediate_size", SIZES["intermediate_size"])
    stock = tiny_wrappers.build(name)
    stock.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    none = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0} if name == "gemma4_unified" else {}
    inner = published(config["text_config"], tied | none | SAID.get(name, {}))
    return stock, config | {"text_config": inner, "vocab_size": inner["vocab_size"]}


def logits_of(model: Any) -> torch.Tensor:
    found = model(mx.array(IDS.numpy()))
    return torch.from_numpy(np.array(getattr(found, "logits", found).astype(mx.float32)))


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference of logits, in deviations."""
    return float((found - wanted).abs().max() / wanted.std())


def check(name: str, stock: Any, config: dict[str, Any], folder: Path, packing: str | None) -> None:
    """Write a folder by mlx-lm, and compare what is loaded with the stock model, or mlx's own if it is packed."""
    (folder / "config.json").write_text(json.dumps(config))
    model, settings = utils.load_model(folder, lazy=False)
    if packing:
        bits, group = (4, 32) if packing == "mxfp4" else (4, 64)
        model, settings = utils.quantize_model(model, settings, group, bits, mode=packing)
    target = folder / "mlx"
    target.mkdir()
    utils.save_model(target, model, donate_model=False)
    utils.save_config(dict(settings), target / "config.json")
    words.small().save_pretrained(target)
    loaded, _ = torch_foundry.load(target, device="cpu", dtype=torch.float32, progress=False)
    packed = [m for m in loaded.modules() if isinstance(m, FoundryLinear | FoundryEmbedding | FoundryExperts)]
    assert bool(packed) == bool(packing)
    with torch.no_grad():
        found, wanted = loaded(IDS).logits, stock(input_ids=IDS).logits
    if packing is None:
        assert apart(found, wanted) < ALIKE
    if name not in OTHERWISE:
        bound = 2e-2 if packing == "mxfp4" else 1e-3 if name.endswith(GELU) else 2 * ALIKE
        assert apart(found, logits_of(model)) < bound  # mlx embeds what is packed as mxfp4 in bfloat16


@pytest.mark.parametrize(
    ("name", "packing"),
    [(name, packing) for name in FAMILIES for packing in ((None,) if name in OTHERWISE else (None, "affine", "mxfp4"))],
)
def test_a_family(name: str, packing: str | None, tmp_path: Path) -> None:
    stock, config = family(name, tmp_path)
    check(name, stock, config, tmp_path, packing)


def test_factors_of_an_output_layer_that_is_tied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "falcon_h1", {"tie_word_embeddings": True, "attention_in_multiplier": 1.3})
    check("falcon_h1", *family("falcon_h1", tmp_path), tmp_path, None)


@pytest.mark.parametrize("packing", [None, "affine"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_decoder_of_a_wrapper(
    name: str, packing: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock, config = wrapper(name, tmp_path, monkeypatch)
    check(f"wrapped {name}", stock, config, tmp_path, packing)
