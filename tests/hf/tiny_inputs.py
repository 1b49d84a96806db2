"""What tiny models are shown, images and sounds, and what models that hear sounds are made of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.hf.tiny_cases import VOCAB
from tests.hf.tiny_models import DEVICE

IMAGE, VIDEO = VOCAB - 1, VOCAB - 2  # ids of tokens whose embeddings are an image's
OWN = VOCAB - 8  # from here on, ids are of Gemma 3n's towers
SCALE = 0.2  # of weights: a text that neither repeats itself nor depends on rounding
TEXT = {
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_hidden_layers": 3,
}
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}}
QWEN_TOWER = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN3_TOWER = {
    **QWEN_TOWER,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 128,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [0, 1],
}
QWEN_IDS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": 3, "vision_end_token_id": 4}
SLIDING = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
LAST_FULL = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}


def _pixels(images: list[int], *shape: int) -> torch.Tensor:
    """Random pixels of images by their seeds."""
    each = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in images]
    return torch.stack(each).to(DEVICE)


def square(images: list[int]) -> dict[str, torch.Tensor]:
    """Images of 16 by 16 pixels."""
    return {"pixel_values": _pixels(images, 3, 16, 16)}


def sized(images: list[int]) -> dict[str, torch.Tensor]:
    """Those, with their sizes."""
    return {**square(images), "image_sizes": torch.tensor([[16, 16]] * len(images), device=DEVICE)}


def tiled(images: list[int]) -> dict[str, torch.Tensor]:
    """Images of 16 by 32 pixels: as a whole, and in two parts."""
    return {
        "pixel_values": _pixels(images, 3, 3, 16, 16),
        "image_sizes": torch.tensor([[16, 32]] * len(images), device=DEVICE),
    }


def grid(images: list[int]) -> dict[str, torch.Tensor]:
    """Patches of images of 16 by 16 and, every other one, 16 by 24 pixels, twice in time each."""
    sizes = [(1, 4, 6) if seed % 2 else (1, 4, 4) for seed in images]
    pixels = [_pixels([seed], h * w, 3 * 2 * 4 * 4)[0] for seed, (_, h, w) in zip(images, sizes, strict=True)]
    return {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.tensor(sizes, device=DEVICE)}


def apart(images: list[int]) -> dict[str, torch.Tensor]:
    """The first half in time of those, a patch's channels by themselves."""
    given = grid(images)
    return {**given, "pixel_values": given["pixel_values"].unflatten(-1, (3, 2, 4, 4))[:, :, 0]}


def nested(images: list[int]) -> dict[str, torch.Tensor]:
    """Images of 16 by 16 pixels, one a row."""
    return {"pixel_values": _pixels(images, 1, 3, 16, 16)}


def shaped(images: list[int]) -> dict[str, torch.Tensor]:
    """Images of four by four patches, and their shapes."""
    shapes, mask = torch.tensor([[4, 4]]), torch.ones(1, 16, dtype=torch.long)
    each = {"spatial_shapes": shapes, "pixel_attention_mask": mask}
    return {
        "pixel_values": _pixels(images, 16, 48),
        **{name: value.repeat(len(images), 1).to(DEVICE) for name, value in each.items()},
    }


def patches(images: list[int]) -> dict[str, torch.Tensor]:
    """Images of four by four patches, where each lies."""
    where = torch.cartesian_prod(torch.arange(4), torch.arange(4)).flip(-1)
    return {"pixel_values": _pixels(images, 16, 48), "image_position_ids": where.repeat(len(images), 1, 1).to(DEVICE)}


def packed(images: list[int]) -> dict[str, torch.Tensor]:
    """Patches of 4 by 4 pixels of all images in a row: 64 of one, of every other one 128."""
    sizes = [(8, 16) if seed % 2 else (8, 8) for seed in images]
    pixels = [_pixels([seed], 3, 4, 4 * h * w) for seed, (h, w) in zip(images, sizes, strict=True)]
    return {"pixel_values": torch.cat(pixels, -1), "target_sizes": torch.tensor(sizes, device=DEVICE)}


def mel(sounds: list[int]) -> dict[str, torch.Tensor]:
    """Sounds of 32 frames, of 8 numbers each."""
    return {"input_features": _pixels(sounds, 8, 32)}


def masked(sounds: list[int], frames: int = 32, mask: str = "input_features_mask") -> dict[str, torch.Tensor]:
    """Those, of so many frames, of which none is padding."""
    ones = torch.ones(len(sounds), frames, dtype=torch.long, device=DEVICE)
    return {"input_features": _pixels(sounds, 8, frames), mask: ones}


def by_frames(sounds: list[int]) -> dict[str, torch.Tensor]:
    """Sounds of 32 frames, a frame's numbers side by side."""
    return {"input_features": _pixels(sounds, 32, 8)}


def masked_by_frames(sounds: list[int]) -> dict[str, torch.Tensor]:
    """Those, of 16 frames, of which none is padding."""
    ones = torch.ones(len(sounds), 16, dtype=torch.long, device=DEVICE)
    return {"input_features": _pixels(sounds, 16, 8), "input_features_mask": ones}


@dataclass(frozen=True)
class Case:
    """A config class, the text model's type with what it gets besides TEXT, the tower's, and what is left.

    images: the arguments that show images, or sounds, by their seeds. types: the argument that says which tokens are an
    image's. tower_config: what the config calls the tower's. tokens: of a sound, where no method tells.
    """

    config: str
    text: dict[str, Any]
    tower: dict[str, Any]
    options: dict[str, Any]
    images: Callable[[list[int]], dict[str, torch.Tensor]] = square
    types: str | None = None
    tower_config: str = "vision_config"
    tokens: int | None = None


def _sound(
    config: str,
    text: str,
    tower: dict[str, Any],
    tokens: int,
    images: Callable[[list[int]], dict[str, torch.Tensor]] = masked,
    *,
    tower_config: str = "audio_config",
    **options: Any,
) -> Case:
    options = {"audio_token_id": IMAGE, **options}
    return Case(config, {"model_type": text}, tower, options, images, tower_config=tower_config, tokens=tokens)


WHISPER = {
    **{"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128},
    **{"num_mel_bins": 8, "max_source_positions": 16},
}
CONFORMER = {
    **{"input_dim": 8, "hidden_dim": 32, "num_layers": 2, "num_heads": 2, "dim_head": 16, "output_dim": 16},
    **{"context_size": 16, "feedforward_mult": 2, "max_pos_emb": 32},
}
GRANITE = {
    **{"downsample_rate": 2, "window_size": 8, "has_lora_adapter": False, "tower_config": "encoder_config"},
    "projector_config": {
        **{"model_type": "blip_2_qformer", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
        **{"intermediate_size": 64, "encoder_hidden_size": 32},
    },
}
SOUNDS = {
    "audioflamingo3": _sound("AudioFlamingo3Config", "qwen2", {"model_type": "audioflamingo3_encoder", **WHISPER}, 8),
    "fun_asr_nano": _sound(
        "FunAsrNanoConfig",
        "qwen3",
        {
            **{"model_type": "fun_asr_nano_encoder", "num_mel_bins": 8, "num_stacked_frames": 1, "hidden_size": 32},
            **{"num_attention_heads": 2, "intermediate_size": 64, "num_hidden_layers": 2, "fsmn_kernel_size": 3},
            **{"num_timestamp_prediction_layers": 1, "max_position_embeddings": 65},
        },
        16,
        masked_by_frames,
        adaptor_config={
            **{"hidden_size": 128, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1},
            "projector_hidden_size": 64,
        },
    ),
    "glmasr": _sound(
        "GlmAsrConfig",
        "llama",
        {
            **{"model_type": "glmasr_encoder", "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2},
            **{"num_attention_heads": 2, "num_mel_bins": 8, "max_position_embeddings": 32},
        },
        4,
    ),
    "granite_speech": _sound("GraniteSpeechConfig", "granite", CONFORMER, 16, by_frames, **GRANITE),
    "granite_speech_plus": _sound("GraniteSpeechPlusConfig", "granite", CONFORMER, 16, by_frames, **GRANITE),
    "musicflamingo": _sound("MusicFlamingoConfig", "qwen2", {"model_type": "audioflamingo3_encoder", **WHISPER}, 8),
    "qwen2_audio": _sound(
        "Qwen2AudioConfig",
        "qwen2",
        {"model_type": "qwen2_audio_encoder", **WHISPER},
        8,
        functools.partial(masked, mask="feature_attention_mask"),
    ),
    "qwen3_asr": _sound(
        "Qwen3ASRConfig",
        "qwen3",
        {
            **{"model_type": "qwen3_asr_encoder", "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2},
            **{"encoder_ffn_dim": 128, "num_mel_bins": 8, "n_window": 50, "n_window_infer": 100, "output_dim": 128},
            "downsample_hidden_size": 16,
        },
        13,
        functools.partial(masked, frames=100),
        **{"pad_token_id": 0, "eos_token_id": 2},
    ),
    "voxtral": _sound("VoxtralConfig", "llama", {"model_type": "voxtral_encoder", **WHISPER}, 4, mel),
}
