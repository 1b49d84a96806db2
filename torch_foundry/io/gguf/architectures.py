"""What GGUF files of each architecture contain, as data: hyperparameters, and which tensors.

Names and conventions are llama.cpp's. A transformers family that shares an architecture's name in files with another
one (Mixtral's files say "llama") is a variant of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch_foundry.io.gguf.keys import (
    COMMON,
    CONV_KEYS,
    DELTA_KEYS,
    EPSILON,
    EXPERTS,
    LOCAL_EXPERTS,
    MROPE,
    PATTERN,
    REQUIRED,
    ROUTED_EXPERTS,
    SCALED_QUERIES,
    SECTIONS,
    SHARED,
    SOFTCAPS,
    SWA_BASE,
    WINDOW,
    Key,
)
from torch_foundry.io.gguf.slots import (
    DEEPSEEK_MOE,
    DELTA,
    FULL_NORMS,
    GATED_QKVO,
    GLM4_NORMS,
    GPT_OSS_MOE,
    GRANITE_MOE,
    HEAD_NORMS,
    JOINED_MLP,
    LATE_NORMS,
    LFM2,
    LFM2_NORM,
    MLP,
    MLP_BIAS,
    MOE,
    NORM,
    NORMS_OF_ROTATED_HEADS,
    POST_NORMS,
    PRE_NORMS,
    QKV_BIAS,
    QKVO,
    QKVO_BIAS,
    SANDWICH,
    SHARED_EXPERT,
    SHORT_CONV,
    TILED_DELTA,
    Slot,
)


@dataclass(frozen=True)
class Architecture:
    """One architecture, or a variant of it.

    config: class of transformers. layer: tensors of each block. options: groups of tensors that a file has in every
    block or in none, by the field of the config that says which. interleaved: rotary pairs lie side by side in the rows
    of a head (transformers has them half a head apart). norm_offset: what the file's norms have been raised by. tied:
    the output layer is always the embedding. pattern: every which layer sees beyond the sliding window. constants:
    fields of the config that follow from the architecture. scalar_layers: number of layers of the one size whose scores
    are scaled by hidden size / heads instead of by the head size. recurrent: tensors of blocks without attention, in
    place of its own; kind: their type in the config. norm: the last norm. leading: the feed-forward block of the first
    blocks, as many as leading_dense_block_count says, in place of experts. expert_size: field of the config that has
    the feed-forward length of an expert. rope: what rope parameters of a type have besides what files say. variants:
    key that is above 0 -> what it is then.
    """

    config: str
    layer: tuple[Slot, ...]
    own_keys: tuple[Key, ...] = ()
    options: Mapping[str, tuple[Slot, ...]] = field(default_factory=dict)
    interleaved: bool = False
    norm_offset: float = 0.0
    tied: bool = False
    pattern: int = 0
    partial_rope: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)
    scalar_layers: int = 0
    recurrent: tuple[Slot, ...] = ()
    kind: str = "linear_attention"
    norm: Slot = NORM
    leading: tuple[Slot, ...] = ()
    rope: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expert_size: str = "moe_intermediate_size"
    variants: Mapping[str, Architecture] = field(default_factory=dict)

    @property
    def keys(self) -> tuple[Key, ...]:
        """All hyperparameters; its own take the place of common ones."""
        return tuple({key.name: key for key in (*COMMON, *self.own_keys)}.values())

    def slots(self, recurrent: bool, leading: bool = False) -> tuple[Slot, ...]:
        """The tensors of a block with attention, or of one with a recurrent state; or of one of the leading ones."""
        if leading:
            return (*(slot for slot in self.layer if not slot.parameter.startswith("mlp.")), *self.leading)
        if not recurrent:
            return self.layer
        return (*self.recurrent, *(slot for slot in self.layer if not slot.parameter.startswith("self_attn.")))


BIASES = {"attention_bias": QKVO_BIAS, "mlp_bias": MLP_BIAS}
MIXTRAL = Architecture(
    "MixtralConfig",
    (*PRE_NORMS, *QKVO, *MOE),
    (*LOCAL_EXPERTS, WINDOW),
    interleaved=True,
    expert_size="intermediate_size",
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
        *FULL_NORMS,
        *MLP,
    ),
    options={"attention_bias": QKVO_BIAS},
)
OLMO3 = replace(OLMO2, config="Olmo3Config", own_keys=(WINDOW, PATTERN, SWA_BASE), pattern=4)
GRANITE = Architecture(
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

ARCHITECTURES: dict[str, Architecture] = {
    "llama": LLAMA,
    "mistral": replace(MISTRAL, variants={"expert_count": MIXTRAL}),
    "qwen2": Architecture("Qwen2Config", (*PRE_NORMS, *QKVO, *QKV_BIAS, *MLP)),
    "qwen2moe": Architecture(
        "Qwen2MoeConfig",
        (*PRE_NORMS, *QKVO, *MOE, *SHARED_EXPERT),
        (
            *EXPERTS,
            SHARED,
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
            *JOINED_MLP,
        ),
        (WINDOW,),
        partial_rope=True,
    ),
    "gemma": GEMMA,
    "gemma2": replace(
        GEMMA,
        config="Gemma2Config",
        layer=(*SANDWICH, *QKVO, *MLP),
        own_keys=(*SOFTCAPS, replace(WINDOW, default=4096)),
        pattern=2,
        scalar_layers=46,
    ),
    "gemma3": replace(
        GEMMA,
        config="Gemma3TextConfig",
        layer=(*SANDWICH, *QKVO, *HEAD_NORMS, *MLP),
        own_keys=(replace(SOFTCAPS[1], default=None), WINDOW, PATTERN, replace(SWA_BASE, default=1e4)),
        pattern=6,
        scalar_layers=62,
    ),
    "granite": GRANITE,
    "mistral3": replace(
        MISTRAL,
        variants={
            "attention.temperature_scale": replace(
                MISTRAL, config="Ministral3Config", own_keys=(WINDOW, *SCALED_QUERIES)
            )
        },
    ),
    "ernie4_5": Architecture("Ernie4_5Config", (*PRE_NORMS, *QKVO, *MLP)),
    "hunyuan-dense": Architecture(
        "HunYuanDenseV1Config",
        (*PRE_NORMS, *QKVO, *NORMS_OF_ROTATED_HEADS, *MLP),
    ),
    "glm4": Architecture(
        "Glm4Config",
        (*GLM4_NORMS, *QKVO, *JOINED_MLP),
        options={"attention_bias": QKV_BIAS},
        partial_rope=True,
    ),
    "glm4moe": Architecture(
        "Glm4MoeConfig",
        (*LATE_NORMS, *QKVO, *DEEPSEEK_MOE),
        ROUTED_EXPERTS,
        options={"attention_bias": QKV_BIAS, "use_qk_norm": HEAD_NORMS},
        partial_rope=True,
        leading=MLP,
    ),
    "granitemoe": replace(
        GRANITE,
        config="GraniteMoeConfig",
        layer=(*PRE_NORMS, *QKVO, *GRANITE_MOE),
        own_keys=(*GRANITE.own_keys, *LOCAL_EXPERTS),
        options={"attention_bias": QKVO_BIAS},
        expert_size="intermediate_size",
    ),
    "olmo2": replace(OLMO2, variants={"attention.sliding_window": OLMO3}),
    "smollm3": Architecture("SmolLM3Config", (*PRE_NORMS, *QKVO, *MLP), options=BIASES, interleaved=True),
    "olmoe": Architecture(
        "OlmoeConfig",
        (*PRE_NORMS, *QKVO, *FULL_NORMS, *MOE),
        (*EXPERTS, Key("expert_weights_norm", "norm_topk_prob", bool, 0, 1, False)),
        expert_size="intermediate_size",
    ),
    "seed_oss": Architecture(
        "SeedOssConfig",
        (*LATE_NORMS, *QKVO, *MLP),
        options={"attention_bias": QKV_BIAS, "attention_out_bias": QKVO_BIAS[3:], "mlp_bias": MLP_BIAS},
    ),
    "exaone4": Architecture("Exaone4Config", (*POST_NORMS, *QKVO, *HEAD_NORMS, *MLP), (WINDOW, PATTERN), pattern=4),
    "gpt-oss": Architecture(
        "GptOssConfig",
        (*LATE_NORMS, *QKVO, *QKVO_BIAS, *GPT_OSS_MOE),
        (*LOCAL_EXPERTS, WINDOW),
        pattern=2,
        expert_size="intermediate_size",
        rope={"yarn": {"truncate": False}},
    ),
    "lfm2": Architecture(
        "Lfm2Config",
        LFM2,
        CONV_KEYS,
        constants={"block_auto_adjust_ff_dim": False},
        recurrent=SHORT_CONV,
        kind="conv",
        norm=LFM2_NORM,
    ),
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
