"""What GGUF files of Gemma 3n contain, whose layers lie around one of several residual streams."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch_foundry.io.gguf.architecture import Architecture
from torch_foundry.io.gguf.blocks import SHARED_KV, Blocks, layer_types, of_each_block
from torch_foundry.io.gguf.keys import BASE, BASES, PATTERN, REQUIRED, SOFTCAPS, WINDOW, Key, elements
from torch_foundry.io.gguf.slots import GEMMA4_OUTER, HEAD_NORMS, MLP, PER_LAYER, QKVO, SANDWICH, Slot

STREAMS = 4
SPARSITY = "activation_sparsity_scale"


def streams(model: Any) -> Blocks:
    """They lie around one of several residual streams.

    In `model.values` remains one feed-forward length. LoadError HP_RANGE, HP_TYPE.
    """
    values, count, types = model.values, model.layers, layer_types(model)
    inner, rank = of_each_block(model, "feed_forward_length"), model.container.rows("blk.0.laurel_l.weight")
    if not min(inner):
        raise model.fail("HP_RANGE", "feed_forward_length", "more than 0 in each block", str(inner)[:80])
    values["feed_forward_length"] = inner[0]
    blocks = [{"F": size, "L": rank} for size in inner]
    for block in blocks[count - values[SHARED_KV] :]:
        block["K"] = 0
    fields = {
        "layer_types": types,
        "intermediate_size": inner,
        "laurel_rank": rank,
        "vocab_size_per_layer_input": model.container.rows("per_layer_token_embd.weight"),
        "activation_sparsity_pattern": _shares(model, count),
    }
    return Blocks(blocks, fields, {"4": STREAMS, "3": STREAMS - 1, "16": STREAMS**2})


def _shares(model: Any, count: int) -> list[float]:
    """The share of a block's gates that is cut off; files say by how many deviations the others are above the mean."""
    found = model.values[SPARSITY]
    listed = elements(found, count)
    if set(map(type, listed)) != {float} or not all(scale == -math.inf or math.isfinite(scale) for scale in listed):
        raise model.fail("HP_TYPE", SPARSITY, f"a number for each of {count} blocks, or -inf", str(found)[:80])
    return [round(0.5 * (1 + math.erf(scale / math.sqrt(2))), 6) for scale in listed]


GEMMA3N = Architecture(
    "Gemma3nTextConfig",
    (
        *(*SANDWICH, replace(QKVO[0], heads=False), HEAD_NORMS[0], QKVO[3], *MLP),
        *(replace(slot, needs="K") for slot in (QKVO[1], HEAD_NORMS[1], QKVO[2])),
        Slot("altup_correct_scale.weight", "altup.correct_output_scale", "H"),
        Slot("altup_correct_coef.weight", "altup.correction_coefs.weight", "4 4"),
        Slot("altup_predict_coef.weight", "altup.prediction_coefs.weight", "16 4"),
        Slot("altup_router.weight", "altup.modality_router.weight", "4 H"),
        Slot("altup_router_norm.weight", "altup.router_norm.weight", "H"),
        Slot("laurel_l.weight", "laurel.linear_left.weight", "L H"),
        Slot("laurel_r.weight", "laurel.linear_right.weight", "H L"),
        Slot("laurel_post_norm.weight", "laurel.post_laurel_norm.weight", "H"),
        *PER_LAYER,
    ),
    (
        *(SOFTCAPS[1], replace(WINDOW, low=1, default=REQUIRED), PATTERN, replace(BASE, default=REQUIRED), BASES[1]),
        Key("feed_forward_length", "", object, 1, 1 << 24, REQUIRED),
        Key("altup.num_inputs", "altup_num_inputs", int, STREAMS, STREAMS, REQUIRED),
        Key("altup.active_idx", "altup_active_idx", int, 0, STREAMS - 1, REQUIRED),
        Key("embedding_length_per_layer_input", "hidden_size_per_layer_input", int, 1, 1 << 16, REQUIRED),
        Key(SHARED_KV, "num_kv_shared_layers", int, 0, 1 << 12, REQUIRED),
        Key(SPARSITY, "", object, 0, 0, REQUIRED),
    ),
    tied=True,
    pattern=5,
    blocks="streams",
    outer=(
        *GEMMA4_OUTER,
        *(
            Slot(
                f"altup_{short}.weight", f"model.altup_{name}.{index}.weight", "H H", False, f"matrix {index}", "3 H H"
            )
            for short, name in (("proj", "projections"), ("unembd_proj", "unembed_projections"))
            for index in range(STREAMS - 1)
        ),
    ),
)
