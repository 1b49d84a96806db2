"""More models to write as GGUF files: architectures that differ little from those of `gguf_cases`."""

from __future__ import annotations

import math

from tests.hf import tiny_cases
from tests.io.gguf_cases import LATENT, LATENT_KEYS, MOE, PLAIN, Case

EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 2}
THREE_OF_FOUR = {"sliding_window": 12, "num_hidden_layers": 4}
WINDOW = {"attention.sliding_window": 12}
SCALES = {"attention.scale": 0.1, "residual_scale": 0.4, "embedding_scale": 6.0, "logit_scale": 4.0}
HALF = tiny_cases.PARTIAL_ROPE
PATTERN = {**WINDOW, "attention.sliding_window_pattern": [True, False]}

CASES = {
    # the first layer has no experts
    "dots1": Case(
        "dots1",
        "Dots1Config",
        {**ROUTED, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1},
        {
            **{**EXPERTS, "expert_shared_count": 2, "expert_weights_scale": 1.5, "expert_weights_norm": True},
            "leading_dense_block_count": 1,
        },
    ),
    "exaone-moe": Case(
        "exaone-moe",
        "ExaoneMoeConfig",
        {**MOE, "sliding_window": 12, "layer_types": tiny_cases.MIXED, "routed_scaling_factor": 1.5},
        {
            **{**EXPERTS, **PATTERN, "expert_shared_count": 1, "expert_weights_scale": 1.5},
            **{"expert_weights_norm": True, "expert_gating_func": 2, "leading_dense_block_count": 1},
        },
    ),
    "mellum": Case(
        "mellum",
        "MellumConfig",
        {
            **{**MOE, "sliding_window": 12, "layer_types": tiny_cases.MIXED},
            "rope_parameters": {"full_attention": PLAIN | {"rope_theta": 5e5}, "sliding_attention": PLAIN},
        },
        {**EXPERTS, **PATTERN, "rope.freq_base": 5e5, "rope.freq_base_swa": 1e4},
    ),
    # an MLP with the square of ReLU
    "arcee": Case("arcee", "ArceeConfig"),
    "nemotron": Case("nemotron", "NemotronConfig", {"rope_parameters": HALF}, {"rope.dimension_count": 16}),
    "jais2": Case("jais2", "Jais2Config"),
    "starcoder2": Case("starcoder2", "Starcoder2Config"),
    "starcoder2-window": Case("starcoder2", "Starcoder2Config", {"sliding_window": 12}, WINDOW),
    "stablelm": Case(
        "stablelm",
        "StableLmConfig",
        {"num_attention_heads": 2, "num_key_value_heads": 1, "use_qkv_bias": True},
        {"rope.dimension_count": 8, "use_parallel_residual": False},
    ),
    "stablelm-parallel": Case(
        "stablelm",
        "StableLmConfig",
        {"num_attention_heads": 2, "use_parallel_residual": True, "rope_parameters": HALF},
        {"rope.dimension_count": 16, "use_parallel_residual": True},
    ),
    "phi2": Case(
        "phi2",
        "PhiConfig",
        {"num_attention_heads": 2, "intermediate_size": 256, "rope_parameters": HALF},
        {"rope.dimension_count": 16},
    ),
    "olmo": Case("olmo", "OlmoConfig", {"clip_qkv": 0.5}, {"attention.clamp_kqv": 0.5}),
    "command-r": Case("command-r", "CohereConfig", {"logit_scale": 0.25}, {"logit_scale": 0.25}),
    "cohere2": Case(
        "cohere2",
        "Cohere2Config",
        {
            **{"num_attention_heads": 2, "num_key_value_heads": 1, "logit_scale": 0.25},
            **{"sliding_window": 12, "layer_types": tiny_cases.MIXED},
        },
        {**PATTERN, "logit_scale": 0.25},
    ),
    "apertus": Case("apertus", "ApertusConfig", {"rope_parameters": PLAIN, "head_dim": 32}),
    "chatglm": Case("chatglm", "GlmConfig", keys={"rope.dimension_count": 16}),
}
GEMMA3N = {
    **{**tiny_cases.GEMMA3N, "num_hidden_layers": 4, "layer_types": tiny_cases.MIXED * 2},
    **{"activation_sparsity_pattern": [0.5, 0.95, 0.0, 0.0], "vocab_size_per_layer_input": tiny_cases.VOCAB},
}
# which are not written, or don't stay packed
READ = {
    "falcon": Case(
        "falcon",
        "FalconConfig",
        {"num_attention_heads": 2, "num_kv_heads": 1, "ffn_hidden_size": 256},
        {"attention.head_count_kv": 1, "feed_forward_length": 256, "tensor_data_layout": "jploski"},
    ),
    "gemma3n": Case(
        "gemma3n",
        "Gemma3nTextConfig",
        GEMMA3N,
        {
            **{**WINDOW, "attention.sliding_window_pattern": [True, False] * 2, "attention.shared_kv_layers": 2},
            **{"feed_forward_length": [96] * 4, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4},
            **{"altup.num_inputs": 4, "altup.active_idx": 0, "embedding_length_per_layer_input": 16},
            "activation_sparsity_scale": [0.0, 1.6448535919189453, -math.inf, -math.inf],
        },
    ),
}
LAID_OUT = {
    # as Command R+
    "command-r-normed": Case(
        "command-r", "CohereConfig", {"logit_scale": 0.25, "use_qk_norm": True}, {"logit_scale": 0.25}
    ),
    "ernie4_5-moe": Case(
        "ernie4_5-moe",
        "Ernie4_5_MoeConfig",
        {
            **{"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64, "moe_num_shared_experts": 2},
            "moe_layer_start_index": 1,
        },
        {
            **{**EXPERTS, "expert_shared_count": 2, "expert_shared_feed_forward_length": 128},
            **{"leading_dense_block_count": 1, "interleave_moe_layer_step": 1},
        },
    ),
    "hunyuan-moe": Case(
        "hunyuan-moe",
        "HunYuanMoEV1Config",
        {"num_experts": 4, "moe_topk": 2, "rope_parameters": PLAIN},
        {
            **{"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 96, "expert_shared_count": 1},
            "expert_shared_feed_forward_length": 96,
        },
    ),
    "minimax-m2": Case(
        "minimax-m2",
        "MiniMaxM2Config",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": tiny_cases.PARTIAL_ROPE},
        {
            **{"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 96, "expert_gating_func": 2},
            "rope.dimension_count": 16,
        },
    ),
    # its fourth layer sees all, as files don't say
    "afmoe": Case(
        "afmoe",
        "AfmoeConfig",
        {
            **{**MOE, **THREE_OF_FOUR, "num_dense_layers": 1, "num_shared_experts": 2, "route_scale": 2.5},
            **{"mup_enabled": True, "global_attn_every_n_layers": 4},
        },
        {
            **{**EXPERTS, **WINDOW, "expert_shared_count": 2, "expert_weights_scale": 2.5},
            **{"expert_weights_norm": True, "expert_gating_func": 2, "leading_dense_block_count": 1},
        },
    ),
    "granitemoe-shared": Case(
        "granitemoe",
        "GraniteMoeSharedConfig",
        {
            **{**tiny_cases.GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2},
            **{"shared_intermediate_size": 64, "hidden_size": 128},
        },
        {
            **{"expert_count": 4, "expert_used_count": 2, "expert_shared_feed_forward_length": 64},
            **SCALES,
        },
    ),
    # its second layer, which sees all, rotates no heads
    "granite_swa": Case(
        "granite_swa",
        "GraniteSWAConfig",
        {
            **{**tiny_cases.GRANITE, "sliding_window": 12, "layer_types": tiny_cases.MIXED},
            **{"layer_rope_theta": [1e4, 0.0], "hidden_size": 128, "rope_parameters": PLAIN},
        },
        {**PATTERN, **SCALES, "attention.rope_pattern": [True, False]},
        attention="eager",
    ),
    "granite_swa-moe": Case(
        "granite_swa",
        "GraniteMoeSWAConfig",
        {
            **{**tiny_cases.GRANITE, "sliding_window": 12, "layer_types": tiny_cases.MIXED, "hidden_size": 128},
            **{"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": PLAIN},
        },
        {**PATTERN, **SCALES, "expert_count": 4, "expert_used_count": 2},
        attention="eager",
    ),
    **{
        f"gptneox-{kind}": Case(
            "gptneox",
            "GPTNeoXConfig",
            {"num_attention_heads": 2, "use_parallel_residual": parallel, "hidden_act": "gelu"},
            {"rope.dimension_count": 8, "use_parallel_residual": parallel},
        )
        for kind, parallel in (("parallel", True), ("in-turn", False))
    },
    # the first layer has no experts, and a recurrent state; the other doesn't rotate
    "kimi-linear": Case(
        "kimi-linear",
        "KimiLinearConfig",
        {
            **{key: value for key, value in LATENT.items() if key not in ("n_routed_experts", "rope_parameters")},
            **{"q_lora_rank": None, "num_local_experts": 8, "n_shared_experts": 1, "linear_head_dim": 32},
            **{"linear_num_heads": 4, "layer_types": ["linear_attention", "full_attention"], "n_group": 1},
            "topk_group": 1,
        },
        {
            **{key: value for key, value in LATENT_KEYS.items() if "scaling" not in key and "q_lora" not in key},
            **{"attention.head_count_kv": [0, 1], "attention.value_length": 72, "ssm.conv_kernel": 4},
            **{"kda.head_dim": 32, "expert_gating_func": 2, "expert_shared_count": 1},
        },
    ),
    # which is Youtu: no layer has experts
    "deepseek2-dense": Case(
        "deepseek2",
        "YoutuConfig",
        {key: value for key, value in LATENT.items() if key not in tiny_cases.GROUPED_MOE},
        {
            **{key: value for key, value in LATENT_KEYS.items() if not key.startswith("expert_")},
            **{"leading_dense_block_count": 2, "expert_feed_forward_length": 96, "expert_shared_count": 0},
        },
    ),
}
