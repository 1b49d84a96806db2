"""What the patch knows about transformers' model families, as data.

Most of a decoder layer is read off the live module (`spec.py`). Here is what cannot be read off it: which norm plays
which role, how a norm rounds, where the sliding window is kept, what follows `lm_head`. One row a family; the names of
its classes follow from the model type. A class that no row names is not understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers.modeling_outputs import BaseModelOutputWithPast, MoeModelOutputWithPast

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
BEFORE = NormRoles(pre_attn="input_layernorm", pre_ffn="pre_feedforward_layernorm")


@dataclass(frozen=True)
class Experts:
    """A block of routed experts: a router with `weight` and `top_k`, and `experts`, of the class `..Experts`, as
    `nn.experts` reads them.
    """

    block: str = "SparseMoeBlock"  # of its class
    router: str = "gate"
    normalized: bool | None = None  # whether a token's weights add up to 1; None: as gate.norm_topk_prob says
    shared: bool = False  # `shared_expert`, which all tokens go to, weighed by `shared_expert_gate`


@dataclass(frozen=True)
class Decoder:
    """Ids to the last norm: `embed_tokens`, `layers`, `norm`, with positions by `rotary_emb`."""

    suffix: str = "Model"  # of its class
    multiplier: str | None = None  # attribute of the model: a factor on the embeddings
    mrope: bool = False  # positions may be [3, B, L], by time, height and width, or [4, B, L], behind those of the text
    output: type[BaseModelOutputWithPast | MoeModelOutputWithPast] = BaseModelOutputWithPast


@dataclass(frozen=True)
class Head:
    """`lm_head` on top of a decoder, and what follows: names in the config, as far as they are set."""

    decoder: str = "model"  # where it is, as of `get_submodule`
    divisor: str | None = None  # logits / that
    factor: str | None = None  # logits * that
    softcap: str | None = None  # tanh(logits / that) * that


ROUTED = Decoder(output=MoeModelOutputWithPast)
MROPE = Decoder(suffix="TextModel", mrope=True)
GATED: dict[str, Any] = {"norm_kind": "gemma", "qk_norm": "head", "output_gate": True}  # Qwen from 3-Next on


@dataclass(frozen=True)
class Architecture:
    """How transformers names the classes of one."""

    name: str  # the model type, which transformers' module is called
    prefix: str = ""  # of its classes; "": the name in camel case

    def key(self, suffix: str) -> str:
        """The `class_key` of the class with that suffix."""
        prefix = self.prefix or "".join(word.capitalize() for word in self.name.split("_"))
        return f"{self.name}.modeling_{self.name}.{prefix}{suffix}"


@dataclass(frozen=True)
class Family(Architecture):
    """A decoder: its layers, and what lies before the first and behind the last one."""

    layer: str = "DecoderLayer"  # suffix of the layer's class; a family with several has a row for each
    norms: NormRoles = PRE
    norm_kind: str = "llama"  # rounding of the norms, as in ops.rms_norm
    qk_norm: str = "none"  # "head": over head_dim, "full": over all heads at once; before RoPE in both cases
    # "config": config.sliding_window in every layer, "types": in those that config.layer_types calls sliding,
    # "attention": self_attn.sliding_window
    window: str = "none"
    full_rotate: bool = True  # False: layers that see all tokens don't rotate, if config.sliding_window is set
    softcap: bool = False  # scores are capped by self_attn.attn_logit_softcapping
    output_gate: bool = False  # q_proj has, behind each head, a gate: attention's result is multiplied by its sigmoid
    residual_multiplier: bool = False  # both branches are scaled by layer.residual_multiplier
    half_tables: bool = False  # cos and sin have one column for both elements of a pair
    inert: frozenset[str] = frozenset()  # children that do nothing outside of training
    unset: tuple[str, ...] = ()  # names in the config: what they would switch on is not understood
    ffn: str = "mlp"  # name of the feed-forward block
    experts: Experts | None = None  # what it is in layers that have experts
    scaled_embedding: bool = False  # rows are multiplied by a buffer `embed_scale` in the weight's dtype
    decoder: Decoder = Decoder()
    head: Head | None = Head()  # None: it is only the decoder of wrappers


@dataclass(frozen=True)
class Wrapper(Architecture):
    """A decoder that is shown images: `..ForConditionalGeneration` is `lm_head` on `model`, of the class `..Model`,
    which puts their features among the embeddings of ids, and what its decoder makes of these is its result.
    """

    decoder: str = "language_model"  # attribute of `model`; of any family


# What is known of a class, by its `class_key`; filled by `register`.
FAMILIES: dict[str, Family] = {}  # decoder layers
NORMS: dict[str, str] = {}  # norms: their kind
DECODERS: dict[str, Decoder] = {}
HEADS: dict[str, Head] = {}
WRAPPERS: dict[str, Wrapper] = {}  # the `..Model`s
EXPERTS: set[str] = set()
HALF_TABLES: set[str] = set()  # rotary embeddings
# Mixers by how the name of their class ends, in any family; filled by `models.layer.mixes`.
MIXERS: dict[str, Any] = {}
SCALED_EMBEDDINGS: set[str] = set()


def register(family: Family) -> None:
    """Make a family known: its classes are patched as the row says."""
    FAMILIES[family.key(family.layer)] = family
    NORMS[family.key("RMSNorm")] = family.norm_kind
    DECODERS[family.key(family.decoder.suffix)] = family.decoder
    if family.head is not None:
        HEADS[family.key("ForCausalLM")] = family.head
    if family.experts:
        EXPERTS.add(family.key("Experts"))
    if family.half_tables:
        HALF_TABLES.add(family.key("RotaryEmbedding"))
    if family.scaled_embedding:
        SCALED_EMBEDDINGS.add(family.key("TextScaledWordEmbedding"))


for _family in (
    Family("llama"),  # SmolLM2 too
    Family("qwen2", window="attention"),
    Family("qwen3", qk_norm="head", window="attention"),
    Family("qwen2_vl", prefix="Qwen2VL", window="attention", decoder=MROPE, head=None),
    Family("qwen2_5_vl", prefix="Qwen2_5_VL", window="attention", decoder=MROPE, head=None),
    Family("qwen3_vl", prefix="Qwen3VLText", qk_norm="head", decoder=Decoder(mrope=True), head=None),
    Family(
        "qwen3_vl_moe",
        prefix="Qwen3VLMoeText",
        qk_norm="head",
        experts=Experts(normalized=True),
        decoder=Decoder(mrope=True, output=MoeModelOutputWithPast),
        head=None,
    ),
    Family("mistral", window="config"),
    Family("phi3", window="config", inert=frozenset({"resid_attn_dropout", "resid_mlp_dropout"})),
    Family("gemma", norm_kind="gemma", scaled_embedding=True),
    Family(
        "gemma2",
        norms=SANDWICH,
        norm_kind="gemma",
        window="attention",
        softcap=True,
        scaled_embedding=True,
        head=Head(softcap="final_logit_softcapping"),
    ),
    Family(  # stores attn_logit_softcapping as well, but does not use it
        "gemma3",
        norms=SANDWICH,
        norm_kind="gemma",
        qk_norm="head",
        window="attention",
        scaled_embedding=True,
        decoder=Decoder(suffix="TextModel"),
        head=Head(softcap="final_logit_softcapping"),
    ),
    Family(
        "granite",
        residual_multiplier=True,
        decoder=Decoder(multiplier="embedding_multiplier"),
        head=Head(divisor="logits_scaling"),
    ),
    Family("olmo2", norms=POST, norm_kind="olmo", qk_norm="full"),
    Family("olmo3", norms=POST, norm_kind="olmo", qk_norm="full", window="attention"),
    Family("smollm3", prefix="SmolLM3", window="attention"),
    Family("ministral", window="attention"),
    Family("cwm", window="attention"),
    Family("seed_oss"),
    Family("exaone4", norms=POST, qk_norm="head", window="types", full_rotate=False),
    Family(
        "vaultgemma",
        prefix="VaultGemma",
        norms=BEFORE,
        norm_kind="gemma",
        window="attention",
        softcap=True,
        scaled_embedding=True,
        head=Head(softcap="final_logit_softcapping"),
    ),
    Family(
        "hyperclovax",
        prefix="HyperCLOVAX",
        residual_multiplier=True,
        inert=frozenset({"post_norm1", "post_norm2"}),  # unless config.use_post_norm
        decoder=Decoder(multiplier="embedding_multiplier"),
        head=Head(factor="logits_scaling"),
    ),
    Family("emu3", inert=frozenset({"dropout"}), decoder=Decoder(suffix="TextModel")),
    Family("mixtral", window="config", experts=Experts(normalized=True), decoder=ROUTED),
    Family("qwen2_moe", window="attention", experts=Experts(shared=True), decoder=ROUTED),
    Family("qwen3_moe", qk_norm="head", window="config", experts=Experts(), decoder=ROUTED),
    Family(  # a softmax over the chosen logits is one over all, normalized
        "granitemoe",
        prefix="GraniteMoe",
        residual_multiplier=True,
        ffn="block_sparse_moe",
        experts=Experts(block="MoE", router="router", normalized=True),
        decoder=Decoder(multiplier="embedding_multiplier", output=MoeModelOutputWithPast),
        head=Head(divisor="logits_scaling"),
    ),
    Family("mellum", qk_norm="head", window="attention", experts=Experts(), decoder=ROUTED),
    Family("olmoe", qk_norm="full", unset=("clip_qkv",), experts=Experts(), decoder=ROUTED),
    Family("flex_olmo", norms=POST, norm_kind="olmo", qk_norm="full", experts=Experts(), decoder=ROUTED),
    Family(  # a softmax over the chosen logits is one over all, normalized
        "gpt_oss",
        norm_kind="olmo",
        window="attention",
        half_tables=True,
        experts=Experts(block="MLP", router="router", normalized=True),
        decoder=ROUTED,
    ),
    # hybrids: most layers have a gated delta rule (`gated_delta.py`) in place of attention
    Family("qwen3_next", **GATED, experts=Experts(shared=True), decoder=ROUTED),
    Family("qwen3_5", prefix="Qwen3_5", **GATED, decoder=MROPE),
    Family(
        "qwen3_5_moe",
        prefix="Qwen3_5Moe",
        **GATED,
        experts=Experts(normalized=True, shared=True),
        decoder=Decoder(suffix="TextModel", mrope=True, output=MoeModelOutputWithPast),
    ),
    Family("olmo_hybrid", layer="LinearAttentionDecoderLayer", norm_kind="olmo"),
    Family("olmo_hybrid", layer="AttentionDecoderLayer", norms=POST, norm_kind="olmo", qk_norm="full"),
):
    register(_family)


def register_wrapper(wrapper: Wrapper) -> None:
    """Make a wrapper known: steps of the decoder inside of it are captured."""
    WRAPPERS[wrapper.key("Model")] = wrapper
    HEADS[wrapper.key("ForConditionalGeneration")] = Head(decoder=f"model.{wrapper.decoder}")


for _wrapper in (
    Wrapper("gemma3"),
    Wrapper("idefics3", decoder="text_model"),
    Wrapper("internvl", prefix="InternVL"),
    Wrapper("llava"),
    Wrapper("llava_next"),
    Wrapper("llava_onevision"),
    Wrapper("mistral3"),
    Wrapper("qwen2_vl", prefix="Qwen2VL"),
    Wrapper("qwen2_5_vl", prefix="Qwen2_5_VL"),
    Wrapper("qwen3_5", prefix="Qwen3_5"),
    Wrapper("qwen3_5_moe", prefix="Qwen3_5Moe"),
    Wrapper("qwen3_vl", prefix="Qwen3VL"),
    Wrapper("qwen3_vl_moe", prefix="Qwen3VLMoe"),
    Wrapper("smolvlm", prefix="SmolVLM", decoder="text_model"),
):
    register_wrapper(_wrapper)


def class_key(cls: type) -> str:
    """How a class is named in these tables: by module and name, without the prefix of transformers' models."""
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix(MODELS)
