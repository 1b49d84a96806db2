"""Rows of `families.py` whose norms are LayerNorms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transformers.modeling_outputs import (
    BaseModelOutputWithPast,
    BaseModelOutputWithPastAndCrossAttentions,
    MoeModelOutputWithPast,
)

from torch_foundry.models.family import Decoder, Experts, Family, Head, NormRoles

LAYER_NORM: dict[str, Any] = {"norm_class": "", "norm_kind": "layer"}
COHERE: dict[str, Any] = {
    "norm_class": "LayerNorm",
    "norm_kind": "layer",
    "parallel": True,
    "interleaved": True,
    "tables": "pairs",
    "head": Head(factor="logit_scale"),
}
GPT2: dict[str, Any] = {
    "layer": "Block",
    **LAYER_NORM,
    "norms": NormRoles(pre_attn="ln_1", pre_ffn="ln_2"),
    "inert": frozenset({"attn_dropout", "dropout", "resid_dropout"}),
    "decoder": Decoder(
        embedding="wte",
        layers="h",
        norm="ln_f",
        rotary="",
        positions="wpe",
        output=BaseModelOutputWithPastAndCrossAttentions,
    ),
}
LAYER_NORM_FAMILIES = (
    Family("nemotron", norm_class="LayerNorm1P", norm_kind="layer1p"),
    Family("jais2", **LAYER_NORM),
    Family("starcoder2", **LAYER_NORM, window="config"),
    Family("stablelm", prefix="StableLm", **LAYER_NORM, parallel="use_parallel_residual", inert=frozenset({"dropout"})),
    Family(
        "phi", **LAYER_NORM, parallel=True, inert=frozenset({"resid_dropout"}), decoder=Decoder(norm="final_layernorm")
    ),
    Family(
        "gpt_neox",
        prefix="GPTNeoX",
        layer="Layer",
        **LAYER_NORM,
        parallel="use_parallel_residual",
        grouped_rows=True,
        inert=frozenset({"post_attention_dropout", "post_mlp_dropout"}),
        decoder=Decoder(embedding="embed_in", norm="final_layer_norm"),
        head=Head("gpt_neox"),
    ),
    Family(
        "falcon",
        **LAYER_NORM,
        linear_class="Linear",
        parallel="parallel_attn",
        grouped_rows=True,
        unset=("alibi", "new_decoder_architecture"),
        inert=frozenset({"attention_dropout"}),
        pairs=True,
        decoder=Decoder(
            embedding="word_embeddings", layers="h", norm="ln_f", output=BaseModelOutputWithPastAndCrossAttentions
        ),
        head=Head("transformer"),
    ),
    Family("cohere", **COHERE),
    Family("cohere2", **COHERE, window="attention", full_rotate=False),
    Family(  # its norms are RMS norms, if it has an epsilon for these
        "cohere2_moe",
        **COHERE,
        other_norms=(("RMSNorm", "llama"),),
        window="attention",
        full_rotate=False,
        experts=Experts(
            scored_by="expert_selection_fn",
            shared="shared_experts",
            combined="shared_expert_combination_strategy",
        ),
        decoder=Decoder(output=MoeModelOutputWithPast),
    ),
    Family("olmo", norm_class="LayerNorm", norm_kind="layer", unset=("clip_qkv",)),
    Family("gpt2", prefix="GPT2", **GPT2, head=Head("transformer", suffix="LMHeadModel")),
    # without multi_query q, k and v are by heads
    Family("gpt_bigcode", prefix="GPTBigCode", **GPT2, needed=("multi_query",), head=Head("transformer")),
    Family(
        "gpt_neo",
        prefix="GPTNeo",
        **{**GPT2, "decoder": replace(GPT2["decoder"], output=BaseModelOutputWithPast)},
        window="local",
        scale=1.0,
        pairs=True,
        head=Head("transformer"),
    ),
    Family(  # 350m has its norms behind the blocks
        "opt",
        prefix="OPT",
        **LAYER_NORM,
        norms=NormRoles(pre_attn="self_attn_layer_norm", pre_ffn="final_layer_norm"),
        needed=("do_layer_norm_before",),
        ffn="",
        decoder=Decoder(
            suffix="Decoder",
            norm="final_layer_norm",
            rotary="",
            positions="embed_positions",
            mask_counts=True,
            absent=("project_in", "project_out"),
        ),
        head=Head("model.decoder"),
    ),
)
