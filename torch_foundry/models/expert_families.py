"""Rows of `families.py` whose layers have routed experts in place of an MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers.modeling_outputs import MoeModelOutputWithPast

from torch_foundry.models.family import (
    EXAONE,
    GATED,
    GLM4,
    GRANITE,
    HUNYUAN,
    LATENT,
    LFM2,
    POST,
    Decoder,
    Experts,
    Family,
    NormRoles,
)

ROUTED = Decoder(output=MoeModelOutputWithPast)
QWEN: dict[str, Any] = {"shared": "shared_expert", "shared_gate": "shared_expert_gate"}
GRANITE_MOE: dict[str, Any] = {  # a softmax over the chosen logits is one over all, normalized
    **GRANITE,
    "ffn": "block_sparse_moe",
    "experts": Experts(block="MoE", router="router", normalized=True, outer="shared_mlp"),
    "decoder": Decoder(multiplier="embedding_multiplier", output=MoeModelOutputWithPast),
}
DEEPSEEK = Experts(  # as of DeepSeek-V3
    block="MoE",
    score="sigmoid",
    correction="gate.e_score_correction_bias",
    grouped=True,
    scale="gate.routed_scaling_factor",
    shared="shared_experts",
)

EXPERT_FAMILIES = (
    Family(
        "qwen3_vl_moe",
        prefix="Qwen3VLMoeText",
        qk_norm="head",
        experts=Experts(normalized=True),
        decoder=Decoder(mrope=True, output=MoeModelOutputWithPast),
        head=None,
    ),
    Family("mixtral", window="config", experts=Experts(normalized=True), decoder=ROUTED),
    Family(
        "phimoe",
        norm_class="",
        norm_kind="layer",
        window="config",
        experts=Experts(router="router", normalized=False, score="in_turn", near="router.router_jitter_noise"),
        decoder=ROUTED,
    ),
    Family("qwen2_moe", window="attention", experts=Experts(**QWEN), decoder=ROUTED),
    Family("qwen3_moe", qk_norm="head", window="config", experts=Experts(), decoder=ROUTED),
    Family("granitemoe", prefix="GraniteMoe", **GRANITE_MOE),
    Family("granitemoeshared", prefix="GraniteMoeShared", **GRANITE_MOE),
    Family("granitemoe_swa", prefix="GraniteMoeSWA", window="attention", **GRANITE_MOE),
    Family("mellum", qk_norm="head", window="attention", experts=Experts(), decoder=ROUTED),
    Family("olmoe", qk_norm="full", unset=("clip_qkv",), experts=Experts(), decoder=ROUTED),
    Family("flex_olmo", norms=POST, norm_kind="olmo", qk_norm="full", experts=Experts(), decoder=ROUTED),
    Family(  # a softmax over the chosen logits is one over all, normalized
        "gpt_oss",
        norm_kind="olmo",
        window="attention",
        tables="halves",
        experts=Experts(block="MLP", router="router", normalized=True),
        decoder=ROUTED,
    ),
    Family("glm4_moe", qk_norm="head", experts=DEEPSEEK, decoder=ROUTED),
    Family("dots1", qk_norm="head", window="attention", experts=DEEPSEEK, decoder=ROUTED),
    Family("solar_open", experts=DEEPSEEK, decoder=ROUTED),
    Family("deepseek_v3", mixer=LATENT, experts=DEEPSEEK, decoder=ROUTED),
    Family("glm4_moe_lite", mixer=LATENT, experts=DEEPSEEK, decoder=ROUTED),
    Family(
        "mistral4",
        mixer=LATENT,
        scaled_queries=True,
        experts=replace(DEEPSEEK, score="softmax", correction=""),
        decoder=ROUTED,
    ),
    Family(
        "deepseek_v2",
        mixer=LATENT,
        interleaved=True,
        tables="complex",
        experts=replace(DEEPSEEK, block="Moe", score="softmax", correction="", normalized=False),
        decoder=ROUTED,
    ),
    Family(
        "minimax_m2",
        prefix="MiniMaxM2",
        qk_norm="full",
        experts=Experts(score="sigmoid", correction="e_score_correction_bias", normalized=True),
        decoder=ROUTED,
    ),
    Family(
        "mimo_v2_flash",
        prefix="MiMoV2Flash",
        window="attention",
        experts=replace(DEEPSEEK, shared=""),
        decoder=ROUTED,
    ),
    Family("exaone_moe", **EXAONE, experts=replace(DEEPSEEK, block="SparseMoEBlock"), decoder=ROUTED),
    Family(
        "laguna",
        qk_norm="head",
        window="attention",
        gate="g_proj",
        gate_activation="softplus",
        unset=("moe_router_logit_softcapping",),
        experts=replace(
            DEEPSEEK, block="SparseMoeBlock", normalized=True, grouped=False, scale="routed_scaling_factor"
        ),
        decoder=ROUTED,
    ),
    Family(
        "hy_v3",
        prefix="HYV3",
        qk_norm="head",
        experts=replace(
            DEEPSEEK,
            correction="e_score_correction_bias",
            grouped=False,
            normalized=True,
            scale="gate.router_scaling_factor",
        ),
        decoder=ROUTED,
    ),
    Family(
        "flint",
        norm_kind="olmo",
        qk_norm="head",
        window="attention",
        full_rotate=False,
        experts=Experts(score="sigmoid", shared="shared_expert"),
        decoder=ROUTED,
    ),
    Family(
        "kolibri1",
        norms=GLM4,
        **EXAONE,
        experts=replace(DEEPSEEK, block="SparseMoeBlock", correct_logits=True, grouped=False, scale=""),
        decoder=ROUTED,
    ),
    Family(
        "afmoe",
        norms=NormRoles("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
        qk_norm="head",
        window="attention",
        full_rotate=False,
        gate="gate_proj",
        experts=replace(
            DEEPSEEK,
            block="SparseMoeBlock",
            router="router",
            matrix="gate",
            normalized=True,
            correction="expert_bias",
            grouped=False,
            scale="router.route_scale",
        ),
        decoder=replace(ROUTED, mup=True),
    ),
    Family(
        "ernie4_5_moe",
        prefix="Ernie4_5_Moe",
        interleaved=True,
        experts=Experts(
            normalized=True,
            correction="gate.moe_statics.e_score_correction_bias",
            shared="shared_experts",
            least="gate.norm_min",
        ),
        decoder=ROUTED,
    ),
    Family(
        "hunyuan_v1_moe",
        prefix="HunYuanMoEV1",
        **HUNYUAN,
        experts=Experts(block="Moe", matrix="wg", normalized=True, shared="shared_mlp"),
        decoder=ROUTED,
    ),
    # hybrids
    Family("granitemoehybrid", prefix="GraniteMoeHybrid", **GRANITE_MOE),
    Family(
        "lfm2_moe",
        **LFM2,
        experts=Experts(score="sigmoid", correction="expert_bias", scale="gate.routed_scaling_factor", least_sum=1e-6),
        decoder=Decoder(norm="embedding_norm", rotary="pos_emb", output=MoeModelOutputWithPast),
    ),
    Family(  # a layer is attention, a state space, an MLP or experts
        "nemotron_h",
        layer="Block",
        norms=NormRoles(pre_attn="norm", pre_ffn="norm"),
        norm_kind="olmo",
        ffn="mixer",
        alone=True,
        experts=replace(DEEPSEEK, latent=("fc1_latent_proj", "fc2_latent_proj")),
        decoder=replace(ROUTED, embedding="embeddings", norm="norm_f", rotary=""),
    ),
    Family("kimi_linear", mixer=LATENT, experts=DEEPSEEK, decoder=replace(ROUTED, rotary="")),
    Family("bailing_hybrid", mixer=LATENT, interleaved=True, gate="g_proj", experts=DEEPSEEK, decoder=ROUTED),  # Ling 3
    Family("qwen3_next", **GATED, experts=Experts(**QWEN), decoder=ROUTED),
    Family(
        "qwen3_5_moe",
        prefix="Qwen3_5Moe",
        **GATED,
        experts=Experts(normalized=True, **QWEN),
        decoder=Decoder(suffix="TextModel", mrope=True, output=MoeModelOutputWithPast),
    ),
)
