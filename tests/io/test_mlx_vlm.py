"""Folders that mlx-vlm itself writes of models that are shown images: dense, packed as it does, and with packed towers.

mlx' own logits are no measure: its models take images in forms of their own.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mlx_vlm", reason="mlx-vlm is not installed: make test-mlx")

import mlx.core as mx
from mlx_vlm import utils
from safetensors.torch import load_file, save_file

import torch_foundry
from tests.hf import tiny_wrappers
from tests.io import words
from tests.io.test_mlx_lm import ALIKE, SIZES, apart, published
from torch_foundry.io.parameters import TOWERS
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear

pytestmark = pytest.mark.tier("models")
mx.set_default_device(mx.cpu)
writer = importlib.import_module("mlx_vlm.convert")  # the package has a function of that name
INSIDE = ("gemma3", "llava", "llava_next")  # published with another name before those of the tower
GEMMA4 = tiny_wrappers.WRAPPERS["gemma4"]
AUDIO = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 48},
    "subsampling_conv_channels": [128, 4],
}
MOE = {"num_experts": 6, "moe_intermediate_size": 64}
MORE = {
    "gemma4 with audio": replace(
        GEMMA4,
        tower=GEMMA4.tower | {"standardize": True, "use_clipped_linears": True},
        options=GEMMA4.options | {"audio_config": AUDIO},
    ),
    "gemma4 with experts": replace(
        GEMMA4,
        text=GEMMA4.text
        | {**MOE, "enable_moe_block": True, "top_k_experts": 3}
        | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    ),
    "qwen3_5_moe": replace(
        tiny_wrappers.WRAPPERS["qwen3_5"],
        config="Qwen3_5MoeConfig",
        text=tiny_wrappers.WRAPPERS["qwen3_5"].text
        | {**MOE, "num_experts_per_tok": 3, "shared_expert_intermediate_size": 64},
    ),
}
NAMES = (*(name for name in tiny_wrappers.WRAPPERS if name in TOWERS), *MORE)
# What mlx-vlm asks the text's config for and transformers 5 doesn't say.
SAID: dict[str, dict[str, Any]] = {
    "gemma3": {"sliding_window_pattern": 2, "mm_tokens_per_image": 4},
    "gemma4_unified": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
    "lfm2_vl": {"block_auto_adjust_ff_dim": False, "block_dim": 128, "block_ff_dim": 128, "intermediate_size": 128},
    "qwen3_5": {"full_attention_interval": 2},
    "qwen3_5_moe": {"full_attention_interval": 2},
    "qwen3_vl_moe": {"num_experts": 6},
}


class Words:
    """In place of a processor."""

    def save_pretrained(self, folder: Path) -> None:
        words.small().save_pretrained(folder)


def fetched(folder: Any, lazy: bool = False, **_: Any) -> tuple[Any, dict[str, Any], Words]:
    return utils.load_model(Path(folder), lazy=lazy), utils.load_config(Path(folder)), Words()


@pytest.fixture(autouse=True)
def _without_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "fetch_from_hub", fetched)


def model(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stock model, in `folder` as such models are published."""
    case = MORE.get(name) or tiny_wrappers.WRAPPERS[name]
    tied = {"tie_word_embeddings": name.startswith("gemma")}
    case = replace(case, text=case.text | tied, options=case.options | tied)
    monkeypatch.setitem(tiny_wrappers.WRAPPERS, name, case)
    monkeypatch.setitem(tiny_wrappers.TEXT, "intermediate_size", SIZES["intermediate_size"])
    stock = tiny_wrappers.build(name, attention="eager" if "audio" in name else "sdpa")
    monkeypatch.setattr(tiny_wrappers, "shared", lambda _: stock)
    for key, buffer in stock.named_buffers():  # of Gemma 4's towers
        if key.endswith(("_min", "_max")) or "std_" in key:
            buffer.fill_({"n": -9.5, "x": 9.25}.get(key[-1], 0.75))
    stock.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    text = published(config["text_config"], tied | SAID.get(name, {}))
    config |= {"text_config": text, "vocab_size": text["vocab_size"], "hidden_size": text["hidden_size"]}
    if name.startswith("qwen"):
        config["vision_config"]["model_type"] = name
    if name in ("qwen2_vl", "qwen2_5_vl"):
        config = text | {key: value for key, value in config.items() if key != "text_config"}
    if name == "gemma4_unified":
        config["vision_config"]["model_patch_size"] = 4
    (folder / "config.json").write_text(json.dumps(config))
    state = load_file(folder / "model.safetensors")
    for key in [key for key in state if name in INSIDE and key.startswith("vision_tower.")]:
        state[key.replace("vision_tower.", "vision_tower.vision_model.")] = state.pop(key)
    for key in [key for key in state if name == "qwen3_vl_moe" and ".experts." in key]:
        state[key] = state[key].transpose(1, 2).contiguous()
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return stock


def load(folder: Path, **options: Any) -> Any:
    return torch_foundry.load(folder, device="cpu", dtype=torch.float32, progress=False, images=True, **options)[0]


def logits(of: Any, inputs: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = of(**inputs).logits
    return found


def packed_in(loaded: Any) -> list[str]:
    kinds = (FoundryLinear, FoundryEmbedding, FoundryExperts)
    return [name for name, module in loaded.named_modules() if isinstance(module, kinds)]


def convert(source: Path, target: Path, **options: Any) -> Path:
    writer.convert(str(source), str(target), **options)
    return target


@pytest.mark.parametrize("name", NAMES)
def test_dense(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = model(name, tmp_path / "stock", monkeypatch)
    loaded = load(convert(tmp_path / "stock", tmp_path / "mlx"), patch=False)
    assert type(loaded) is type(stock) and loaded.state_dict().keys() == stock.state_dict().keys()
    for key, tensor in loaded.state_dict().items():
        torch.testing.assert_close(tensor, stock.state_dict()[key], rtol=0, atol=1e-6 if "norm" in key else 0, msg=key)
    inputs = tiny_wrappers.prompt(name, [1, 2])
    assert apart(logits(loaded, inputs), logits(stock, inputs)) < ALIKE


def every(path: str, module: Any) -> bool:
    """Which layers to pack: towers' too, but for positions, which mlx-vlm can't read again."""
    return "position_embedding" not in path


@pytest.mark.parametrize(
    ("mode", "group", "which"),
    [("affine", 64, None), ("affine", 32, every), ("mxfp4", 32, None)],
    ids=["affine", "towers", "mxfp4"],
)
@pytest.mark.parametrize("name", NAMES)
def test_packed(
    name: str,
    mode: str,
    group: int,
    which: Callable[[str, Any], bool] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model(name, tmp_path / "stock", monkeypatch)
    options: dict[str, Any] = {"q_mode": mode, "q_bits": 4, "q_group_size": group, "quant_predicate": which}
    folder = convert(tmp_path / "stock", tmp_path / "packed", quantize=True, **options)
    dense = convert(folder, tmp_path / "dense", dequantize=True)
    config = json.loads((dense / "config.json").read_text())
    for key in ("quantization", "quantization_config"):  # which it leaves there
        del config[key]
    (dense / "config.json").write_text(json.dumps(config))
    loaded = load(folder)
    packed = packed_in(loaded)
    assert len(packed) > 12 and any("vision" in path or "visual" in path for path in packed) == (which is not None)
    inputs = tiny_wrappers.prompt(name, [1, 2])
    assert apart(logits(loaded, inputs), logits(load(dense, patch=False), inputs)) < 4 * ALIKE
