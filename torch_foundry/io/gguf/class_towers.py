"""Vision towers with an embedding of a class before those of patches: of InternVL, and CLIP's of LLaVA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch_foundry.io.gguf.keys import REQUIRED, Key
from torch_foundry.io.gguf.slots import Sizes, Slot
from torch_foundry.io.gguf.tower import (
    FIELDS,
    IMAGE_SIZE,
    LAYER,
    PROJECTOR,
    SCALE,
    Settings,
    Tower,
    Values,
    attention_and_mlp,
    both,
    tower_keys,
)

OWN = "model.vision_tower.encoder.layer.{}."
NORMS = (("ln1", "layernorm_before"), ("ln2", "layernorm_after"))


def _internvl(values: Values, sizes: Sizes) -> Settings:
    scale, side = values["projector.scale_factor"], values["image_size"]
    tokens = {"image_seq_length": (side // values["patch_size"] // scale) ** 2}
    tiles = {"min_patches": values["preproc_min_tiles"], "max_patches": values["preproc_max_tiles"]}
    images = {"size": {"height": side, "width": side}, **tiles}
    return Settings({}, {"downsample_ratio": 1 / scale, **tokens}, images, {"video_processor": None, **tokens})


def _internvl_slots() -> Iterator[Slot]:
    embeddings = "model.vision_tower.embeddings."
    yield Slot("v.class_embd", embeddings + "cls_token", "1 1 H")
    yield Slot("v.position_embd.weight", embeddings + "position_embeddings", "1 N H")
    yield from both("v.patch_embd", embeddings + "patch_embeddings.projection", "H C P P")
    for number, (name, norm) in enumerate(NORMS, 1):
        yield Slot(f"{LAYER}{name}.weight", f"{OWN}{norm}.weight", "H")
        yield Slot(f"{LAYER}ls{number}.weight", f"{OWN}lambda_{number}", "H")
    for letter in "qkv":
        yield Slot(f"{LAYER}attn_{letter}.weight", f"{OWN}attention.{letter}_proj.weight", "H H")
    yield from both(LAYER + "attn_out", OWN + "attention.projection_layer", "H H")
    yield from both(LAYER + "ffn_up", OWN + "mlp.fc1", "F H")
    yield from both(LAYER + "ffn_down", OWN + "mlp.fc2", "H F")
    yield from both("mm.model.mlp.0", PROJECTOR + "layer_norm", "M")
    yield from both("mm.model.mlp.1", PROJECTOR + "linear_1", "O M")
    yield from both("mm.model.mlp.3", PROJECTOR + "linear_2", "O O")


INTERNVL = Tower(
    models=dict.fromkeys(("qwen2", "qwen3", "qwen3moe"), ("internvl", "")),
    keys=tower_keys(
        FIELDS,
        *(IMAGE_SIZE, replace(SCALE, default=REQUIRED)),
        Key("preproc_min_tiles", "", int, 1, 1 << 8, 1),
        Key("preproc_max_tiles", "", int, 1, 1 << 8, 12),
    ),
    slots=tuple(_internvl_slots()),
    settings=_internvl,
    options={
        "norm_type": tuple(Slot(f"{LAYER}{name}.bias", f"{OWN}{norm}.bias", "H") for name, norm in NORMS),
        "attention_bias": tuple(
            Slot(f"{LAYER}attn_{letter}.bias", f"{OWN}attention.{letter}_proj.bias", "H") for letter in "qkv"
        ),
        "use_qk_norm": tuple(
            Slot(f"{LAYER}attn_{letter}_norm.weight", f"{OWN}attention.{letter}_norm.weight", "H") for letter in "qk"
        ),
    },
    meaning={"norm_type": ("rms_norm", "layer_norm")},
    tokens={"image_token_id": "<IMG_CONTEXT>"},
    named={
        **{"start_image_token": "<img>", "end_image_token": "</img>"},
        **{"context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"},
    },
    spare={"<video>": "<|video_pad|>"},  # one that no text has: the processor wants it, though it is shown none
    written="context_image_token",
    processor=("InternVLProcessor", "GotOcr2ImageProcessorPil"),
    activation={"gelu": "gelu", "silu": "silu"},
    kind="internvl_vision",
)


def _llava(values: Values, sizes: Sizes) -> Settings:
    side, patch = values["image_size"], values["patch_size"]
    whole = {"vision_feature_layer": -1, "image_seq_length": (side // patch) ** 2}  # files end with that layer
    images = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}, "do_pad": True}
    told = {"patch_size": patch, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    return Settings({}, whole, images, told)


def _llava_next(values: Values, sizes: Sizes) -> Settings:
    tower, whole, images, told = _llava(values, sizes)
    cut = {"image_grid_pinpoints": values["image_grid_pinpoints"]}
    return Settings(tower, whole | cut, images | cut, told)


def _clip(prefix: str) -> Iterator[Slot]:
    yield Slot("v.class_embd", prefix + "embeddings.class_embedding", "H")
    yield Slot("v.patch_embd.weight", prefix + "embeddings.patch_embedding.weight", "H C P P")
    yield Slot("v.position_embd.weight", prefix + "embeddings.position_embedding.weight", "N H")
    yield from both("v.pre_ln", prefix + "pre_layrnorm", "H")
    yield from attention_and_mlp(prefix + "encoder.layers.{}.")


LLAVA = Tower(
    models={"llama": ("llava", "")},
    # what it says of a projection is CLIP's own, which is left out
    keys=tuple(
        key
        for key in tower_keys(FIELDS, IMAGE_SIZE, Key("feature_layer", "", object, 0, 0))
        if key.name != "projection_dim"
    ),
    slots=(
        *_clip("model.vision_tower."),
        Slot("mm.0.weight", PROJECTOR + "linear_1.weight", "O H"),
        Slot("mm.2.weight", PROJECTOR + "linear_2.weight", "O O"),
    ),
    settings=_llava,
    options={
        "multimodal_projector_bias": (
            Slot("mm.0.bias", PROJECTOR + "linear_1.bias", "O"),
            Slot("mm.2.bias", PROJECTOR + "linear_2.bias", "O"),
        )
    },
    unread=tuple(f"model.vision_tower.post_layernorm.{kind}" for kind in ("weight", "bias")),
    tokens={"image_token_index": "<image>"},
    named={"image_token": "<image>"},
    # decoders of most files have the vocabulary that they had before they were shown images
    spare={"<image>": "<unk>"},
    written="image_token",
    processor=("LlavaProcessor", "LlavaImageProcessorPil"),
    activation={"": "quick_gelu", "gelu": "gelu"},
    kind="clip_vision_model",
)

LLAVA_NEXT = replace(  # 1.6
    LLAVA,
    models={"llama": ("llava_next", "")},
    keys=(
        *LLAVA.keys,
        Key("image_grid_pinpoints", "", object, 0, 0, REQUIRED),
        Key("mm_patch_merge_type", "", str, 0, 0, REQUIRED),
    ),
    slots=(*LLAVA.slots, Slot("model.image_newline", "model.image_newline", "O")),
    settings=_llava_next,
    processor=("LlavaNextProcessor", "LlavaNextImageProcessorPil"),
)

CLASS_TOWERS = {"internvl": INTERNVL, "mlp": replace(LLAVA, in_parts=LLAVA_NEXT)}
