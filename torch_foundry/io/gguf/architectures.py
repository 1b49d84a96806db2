"""What GGUF files of each architecture contain, as data: hyperparameters, tensors, and their names in transformers.

Names and conventions are llama.cpp's. A transformers family that shares an architecture's name in files with another
one (Mixtral's files say "llama") is a variant of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MODEL_LAYER = "model.layers.{}."
BLOCK = "blk.{}."


@dataclass(frozen=True)
class Key:
    """A hyperparameter `<architecture>.<name>`: its field of the config, its type, and the values that a model can
    have.

    default: if the file doesn't have it; REQUIRED: it must. field: "" if it isn't copied into the config unchanged.
    """

    name: str
    field: str
    kind: type
    low: float
    high: float
    default: Any = None


REQUIRED = object()
EPSILON = 1e-30  # of bounds that are not allowed themselves

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
    Key("rope.freq_base", "", float, 1.0, 1e18),
    Key("rope.scaling.type", "", str, 0, 0, "none"),
    Key("rope.scaling.factor", "", float, EPSILON, 1e6, 1.0),
    Key("rope.scaling.attn_factor", "", float, EPSILON, 1e6),
    Key("rope.scaling.original_context_length", "", int, 0, 1 << 27, 0),
    Key("rope.scaling.yarn_beta_fast", "", float, EPSILON, 1e6),
    Key("rope.scaling.yarn_beta_slow", "", float, EPSILON, 1e6),
)
WINDOW = Key("attention.sliding_window", "sliding_window", int, 0, 1 << 27, 0)
PATTERN = Key("attention.sliding_window_pattern", "", object, 0, 0)
SWA_BASE = Key("rope.freq_base_swa", "", float, 1.0, 1e18)
EXPERTS = (
    Key("expert_count", "num_experts", int, 1, 1 << 12, REQUIRED),
    Key("expert_used_count", "num_experts_per_tok", int, 1, 1 << 12, REQUIRED),
    Key("expert_feed_forward_length", "", int, 1, 1 << 24),
)
SOFTCAPS = (
    Key("attn_logit_softcapping", "attn_logit_softcapping", float, EPSILON, 1e6, 50.0),
    Key("final_logit_softcapping", "final_logit_softcapping", float, EPSILON, 1e6, 30.0),
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
    "moe_every_n_layers": (0, 1),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
    "residual_scale": (0.0, 1.0),
    "rope.scale_linear": (1.0,),
    "router_logit_softcapping": (0.0,),
    "use_parallel_residual": (False,),
}


@dataclass(frozen=True)
class Slot:
    """A tensor of the file, the parameter that it is, and its shape in letters.

    H: hidden size, Q, K: all query, all key heads, D: a head, F: feed-forward, V: vocabulary, E: experts, X:
    feed-forward of an expert, S: of the shared expert; "A+B": one after the other. A dimension of 1 may be left out.
    heads: rows are those of heads, which some architectures store in another order.
    """

    tensor: str
    parameter: str
    shape: str
    heads: bool = False


EMBEDDING = Slot("token_embd.weight", "model.embed_tokens.weight", "V H")
NORM = Slot("output_norm.weight", "model.norm.weight", "H")
OUTPUT = Slot("output.weight", "lm_head.weight", "V H")
ROPE_TENSORS = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}  # no parameters

QKVO = (
    Slot("attn_q.weight", "self_attn.q_proj.weight", "Q H", heads=True),
    Slot("attn_k.weight", "self_attn.k_proj.weight", "K H", heads=True),
    Slot("attn_v.weight", "self_attn.v_proj.weight", "K H"),
    Slot("attn_output.weight", "self_attn.o_proj.weight", "H Q"),
)
QKV_BIAS = (
    Slot("attn_q.bias", "self_attn.q_proj.bias", "Q", heads=True),
    Slot("attn_k.bias", "self_attn.k_proj.bias", "K", heads=True),
    Slot("attn_v.bias", "self_attn.v_proj.bias", "K"),
)
QKVO_BIAS = (*QKV_BIAS, Slot("attn_output.bias", "self_attn.o_proj.bias", "H"))
HEAD_NORMS = (
    Slot("attn_q_norm.weight", "self_attn.q_norm.weight", "D"),
    Slot("attn_k_norm.weight", "self_attn.k_norm.weight", "D"),
)
PRE_NORMS = (
    Slot("attn_norm.weight", "input_layernorm.weight", "H"),
    Slot("ffn_norm.weight", "post_attention_layernorm.weight", "H"),
)
POST_NORMS = (
    Slot("post_attention_norm.weight", "post_attention_layernorm.weight", "H"),
    Slot("post_ffw_norm.weight", "post_feedforward_layernorm.weight", "H"),
)
SANDWICH = (
    Slot("attn_norm.weight", "input_layernorm.weight", "H"),
    Slot("ffn_norm.weight", "pre_feedforward_layernorm.weight", "H"),
    *POST_NORMS,
)
MLP = (
    Slot("ffn_gate.weight", "mlp.gate_proj.weight", "F H"),
    Slot("ffn_up.weight", "mlp.up_proj.weight", "F H"),
    Slot("ffn_down.weight", "mlp.down_proj.weight", "H F"),
)
MLP_BIAS = (
    Slot("ffn_gate.bias", "mlp.gate_proj.bias", "F"),
    Slot("ffn_up.bias", "mlp.up_proj.bias", "F"),
    Slot("ffn_down.bias", "mlp.down_proj.bias", "H"),
)
MOE = (
    Slot("ffn_gate_inp.weight", "mlp.gate.weight", "E H"),
    Slot("ffn_gate_exps.weight", "mlp.experts.gate_proj", "E X H"),
    Slot("ffn_up_exps.weight", "mlp.experts.up_proj", "E X H"),
    Slot("ffn_down_exps.weight", "mlp.experts.down_proj", "E H X"),
)
SHARED_EXPERT = (
    Slot("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", "1 H"),
    Slot("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", "S H"),
    Slot("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", "S H"),
    Slot("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", "H S"),
)


@dataclass(frozen=True)
class Architecture:
    """One architecture, or a variant of it.

    config: class of transformers. layer: tensors of each block. options: groups of tensors that a file has in every
    block or in none, by the field of the config that says which. interleaved: rotary pairs lie side by side in the rows
    of a head (transformers has them half a head apart). norm_offset: what the file's norms have been raised by. tied:
    the output layer is always the embedding. pattern: every which layer sees beyond the sliding window. constants:
    fields of the config that follow from the architecture. scalar_layers: number of layers of the one size whose scores
    are scaled by hidden size / heads instead of by the head size. variants: key that is above 0 -> what it is then.
    """

    config: str
    layer: tuple[Slot, ...]
    keys: tuple[Key, ...] = ()
    options: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0
    tied: bool = False
    pattern: int = 0
    partial_rope: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)
    scalar_layers: int = 0
    variants: Mapping[str, Architecture] = field(default_factory=dict)


BIASES = {"attention_bias": QKVO_BIAS, "mlp_bias": MLP_BIAS}
MIXTRAL = Architecture(
    "MixtralConfig",
    (*PRE_NORMS, *QKVO, *MOE),
    (replace(EXPERTS[0], field="num_local_experts"), *EXPERTS[1:], WINDOW),
    interleaved=True,
)
MISTRAL = Architecture("MistralConfig", (*PRE_NORMS, *QKVO, *MLP), (WINDOW,), interleaved=True)
LLAMA = Architecture(
    "LlamaConfig",
    (*PRE_NORMS, *QKVO, *MLP),
    options=BIASES,
    interleaved=True,
    variants={"expert_count": MIXTRAL, "attention.sliding_window": MISTRAL},
)
GEMMA = Architecture("GemmaConfig", (*PRE_NORMS, *QKVO, *MLP), norm_offset=1.0, tied=True)

OLMO2 = Architecture(
    "Olmo2Config",
    (
        *POST_NORMS,
        *QKVO,
        Slot("attn_q_norm.weight", "self_attn.q_norm.weight", "Q"),
        Slot("attn_k_norm.weight", "self_attn.k_norm.weight", "K"),
        *MLP,
    ),
    options={"attention_bias": QKVO_BIAS},
)
OLMO3 = replace(OLMO2, config="Olmo3Config", keys=(WINDOW, PATTERN, SWA_BASE), pattern=4)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": LLAMA,
    "mistral": replace(MISTRAL, variants={"expert_count": MIXTRAL}),
    "qwen2": Architecture("Qwen2Config", (*PRE_NORMS, *QKVO, *QKV_BIAS, *MLP)),
    "qwen2moe": Architecture(
        "Qwen2MoeConfig",
        (*PRE_NORMS, *QKVO, *MOE, *SHARED_EXPERT),
        (
            *EXPERTS,
            Key("expert_shared_feed_forward_length", "", int, 1, 1 << 24),
            Key("expert_weights_norm", "norm_topk_prob", bool, 0, 1, False),
        ),
        options={"qkv_bias": QKV_BIAS},
    ),
    "qwen3": Architecture("Qwen3Config", (*PRE_NORMS, *QKVO, *HEAD_NORMS, *MLP), options={"attention_bias": QKVO_BIAS}),
    "qwen3moe": Architecture(
        "Qwen3MoeConfig",
        (*PRE_NORMS, *QKVO, *HEAD_NORMS, *MOE),
        (*EXPERTS, Key("expert_weights_norm", "norm_topk_prob", bool, 0, 1, True)),
        options={"attention_bias": QKVO_BIAS},
    ),
    "phi3": Architecture(
        "Phi3Config",
        (
            *PRE_NORMS,
            Slot("attn_qkv.weight", "self_attn.qkv_proj.weight", "Q+K+K H"),
            Slot("attn_output.weight", "self_attn.o_proj.weight", "H Q"),
            Slot("ffn_up.weight", "mlp.gate_up_proj.weight", "F+F H"),
            Slot("ffn_down.weight", "mlp.down_proj.weight", "H F"),
        ),
        (WINDOW,),
        partial_rope=True,
    ),
    "gemma": GEMMA,
    "gemma2": replace(
        GEMMA,
        config="Gemma2Config",
        layer=(*SANDWICH, *QKVO, *MLP),
        keys=(*SOFTCAPS, replace(WINDOW, default=4096)),
        pattern=2,
        scalar_layers=46,
    ),
    "gemma3": replace(
        GEMMA,
        config="Gemma3TextConfig",
        layer=(*SANDWICH, *QKVO, *HEAD_NORMS, *MLP),
        keys=(replace(SOFTCAPS[1], default=None), WINDOW, PATTERN, replace(SWA_BASE, default=1e4)),
        pattern=6,
        scalar_layers=62,
    ),
    "granite": Architecture(
        "GraniteConfig",
        (*PRE_NORMS, *QKVO, *MLP),
        (
            Key("attention.scale", "attention_multiplier", float, EPSILON, 1e6),
            Key("residual_scale", "residual_multiplier", float, EPSILON, 1e6, 1.0),
            Key("embedding_scale", "embedding_multiplier", float, EPSILON, 1e6, 1.0),
            Key("logit_scale", "logits_scaling", float, EPSILON, 1e6, 1.0),
        ),
        options=BIASES,
        interleaved=True,
    ),
    "olmo2": replace(OLMO2, variants={"attention.sliding_window": OLMO3}),
    "smollm3": Architecture("SmolLM3Config", (*PRE_NORMS, *QKVO, *MLP), options=BIASES, interleaved=True),
}
