"""What tiny models of every family are made of: the class of their config, and its settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import transformers

VOCAB = 120
COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_hidden_layers": 2,
}


@dataclass(frozen=True)
class Case:
    """A config class and what it gets besides COMMON."""

    config: str
    options: dict[str, Any] = field(default_factory=dict)
    attention: str = "sdpa"
    layers: int = 2
    model: str = "AutoModelForCausalLM"


LLAMA3_ROPE = {
    **{"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 64,
}
GRANITE = {
    **{"residual_multiplier": 0.4, "embedding_multiplier": 6.0},
    **{"logits_scaling": 4.0, "attention_multiplier": 0.1},
}
MOE = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
GROUPED_MOE = {
    **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 2},
    **{"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5},
}
LATENT = {  # multi-head latent attention; YaRN with a scale of its own
    **{"num_key_value_heads": 4, "kv_lora_rank": 48, "q_lora_rank": 40},
    **{"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 48},
    "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0},
        **{"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64},
    },
}
LATENT_MOE = {**GROUPED_MOE, **LATENT, "mlp_layer_types": ["dense", "sparse"]}  # the first layer has no experts
SHARED_MOE = {**MOE, "shared_expert_intermediate_size": 64}
SHARED_ALIKE = {**MOE, "shared_expert_intermediate_size": 32}  # as the others, which it can go with
MIXED = ["sliding_attention", "full_attention"]
LAGUNA = {
    **{**SHARED_MOE, "mlp_layer_types": ["dense", "sparse"], "moe_routed_scaling_factor": 1.5},
    **{"sliding_window": 12, "layer_types": MIXED},
}
MIMO = {
    **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_group": 4, "topk_group": 2},
    **{"head_dim": 64, "v_head_dim": 32, "num_key_value_heads": 1, "routed_scaling_factor": 1.5},
    **{"sliding_window": 12, "layer_types": MIXED, "mlp_layer_types": ["dense", "sparse"]},
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
}
COHERE2_MOE = {
    **{"num_experts": 6, "num_experts_per_tok": 3, "num_shared_experts": 2, "first_k_dense_replace": 1},
    **{"sliding_window": 12, "sliding_window_pattern": 2, "logit_scale": 0.25},
}
GPT_OSS: dict[str, Any] = {
    **{"num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 12, "layer_types": MIXED},
    "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0},
        **{"truncate": False, "original_max_position_embeddings": 64},
    },
}
# as 12B and 31B: heads of full attention are wider and share more, values are keys
GEMMA4 = {
    "sliding_window": 12,
    "layer_types": MIXED,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}
# as E2B and E4B: half of the layers attend to others' keys, and all take an embedding of their own
GEMMA4_E = {
    "sliding_window": 12,
    "layer_types": MIXED,
    "global_head_dim": 64,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCAB,
}
# as 26B-A4B: experts beside the MLP
GEMMA4_MOE = {
    **GEMMA4,
    **{"enable_moe_block": True, "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 32},
}
LFM3 = {"layer_types": ["conv", "full_attention", "sliding_attention"], "sliding_window": 12}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 32}
GRANITE4 = {**GRANITE, **MAMBA2, "layer_types": ["linear_attention", "full_attention"], "shared_intermediate_size": 96}
NEMOTRON_H = {
    **{**GROUPED_MOE, "moe_shared_expert_intermediate_size": 48},
    **{"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 2},
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
    "time_step_min": 0.5,
}
FALCON_H1 = {
    **{"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 32, "mamba_n_groups": 2},
    **{"embedding_multiplier": 5.0, "lm_head_multiplier": 0.5, "key_multiplier": 0.4, "mlp_multipliers": [0.9, 0.6]},
    **{"attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.7},
    "ssm_multipliers": [0.7, 0.5, 1.4, 1.5, 0.8],
}
LLAMA4_ROPE = {**GPT_OSS["rope_parameters"], "llama_4_scaling_beta": 0.4, "original_max_position_embeddings": 16}
MISTRAL4: dict[str, Any] = {**LATENT_MOE, "head_dim": 96}
MISTRAL4["rope_parameters"] = {
    **MISTRAL4["rope_parameters"],
    **{"llama_4_scaling_beta": 0.4, "original_max_position_embeddings": 16, "partial_rotary_factor": 32 / 96},
}
HEADS = {"num_attention_heads": 2}  # of 32, where that is hidden_size by their number
OPT = {**HEADS, "word_embed_proj_dim": 64, "ffn_dim": 96}
NTK_ALPHA_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
# of half of the layers of which gates are cut off; some ids have no row in the layers' table
GEMMA3N = {
    **{"sliding_window": 12, "layer_types": MIXED, "num_kv_shared_layers": 2, "final_logit_softcapping": 30.0},
    **{"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 100, "laurel_rank": 16},
    "activation_sparsity_pattern": [0.5, 0.0],
}
SIZES = {"conv1d": 0.5, "conv.conv": 0.5, "_scale": 0.5, "_coefs": 0.5, "modality_router": 4.0}  # of parameters

FAMILIES = {
    "llama": Case("LlamaConfig"),
    "llama-biased": Case(
        "LlamaConfig", {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE}, attention="eager"
    ),
    "qwen2": Case("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": Case("Qwen3Config"),
    "mistral": Case("MistralConfig", {"sliding_window": 12}),
    "phi3": Case("Phi3Config", {"rope_parameters": PARTIAL_ROPE, "sliding_window": None}),
    "gemma": Case("GemmaConfig"),
    "gemma2": Case("Gemma2Config", {"sliding_window": 12}, attention="eager"),
    "gemma3": Case("Gemma3TextConfig", {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}),
    "granite": Case("GraniteConfig", GRANITE),
    "olmo2": Case("Olmo2Config"),
    "olmo3": Case("Olmo3Config", {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}),
    "smollm3": Case("SmolLM3Config", {"no_rope_layers": [1, 0]}),
    "mixtral": Case("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 12}),
    # the second layer has no experts
    "qwen2_moe": Case(
        "Qwen2MoeConfig", {**MOE, "shared_expert_intermediate_size": 64, "mlp_only_layers": [1], "qkv_bias": True}
    ),
    "qwen3_moe": Case("Qwen3MoeConfig", {**MOE, "norm_topk_prob": True}, attention="eager"),
    "gpt_oss": Case("GptOssConfig", GPT_OSS, attention="eager"),
}
NORMS = 1 + (transformers.__version__ >= "5.23")  # of Bamba's groups, which older versions norm as one
# Those whose blocks are the same in other combinations: each gets fewer tests (tests/hf/test_kin.py).
KIN = {
    "ministral": Case("MinistralConfig", {"sliding_window": 12, "layer_types": MIXED}),
    "gemma4": Case("Gemma4TextConfig", GEMMA4),
    "gemma3n": Case("Gemma3nTextConfig", GEMMA3N, layers=4),
    "gemma4_unified": Case("Gemma4UnifiedTextConfig", {**GEMMA4, "use_bidirectional_attention": "vision"}),
    "gemma4_moe": Case("Gemma4TextConfig", GEMMA4_MOE),
    "gemma4_e": Case("Gemma4TextConfig", GEMMA4_E, layers=4),
    "cwm": Case("CwmConfig", {"sliding_window": 12, "layer_types": MIXED, "rope_parameters": LLAMA3_ROPE}),
    "seed_oss": Case("SeedOssConfig", {"attention_bias": True, "attention_out_bias": False}),
    "nanochat": Case("NanoChatConfig"),
    "arcee": Case("ArceeConfig", {"mlp_bias": True}),
    "apertus": Case("ApertusConfig"),
    "nemotron": Case("NemotronConfig"),
    "jais2": Case("Jais2Config"),
    "starcoder2": Case("Starcoder2Config", {"sliding_window": 12}, attention="eager"),
    "stablelm": Case("StableLmConfig", {**HEADS, "use_qkv_bias": True}),
    "stablelm-parallel": Case("StableLmConfig", {**HEADS, "use_parallel_residual": True}),
    "phi": Case("PhiConfig", HEADS),
    "olmo": Case("OlmoConfig"),
    "gpt_neox": Case("GPTNeoXConfig", {**HEADS, "hidden_act": "gelu"}),
    "gpt_neox-in-turn": Case(
        "GPTNeoXConfig", {**HEADS, "use_parallel_residual": False, "attention_bias": False}, attention="eager"
    ),
    "falcon": Case("FalconConfig", {**HEADS, "bias": True}),
    "falcon-in-turn": Case("FalconConfig", {**HEADS, "multi_query": False, "parallel_attn": False}, attention="eager"),
    "gpt2": Case("GPT2Config", HEADS),
    "gpt2-by-layer": Case("GPT2Config", {**HEADS, "scale_attn_by_inverse_layer_idx": True, "n_inner": 96}, "eager"),
    "gpt_bigcode": Case("GPTBigCodeConfig", HEADS),
    "gpt_neo": Case(
        "GPTNeoConfig", {**HEADS, "attention_types": [[["global", "local"], 1]], "window_size": 12}, "eager"
    ),
    "opt": Case("OPTConfig", OPT),
    # norms without weights, layers without biases
    "opt-plain": Case("OPTConfig", {**OPT, "enable_bias": False, "layer_norm_elementwise_affine": False}, "eager"),
    "cohere": Case("CohereConfig", {"logit_scale": 0.25}),
    "cohere2": Case("Cohere2Config", {**HEADS, "logit_scale": 0.25, "sliding_window": 12, "layer_types": MIXED}),
    # the first layer has no experts; it rotates, though it has no window
    "cohere2_moe": Case("Cohere2MoeConfig", COHERE2_MOE, layers=3),
    "cohere2_moe-rms": Case(
        "Cohere2MoeConfig",
        {
            **{**COHERE2_MOE, "num_shared_experts": 1, "shared_expert_combination_strategy": "sum"},
            **{"rms_norm_eps": 1e-5, "expert_selection_fn": "sigmoid", "norm_topk_prob": False},
        },
        "eager",
        3,
    ),
    "exaone4": Case("Exaone4Config", {"sliding_window": 12, "layer_types": MIXED}),
    "vaultgemma": Case("VaultGemmaConfig", {"sliding_window": 12, "layer_types": MIXED}, attention="eager"),
    "hyperclovax": Case("HyperCLOVAXConfig", {**GRANITE, "logits_scaling": 0.25, "use_post_norm": False}),
    "granite_swa": Case(
        "GraniteSWAConfig",
        {**GRANITE, "sliding_window": 12, "layer_types": MIXED, "layer_rope_theta": [1e4, 50.0]},
        attention="eager",
    ),
    "hyperclovax-peri": Case("HyperCLOVAXConfig", {**GRANITE, "residual_multiplier": 1.0}),
    "ministral3": Case("Ministral3Config", {"sliding_window": 12, "rope_parameters": LLAMA4_ROPE}),
    "hunyuan_v1_dense": Case("HunYuanDenseV1Config", {"attention_bias": True, "rope_parameters": NTK_ALPHA_ROPE}),
    "ernie4_5": Case("Ernie4_5Config", {"use_bias": True}),
    "helium": Case("HeliumConfig", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    "glm": Case("GlmConfig"),
    "glm4": Case("Glm4Config", {"attention_bias": True}),
    "emu3": Case("Emu3TextConfig", model="Emu3ForCausalLM"),
    "phimoe": Case(
        "PhimoeConfig",
        {"num_local_experts": 6, "router_jitter_noise": 0.3, "attention_bias": True, "lm_head_bias": True},
    ),
    "granitemoe": Case("GraniteMoeConfig", {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3}),
    "mellum": Case("MellumConfig", {**MOE, "sliding_window": 12, "layer_types": MIXED}),
    "olmoe": Case("OlmoeConfig", {**MOE, "num_attention_heads": 2, "num_key_value_heads": 1}),
    # the first layer has no experts
    "glm4_moe": Case("Glm4MoeConfig", {**GROUPED_MOE, "first_k_dense_replace": 1}),
    "deepseek_v2": Case(
        "DeepseekV2Config",
        {**GROUPED_MOE, **LATENT, "q_lora_rank": None, "topk_method": "greedy", "first_k_dense_replace": 1},
    ),
    # as 236B: groups of experts are chosen by the best of each
    "deepseek_v2-grouped": Case(
        "DeepseekV2Config", {**GROUPED_MOE, **LATENT, "topk_method": "group_limited_greedy", "first_k_dense_replace": 1}
    ),
    "deepseek_v3": Case("DeepseekV3Config", {**LATENT_MOE, "n_shared_experts": 1}),
    "glm4_moe_lite": Case("Glm4MoeLiteConfig", LATENT_MOE, attention="eager"),
    # the first layer has no experts; queries grow every 16 positions
    "mistral4": Case("Mistral4Config", {**MISTRAL4, "first_k_dense_replace": 1}, model="Mistral4ForCausalLM"),
    "mistral4-direct": Case("Mistral4Config", {**MISTRAL4, "q_lora_rank": None}, "eager", model="Mistral4ForCausalLM"),
    "youtu": Case("YoutuConfig", {**LATENT, "rope_interleave": False}),
    "glm4_moe-normed": Case("Glm4MoeConfig", {**GROUPED_MOE, "use_qk_norm": True}),
    "afmoe": Case(
        "AfmoeConfig",
        {
            **{**MOE, "num_dense_layers": 1, "num_shared_experts": 2, "route_scale": 2.5, "mup_enabled": True},
            **{"sliding_window": 12, "layer_types": MIXED},
        },
    ),
    "ernie4_5_moe": Case(
        "Ernie4_5_MoeConfig",
        {
            **{"moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 32},
            **{"moe_num_shared_experts": 2, "moe_layer_start_index": 1},
        },
    ),
    "hunyuan_v1_moe": Case("HunYuanMoEV1Config", {"num_experts": 6, "moe_topk": 3, "rope_parameters": NTK_ALPHA_ROPE}),
    "dots1": Case("Dots1Config", {**GROUPED_MOE, "norm_topk_prob": True, "sliding_window": 12, "layer_types": MIXED}),
    "solar_open": Case("SolarOpenConfig", {**GROUPED_MOE, "norm_topk_prob": False}),
    "minimax_m2": Case("MiniMaxM2Config", {"num_local_experts": 6, "num_experts_per_tok": 3}, attention="eager"),
    # values are narrower than keys; layers with a window have sinks, and twice as many heads of keys
    "mimo_v2_flash": Case("MiMoV2FlashConfig", MIMO, "eager"),
    "exaone_moe": Case(
        "ExaoneMoeConfig", {**MOE, "sliding_window": 12, "layer_types": MIXED, "mlp_layer_types": ["sparse", "dense"]}
    ),
    "kolibri1": Case("Kolibri1Config", {**SHARED_MOE, "sliding_window": 12, "layer_types": MIXED}),
    "granitemoeshared": Case(
        "GraniteMoeSharedConfig",
        {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3, "shared_intermediate_size": 64},
    ),
    "granitemoe_swa": Case(
        "GraniteMoeSWAConfig",
        {
            **{**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3},
            **{"sliding_window": 12, "layer_types": MIXED, "layer_rope_theta": [1e4, 0]},
        },
        attention="eager",
    ),
    "hy_v3": Case("HYV3Config", MOE),
    # layers have numbers of heads of their own, and rotate all or half of each
    "laguna": Case("LagunaConfig", {**LAGUNA, "num_attention_heads_per_layer": [4, 2]}),
    "laguna-elements": Case("LagunaConfig", {**LAGUNA, "gating": "per-element"}, attention="eager"),
    "flint": Case(
        "FlintConfig",
        {**SHARED_MOE, "mlp_only_layers": [], "sliding_window": 12, "layer_types": MIXED},
        attention="eager",
    ),
    "bamba": Case(
        "BambaConfig",
        {**MAMBA2, "mamba_n_groups": NORMS, "attn_layer_indices": [1], "attention_bias": True, "mamba_proj_bias": True},
        attention="eager",
    ),
    # without rotation, as most were published
    "granite4": Case("GraniteMoeHybridConfig", {**GRANITE4, "num_local_experts": 0}),
    "granite4_moe": Case(
        "GraniteMoeHybridConfig",
        {**GRANITE4, "num_local_experts": 6, "num_experts_per_tok": 3, "position_embedding_type": "rope"},
    ),
    # layers of all four kinds; step sizes in prompts have a lower bound
    "nemotron_h": Case("NemotronHConfig", NEMOTRON_H, layers=5),
    "nemotron_h-latent": Case("NemotronHConfig", {**NEMOTRON_H, "moe_latent_size": 32}, layers=5),
    # a state space beside attention, in every layer; without a norm, as most were published
    "falcon_h1": Case("FalconH1Config", FALCON_H1),
    "falcon_h1-normed": Case(
        "FalconH1Config",
        {**FALCON_H1, "mamba_rms_norm": True, "projectors_bias": True, "attention_bias": True, "mlp_bias": True},
        attention="eager",
    ),
    "flex_olmo": Case("FlexOlmoConfig", {"num_local_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True}),
    # the first layer has no experts
    "lfm2_moe": Case("Lfm2MoeConfig", {**MOE, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    "lfm2": Case("Lfm2Config", {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16}),
    "lfm3": Case("Lfm3Config", LFM3, layers=3),
    "lfm3-plain": Case("Lfm3Config", {**LFM3, "use_sandwich_norm": False, "use_attention_gate": False}, "eager", 3),
}
# most of whose layers keep a recurrent state; transformers drafts no tokens for them
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}
KIMI_DELTA: dict[str, Any] = {
    **{key: value for key, value in LATENT_MOE.items() if key != "n_routed_experts"},
    **{"kv_lora_rank": 64, "q_lora_rank": None, "n_shared_experts": 1, "num_local_experts": 8},
    "layer_types": ["linear_attention", "full_attention"],
}
HYBRIDS = {
    "qwen3_next": Case("Qwen3NextConfig", {**DELTA, **SHARED_MOE, "mlp_only_layers": [1], "norm_topk_prob": True}),
    "qwen3_5": Case("Qwen3_5TextConfig", DELTA, attention="eager"),
    "qwen3_5_moe": Case("Qwen3_5MoeTextConfig", {**DELTA, **SHARED_ALIKE}),
    # without rotation, as it was published
    "olmo_hybrid": Case("OlmoHybridConfig", {**DELTA, "rope_parameters": {"rope_type": "default", "rope_theta": None}}),
    # without rotation
    "kimi_linear": Case("KimiLinearConfig", {**KIMI_DELTA, "linear_num_heads": 3, "linear_head_dim": 32}),
    "bailing_hybrid": Case("BailingHybridConfig", KIMI_DELTA, attention="eager"),
}
ALL_FAMILIES = FAMILIES | HYBRIDS
