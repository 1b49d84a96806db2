"""Tiny random models that are shown images or hear sounds, and prompts with some for them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import transformers
from transformers import Gemma3nVisionConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from tests.hf.tiny_cases import DELTA, VOCAB
from tests.hf.tiny_inputs import (
    IMAGE,
    LAST_FULL,
    MROPE,
    OWN,
    QWEN3_TOWER,
    QWEN_IDS,
    QWEN_TOWER,
    SCALE,
    SLIDING,
    SOUNDS,
    TEXT,
    TOWER,
    VIDEO,
    Case,
    apart,
    grid,
    nested,
    packed,
    patches,
    shaped,
    sized,
    tiled,
)  # fmt: skip
from tests.hf.tiny_models import DEVICE
from torch_foundry.models.outputs import replaced_ids


class Tower(PreTrainedModel):
    """In place of Gemma 3n's, which is another package's."""

    config_class = Gemma3nVisionConfig
    _supports_sdpa = True

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.patches = torch.nn.Conv2d(3, config.hidden_size, 8, 8)
        self.post_init()

    def forward(self, pixel_values: torch.Tensor, **_: Any) -> Any:
        return BaseModelOutputWithPooling(last_hidden_state=self.patches(pixel_values))


transformers.AutoModel.register(Gemma3nVisionConfig, Tower, exist_ok=True)


QWEN3_5 = {
    **DELTA,
    "model_type": "qwen3_5_text",
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {**MROPE["rope_parameters"], "partial_rotary_factor": 1.0},
}
GLM = {"rope_parameters": {**MROPE["rope_parameters"], "partial_rotary_factor": 0.5, "mrope_section": [2, 3, 3]}}
GLM_TOWER = {**QWEN_TOWER, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 128, "image_size": 16}
GLM_IDS = {
    **{"image_token_id": IMAGE, "video_token_id": VIDEO, "image_start_token_id": 3, "image_end_token_id": 4},
    **{"video_start_token_id": 3, "video_end_token_id": 4},
}
MINICPM_TOWER = {**TOWER, "insert_layer_id": 0}
MINICPM = {"image_token_id": IMAGE, "video_token_id": VIDEO, "insert_layer_id": 0}
WRAPPERS = {
    "gemma3": Case(
        "Gemma3Config",
        {"model_type": "gemma3_text", "query_pre_attn_scalar": 32, **SLIDING},
        {"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
        {"image_token_index": IMAGE, "boi_token_index": 3, "eoi_token_index": 4, "mm_tokens_per_image": 4},
        types="token_type_ids",
    ),
    "gemma3n": Case(
        "Gemma3nConfig",
        {
            **{"model_type": "gemma3n_text", **LAST_FULL, "num_kv_shared_layers": 1, "laurel_rank": 16},
            **{"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": OWN, "final_logit_softcapping": 30.0},
            "activation_sparsity_pattern": [0.5, 0.0, 0.0],
        },
        {"model_type": "gemma3n_vision", "hidden_size": 32, "vocab_size": 4, "vocab_offset": OWN},
        {
            **{"image_token_id": IMAGE, "audio_token_id": VIDEO, "vision_soft_tokens_per_image": 4},
            "audio_config": {
                **{"hidden_size": 32, "vocab_size": 4, "vocab_offset": OWN + 4, "conf_num_attention_heads": 2},
                **{"conf_num_hidden_layers": 1, "input_feat_size": 16, "sscp_conv_channel_size": (8, 4)},
            },
        },
    ),
    "gemma4": Case(
        "Gemma4Config",
        # the last layer attends to another's keys, and all take an embedding of their own
        {
            **{"model_type": "gemma4_text", **LAST_FULL, "global_head_dim": 64, "num_kv_shared_layers": 1},
            **{"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCAB, "final_logit_softcapping": 30.0},
        },
        {
            **{"model_type": "gemma4_vision", **TOWER, "num_key_value_heads": 2, "head_dim": 16},
            **{"pooling_kernel_size": 2, "position_embedding_size": 8},
        },
        {"image_token_id": IMAGE, "video_token_id": VIDEO, "audio_token_id": VIDEO, "audio_config": None},
        patches,
        "mm_token_type_ids",
    ),
    "gemma4_unified": Case(
        "Gemma4UnifiedConfig",
        {
            **{
                "model_type": "gemma4_unified_text",
                **LAST_FULL,
                "global_head_dim": 64,
                "num_global_key_value_heads": 1,
            },
            **{"final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision"},
        },
        {
            **{"model_type": "gemma4_unified_vision", "patch_size": 2, "pooling_kernel_size": 2},
            **{"mm_embed_dim": 32, "mm_posemb_size": 8, "output_proj_dims": 32},
        },
        {"image_token_id": IMAGE, "video_token_id": VIDEO, "audio_token_id": VIDEO, "audio_config": None},
        patches,
        "mm_token_type_ids",
    ),
    "qwen2_vl": Case(
        "Qwen2VLConfig",
        MROPE,
        {**QWEN_TOWER, "embed_dim": 32, "hidden_size": 128, "mlp_ratio": 2},
        QWEN_IDS,
        grid,
        "mm_token_type_ids",
    ),
    "qwen2_5_vl": Case(
        "Qwen2_5_VLConfig",
        MROPE,
        {
            **QWEN_TOWER,
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 128,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
        QWEN_IDS,
        grid,
        "mm_token_type_ids",
    ),
    "qwen3_vl": Case("Qwen3VLConfig", MROPE, QWEN3_TOWER, QWEN_IDS, grid, "mm_token_type_ids"),
    "qwen3_vl_moe": Case(
        "Qwen3VLMoeConfig",
        # the second layer has no experts
        {**MROPE, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "mlp_only_layers": [1]},
        QWEN3_TOWER,
        QWEN_IDS,
        grid,
        "mm_token_type_ids",
    ),
    "qwen3_5": Case(
        "Qwen3_5Config",
        QWEN3_5,
        {
            **QWEN_TOWER,
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 128,
            "num_position_embeddings": 64,
        },
        QWEN_IDS,
        grid,
        "mm_token_type_ids",
    ),
    "glm4v": Case("Glm4vConfig", GLM, GLM_TOWER, GLM_IDS, grid, "mm_token_type_ids"),
    "glm46v": Case(
        "Glm46VConfig",
        {**GLM, "model_type": "glm4v_text"},
        {"model_type": "glm4v_vision", **GLM_TOWER},
        GLM_IDS,
        grid,
        "mm_token_type_ids",
    ),
    "glm_ocr": Case("GlmOcrConfig", GLM, GLM_TOWER, GLM_IDS, grid, "mm_token_type_ids"),
    "paddleocr_vl": Case("PaddleOCRVLConfig", MROPE, TOWER, QWEN_IDS, apart, "mm_token_type_ids"),
    "llava": Case(
        "LlavaConfig",
        {"model_type": "llama"},
        {"model_type": "clip_vision_model", **TOWER},
        {"image_token_index": IMAGE, "image_seq_length": 16},
    ),
    "llava_next": Case(
        "LlavaNextConfig",
        {"model_type": "mistral", "sliding_window": 12},
        {"model_type": "clip_vision_model", **TOWER},
        {"image_token_index": IMAGE, "image_grid_pinpoints": [[16, 32], [32, 16]], "image_seq_length": 16},
        tiled,
    ),
    "llava_onevision": Case(
        "LlavaOnevisionConfig",
        {"model_type": "qwen2"},
        {"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
        {"image_token_index": IMAGE, "video_token_index": VIDEO, "image_grid_pinpoints": [[16, 32], [32, 16]]},
        tiled,
    ),
    "mistral3": Case(
        "Mistral3Config",
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "pixtral", **TOWER, "head_dim": 16},
        {"image_token_index": IMAGE, "spatial_merge_size": 2},
        sized,
    ),
    "muse_glimmer": Case(
        "MuseGlimmerConfig",
        {"model_type": "muse_glimmer_text", **SLIDING, "layer_rope_theta": [1e4, 0, 1e4], "qk_scale_factor": 1.9},
        {
            **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"patch_size": 4, "pos_emb_height": 2, "pos_emb_width": 2},
            "layer_types": ["window_attention", "full_attention"],
        },
        {"image_token_id": IMAGE, "video_token_id": VIDEO, "out_hidden_size": 128, "projector_hidden_size": 48},
        grid,
    ),
    "minicpm_ocr": Case("MiniCPMOcrConfig", QWEN3_5, MINICPM_TOWER, MINICPM, packed),
    "minicpmv4_6": Case("MiniCPMV4_6Config", QWEN3_5, MINICPM_TOWER, MINICPM, packed),
    "minicpmv4_7": Case("MiniCPMV4_7Config", QWEN3_5, MINICPM_TOWER, MINICPM, packed, "mm_token_type_ids"),
    "idefics3": Case(
        "Idefics3Config",
        {"model_type": "llama"},
        {"model_type": "idefics3_vision", **TOWER},
        {"image_token_id": IMAGE, "scale_factor": 2},
        nested,
    ),
    "smolvlm": Case(
        "SmolVLMConfig",
        {"model_type": "llama"},
        {"model_type": "smolvlm_vision", **TOWER},
        {"image_token_id": IMAGE, "scale_factor": 2},
        nested,
    ),
    "lfm2_vl": Case(
        "Lfm2VlConfig",
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 16},
        {"model_type": "siglip2_vision_model", **TOWER, "num_patches": 16, "vision_use_head": False},
        {"image_token_id": IMAGE, "projector_hidden_size": 32},
        shaped,
    ),
    "aya_vision": Case(
        "AyaVisionConfig",
        {"model_type": "cohere2", "sliding_window": 12},
        {"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
        {"image_token_index": IMAGE},
    ),
    "cohere2_vision": Case(
        "Cohere2VisionConfig",
        {"model_type": "cohere2", "sliding_window": 12},
        {"model_type": "siglip_vision_model", **TOWER, "vision_use_head": False},
        {"image_token_id": IMAGE, "alignment_intermediate_size": 64},
    ),
    "lfm3_vl": Case(
        "Lfm3VlConfig",
        {"model_type": "lfm3"},
        {
            **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"num_key_value_heads": 1, "patch_size": 4, "temporal_patch_size": 2},
        },
        {"image_token_id": IMAGE, "video_token_id": VIDEO, "projector_hidden_size": 32},
        grid,
    ),
    "lighton_ocr": Case(
        "LightOnOcrConfig",
        {"model_type": "qwen3"},
        {"model_type": "pixtral", **TOWER, "head_dim": 16},
        {"image_token_id": IMAGE},
        sized,
    ),
    "llava_next_video": Case(
        "LlavaNextVideoConfig",
        {"model_type": "mistral", "sliding_window": 12},
        {"model_type": "clip_vision_model", **TOWER},
        {
            **{"image_token_index": IMAGE, "video_token_index": VIDEO, "image_seq_length": 16},
            "image_grid_pinpoints": [[16, 32], [32, 16]],
        },
        tiled,
    ),
    "vipllava": Case(
        "VipLlavaConfig",
        {"model_type": "llama"},
        {"model_type": "clip_vision_model", **TOWER},
        {"image_token_index": IMAGE, "image_seq_length": 16, "vision_feature_layer": [-1, -2]},
    ),
    "internvl": Case(
        "InternVLConfig",
        {"model_type": "qwen3"},
        {"model_type": "internvl_vision", **TOWER, "image_size": [16, 16], "patch_size": [4, 4]},
        {"image_token_id": IMAGE, "image_seq_length": 4},
    ),
    **SOUNDS,
}

# whose images have fewer positions than tokens
BY_HEIGHT_AND_WIDTH = ("glm4v", "minicpmv4_7", "paddleocr_vl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")


def build(name: str, attention: str = "sdpa", seed: int = 0) -> PreTrainedModel:
    """A new model, the same for the same arguments, in eval mode."""
    case = WRAPPERS[name]
    options = {"text_config": {**TEXT, **case.text}, case.tower_config: case.tower, **case.options}
    version = transformers.__version__
    kind: Any = getattr(transformers, case.config, None) or pytest.skip(f"transformers {version}: no {case.config}")
    if name == "vipllava" and version < "5.23":
        pytest.skip(f"transformers {version}: its tower doesn't return the layers that its own wrapper reads")
    config = kind(**{"tie_word_embeddings": False, **options})
    torch.manual_seed(seed)
    cls: Any = getattr(transformers, case.config.removesuffix("Config") + "ForConditionalGeneration")
    model: PreTrainedModel = cls._from_config(config, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in parameter_name or "bias" in parameter_name:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(SCALE * noise * (5 if "mm_input_projection" in parameter_name else 1))
        if replaced_ids(model.model):
            model.lm_head.weight[first_embedded(name) :] = 0.0  # those are not embedded as texts are
    model.generation_config.eos_token_id = None  # always generate as much as was asked for
    return model.to(DEVICE)


def first_embedded(name: str) -> int:
    """From here on, ids are not embedded as those of texts."""
    return OWN if name == "gemma3n" else VIDEO


@functools.cache
def shared(name: str) -> PreTrainedModel:
    """A stock model that several tests read."""
    return build(name)


def prompt(name: str, *rows: list[int]) -> dict[str, Any]:
    """A batch of texts, left padded, each with the images of these seeds in it."""
    case, model = WRAPPERS[name], shared(name)
    texts, end = [], first_embedded(name)
    for number, images in enumerate(rows):
        generator = torch.Generator().manual_seed(50 + number)
        text = torch.randint(5, end, (4 + 3 * number,), generator=generator).tolist()
        for image in images:
            more = torch.randint(5, end, (3 + image % 3,), generator=generator).tolist()
            text += [IMAGE] * tokens_of(name, image) + more
        texts.append(text)
    width = max(map(len, texts))
    ids = torch.tensor([[0] * (width - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
    shown = [image for images in rows for image in images]
    if case.types is not None:
        inputs[case.types] = (ids == IMAGE).long()
    if shown:
        inputs |= case.images(shown)
    return {key: value.to(model.device) for key, value in inputs.items()}


@functools.cache
def tokens_of(name: str, image: int) -> int:
    """How many tokens an image is, or a sound."""
    if (known := WRAPPERS[name].tokens) is not None:
        return known
    model: Any = shared(name)
    with torch.no_grad():
        features = model.get_image_features(**WRAPPERS[name].images([image]), return_dict=True).pooler_output
    return sum(feature.flatten(0, -2).shape[0] for feature in features)
