"""What GGUF files of hybrids contain: models of which most blocks have something in place of attention."""

from __future__ import annotations

from dataclasses import replace

from torch_foundry.io.gguf.architecture import Architecture
from torch_foundry.io.gguf.keys import (
    CONV_KEYS,
    CONV_MOE_KEYS,
    DELTA_KEYS,
    EXPERTS,
    FALCON_H1_KEYS,
    KIMI_LINEAR_KEYS,
    MROPE,
    NEMOTRON_H_KEYS,
    NEMOTRON_H_MOE_KEYS,
    REQUIRED,
    SECTIONS,
    SHARED,
    Key,
)
from torch_foundry.io.gguf.recurrent_slots import (
    DELTA,
    FALCON_H1,
    FALCON_H1_NORM,
    FALCON_H1_OPTIONS,
    KIMI_DELTA,
    LFM2,
    LFM2_MOE,
    LFM2_NORM,
    NEMOTRON_H,
    NEMOTRON_H_EMBEDDING,
    NEMOTRON_H_MLP,
    NEMOTRON_H_MOE,
    NEMOTRON_H_NORM,
    SHORT_CONV,
    TILED_DELTA,
)
from torch_foundry.io.gguf.slots import (
    DEEPSEEK_MOE,
    GATED_QKVO,
    HEAD_NORMS,
    LATE_NORMS,
    LATENT,
    MLP,
    MOE,
    SHARED_EXPERT,
)

HYBRID = Architecture(
    "Qwen3NextConfig",
    (*LATE_NORMS, *GATED_QKVO, *HEAD_NORMS, *MOE, *SHARED_EXPERT),
    (*DELTA_KEYS, *EXPERTS, SHARED),
    norm_offset=1.0,
    partial_rope=True,
    recurrent=DELTA,
)
QWEN35MOE = replace(
    HYBRID,
    config="Qwen3_5MoeTextConfig",
    own_keys=(
        *DELTA_KEYS,
        *(*EXPERTS[:2], replace(EXPERTS[2], default=REQUIRED), replace(SHARED, default=REQUIRED)),
        *(SECTIONS, Key("feed_forward_length", "intermediate_size", int, 1, 1 << 24)),
    ),
    recurrent=TILED_DELTA,
    rope={"default": MROPE, "yarn": MROPE},
)

MAMBA = ("linear_attention", "full_attention")
UNSAID = frozenset({"chunk_size", "expand", "num_nextn_predict_layers", "time_step_floor", "time_step_max"})
NEMOTRON = Architecture(
    "NemotronHConfig",
    (*NEMOTRON_H, *NEMOTRON_H_MLP),
    NEMOTRON_H_KEYS,
    interleaved=True,
    embedding=NEMOTRON_H_EMBEDDING,
    norm=NEMOTRON_H_NORM,
    value_size="mamba_head_dim",
    blocks="alone",
    alone=(*MAMBA, "mlp"),
    rotated=False,
    unused=UNSAID
    | {"moe_intermediate_size", "moe_shared_expert_intermediate_size", "n_group", "n_routed_experts"}
    | {"n_shared_experts", "norm_topk_prob", "num_experts_per_tok", "routed_scaling_factor", "topk_group"},
)
NEMOTRON_MOE = replace(
    NEMOTRON,
    layer=(*NEMOTRON_H, *NEMOTRON_H_MOE),
    own_keys=NEMOTRON_H_MOE_KEYS,
    alone=(*MAMBA, "moe"),
    shared_size="moe_shared_expert_intermediate_size",
    unused=UNSAID | {"intermediate_size"},
)
# What Lfm2Config makes the rows of an MLP of, which the tensors have, and a list that layer_types says again.
LFM2_SIZES = {"intermediate_size", "full_attn_idxs"} | {
    f"block_{name}" for name in ("auto_adjust_ff_dim", "ffn_dim_multiplier", "multiple_of")
}

HYBRIDS: dict[str, Architecture] = {
    # whose multipliers are part of the weights in files
    "falcon-h1": Architecture(
        "FalconH1Config",
        FALCON_H1,
        FALCON_H1_KEYS,
        options=FALCON_H1_OPTIONS,
        constants={"mamba_norm_before_gate": False},
        norm=FALCON_H1_NORM,
        value_size="mamba_d_head",
        unused=frozenset({"mamba_chunk_size", "mamba_expand", "num_logits_to_keep"}),
    ),
    "kimi-linear": Architecture(
        "KimiLinearConfig",
        (*LATENT, *DEEPSEEK_MOE),
        KIMI_LINEAR_KEYS,
        leading=MLP,
        blocks="latent",
        rotated=False,
        recurrent=KIMI_DELTA,
    ),
    "lfm2": Architecture(
        "Lfm2Config",
        LFM2,
        CONV_KEYS,
        constants={"block_auto_adjust_ff_dim": False},
        unused=frozenset(LFM2_SIZES),
        recurrent=SHORT_CONV,
        kind="conv",
        norm=LFM2_NORM,
    ),
    "lfm2moe": Architecture(
        "Lfm2MoeConfig",
        LFM2_MOE,
        CONV_MOE_KEYS,
        recurrent=SHORT_CONV,
        kind="conv",
        norm=LFM2_NORM,
        leading=LFM2[-3:],
    ),
    "nemotron_h": NEMOTRON,
    "nemotron_h_moe": NEMOTRON_MOE,
    "qwen3next": HYBRID,
    "qwen35": replace(
        HYBRID,
        config="Qwen3_5TextConfig",
        layer=(*LATE_NORMS, *GATED_QKVO, *HEAD_NORMS, *MLP),
        own_keys=(*DELTA_KEYS, SECTIONS),
        recurrent=TILED_DELTA,
        rope=QWEN35MOE.rope,
    ),
    "qwen35moe": QWEN35MOE,
}
