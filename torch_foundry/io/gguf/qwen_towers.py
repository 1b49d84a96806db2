"""Vision towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch_foundry.io.gguf.keys import REQUIRED, Key
from torch_foundry.io.gguf.slots import Sizes, Slot
from torch_foundry.io.gguf.tower import LAYER, MERGE, Settings, Tower, Values, both, tower_keys

QWEN_FIELDS = {
    **{"block_count": "depth", "attention.head_count": "num_heads", "embedding_length": "hidden_size"},
    **{"feed_forward_length": "intermediate_size", "patch_size": "patch_size", "projection_dim": "out_hidden_size"},
    "spatial_merge_size": "spatial_merge_size",
}

TOKENS = {
    **{"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"},
    **{"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"},
}
# Pixels of the smallest and the largest image, as the published models have them: files don't say it.
PIXELS = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 16384}
PIXELS_3 = {"shortest_edge": 1 << 16, "longest_edge": 1 << 24}
IMAGES = "Qwen2VLImageProcessorPil"
OWN = "model.visual.blocks.{}."


def _images(values: Values, pixels: dict[str, int]) -> dict[str, Any]:
    sizes = {"patch_size": values["patch_size"], "merge_size": values["spatial_merge_size"], "temporal_patch_size": 2}
    return {**sizes, "size": pixels}


def _common() -> Iterator[Slot]:
    patches = Slot("v.patch_embd.weight+v.patch_embd.weight.1", "model.visual.patch_embed.proj.weight", "H C T P P")
    yield replace(patches, stored="H C P P", layout="frames")
    yield from both(LAYER + "attn_out", OWN + "attn.proj", "H H")


def _older(norms: Iterator[Slot] | tuple[Slot, ...]) -> Iterator[Slot]:
    """Of the first two. norms: those that differ."""
    yield from norms
    yield from _common()
    parts = "+".join(f"{LAYER}attn_{name}" for name in "qkv")
    yield from both(parts, OWN + "attn.qkv", "H+H+H H")
    yield from both("mm.0", "model.visual.merger.mlp.0", "M M")
    yield from both("mm.2", "model.visual.merger.mlp.2", "O M")


NORMS = ((LAYER + "ln1", OWN + "norm1"), (LAYER + "ln2", OWN + "norm2"), ("v.post_ln", "model.visual.merger.ln_q"))


def _qwen2(values: Values, sizes: Sizes) -> Settings:
    tower = {"mlp_ratio": sizes["F"] // sizes["H"]}
    return Settings(tower, {}, _images(values, PIXELS), {"video_processor": None})


QWEN2 = Tower(
    models={"qwen2vl": ("qwen2_vl", "qwen2_vl_text")},
    # what it says of its feed-forward length is another number
    keys=tower_keys(
        {**QWEN_FIELDS, "feed_forward_length": "", "embedding_length": "embed_dim", "projection_dim": "hidden_size"},
        MERGE,
    ),
    slots=(
        *_older(tuple(slot for names in NORMS for slot in both(*names, "H"))),
        *both(LAYER + "ffn_up", OWN + "mlp.fc1", "F H"),
        *both(LAYER + "ffn_down", OWN + "mlp.fc2", "H F"),
    ),
    settings=_qwen2,
    tokens=TOKENS,
    processor=("Qwen2VLProcessor", IMAGES),
    activation={"": "quick_gelu"},
)


def _qwen25(values: Values, sizes: Sizes) -> Settings:
    every = values["n_wa_pattern"]
    tower = {"fullatt_block_indexes": list(range(every - 1, values["block_count"], every))}
    return Settings(tower, {}, _images(values, PIXELS), {"video_processor": None})


QWEN25 = replace(
    QWEN2,
    models={"qwen2vl": ("qwen2_5_vl", "qwen2_5_vl_text")},
    keys=tower_keys(QWEN_FIELDS, MERGE, Key("n_wa_pattern", "", int, 1, 1 << 9, REQUIRED)),
    slots=(
        *_older(tuple(Slot(f"{tensor}.weight", f"{parameter}.weight", "H") for tensor, parameter in NORMS)),
        *both(LAYER + "ffn_gate", OWN + "mlp.gate_proj", "F H"),
        *both(LAYER + "ffn_up", OWN + "mlp.up_proj", "F H"),
        *both(LAYER + "ffn_down", OWN + "mlp.down_proj", "H F"),
    ),
    settings=_qwen25,
    processor=("Qwen2_5_VLProcessor", IMAGES),
    activation={"silu": "silu"},
)


def _qwen3(values: Values, sizes: Sizes) -> Settings:
    tower = {"num_position_embeddings": sizes["N"], "deepstack_visual_indexes": values["is_deepstack_layers"]}
    return Settings(tower, {}, _images(values, PIXELS_3), {"video_processor": None})


QWEN3 = Tower(
    models={
        "qwen3vl": ("qwen3_vl", "qwen3_vl_text"),
        "qwen3vlmoe": ("qwen3_vl_moe", "qwen3_vl_moe_text"),
        "qwen35": ("qwen3_5", ""),
        "qwen35moe": ("qwen3_5_moe", ""),
    },
    keys=tower_keys(QWEN_FIELDS, MERGE, Key("is_deepstack_layers", "", object, 0, 0)),
    slots=(
        *_common(),
        Slot("v.patch_embd.bias", "model.visual.patch_embed.proj.bias", "H"),
        Slot("v.position_embd.weight", "model.visual.pos_embed.weight", "N H"),
        *both(LAYER + "ln1", OWN + "norm1", "H"),
        *both(LAYER + "ln2", OWN + "norm2", "H"),
        *both(LAYER + "attn_qkv", OWN + "attn.qkv", "H+H+H H"),
        *both(LAYER + "ffn_up", OWN + "mlp.linear_fc1", "F H"),
        *both(LAYER + "ffn_down", OWN + "mlp.linear_fc2", "H F"),
        *both("v.post_ln", "model.visual.merger.norm", "H"),
        *both("mm.0", "model.visual.merger.linear_fc1", "M M"),
        *both("mm.2", "model.visual.merger.linear_fc2", "O M"),
    ),
    stack=(
        *both("v.deepstack.{}.norm", "model.visual.deepstack_merger_list.{}.norm", "M"),
        *both("v.deepstack.{}.fc1", "model.visual.deepstack_merger_list.{}.linear_fc1", "M M"),
        *both("v.deepstack.{}.fc2", "model.visual.deepstack_merger_list.{}.linear_fc2", "O M"),
    ),
    settings=_qwen3,
    tokens=TOKENS,
    processor=("Qwen3VLProcessor", IMAGES),
    activation={"gelu": "gelu_pytorch_tanh"},
)

QWEN_TOWERS = {"qwen2vl_merger": QWEN2, "qwen2.5vl_merger": QWEN25, "qwen3vl_merger": QWEN3}
