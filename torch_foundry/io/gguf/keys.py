"""Hyperparameters in GGUF metadata, as data: by which keys, and the values that a model can have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Key:
    """A hyperparameter `<architecture>.<name>`: its field of the config, its type, and the values that a model can
    have.

    default: if the file doesn't have it; REQUIRED: it must. field: "" if it isn't copied into the config unchanged.
    also: another name that it may have; it is written under both.
    """

    name: str
    field: str
    kind: type
    low: float
    high: float
    default: Any = None
    also: str = ""


def elements(value: Any, count: int) -> list[Any]:
    """Of an array of so many; none of anything else that metadata may have."""
    found: list[Any] = value.tolist() if hasattr(value, "tolist") and len(value) == count else []
    return found


REQUIRED = object()
EPSILON = 1e-30  # of bounds that are not allowed themselves
BASE = Key("rope.freq_base", "", float, 1.0, 1e18, 1e4)
COMMON = (
    Key("context_length", "max_position_embeddings", int, 1, 1 << 27, REQUIRED),
    Key("embedding_length", "hidden_size", int, 1, 1 << 20, REQUIRED),
    Key("block_count", "num_hidden_layers", int, 1, 1 << 12, REQUIRED),
    Key("feed_forward_length", "intermediate_size", int, 1, 1 << 24, REQUIRED),
    Key("attention.head_count", "num_attention_heads", int, 1, 1 << 14, REQUIRED),
    Key("attention.head_count_kv", "", int, 1, 1 << 14),
    Key("attention.key_length", "", int, 1, 1 << 14),
    Key("attention.value_length", "", int, 1, 1 << 14),
    Key("attention.layer_norm_rms_epsilon", "rms_norm_eps", float, EPSILON, 0.1, REQUIRED),
    Key("vocab_size", "", int, 1, 1 << 31),
    Key("rope.dimension_count", "", int, 2, 1 << 14),
    BASE,
    Key("rope.scaling.type", "", str, 0, 0, "none"),
    Key("rope.scaling.factor", "", float, EPSILON, 1e6, 1.0),
    Key("rope.scaling.attn_factor", "", float, EPSILON, 1e6),
    Key("rope.scaling.original_context_length", "", int, 0, 1 << 27, 0),
    Key("rope.scaling.yarn_beta_fast", "", float, EPSILON, 1e6),
    Key("rope.scaling.yarn_beta_slow", "", float, EPSILON, 1e6),
)
SCALED_QUERIES = (  # by position, as of Llama 4
    Key("attention.temperature_scale", "", float, EPSILON, 1e6, REQUIRED),
    Key("rope.scaling.yarn_log_multiplier", "", float, EPSILON, 1e6),
)
WINDOW = Key("attention.sliding_window", "sliding_window", int, 0, 1 << 27, 0)
PATTERN = Key("attention.sliding_window_pattern", "", object, 0, 0)
ROTATED_WINDOWS = (
    *(replace(WINDOW, low=1, default=REQUIRED), replace(PATTERN, default=REQUIRED)),
    Key("attention.rope_pattern", "", object, 0, 0),  # which layers rotate heads
)
SWA_BASE = Key("rope.freq_base_swa", "", float, 1.0, 1e18)
BASES = (replace(BASE, default=1e6), replace(SWA_BASE, default=1e4))  # of Gemma from 3 on
EXPERTS = (
    Key("expert_count", "num_experts", int, 1, 1 << 12, REQUIRED),
    Key("expert_used_count", "num_experts_per_tok", int, 1, 1 << 12, REQUIRED),
    Key("expert_feed_forward_length", "", int, 1, 1 << 24),
)
NORMALIZED = Key("expert_weights_norm", "norm_topk_prob", bool, 0, 1, False)
ROUTED_EXPERTS = (  # of DeepSeek's kind: chosen by sigmoids, beside experts that all tokens go to
    replace(EXPERTS[0], field="n_routed_experts"),
    EXPERTS[1],
    replace(EXPERTS[2], default=REQUIRED),
    Key("expert_shared_count", "n_shared_experts", int, 1, 1 << 7, REQUIRED),
    Key("expert_weights_scale", "routed_scaling_factor", float, EPSILON, 1e6, 1.0),
    NORMALIZED,
    Key("expert_gating_func", "", int, 2, 2, 2),  # sigmoid
    Key("expert_group_count", "n_group", int, 1, 1 << 7, 1),
    Key("expert_group_used_count", "topk_group", int, 1, 1 << 7, 1),
    Key("leading_dense_block_count", "first_k_dense_replace", int, 0, 1 << 12, 0),
    Key("nextn_predict_layers", "", int, 0, 1 << 12, 0),
)
SOFTMAX_EXPERTS = (*ROUTED_EXPERTS, Key("expert_gating_func", "", int, 1, 1, 1))  # of DeepSeek V2
LATENT_KEYS = (
    Key("attention.kv_lora_rank", "kv_lora_rank", int, 1, 1 << 14, REQUIRED),
    Key("attention.q_lora_rank", "q_lora_rank", int, 1, 1 << 14),
    *(Key(f"attention.{name}_length", "", int, 1, 1 << 15, REQUIRED) for name in ("key", "value")),
    *(Key(f"attention.{name}_length_mla", "", int, 1, 1 << 14) for name in ("key", "value")),
    Key("rope.dimension_count", "qk_rope_head_dim", int, 2, 1 << 14, REQUIRED),
    Key("rope.scaling.yarn_log_multiplier", "", float, EPSILON, 1e6),
)
GROWING_KEYS = (  # of Mistral 4, besides; llama.cpp's converter leaves out by how much queries grow
    Key("attention.temperature_scale", "", float, 0.0, 1e6, 0.1),
    Key("attention.temperature_length", "", int, 1, 1 << 27),
)
LOCAL_EXPERTS = (replace(EXPERTS[0], field="num_local_experts"), *EXPERTS[1:])
SHARED = Key("expert_shared_feed_forward_length", "", int, 1, 1 << 24)


def _state_keys(taps: str, size: str, keys: str, values: str) -> tuple[Key, ...]:
    """Of recurrent states: fields for the convolution's tokens, a key head, and how many heads of either kind."""
    return (
        Key("ssm.conv_kernel", taps, int, 1, 1 << 7, REQUIRED),
        Key("ssm.state_size", size, int, 1, 1 << 14, REQUIRED),
        Key("ssm.group_count", keys, int, 1, 1 << 14, REQUIRED),
        Key("ssm.time_step_rank", values, int, 1, 1 << 14, REQUIRED),
        Key("ssm.inner_size", "", int, 1, 1 << 20, REQUIRED),
    )


DELTA_KEYS = (
    *_state_keys("linear_conv_kernel_dim", "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads"),
    Key("full_attention_interval", "", int, 1, 1 << 12, 4),
    Key("nextn_predict_layers", "", int, 0, 1 << 12, 0),
)
BY_BLOCK = Key("attention.head_count_kv", "", object, 1, 1 << 14)  # 0: such a block has no attention
STATE_KEYS = (  # of Mamba2
    *_state_keys("mamba_d_conv", "mamba_d_state", "mamba_n_groups", "mamba_n_heads"),
    Key("rope.scaling.finetuned", "", bool, 0, 1, True),  # whether heads are rotated
    BY_BLOCK,
)
FALCON_H1_KEYS = (*STATE_KEYS[:4], replace(STATE_KEYS[4], field="mamba_d_ssm"))
NEMOTRON_H_KEYS = (
    Key(
        *("attention.layer_norm_rms_epsilon", "layer_norm_epsilon", float, EPSILON, 0.1, REQUIRED),
        also="attention.layer_norm_epsilon",  # without which llama.cpp opens no file, and which may be the only one
    ),
    *_state_keys("conv_kernel", "ssm_state_size", "n_groups", "mamba_num_heads"),
    BY_BLOCK,
    Key("feed_forward_length", "", object, 1, 1 << 24, REQUIRED),  # 0: such a block has none
)
NEMOTRON_H_MOE_KEYS = (
    *NEMOTRON_H_KEYS,
    *(key for key in ROUTED_EXPERTS if key.name != "leading_dense_block_count"),
    replace(SHARED, field="moe_shared_expert_intermediate_size", default=REQUIRED),
    Key("moe_latent_size", "", int, 0, 1 << 20, 0),  # of what experts see; 0: of what the router sees
)
_OF_KIMI: dict[str, dict[str, Any]] = {
    "attention.value_length": {"default": None},
    "expert_count": {"field": "num_local_experts"},
    "expert_weights_norm": {"default": True},  # which llama.cpp's converter doesn't say
}
KIMI_LINEAR_KEYS = (
    BY_BLOCK,
    *(replace(key, **_OF_KIMI.get(key.name, {})) for key in (*LATENT_KEYS, *ROUTED_EXPERTS)),
    DELTA_KEYS[0],
    Key("kda.head_dim", "linear_head_dim", int, 1, 1 << 14, REQUIRED),
)
CONV_KEYS = (
    BY_BLOCK,
    Key("attention.layer_norm_rms_epsilon", "norm_eps", float, EPSILON, 0.1, REQUIRED),
    Key("shortconv.l_cache", "conv_L_cache", int, 1, 1 << 7, REQUIRED),
)
CONV_MOE_KEYS = (
    *CONV_KEYS,
    *(EXPERTS[0], EXPERTS[1], replace(EXPERTS[2], default=REQUIRED)),
    Key("expert_weights_scale", "routed_scaling_factor", float, EPSILON, 1e6, 1.0),
    replace(NORMALIZED, default=True),
    Key("expert_gating_func", "", int, 2, 2, 2),  # sigmoid
    Key("leading_dense_block_count", "num_dense_layers", int, 0, 1 << 12, 0),
)
SECTIONS = Key("rope.dimension_sections", "", object, 0, 0)
TEXT_SECTIONS = replace(SECTIONS, default=REQUIRED)  # of a picture's model: all positions of a text are the same
MROPE = {"mrope_section": [11, 11, 10], "mrope_interleaved": True}  # whose positions are all the same for text
SOFTCAPS = (
    Key("attn_logit_softcapping", "attn_logit_softcapping", float, EPSILON, 1e6, 50.0),
    Key("final_logit_softcapping", "final_logit_softcapping", float, EPSILON, 1e6, 30.0),
)
FREE_SOFTCAP = replace(SOFTCAPS[1], default=None)
GEMMA4_KEYS = (
    *(FREE_SOFTCAP, replace(WINDOW, low=1, default=REQUIRED), PATTERN, *BASES),
    replace(BY_BLOCK, default=REQUIRED),
    Key("feed_forward_length", "", object, 1, 1 << 24, REQUIRED),  # of each block, it may be
    *(Key(f"attention.key_length{suffix}", "", int, 2, 1 << 14, REQUIRED) for suffix in ("", "_swa")),
    Key("attention.value_length_swa", "", int, 1, 1 << 14),
    Key("attention.shared_kv_layers", "num_kv_shared_layers", int, 0, 1 << 12, 0),
    Key("embedding_length_per_layer_input", "hidden_size_per_layer_input", int, 0, 1 << 16, 0),
    Key("rope.dimension_count_swa", "", int, 2, 1 << 14),
    replace(EXPERTS[0], low=0, default=None),
    replace(EXPERTS[1], field="top_k_experts", default=None),
    EXPERTS[2],
)

# What files may say about models of any architecture, with the values that change nothing. Where an architecture has
# no use for the key, other values mean a model that isn't known here.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attention.sliding_window_pattern": (0, 1),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_gating_func": (0, 1),  # softmax
    "expert_group_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_used_count": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0.0, 1.0),
    "final_logit_softcapping": (0.0,),
    "interleave_moe_layer_step": (0, 1),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "mamba_norm_before_gate": (False,),
    "mlp_down_multiplier": (1.0,),
    "mlp_gate_multiplier": (1.0,),
    "moe_latent_size": (0,),
    "moe_every_n_layers": (0, 1),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.scale_linear": (1.0,),
    "router_logit_softcapping": (0.0,),
    "ssm.has_mup": (False,),
    "use_parallel_residual": (False,),
}
