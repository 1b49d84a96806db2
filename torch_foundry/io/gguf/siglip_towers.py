"""Vision towers that are SigLIP's: of Gemma 3, Idefics3 and LFM2-VL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch_foundry.io.gguf.keys import REQUIRED, Key
from torch_foundry.io.gguf.slots import Sizes, Slot
from torch_foundry.io.gguf.tower import (
    FIELDS,
    IMAGE_SIZE,
    PROJECTOR,
    SCALE,
    Settings,
    Tower,
    Values,
    attention_and_mlp,
    both,
    tower_keys,
)

GELU = {"gelu": "gelu_pytorch_tanh"}


def _siglip(prefix: str) -> tuple[Slot, ...]:
    return (
        *both("v.patch_embd", prefix + "embeddings.patch_embedding", "H C P P"),
        Slot("v.position_embd.weight", prefix + "embeddings.position_embedding.weight", "N H"),
        *attention_and_mlp(prefix + "encoder.layers.{}."),
        *both("v.post_ln", prefix + "post_layernorm", "H"),
    )


def _gemma3(values: Values, sizes: Sizes) -> Settings:
    side = values["image_size"] // values["patch_size"] // (values["projector.scale_factor"] or 4)
    size = {"height": values["image_size"], "width": values["image_size"]}
    return Settings(
        {"vision_use_head": False}, {"mm_tokens_per_image": side**2}, {"size": size}, {"image_seq_length": side**2}
    )


GEMMA3 = Tower(
    models={"gemma3": ("gemma3", "")},
    keys=tower_keys(FIELDS, IMAGE_SIZE, SCALE),
    slots=(
        *_siglip("model.vision_tower."),
        Slot("mm.input_projection.weight", PROJECTOR + "mm_input_projection_weight", "H O"),
        Slot("mm.soft_emb_norm.weight", PROJECTOR + "mm_soft_emb_norm.weight", "H"),
    ),
    settings=_gemma3,
    tokens={
        **{"image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>"},
        "eoi_token_index": "<end_of_image>",
    },
    named={"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
    processor=("Gemma3Processor", "Gemma3ImageProcessorPil"),
    activation=GELU,
    kind="siglip_vision_model",
    raised="mm.soft_emb_norm.weight",
    spare={"<image_soft_token>": "<unused0>"},  # the first files' vocabularies end before it
)


def _idefics3(values: Values, sizes: Sizes) -> Settings:
    scale, edge = values["projector.scale_factor"], {"longest_edge": values["image_size"]}
    tokens = (values["image_size"] // values["patch_size"] // scale) ** 2
    longest = {"longest_edge": values["preproc_image_size"] or values["image_size"]}
    return Settings({}, {"scale_factor": scale}, {"size": longest, "max_image_size": edge}, {"image_seq_len": tokens})


IDEFICS3 = Tower(
    models={"llama": ("idefics3", "")},
    keys=tower_keys(
        FIELDS,
        *(IMAGE_SIZE, replace(SCALE, default=REQUIRED)),
        Key("preproc_image_size", "", int, 1, 1 << 14),
    ),
    slots=(
        *_siglip("model.vision_model."),
        Slot("mm.model.fc.weight", "model.connector.modality_projection.proj.weight", "O M"),
    ),
    settings=_idefics3,
    tokens={"image_token_id": "<image>"},
    processor=("Idefics3Processor", "Idefics3ImageProcessorPil"),
    activation=GELU,
    kind="idefics3_vision",
    decoder="model.text_model.",
)


def _siglip2(prefix: str) -> Iterator[Slot]:
    """Patches come as rows, and positions of any image are made of those of a square."""
    for slot in _siglip(prefix):
        if slot.tensor == "v.patch_embd.weight":
            yield replace(slot, shape="H L", stored=slot.shape, layout="channels last")
        else:
            yield replace(slot, shape="S H") if slot.shape == "N H" else slot


def _lfm2(values: Values, sizes: Sizes) -> Settings:
    scale = values["projector.scale_factor"]
    whole = {"downsample_factor": scale, "projector_hidden_size": sizes["I"]}
    images = {"encoder_patch_size": values["patch_size"], "downsample_factor": scale}
    return Settings({"vision_use_head": False, "num_patches": sizes["S"]}, whole, images, {})


LFM2 = Tower(
    models={"lfm2": ("lfm2_vl", "")},
    keys=tower_keys(FIELDS, replace(SCALE, default=REQUIRED)),
    slots=(
        *_siglip2("model.vision_tower."),
        Slot("mm.1.weight", PROJECTOR + "linear_1.weight", "I M"),
        Slot("mm.2.weight", PROJECTOR + "linear_2.weight", "O I"),
    ),
    settings=_lfm2,
    options={
        "projector_use_layernorm": tuple(both("mm.input_norm", PROJECTOR + "layer_norm", "M")),
        "projector_bias": (
            Slot("mm.1.bias", PROJECTOR + "linear_1.bias", "I"),
            Slot("mm.2.bias", PROJECTOR + "linear_2.bias", "O"),
        ),
    },
    tokens={"image_token_id": "<image>"},
    named={
        **{"image_token": "<image>", "image_thumbnail_token": "<|img_thumbnail|>"},
        **{"image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"},
    },
    processor=("Lfm2VlProcessor", "Lfm2VlImageProcessor"),
    activation=GELU,
    kind="siglip2_vision_model",
)

SIGLIP_TOWERS = {"gemma3": GEMMA3, "idefics3": IDEFICS3, "lfm2": LFM2}
