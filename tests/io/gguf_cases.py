"""Models to write as GGUF files, one of each architecture, and what such a file says besides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.hf import tiny_cases


@dataclass(frozen=True)
class Case:
    """An architecture of GGUF and the model to write as it."""

    arch: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)  # in the file beside those that every model has
    attention: str = "sdpa"


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.0 + 0.7 * i for i in range(8)],
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LFM2 = {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}
LLAMA4 = {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}

TWO_KINDS = {
    **{"attention.sliding_window": 12, "attention.sliding_window_pattern": [True, False]},
    **{"attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 64},
    **{"attention.key_length_swa": 32, "attention.value_length_swa": 32, "rope.dimension_count_swa": 32},
    **{"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "attention.shared_kv_layers": 0},
    "embedding_length_per_layer_input": 0,
}
SAME_VALUES = {**TWO_KINDS, "attention.head_count_kv": [2, 1], "final_logit_softcapping": 30.0}

CASES = {
    "llama": Case("llama", "LlamaConfig"),
    "llama-3.1": Case("llama", "LlamaConfig", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-linear": Case(
        "llama",
        "LlamaConfig",
        {"rope_parameters": PLAIN | {"rope_type": "linear", "factor": 2.0}, "attention_bias": True, "mlp_bias": True},
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
    ),
    "mistral": Case("llama", "MistralConfig", {"sliding_window": 12}, {"attention.sliding_window": 12}),
    "mixtral": Case(
        "llama",
        "MixtralConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2},
        {"expert_count": 4, "expert_used_count": 2},
    ),
    "qwen2": Case("qwen2", "Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2-yarn": Case(
        "qwen2",
        "Qwen2Config",
        {"rope_parameters": YARN},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
    ),
    "qwen2moe": Case(
        "qwen2moe",
        "Qwen2MoeConfig",
        {**MOE, "shared_expert_intermediate_size": 32},
        {
            "expert_count": 4,
            "expert_used_count": 2,
            "expert_feed_forward_length": 64,
            "expert_shared_feed_forward_length": 32,
        },
    ),
    "qwen3": Case("qwen3", "Qwen3Config"),
    "qwen3moe": Case(
        "qwen3moe",
        "Qwen3MoeConfig",
        {**MOE, "norm_topk_prob": True},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64},
    ),
    # of models that see pictures
    "qwen2vl": Case("qwen2vl", "Qwen2Config", keys={"rope.dimension_sections": [4, 6, 6, 0]}),
    "qwen3vl": Case("qwen3vl", "Qwen3Config", keys={"rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 2}),
    "qwen3vlmoe": Case(
        "qwen3vlmoe",
        "Qwen3MoeConfig",
        {**MOE, "norm_topk_prob": True},
        {
            **{"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64},
            **{"rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 2},
        },
    ),
    "phi3": Case("phi3", "Phi3Config", {"sliding_window": 12, "head_dim": None}, {"attention.sliding_window": 12}),
    "phi4-mini": Case(
        "phi3",
        "Phi3Config",
        {
            "rope_parameters": LONGROPE,
            "hidden_size": 128,
            "tie_word_embeddings": True,
            "sliding_window": None,
            "original_max_position_embeddings": 64,
        },
        {"rope.scaling.original_context_length": 64, "rope.dimension_count": 16, "attention.sliding_window": 0},
    ),
    "gemma": Case("gemma", "GemmaConfig"),
    "gemma2": Case(
        "gemma2",
        "Gemma2Config",
        {"sliding_window": 12, "query_pre_attn_scalar": 32},
        {"attention.sliding_window": 12, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        attention="eager",
    ),
    "gemma3": Case(
        "gemma3",
        "Gemma3TextConfig",
        {
            "sliding_window": 12,
            "query_pre_attn_scalar": 32,
            "num_hidden_layers": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": PLAIN,
            },
        },
        {
            "attention.sliding_window": 12,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    "gemma4": Case("gemma4", "Gemma4TextConfig", tiny_cases.GEMMA4, SAME_VALUES),
    "gemma4-e": Case(
        "gemma4",
        "Gemma4TextConfig",
        {**tiny_cases.GEMMA4_E, "num_hidden_layers": 4, "layer_types": [*tiny_cases.MIXED] * 2}
        | {"hidden_size_per_layer_input": 32},
        {
            **TWO_KINDS,
            **{"attention.sliding_window_pattern": [True, False] * 2, "attention.shared_kv_layers": 2},
            **{"feed_forward_length": [96, 96, 192, 192], "embedding_length_per_layer_input": 32},
        },
    ),
    "granite": Case(
        "granite",
        "GraniteConfig",
        {
            "residual_multiplier": 0.4,
            "embedding_multiplier": 6.0,
            "logits_scaling": 4.0,
            "attention_multiplier": 0.1,
            "head_dim": 16,
        },
        {"attention.scale": 0.1, "residual_scale": 0.4, "embedding_scale": 6.0, "logit_scale": 4.0},
    ),
    "olmo2": Case("olmo2", "Olmo2Config"),
    "olmo3": Case(
        "olmo2",
        "Olmo3Config",
        {
            "sliding_window": 12,
            "num_hidden_layers": 4,
            "head_dim": 16,
            "rope_parameters": {"full_attention": YARN | {"rope_theta": 5e5}, "sliding_attention": PLAIN},
        },
        {
            "attention.sliding_window": 12,
            "attention.sliding_window_pattern": [True, True, True, False],
            "rope.freq_base": 5e5,
            "rope.freq_base_swa": 1e4,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "smollm3": Case("smollm3", "SmolLM3Config", {"num_hidden_layers": 4}),
    "seed_oss": Case("seed_oss", "SeedOssConfig", {"attention_bias": True, "attention_out_bias": False}),
    "exaone4": Case(
        "exaone4",
        "Exaone4Config",
        {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]},
        {"attention.sliding_window": 12, "attention.sliding_window_pattern": [True, False]},
    ),
    "lfm2": Case("lfm2", "Lfm2Config", LFM2, {"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2]}),
    # the first layer has no experts
    "lfm2moe": Case(
        "lfm2moe",
        "Lfm2MoeConfig",
        {**MOE, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
        {
            **{"shortconv.l_cache": 3, "attention.head_count_kv": [0, 2], "leading_dense_block_count": 1},
            **{"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64, "expert_gating_func": 2},
        },
    ),
    "mistral3": Case("mistral3", "MistralConfig", {"sliding_window": 12}, {"attention.sliding_window": 12}),
    "ministral3": Case(
        "mistral3",
        "Ministral3Config",
        {"sliding_window": None, "rope_parameters": YARN | LLAMA4 | {"beta_fast": 32.0, "beta_slow": 1.0}},
        {
            **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
            **{"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0},
            **{"rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.4},
        },
    ),
    "ernie4_5": Case("ernie4_5", "Ernie4_5Config"),
    "hunyuan-dense": Case("hunyuan-dense", "HunYuanDenseV1Config", {"rope_parameters": PLAIN}),
    "glm4": Case("glm4", "Glm4Config", {"attention_bias": True}, {"rope.dimension_count": 16}),
    # the first layer has no experts
    "glm4moe": Case(
        "glm4moe",
        "Glm4MoeConfig",
        {
            **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 2},
            **{"routed_scaling_factor": 1.5, "use_qk_norm": True, "attention_bias": True},
        },
        {
            **{"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64, "expert_shared_count": 2},
            **{"expert_weights_scale": 1.5, "expert_weights_norm": True, "expert_gating_func": 2},
            **{"leading_dense_block_count": 1, "rope.dimension_count": 16},
        },
    ),
    "olmoe": Case(
        "olmoe",
        "OlmoeConfig",
        {"num_experts": 4, "num_experts_per_tok": 2, "num_attention_heads": 2, "num_key_value_heads": 1},
        {"expert_count": 4, "expert_used_count": 2},
    ),
}
DELTA = {**tiny_cases.DELTA, "linear_num_value_heads": 6}
DELTA_KEYS = {
    **{"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 6},
    **{"ssm.inner_size": 192, "full_attention_interval": 2, "rope.dimension_count": 8},
}
SHARED = {**MOE, "shared_expert_intermediate_size": 32}
SHARED_KEYS = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 64,
    "expert_shared_feed_forward_length": 32,
}
GRANITE_HYBRID = {**tiny_cases.GRANITE4, "mamba_n_groups": 2, "num_local_experts": 0, "head_dim": 16}
GRANITE_HYBRID_KEYS = {
    **{"ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "ssm.time_step_rank": 8},
    **{"ssm.inner_size": 128, "attention.head_count_kv": [0, 2], "attention.scale": 0.1},
    **{"residual_scale": 0.4, "embedding_scale": 6.0, "logit_scale": 4.0},
}
NEMOTRON_H_KEYS = {
    **{"ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "ssm.time_step_rank": 8},
    **{"ssm.inner_size": 128, "attention.head_count_kv": [0, 0, 2, 0], "feed_forward_length": [0, 96, 0, 0]},
    **{"rope.dimension_count": 16, "rope.freq_base": 1e4},  # which nothing uses
}
NEMOTRON_H_MOE = {
    **{**tiny_cases.NEMOTRON_H, "time_step_min": 0.001, "moe_shared_expert_intermediate_size": 64},
    "layers_block_type": ["linear_attention", "moe", "full_attention", "linear_attention"],
}
NEMOTRON_H_MOE_KEYS = {
    **{**NEMOTRON_H_KEYS, "feed_forward_length": [0, 32, 0, 0], "expert_count": 8, "expert_used_count": 3},
    **{"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64, "expert_shared_count": 2},
    **{"expert_weights_norm": True, "expert_weights_scale": 1.5, "expert_group_count": 4},
    "expert_group_used_count": 2,
}
LATENT = {
    **{**tiny_cases.LATENT_MOE, "kv_lora_rank": 64, "q_lora_rank": 32, "v_head_dim": 32},
    "rope_parameters": {**tiny_cases.LATENT["rope_parameters"], "mscale": 0.7, "mscale_all_dim": 0.7},
}
LATENT.pop("mlp_layer_types")
LATENT_KEYS = {
    **{"attention.head_count_kv": 1, "attention.kv_lora_rank": 64, "attention.q_lora_rank": 32},
    **{"attention.key_length": 96, "attention.value_length": 64, "rope.dimension_count": 32},
    **{"attention.key_length_mla": 96, "attention.value_length_mla": 32, "leading_dense_block_count": 1},
    **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64},
    **{"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0},
    **{"rope.scaling.yarn_log_multiplier": 0.07, "expert_count": 8, "expert_used_count": 3},
    **{"expert_feed_forward_length": 32, "expert_shared_count": 2, "expert_weights_scale": 1.5},
}
MISTRAL4 = {**LATENT, "head_dim": 96, "norm_topk_prob": True, "first_k_dense_replace": 1}
MISTRAL4["rope_parameters"] = {
    **{**LATENT["rope_parameters"], "mscale": 1.0, "mscale_all_dim": 1.0, "partial_rotary_factor": 32 / 96},
    **{"llama_4_scaling_beta": 0.4, "original_max_position_embeddings": 8},
}
MISTRAL4_KEYS = {
    **{**LATENT_KEYS, "expert_weights_norm": True, "expert_group_count": 4, "expert_group_used_count": 2},
    **{"rope.scaling.original_context_length": 8, "rope.scaling.yarn_log_multiplier": 0.1},
    "attention.temperature_scale": 0.4,
}
FALCON_H1 = {
    **{key: value for key, value in tiny_cases.FALCON_H1.items() if "multiplier" not in key},
    "mamba_norm_before_gate": False,
}
FALCON_H1_KEYS = {
    **{"ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "ssm.time_step_rank": 8},
    "ssm.inner_size": 128,
}
TEXT_MROPE = {"mrope_section": [1, 1, 2], "mrope_interleaved": True, "partial_rotary_factor": 0.25}
# whose parameters are not tensors of the file as they lie
LAID_OUT = {
    "gemma4-moe": Case(
        "gemma4",
        "Gemma4TextConfig",
        tiny_cases.GEMMA4_MOE,
        {**SAME_VALUES, "expert_count": 6, "expert_used_count": 3, "expert_feed_forward_length": 32},
    ),
    "granitemoe": Case(
        "granitemoe",
        "GraniteMoeConfig",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "residual_multiplier": 0.4,
            "embedding_multiplier": 6.0,
            "logits_scaling": 4.0,
            "attention_multiplier": 0.1,
        },
        {
            **{"expert_count": 4, "expert_used_count": 2, "attention.scale": 0.1},
            **{"residual_scale": 0.4, "embedding_scale": 6.0, "logit_scale": 4.0},
        },
    ),
    "gpt-oss": Case(
        "gpt-oss",
        "GptOssConfig",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": YARN | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        },
        {
            **{"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 96},
            **{"attention.sliding_window": 12, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
            **{"rope.scaling.original_context_length": 64, "rope.scaling.yarn_beta_fast": 32.0},
            "rope.scaling.yarn_beta_slow": 1.0,
        },
        attention="eager",
    ),
    "granitehybrid": Case(
        "granitehybrid",
        "GraniteMoeHybridConfig",
        GRANITE_HYBRID,
        {**GRANITE_HYBRID_KEYS, "rope.scaling.finetuned": False},  # without the key, heads are rotated
    ),
    "granitehybrid-moe": Case(
        "granitehybrid",
        "GraniteMoeHybridConfig",
        {
            **{**GRANITE_HYBRID, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 64},
            "position_embedding_type": "rope",
        },
        {
            **{**GRANITE_HYBRID_KEYS, "expert_count": 4, "expert_used_count": 2},
            "expert_shared_feed_forward_length": 64,
        },
    ),
    "deepseek2": Case(
        "deepseek2",
        "DeepseekV3Config",
        {**LATENT, "first_k_dense_replace": 1},
        {
            **{**LATENT_KEYS, "expert_weights_norm": True, "expert_gating_func": 2},
            **{"expert_group_count": 4, "expert_group_used_count": 2},
        },
    ),
    # of before keys and values were made by two tensors; queries have no latent
    "deepseek2-lite": Case(
        "deepseek2",
        "DeepseekV2Config",
        {
            **LATENT,
            "q_lora_rank": None,
            "topk_method": "greedy",
            "first_k_dense_replace": 1,
            "n_group": None,
            "topk_group": None,
        },
        {
            **{key: value for key, value in LATENT_KEYS.items() if "mla" not in key and "q_lora" not in key},
            **{"attention.head_count_kv": 4, "attention.key_length": 96, "attention.value_length": 32},
        },
    ),
    # of more experts than 16 B has, in groups
    "deepseek2-grouped": Case(
        "deepseek2",
        "DeepseekV2Config",
        {**LATENT, "topk_method": "group_limited_greedy", "first_k_dense_replace": 1},
        {**LATENT_KEYS, "expert_group_count": 4, "expert_group_used_count": 2},
    ),
    "mistral4": Case("mistral4", "Mistral4Config", MISTRAL4, MISTRAL4_KEYS),
    # as Mistral's own files are converted
    "deepseek2-mistral": Case(
        "deepseek2",
        "Mistral4Config",
        {**MISTRAL4, "n_group": 1, "topk_group": 1},
        {
            **{key: value for key, value in MISTRAL4_KEYS.items() if "group" not in key},
            **{"attention.temperature_length": 8, "expert_gating_func": 1},
        },
    ),
    # without a norm in its state spaces, as the smallest was published
    "falcon-h1": Case("falcon-h1", "FalconH1Config", FALCON_H1, FALCON_H1_KEYS),
    "falcon-h1-normed": Case("falcon-h1", "FalconH1Config", {**FALCON_H1, "mamba_rms_norm": True}, FALCON_H1_KEYS),
    "nemotron_h": Case(
        "nemotron_h",
        "NemotronHConfig",
        {
            **{**tiny_cases.NEMOTRON_H, "time_step_min": 0.001},
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        },
        NEMOTRON_H_KEYS,
    ),
    "nemotron_h_moe": Case("nemotron_h_moe", "NemotronHConfig", NEMOTRON_H_MOE, NEMOTRON_H_MOE_KEYS),
    "nemotron_h_moe-latent": Case(  # Nemotron 3 Super
        "nemotron_h_moe",
        "NemotronHConfig",
        {**NEMOTRON_H_MOE, "moe_latent_size": 32},
        {**NEMOTRON_H_MOE_KEYS, "moe_latent_size": 32},
    ),
    "qwen3next": Case("qwen3next", "Qwen3NextConfig", {**DELTA, **SHARED}, {**DELTA_KEYS, **SHARED_KEYS}),
    "qwen35": Case(
        "qwen35",
        "Qwen3_5TextConfig",
        {**DELTA, "rope_parameters": PLAIN | TEXT_MROPE},
        {**DELTA_KEYS, "rope.dimension_sections": [1, 1, 2, 0]},
    ),
    "qwen35moe": Case("qwen35moe", "Qwen3_5MoeTextConfig", {**DELTA, **SHARED}, {**DELTA_KEYS, **SHARED_KEYS}),
}
