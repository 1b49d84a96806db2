"""What GGUF files of further models without experts contain: those with LayerNorm, or with an MLP without a gate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch_foundry.io.gguf.architecture import Architecture
from torch_foundry.io.gguf.keys import EPSILON, PATTERN, REQUIRED, WINDOW, Key
from torch_foundry.io.gguf.slots import (
    EMBEDDING,
    HEAD_NORMS,
    JOINED_MLP,
    MLP,
    MLP_BIAS,
    NORM,
    PRE_NORMS,
    QKV_BIAS,
    QKVO,
    QKVO_BIAS,
    Slot,
)


def _biased(*slots: Slot) -> Iterator[Slot]:
    """Weights, and a bias for each."""
    for slot in slots:
        yield slot
        tensor, parameter = (name.removesuffix("weight") + "bias" for name in (slot.tensor, slot.parameter))
        yield replace(slot, tensor=tensor, parameter=parameter, shape=slot.shape.split()[0])


def _epsilon(field: str) -> tuple[Key, Key]:
    """That of LayerNorm, beside which some files have another that nothing uses."""
    said = Key("attention.layer_norm_epsilon", field, float, EPSILON, 0.1, REQUIRED)
    return said, Key("attention.layer_norm_rms_epsilon", "", float, EPSILON, 0.1)


LAYER_NORMS = tuple(_biased(*PRE_NORMS))
LAST_BIAS = Slot("output_norm.bias", "model.norm.bias", "H")
APERTUS_NORMS = ("attention_layernorm.weight", "feedforward_layernorm.weight")
PARALLEL = Key("use_parallel_residual", "", bool, 1, 1, REQUIRED)
SCALE = Key("logit_scale", "logit_scale", float, EPSILON, 1e6, REQUIRED)

# an MLP with the square of ReLU
ARCEE = Architecture(
    "ArceeConfig",
    (*PRE_NORMS, *QKVO, *MLP[1:]),
    options={"attention_bias": QKVO_BIAS, "mlp_bias": MLP_BIAS[1:]},
    interleaved=True,
)
NEMOTRON = replace(
    ARCEE,
    config="NemotronConfig",
    layer=(*LAYER_NORMS, *QKVO, *MLP[1:]),
    own_keys=_epsilon("norm_eps"),
    interleaved=False,
    norm_offset=1.0,
    partial_rope=True,
    outer=(LAST_BIAS,),
)
JAIS2 = Architecture(
    "Jais2Config",
    (*LAYER_NORMS, *_biased(*QKVO, *MLP[1:])),
    _epsilon("layer_norm_eps"),
    constants={"attention_bias": True, "mlp_bias": True},
    outer=(LAST_BIAS,),
)
# llama.cpp's files don't say that it has a window, if it has one
STARCODER2 = Architecture(
    "Starcoder2Config",
    (
        *(*LAYER_NORMS, *_biased(*QKVO)),
        *_biased(replace(MLP[1], parameter="mlp.c_fc.weight"), replace(MLP[2], parameter="mlp.c_proj.weight")),
    ),
    (*_epsilon("norm_epsilon"), WINDOW),
    constants={"use_bias": True},
    outer=(LAST_BIAS,),
)
STABLELM_PARALLEL = Architecture(
    "StableLmConfig",
    (*LAYER_NORMS[:2], *QKVO, *MLP),
    (*_epsilon("layer_norm_eps"), PARALLEL),
    options={"use_qkv_bias": QKV_BIAS},
    partial_rope=True,
    constants={"use_parallel_residual": True},
    outer=(LAST_BIAS,),
)
STABLELM = replace(
    STABLELM_PARALLEL,
    layer=(*LAYER_NORMS, *QKVO, *MLP),
    own_keys=_epsilon("layer_norm_eps"),
    constants={"use_parallel_residual": False},
    variants={"use_parallel_residual": STABLELM_PARALLEL},
)
PHI2 = Architecture(
    "PhiConfig",
    (
        *_biased(PRE_NORMS[0], *QKVO[:3], replace(QKVO[3], parameter="self_attn.dense.weight")),
        *_biased(replace(MLP[1], parameter="mlp.fc1.weight"), replace(MLP[2], parameter="mlp.fc2.weight")),
    ),
    _epsilon("layer_norm_eps"),
    partial_rope=True,
    norm=replace(NORM, parameter="model.final_layernorm.weight"),
    outer=(
        replace(LAST_BIAS, parameter="model.final_layernorm.bias"),
        Slot("output.bias", "lm_head.bias", "V"),
    ),
)
# whose norms have no weights, and one epsilon
OLMO = Architecture(
    "OlmoConfig",
    (*QKVO, *MLP),
    (
        replace(_epsilon("")[0], low=1e-5, high=1e-5),
        _epsilon("")[1],
        Key("attention.clamp_kqv", "clip_qkv", float, EPSILON, 1e6),
    ),
    interleaved=True,
    norm=None,
)
COMMAND_R = Architecture(
    "CohereConfig",
    (PRE_NORMS[0], *QKVO, *MLP),
    (*_epsilon("layer_norm_eps"), SCALE),
    options={
        "use_qk_norm": (
            Slot("attn_q_norm.weight", "self_attn.q_norm.weight", "A D"),
            Slot("attn_k_norm.weight", "self_attn.k_norm.weight", "G D"),
        )
    },
    tied=True,
)
COHERE2 = replace(
    COMMAND_R,
    config="Cohere2Config",
    own_keys=(*COMMAND_R.own_keys, replace(WINDOW, low=1, default=REQUIRED), PATTERN),
    options={},
    pattern=4,
)
GLM = Architecture(
    "GlmConfig", (*PRE_NORMS, *QKVO, *JOINED_MLP), options={"attention_bias": QKV_BIAS}, partial_rope=True
)
APERTUS = Architecture(
    "ApertusConfig",
    (
        *(replace(slot, parameter=name) for slot, name in zip(PRE_NORMS, APERTUS_NORMS, strict=True)),
        *(*QKVO, *HEAD_NORMS, *MLP[1:]),
    ),
    options={"attention_bias": QKVO_BIAS},
    xielu=True,
)
# whose files don't say which GELU it has; llama.cpp has one for all
GPT_NEOX = Architecture(
    "GPTNeoXConfig",
    (
        *LAYER_NORMS,
        Slot("attn_qkv.weight", "attention.query_key_value.weight", "Q+Q+Q H", layout="by head"),
        Slot("attn_qkv.bias", "attention.query_key_value.bias", "Q+Q+Q", layout="by head"),
        *_biased(
            replace(QKVO[3], parameter="attention.dense.weight"),
            replace(MLP[1], parameter="mlp.dense_h_to_4h.weight"),
            replace(MLP[2], parameter="mlp.dense_4h_to_h.weight"),
        ),
    ),
    (*_epsilon("layer_norm_eps"), Key("use_parallel_residual", "use_parallel_residual", bool, 0, 1, REQUIRED)),
    partial_rope=True,
    constants={"attention_bias": True},
    embedding=replace(EMBEDDING, parameter="gpt_neox.embed_in.weight"),
    norm=replace(NORM, parameter="gpt_neox.final_layer_norm.weight"),
    block="gpt_neox.layers.{}.",
    outer=(replace(LAST_BIAS, parameter="gpt_neox.final_layer_norm.bias"),),
)
# of 7B, whose queries share one key
FALCON = Architecture(
    "FalconConfig",
    (
        *LAYER_NORMS[:2],
        Slot("attn_qkv.weight", "self_attention.query_key_value.weight", "Q+K+K H"),
        replace(QKVO[3], parameter="self_attention.dense.weight"),
        replace(MLP[1], parameter="mlp.dense_h_to_4h.weight"),
        replace(MLP[2], parameter="mlp.dense_4h_to_h.weight"),
    ),
    (
        *_epsilon("layer_norm_epsilon"),
        Key("attention.head_count_kv", "", int, 1, 1, REQUIRED),
        Key("feed_forward_length", "ffn_hidden_size", int, 1, 1 << 24, REQUIRED),
    ),
    constants={"multi_query": True, "parallel_attn": True, "new_decoder_architecture": False, "alibi": False},
    unused=frozenset({"num_kv_heads"}),
    embedding=replace(EMBEDDING, parameter="transformer.word_embeddings.weight"),
    norm=replace(NORM, parameter="transformer.ln_f.weight"),
    block="transformer.h.{}.",
    outer=(replace(LAST_BIAS, parameter="transformer.ln_f.bias"),),
)

DENSE: dict[str, Architecture] = {
    "arcee": ARCEE,
    "nemotron": NEMOTRON,
    "jais2": JAIS2,
    "starcoder2": STARCODER2,
    "stablelm": STABLELM,
    "phi2": PHI2,
    "olmo": OLMO,
    "command-r": COMMAND_R,
    "cohere2": COHERE2,
    "chatglm": GLM,
    "apertus": APERTUS,
    "gptneox": GPT_NEOX,
    "falcon": FALCON,
}
