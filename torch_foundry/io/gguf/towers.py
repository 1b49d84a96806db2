"""Vision towers of models, as llama.cpp has them in files of their own (`mmproj`), by kinds of projectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch_foundry.io.gguf.class_towers import CLASS_TOWERS
from torch_foundry.io.gguf.keys import REQUIRED
from torch_foundry.io.gguf.qwen_towers import QWEN_TOWERS
from torch_foundry.io.gguf.siglip_towers import SIGLIP_TOWERS
from torch_foundry.io.gguf.slots import Sizes, Slot
from torch_foundry.io.gguf.tower import (
    FIELDS,
    IMAGE_SIZE,
    LAYER,
    MERGE,
    PROJECTOR,
    SCALE,
    Settings,
    Tower,
    Values,
    both,
    tower_keys,
)


def _pixtral(values: Values, sizes: Sizes) -> Settings:
    merge, patch = values["spatial_merge_size"], values["patch_size"]
    size = {"longest_edge": values["image_size"]}
    sides = {"height": patch, "width": patch}
    whole = {"spatial_merge_size": merge, "vision_feature_layer": -1}
    told = {"patch_size": patch, "spatial_merge_size": merge}
    return Settings({"head_dim": sizes["D"]}, whole, {"size": size, "patch_size": sides}, told)


def _pixtral_slots() -> Iterator[Slot]:
    tower, own = "model.vision_tower.", "model.vision_tower.transformer.layers.{}."
    yield Slot("v.patch_embd.weight", tower + "patch_conv.weight", "H C P P")
    yield Slot("v.pre_ln.weight", tower + "ln_pre.weight", "H")
    yield Slot(LAYER + "ln1.weight", own + "attention_norm.weight", "H")
    yield Slot(LAYER + "ln2.weight", own + "ffn_norm.weight", "H")
    for name in "qk":
        yield Slot(f"{LAYER}attn_{name}.weight", f"{own}attention.{name}_proj.weight", "H H", heads=True)
    yield Slot(LAYER + "attn_v.weight", own + "attention.v_proj.weight", "H H")
    yield Slot(LAYER + "attn_out.weight", own + "attention.o_proj.weight", "H H")
    yield Slot(LAYER + "ffn_gate.weight", own + "feed_forward.gate_proj.weight", "F H")
    yield Slot(LAYER + "ffn_up.weight", own + "feed_forward.up_proj.weight", "F H")
    yield Slot(LAYER + "ffn_down.weight", own + "feed_forward.down_proj.weight", "H F")
    yield Slot("mm.input_norm.weight", PROJECTOR + "norm.weight", "H")
    yield Slot("mm.patch_merger.weight", PROJECTOR + "patch_merger.merging_layer.weight", "H M")
    yield Slot("mm.1.weight", PROJECTOR + "linear_1.weight", "O H")
    yield Slot("mm.2.weight", PROJECTOR + "linear_2.weight", "O O")


PIXTRAL = Tower(
    models={"mistral3": ("mistral3", ""), "llama": ("mistral3", "")},
    keys=tower_keys({**FIELDS, "attention.layer_norm_epsilon": ""}, IMAGE_SIZE, replace(MERGE, default=REQUIRED)),
    slots=tuple(_pixtral_slots()),
    settings=_pixtral,
    options={
        "multimodal_projector_bias": tuple(
            Slot(f"mm.{index}.bias", f"{PROJECTOR}linear_{index}.bias", "O") for index in (1, 2)
        )
    },
    tokens={"image_token_index": "[IMG]"},
    processor=("PixtralProcessor", "PixtralImageProcessorPil"),
    activation={"gelu": "gelu", "silu": "silu"},
    kind="pixtral",
    unused=("v.token_embd.img_break",),  # a row of the decoder's embedding
)


def _gemma4(values: Values, sizes: Sizes) -> Settings:
    pooled = values["projector.scale_factor"]
    tower = {
        **{"num_key_value_heads": values["attention.head_count"], "head_dim": sizes["D"]},
        **{"position_embedding_size": sizes["N"], "pooling_kernel_size": pooled},
    }
    images = {"patch_size": values["patch_size"], "pooling_kernel_size": pooled}
    return Settings(tower, {"audio_config": None}, images, {"feature_extractor": None, "video_processor": None})


def _gemma4_slots() -> Iterator[Slot]:
    tower, own = "model.vision_tower.", "model.vision_tower.encoder.layers.{}."
    patches = Slot("v.patch_embd.weight", tower + "patch_embedder.input_proj.weight", "H L")
    yield replace(patches, stored="H C P P", layout="channels last")
    yield Slot("v.position_embd.weight", tower + "patch_embedder.position_embedding_table", "B N H")
    for name, norm in (("ln1", "input"), ("attn_post_norm", "post_attention")):
        yield Slot(f"{LAYER}{name}.weight", f"{own}{norm}_layernorm.weight", "H")
    for name, norm in (("ln2", "pre_feedforward"), ("ffn_post_norm", "post_feedforward")):
        yield Slot(f"{LAYER}{name}.weight", f"{own}{norm}_layernorm.weight", "H")
    for name in "qk":
        yield Slot(f"{LAYER}attn_{name}_norm.weight", f"{own}self_attn.{name}_norm.weight", "D")
    for name, part, shape in _GEMMA4_LINEAR:
        yield Slot(f"{LAYER}{name}.weight", f"{own}{part}.linear.weight", shape)
    yield Slot("mm.input_projection.weight", "model.embed_vision.embedding_projection.weight", "O H")


_GEMMA4_LINEAR = (
    *(("attn_q", "self_attn.q_proj", "Q H"), ("attn_k", "self_attn.k_proj", "Q H")),
    *(("attn_v", "self_attn.v_proj", "Q H"), ("attn_out", "self_attn.o_proj", "H Q")),
    *(("ffn_gate", "mlp.gate_proj", "F H"), ("ffn_up", "mlp.up_proj", "F H"), ("ffn_down", "mlp.down_proj", "H F")),
)
POOLED = replace(SCALE, default=3)


def _sees_around(config: Values) -> dict[str, str]:
    """An image's tokens see each other, but in E2B and E4B: files don't say it."""
    return {} if config["hidden_size_per_layer_input"] else {"use_bidirectional_attention": "vision"}


GEMMA4 = Tower(
    models={"gemma4": ("gemma4", "")},
    keys=tower_keys({**FIELDS, "attention.layer_norm_epsilon": "rms_norm_eps"}, POOLED),
    slots=tuple(_gemma4_slots()),
    settings=_gemma4,
    options={
        "standardize": tuple(
            Slot(f"v.std_{name}", f"model.vision_tower.std_{name}", "H") for name in ("bias", "scale")
        ),
        "use_clipped_linears": tuple(
            Slot(f"{LAYER}{name}.{bound}", f"model.vision_tower.encoder.layers.{{}}.{part}.{bound}", "")
            for name, part, _ in _GEMMA4_LINEAR
            for bound in ("input_min", "input_max", "output_min", "output_max")
        ),
    },
    tokens={
        **{"image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>"},
        **{"video_token_id": "<|video|>", "audio_token_id": "<|audio|>"},
    },
    named={
        **{"image_token": "<|image|>", "boi_token": "<|image>", "eoi_token": "<image|>"},
        **{"audio_token": "<|audio|>", "boa_token": "<|audio>", "eoa_token": "<audio|>"},
    },
    processor=("Gemma4Processor", "Gemma4ImageProcessorPil"),
    activation={},  # whatever a file says: there is one
    kind="gemma4_vision",
    inside=_sees_around,
    unused=("a.", "mm.a."),  # audio
)


def _unified(values: Values, sizes: Sizes) -> Settings:
    pooled = values["projector.scale_factor"]
    tower = {"pooling_kernel_size": pooled, "mm_posemb_size": sizes["N"], "output_proj_dims": sizes["H"]}
    images = {"patch_size": values["patch_size"], "pooling_kernel_size": pooled}
    return Settings(tower, {"audio_config": None}, images, {"feature_extractor": None, "video_processor": None})


def _unified_slots() -> Iterator[Slot]:
    own = "model.embed_vision."
    for slot in both("v.patch_norm.1", own + "patch_ln1", "W"):
        yield replace(slot, layout="channels last")
    yield Slot("v.patch_embd.weight", own + "patch_dense.weight", "H W", layout="channels last")
    yield Slot("v.patch_embd.bias", own + "patch_dense.bias", "H")
    yield from both("v.patch_norm.2", own + "patch_ln2", "H")
    yield from both("v.patch_norm.3", own + "pos_norm", "H")
    yield Slot("v.position_embd.weight", own + "pos_embedding", "N B H", stored="B N H", layout="places first")
    yield Slot("mm.input_projection.weight", own + "multimodal_embedder.embedding_projection.weight", "O H")


UNIFIED = replace(  # Gemma 4 12B: patches go to the decoder without layers of their own
    GEMMA4,
    models={"gemma4": ("gemma4_unified", "gemma4_unified_text")},
    keys=tuple(
        replace(key, low=0) if key.name in ("block_count", "attention.head_count", "feed_forward_length") else key
        for key in tower_keys({"embedding_length": "mm_embed_dim", "patch_size": "patch_size"}, POOLED)
    ),
    slots=tuple(_unified_slots()),
    settings=_unified,
    options={},
    processor=("Gemma4UnifiedProcessor", "Gemma4UnifiedImageProcessor"),
    kind="gemma4_unified_vision",
    inside=lambda config: {"use_bidirectional_attention": "vision"},
)

TOWERS: dict[str, Tower] = {
    "gemma4uv": UNIFIED,
    "gemma4v": GEMMA4,
    "pixtral": PIXTRAL,
    **CLASS_TOWERS,
    **QWEN_TOWERS,
    **SIGLIP_TOWERS,
}
