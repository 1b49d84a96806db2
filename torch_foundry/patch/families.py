"""What the patch knows about transformers' model families, as data.

Most of a decoder layer is read off the live module (`spec.py`). Here is what cannot be read off it: which norm plays
which role, how a norm rounds, where the sliding window is kept. A class that is not named here is not understood.
"""

from __future__ import annotations

from dataclasses import dataclass

MODELS = "transformers.models."
TESTED_VERSIONS = ((5, 17), (5, 23))  # of transformers, first and last


@dataclass(frozen=True)
class NormRoles:
    """Names of a decoder layer's norms by what they do; None where the family has none."""

    pre_attn: str | None = None
    post_attn: str | None = None
    pre_ffn: str | None = None
    post_ffn: str | None = None

    def names(self) -> frozenset[str]:
        """All names."""
        return frozenset(n for n in (self.pre_attn, self.post_attn, self.pre_ffn, self.post_ffn) if n)


# `post_attention_layernorm` comes before the feed-forward block in Llama, but right after attention in the others.
PRE = NormRoles(pre_attn="input_layernorm", pre_ffn="post_attention_layernorm")
SANDWICH = NormRoles(
    pre_attn="input_layernorm",
    post_attn="post_attention_layernorm",
    pre_ffn="pre_feedforward_layernorm",
    post_ffn="post_feedforward_layernorm",
)
POST = NormRoles(post_attn="post_attention_layernorm", post_ffn="post_feedforward_layernorm")


@dataclass(frozen=True)
class Experts:
    """A block of routed experts: `gate`, a router with `weight` and `top_k`, and `experts`."""

    block: str  # its class
    experts: str  # class of `experts`: gate_up_proj [E, 2 * inner, hidden], down_proj [E, hidden, inner], act_fn
    normalized: bool | None = None  # whether a token's weights add up to 1; None: as gate.norm_topk_prob says
    shared: bool = False  # `shared_expert`, which all tokens go to, weighed by `shared_expert_gate`


MIXTRAL = Experts(
    block="mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    experts="mixtral.modeling_mixtral.MixtralExperts",
    normalized=True,
)
QWEN2_MOE = Experts(
    block="qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    experts="qwen2_moe.modeling_qwen2_moe.Qwen2MoeExperts",
    shared=True,
)
QWEN3_MOE = Experts(
    block="qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
    experts="qwen3_moe.modeling_qwen3_moe.Qwen3MoeExperts",
)


@dataclass(frozen=True)
class Family:
    """One architecture's decoder layer."""

    norms: NormRoles = PRE
    norm_kind: str = "llama"  # rounding of the norms, as in ops.rms_norm
    qk_norm: str = "none"  # "head": over head_dim, "full": over all heads at once; before RoPE in both cases
    window: str = "none"  # "config": config.sliding_window in every layer, "attention": self_attn.sliding_window
    softcap: bool = False  # scores are capped by self_attn.attn_logit_softcapping
    residual_multiplier: bool = False  # both branches are scaled by layer.residual_multiplier
    inert: frozenset[str] = frozenset()  # children that do nothing outside of training
    experts: Experts | None = None  # what `mlp` is in layers that have experts


FAMILIES: dict[str, Family] = {
    "llama.modeling_llama.LlamaDecoderLayer": Family(),  # SmolLM2 too
    "qwen2.modeling_qwen2.Qwen2DecoderLayer": Family(window="attention"),
    "qwen3.modeling_qwen3.Qwen3DecoderLayer": Family(qk_norm="head", window="attention"),
    "mistral.modeling_mistral.MistralDecoderLayer": Family(window="config"),
    "phi3.modeling_phi3.Phi3DecoderLayer": Family(
        window="config", inert=frozenset({"resid_attn_dropout", "resid_mlp_dropout"})
    ),
    "gemma.modeling_gemma.GemmaDecoderLayer": Family(norm_kind="gemma"),
    "gemma2.modeling_gemma2.Gemma2DecoderLayer": Family(
        norms=SANDWICH, norm_kind="gemma", window="attention", softcap=True
    ),
    # stores attn_logit_softcapping as well, but does not use it
    "gemma3.modeling_gemma3.Gemma3DecoderLayer": Family(
        norms=SANDWICH, norm_kind="gemma", qk_norm="head", window="attention"
    ),
    "granite.modeling_granite.GraniteDecoderLayer": Family(residual_multiplier=True),
    "olmo2.modeling_olmo2.Olmo2DecoderLayer": Family(norms=POST, norm_kind="olmo", qk_norm="full"),
    "olmo3.modeling_olmo3.Olmo3DecoderLayer": Family(norms=POST, norm_kind="olmo", qk_norm="full", window="attention"),
    "smollm3.modeling_smollm3.SmolLM3DecoderLayer": Family(window="attention"),
    "mixtral.modeling_mixtral.MixtralDecoderLayer": Family(window="config", experts=MIXTRAL),
    "qwen2_moe.modeling_qwen2_moe.Qwen2MoeDecoderLayer": Family(window="attention", experts=QWEN2_MOE),
    "qwen3_moe.modeling_qwen3_moe.Qwen3MoeDecoderLayer": Family(qk_norm="head", window="config", experts=QWEN3_MOE),
}
EXPERTS = frozenset(family.experts.experts for family in FAMILIES.values() if family.experts)

NORMS: dict[str, str] = {  # class -> kind
    "llama.modeling_llama.LlamaRMSNorm": "llama",
    "qwen2.modeling_qwen2.Qwen2RMSNorm": "llama",
    "qwen3.modeling_qwen3.Qwen3RMSNorm": "llama",
    "mistral.modeling_mistral.MistralRMSNorm": "llama",
    "phi3.modeling_phi3.Phi3RMSNorm": "llama",
    "granite.modeling_granite.GraniteRMSNorm": "llama",
    "smollm3.modeling_smollm3.SmolLM3RMSNorm": "llama",
    "mixtral.modeling_mixtral.MixtralRMSNorm": "llama",
    "qwen2_moe.modeling_qwen2_moe.Qwen2MoeRMSNorm": "llama",
    "qwen3_moe.modeling_qwen3_moe.Qwen3MoeRMSNorm": "llama",
    "olmo2.modeling_olmo2.Olmo2RMSNorm": "olmo",
    "olmo3.modeling_olmo3.Olmo3RMSNorm": "olmo",
    "gemma.modeling_gemma.GemmaRMSNorm": "gemma",
    "gemma2.modeling_gemma2.Gemma2RMSNorm": "gemma",
    "gemma3.modeling_gemma3.Gemma3RMSNorm": "gemma",
}

# nn.Embedding whose rows are multiplied by a buffer `embed_scale` in the weight's dtype
SCALED_EMBEDDINGS = frozenset(
    {
        "gemma.modeling_gemma.GemmaTextScaledWordEmbedding",
        "gemma2.modeling_gemma2.Gemma2TextScaledWordEmbedding",
        "gemma3.modeling_gemma3.Gemma3TextScaledWordEmbedding",
    }
)


def class_key(cls: type) -> str:
    """How a class is named in these tables: by module and name, without the prefix of transformers' models."""
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix(MODELS)
