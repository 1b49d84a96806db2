"""Encoders and encoder-decoders: their linear layers and embeddings are fused, and nothing else of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel

import torch_foundry
from tests.exact import assert_as_exact
from tests.hf.tiny_cases import VOCAB
from tests.hf.tiny_models import DEVICE, classes, ids
from torch_foundry.hf.api import patch, report

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
PAIR = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": VOCAB,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "tie_word_embeddings": False,
}
T5 = {
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": VOCAB,
    "decoder_start_token_id": 0,
    "tie_word_embeddings": False,
}
IMAGE = {"image_size": 16, "patch_size": 4}
MODELS: dict[str, tuple[str, str, dict[str, Any], str]] = {  # model, config, its options; what is left
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, "T5Block of"),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {**PAIR, "max_position_embeddings": 64, "forced_eos_token_id": None},
        "BartDecoderLayer of",
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**PAIR, "max_source_positions": 20, "max_target_positions": 64, "num_mel_bins": 8},
        "WhisperDecoderLayer of",
    ),
    "bert": ("BertForMaskedLM", "BertConfig", {**SIZES, "vocab_size": VOCAB}, "BertLayer of"),
    "vit": ("ViTForImageClassification", "ViTConfig", {**SIZES, **IMAGE, "num_labels": 7}, "ViTLayer of"),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": {**SIZES, "vocab_size": VOCAB, "eos_token_id": 2}, "vision_config": {**SIZES, **IMAGE}},
        "CLIPEncoderLayer of",
    ),
}
GENERATE = ["t5", "bart", "whisper"]


def model_of(name: str) -> Any:
    cls, config, options, _ = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, cls)(getattr(transformers, config)(**copy.deepcopy(options)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model.eval().to(DEVICE)


def inputs_of(name: str) -> dict[str, Any]:
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    if name == "whisper":
        return {"input_features": pixels[:, 0].reshape(2, 8, -1)[..., :1].expand(2, 8, 40) + pixels[:, 1, :8, :1]}
    if name == "vit":
        return {"pixel_values": pixels}
    mask = torch.ones(2, 9, dtype=torch.int64, device=DEVICE)
    mask[1, 6:] = 0
    text = {"input_ids": ids(2, 9), "attention_mask": mask}
    return {**text, "pixel_values": pixels} if name == "clip" else text


def results(model: Any, inputs: dict[str, Any]) -> list[torch.Tensor]:
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            inputs = {**inputs, "decoder_input_ids": ids(2, 5, seed=1)}
        out = model(**inputs)
    return [out.logits] if "logits" in out else [out.logits_per_image, out.text_embeds]


@pytest.mark.parametrize("name", MODELS)
def test_results_are_stocks(name: str) -> None:
    stock = model_of(name)
    model = patch(copy.deepcopy(stock))
    assert_as_exact(results, model, stock, inputs_of(name))
    seen = report(model)
    assert not seen.layers and not seen.steps and seen.fused_leaf_modules and not seen.fallbacks, str(seen)
    assert any(why.startswith(MODELS[name][3]) for why in seen.not_replaced.values()), str(seen)
    for place, kind in seen.swapped.items():
        assert kind in ("Linear", "Embedding", "LayerNorm") or isinstance(
            model.get_submodule(place), PreTrainedModel
        ), place
    torch_foundry.unpatch(model)
    assert classes(model) == classes(stock)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"use_cache": False}], ids=["greedy", "beams", "no cache"])
@pytest.mark.parametrize("name", GENERATE)
def test_texts_are_stocks(name: str, options: dict[str, Any]) -> None:
    """By Hugging Face's loop, which the report says, and why."""
    stock = model_of(name)
    stock.generation_config.eos_token_id = None
    model = patch(copy.deepcopy(stock))
    texts = [
        each.generate(**inputs_of(name), max_new_tokens=12, do_sample=False, **options).tolist()
        for each in (stock, model)
    ]
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1], "otherwise this proves little"
    seen = report(model)
    assert not seen.steps and not seen.tokens and not seen.fallbacks, str(seen)
    kind = type(stock).__name__
    assert seen.not_replaced[""] == f"{kind} is not a known language model: generate() is Hugging Face's loop"
    assert seen.eager[f"generate: {kind} is not a model that our loop is known for"] == 1
