"""What GGUF files of each architecture contain, as data: hyperparameters, and which tensors.

Names and conventions are llama.cpp's. A transformers family that shares an architecture's name in files with another
one (Mixtral's files say "llama") is a variant of it.
"""

from __future__ import annotations

from dataclasses import replace

from torch_foundry.io.gguf.architecture import Architecture
from torch_foundry.io.gguf.dense import DENSE
from torch_foundry.io.gguf.granite import GRANITES
from torch_foundry.io.gguf.hybrids import HYBRIDS
from torch_foundry.io.gguf.keys import (
    BASES,
    EXPERTS,
    FREE_SOFTCAP,
    GEMMA4_KEYS,
    GROWING_KEYS,
    LATENT_KEYS,
    LOCAL_EXPERTS,
    NORMALIZED,
    PATTERN,
    ROUTED_EXPERTS,
    SCALED_QUERIES,
    SHARED,
    SOFTCAPS,
    SOFTMAX_EXPERTS,
    SWA_BASE,
    TEXT_SECTIONS,
    WINDOW,
    Key,
)
from torch_foundry.io.gguf.mixtures import MIXTURES
from torch_foundry.io.gguf.slots import (
    BIASES,
    DEEPSEEK_MOE,
    FULL_NORMS,
    GEMMA4,
    GEMMA4_OUTER,
    GLM4_NORMS,
    GPT_OSS_MOE,
    HEAD_NORMS,
    JOINED_MLP,
    LATE_NORMS,
    LATENT,
    MLP,
    MLP_BIAS,
    MOE,
    NORMS_OF_ROTATED_HEADS,
    POST_NORMS,
    PRE_NORMS,
    QKV_BIAS,
    QKVO,
    QKVO_BIAS,
    SANDWICH,
    SHARED_EXPERT,
    Slot,
)
from torch_foundry.io.gguf.streams import GEMMA3N

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
    (*POST_NORMS, *QKVO, *FULL_NORMS, *MLP),
    options={"attention_bias": QKVO_BIAS},
)
OLMO3 = replace(OLMO2, config="Olmo3Config", own_keys=(WINDOW, PATTERN, SWA_BASE), pattern=4)
QWEN2 = Architecture("Qwen2Config", (*PRE_NORMS, *QKVO, *QKV_BIAS, *MLP))
QWEN3 = Architecture("Qwen3Config", (*PRE_NORMS, *QKVO, *HEAD_NORMS, *MLP), options={"attention_bias": QKVO_BIAS})
QWEN3MOE = Architecture(
    "Qwen3MoeConfig",
    (*PRE_NORMS, *QKVO, *HEAD_NORMS, *MOE),
    (*EXPERTS, replace(NORMALIZED, default=True)),
    options={"attention_bias": QKVO_BIAS},
)

DEEPSEEK2 = Architecture(
    "DeepseekV2Config",
    (*LATENT, *(slot for slot in DEEPSEEK_MOE if not slot.tensor.endswith("bias"))),
    (*LATENT_KEYS, *SOFTMAX_EXPERTS),
    leading=MLP,
    blocks="latent",
    unused=frozenset({"n_group", "norm_topk_prob", "topk_group"}),  # None of greedy routing
)
YOUTU = replace(
    DEEPSEEK2,
    config="YoutuConfig",
    layer=(*LATENT, *MLP),
    own_keys=(*LATENT_KEYS, Key("leading_dense_block_count", "", int, 0, 1 << 12)),
    constants={"rope_interleave": True},
    unused=frozenset(),
)
DEEPSEEK3 = replace(
    DEEPSEEK2,
    config="DeepseekV3Config",
    layer=(*LATENT, *DEEPSEEK_MOE),
    own_keys=(*LATENT_KEYS, *ROUTED_EXPERTS),
    constants={"rope_interleave": True},
    unused=frozenset(),
)
MISTRAL4 = replace(
    DEEPSEEK2,
    config="Mistral4Config",
    own_keys=(*DEEPSEEK2.own_keys, *GROWING_KEYS),
    constants={"rope_interleave": True},
    unused=frozenset(),
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": LLAMA,
    "mistral": replace(MISTRAL, variants={"expert_count": MIXTRAL}),
    "qwen2": QWEN2,
    "qwen2vl": replace(QWEN2, own_keys=(TEXT_SECTIONS,)),
    "qwen2moe": Architecture(
        "Qwen2MoeConfig",
        (*PRE_NORMS, *QKVO, *MOE, *SHARED_EXPERT),
        (*EXPERTS, SHARED, NORMALIZED),
        options={"qkv_bias": QKV_BIAS},
    ),
    "qwen3": QWEN3,
    "qwen3moe": QWEN3MOE,
    "qwen3vl": replace(QWEN3, own_keys=(TEXT_SECTIONS,)),
    "qwen3vlmoe": replace(QWEN3MOE, own_keys=(*QWEN3MOE.own_keys, TEXT_SECTIONS)),
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
        own_keys=(FREE_SOFTCAP, WINDOW, PATTERN, *BASES),
        pattern=6,
        scalar_layers=62,
    ),
    "gemma4": Architecture("Gemma4TextConfig", GEMMA4, GEMMA4_KEYS, tied=True, outer=GEMMA4_OUTER, blocks="two_kinds"),
    "gemma3n": GEMMA3N,
    "mistral3": replace(
        MISTRAL,
        variants={
            "attention.temperature_scale": replace(
                MISTRAL, config="Ministral3Config", own_keys=(WINDOW, *SCALED_QUERIES)
            )
        },
    ),
    "ernie4_5": Architecture("Ernie4_5Config", (*PRE_NORMS, *QKVO, *MLP)),
    "hunyuan-dense": Architecture("HunYuanDenseV1Config", (*PRE_NORMS, *QKVO, *NORMS_OF_ROTATED_HEADS, *MLP)),
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
    "mistral4": MISTRAL4,
    # only DeepSeek V3's kind (GLM-4.7-Flash, too) chooses by sigmoids, and has weights that add up to 1
    "deepseek2": replace(
        YOUTU,
        variants={
            "attention.temperature_scale": MISTRAL4,  # Mistral Large 3, too
            "expert_gating_func=2": DEEPSEEK3,
            "expert_weights_norm": DEEPSEEK3,
            "expert_count": DEEPSEEK2,
        },
    ),
    "olmo2": replace(OLMO2, variants={"attention.sliding_window": OLMO3}),
    "smollm3": Architecture("SmolLM3Config", (*PRE_NORMS, *QKVO, *MLP), options=BIASES, interleaved=True),
    "olmoe": Architecture(
        "OlmoeConfig",
        (*PRE_NORMS, *QKVO, *FULL_NORMS, *MOE),
        (*EXPERTS, NORMALIZED),
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
    **GRANITES,
    **DENSE,
    **MIXTURES,
    **HYBRIDS,
}
