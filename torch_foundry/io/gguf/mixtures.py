"""What GGUF files of further mixtures of experts contain."""

from __future__ import annotations

from dataclasses import replace

from torch_foundry.io.gguf.architecture import Architecture
from torch_foundry.io.gguf.keys import (
    EPSILON,
    EXPERTS,
    LOCAL_EXPERTS,
    PATTERN,
    REQUIRED,
    ROUTED_EXPERTS,
    SWA_BASE,
    WINDOW,
    Key,
)
from torch_foundry.io.gguf.slots import (
    DEEPSEEK_MOE,
    FULL_NORMS,
    HEAD_NORMS,
    MLP,
    MOE,
    NORMS_OF_ROTATED_HEADS,
    POST_NORMS,
    PRE_NORMS,
    QKVO,
    QKVO_BIAS,
    Slot,
)

SIGMOID = Key("expert_gating_func", "", int, 2, 2, 2)
CHOICE = DEEPSEEK_MOE[len(MOE)]  # what the scores of experts are corrected by
SHARED_MLP = DEEPSEEK_MOE[len(MOE) + 1 :]

ERNIE_MOE = Architecture(
    "Ernie4_5_MoeConfig",
    (
        *(*PRE_NORMS, *QKVO, *MOE, *SHARED_MLP),
        Slot("exp_probs_b.bias", "mlp.gate.moe_statics.e_score_correction_bias", "1 E"),
    ),
    (
        replace(EXPERTS[0], field="moe_num_experts"),
        replace(EXPERTS[1], field="moe_k"),
        replace(EXPERTS[2], default=REQUIRED),
        Key("expert_shared_count", "moe_num_shared_experts", int, 1, 1 << 7, REQUIRED),
        Key("leading_dense_block_count", "moe_layer_start_index", int, 0, 1 << 12, 0),
    ),
    leading=MLP,
)
DOTS1 = Architecture(
    "Dots1Config",
    (*PRE_NORMS, *QKVO, *HEAD_NORMS, *DEEPSEEK_MOE),
    ROUTED_EXPERTS,
    leading=MLP,
    constants={"sliding_window": None},
    unused=frozenset({"sliding_window"}),  # by no layer
)
# whose experts and the one that all tokens go to are as wide as the config's feed-forward block
HUNYUAN_MOE = Architecture(
    "HunYuanMoEV1Config",
    (
        *(*PRE_NORMS, *QKVO, *NORMS_OF_ROTATED_HEADS, replace(MOE[0], parameter="mlp.gate.wg.weight"), *MOE[1:]),
        *(
            replace(slot, parameter=slot.parameter.replace("shared_experts", "shared_mlp"), shape=shape)
            for slot, shape in zip(SHARED_MLP, ("X H", "X H", "H X"), strict=True)
        ),
    ),
    (EXPERTS[0], replace(EXPERTS[1], field="moe_topk"), EXPERTS[2], Key("expert_shared_count", "", int, 1, 1, 1)),
    expert_size="intermediate_size",
)
MINIMAX_M2 = Architecture(
    "MiniMaxM2Config",
    (*PRE_NORMS, *QKVO, *FULL_NORMS, *MOE, replace(CHOICE, parameter="mlp.e_score_correction_bias")),
    (*LOCAL_EXPERTS, SIGMOID),
    partial_rope=True,
    expert_size="intermediate_size",
)
MELLUM = Architecture(
    "MellumConfig",
    (*PRE_NORMS, *QKVO, *HEAD_NORMS, *MOE),
    (*EXPERTS, WINDOW, PATTERN, SWA_BASE),
    options={"attention_bias": QKVO_BIAS},
    pattern=4,
    constants={"norm_topk_prob": True},
)
EXAONE_MOE = Architecture(
    "ExaoneMoeConfig",
    (*PRE_NORMS, *QKVO, *HEAD_NORMS, *DEEPSEEK_MOE),
    (
        *(replace(key, field=key.field.replace("n_routed_experts", "num_experts")) for key in ROUTED_EXPERTS),
        Key("expert_shared_count", "num_shared_experts", int, 1, 1 << 7, REQUIRED),
        *(replace(WINDOW, low=1, default=REQUIRED), PATTERN),
    ),
    leading=MLP,
    pattern=4,
)
AFMOE = Architecture(
    "AfmoeConfig",
    (
        *(PRE_NORMS[0], replace(PRE_NORMS[1], parameter="pre_mlp_layernorm.weight"), POST_NORMS[0]),
        replace(POST_NORMS[1], parameter="post_mlp_layernorm.weight"),
        *(*QKVO, *HEAD_NORMS, Slot("attn_gate.weight", "self_attn.gate_proj.weight", "Q H")),
        *(replace(MOE[0], parameter="mlp.router.gate.weight"), *MOE[1:], *SHARED_MLP),
        replace(CHOICE, parameter="mlp.expert_bias"),
    ),
    (
        *(*EXPERTS[:2], replace(EXPERTS[2], default=REQUIRED), SIGMOID),
        Key("expert_shared_count", "num_shared_experts", int, 1, 1 << 7, REQUIRED),
        Key("expert_weights_scale", "route_scale", float, EPSILON, 1e6, 1.0),
        Key("expert_weights_norm", "", bool, 1, 1, REQUIRED),  # the weights of others don't add up to 1
        Key("leading_dense_block_count", "num_dense_layers", int, 0, 1 << 12, 0),
        *(WINDOW, PATTERN),
    ),
    leading=MLP,
    pattern=4,
    constants={"mup_enabled": True},
    unused=frozenset({"global_attn_every_n_layers"}),
)

MIXTURES: dict[str, Architecture] = {
    "ernie4_5-moe": ERNIE_MOE,
    "dots1": DOTS1,
    "hunyuan-moe": HUNYUAN_MOE,
    "minimax-m2": MINIMAX_M2,
    "mellum": MELLUM,
    "exaone-moe": EXAONE_MOE,
    "afmoe": AFMOE,
}
