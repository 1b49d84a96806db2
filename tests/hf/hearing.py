"""Tiny models that hear sounds, one of which is shown images too, with processors that read them."""

from __future__ import annotations

import copy
import io
from typing import Any

import numpy as np
import soundfile
import torch
from transformers import (
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4Processor,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    Qwen3ASRConfig,
    Qwen3ASRFeatureExtractor,
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRProcessor,
    WhisperFeatureExtractor,
)
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from tests.hf.tiny_inputs import LAST_FULL, SCALE, SOUNDS, TEXT, TOWER, WHISPER
from torch_foundry.hf.api import patch
from torch_foundry.text import seeing

RATE = 16000
TEMPLATE = """{% for m in messages %}[{{ m.role }}]{% for part in m.content %}\
{% if part.type == 'audio' %}<|AUDIO|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}[assistant]"""
SPECIAL = ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"]


def sine(hertz: float, seconds: float = 0.5, rate: int = RATE) -> np.ndarray:
    """float32 [seconds * rate], half as loud as can be."""
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def sound_file(samples: np.ndarray, format: str = "WAV", subtype: str | None = None, rate: int = RATE) -> bytes:
    """Samples [n] or [n, channels], as a file has them."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=format, subtype=subtype)
    return file.getvalue()


def model_and_processor(tokenizer: Any) -> tuple[Any, Any]:
    """The model, patched, and its processor, which hears one second of a sound, with a copy of `tokenizer`; it says
    nonsense, of each sound another."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    features = WhisperFeatureExtractor(feature_size=WHISPER["num_mel_bins"], sampling_rate=RATE, chunk_length=1)
    processor = Qwen2AudioProcessor(features, tokenizer, chat_template=TEMPLATE)
    tokenizer.chat_template = TEMPLATE
    config = Qwen2AudioConfig(
        text_config={**TEXT, "model_type": "qwen2", "vocab_size": len(tokenizer)},
        audio_config={"model_type": "qwen2_audio_encoder", **WHISPER, "max_source_positions": 50},
        audio_token_id=processor.audio_token_id,
    )
    return _made(Qwen2AudioForConditionalGeneration, config), processor


def transcribing(tokenizer: Any) -> tuple[Any, Any]:
    """Those of a model for transcripts alone, whose processor has a request of its own for one."""
    tokenizer = copy.deepcopy(tokenizer)
    marks = {"audio_token": "<|audio|>", "audio_bos_token": "<|bos|>", "audio_eos_token": "<|eos|>"}
    tokenizer.add_special_tokens({"additional_special_tokens": [*marks.values()]})
    for name, mark in marks.items():
        setattr(tokenizer, name, mark)
    template = TEMPLATE.replace("<|AUDIO|>", "<|audio|>").removesuffix("[assistant]")
    tokenizer.chat_template = template
    features = Qwen3ASRFeatureExtractor(feature_size=WHISPER["num_mel_bins"])
    processor = Qwen3ASRProcessor(features, tokenizer, chat_template=template)
    case = SOUNDS["qwen3_asr"]
    words = {"model_type": "qwen3", "vocab_size": len(tokenizer)}
    options = case.options | {"audio_token_id": processor.audio_token_id}
    config = Qwen3ASRConfig(text_config={**TEXT, **words}, audio_config=case.tower, **options)
    return _made(Qwen3ASRForConditionalGeneration, config), processor


def seeing_and_hearing(tokenizer: Any) -> tuple[Any, Any]:
    """Those of a model that is shown images, too, before sounds."""
    tokenizer = copy.deepcopy(tokenizer)
    marks = {
        **{"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"},
        **{"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"},
    }
    tokenizer.add_special_tokens({"additional_special_tokens": [*marks.values(), "<|video|>"]})
    ids = {f"{name}_id": tokenizer.convert_tokens_to_ids(mark) for name, mark in marks.items()}
    for name, value in (marks | ids).items():
        setattr(tokenizer, name, value)
    tokenizer.chat_template = TEMPLATE.replace("<|AUDIO|>", "<|{{ part.type }}|>").replace("== 'audio'", "!= 'text'")
    processor = seeing(
        Gemma4Processor,
        tokenizer,
        image_processor=Gemma4ImageProcessorPil(patch_size=4, pooling_kernel_size=2, max_soft_tokens=70),
        video_processor=None,
        feature_extractor=Gemma4AudioFeatureExtractor(),
    )
    text = {"model_type": "gemma4_text", **LAST_FULL, "global_head_dim": 64, "num_kv_shared_layers": 1}
    words = {"vocab_size": len(tokenizer), "vocab_size_per_layer_input": len(tokenizer)}
    config = Gemma4Config(
        text_config={**TEXT, **text, **words, "hidden_size_per_layer_input": 16},
        vision_config={
            **{"model_type": "gemma4_vision", **TOWER, "num_key_value_heads": 2, "head_dim": 16},
            **{"pooling_kernel_size": 2, "position_embedding_size": 64},
        },
        audio_config={
            **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "output_proj_dims": 48},
            "subsampling_conv_channels": [128, 4],
        },
        image_token_id=ids["image_token_id"],
        audio_token_id=ids["audio_token_id"],
        video_token_id=processor.video_token_id,
        tie_word_embeddings=False,
    )
    return _made(Gemma4ForConditionalGeneration, config), processor


def _made(kind: Any, config: Any) -> Any:
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "bias" not in name:
                parameter.copy_(SCALE * torch.randn(parameter.shape))
    model.generation_config.eos_token_id = None
    return patch(model)
