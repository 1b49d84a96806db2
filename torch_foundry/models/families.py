"""What the patch knows about transformers' model families, as data.

Most of a decoder layer is read off the live module (`spec.py`). Here is what cannot be read off it: which norm plays
which role, how a norm rounds, where the sliding window is kept, what follows `lm_head`; `family.py` has the fields. One
row a family; the names of its classes follow from the model type. A class that no row names is not understood.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from torch_foundry.models.expert_families import EXPERT_FAMILIES
from torch_foundry.models.family import (
    BAMBA,
    BEFORE,
    EXAONE,
    GATED,
    GLM4,
    GRANITE,
    HUNYUAN,
    LATENT,
    LFM2,
    PARALLEL,
    PERI,
    POST,
    SANDWICH,
    Decoder,
    Experts,
    Family,
    Head,
    NormRoles,
    SharedKeysOutput,
    Wrapper,
    class_key,
)
from torch_foundry.models.layer_norm_families import LAYER_NORM_FAMILIES
from torch_foundry.models.swap import base_class

TESTED_VERSIONS = ((5, 21), (5, 23))  # of transformers, first and last

# What is known of a class, by its `class_key`; filled by `register`.
FAMILIES: dict[str, Family] = {}  # decoder layers
NORMS: dict[str, str] = {}  # norms: their kind
LINEARS: set[str] = set()  # linear layers besides torch's that compute the same
DECODERS: dict[str, Decoder] = {}
HEADS: dict[str, Head] = {}
WRAPPERS: dict[str, Wrapper] = {}  # the `..Model`s
EXPERTS: set[str] = set()
BLOCKS: dict[str, Experts] = {}  # of experts
ROTARIES: dict[str, Family] = {}  # rotary embeddings whose tables are not those of ops
# Mixers by how the name of their class ends, in any family; filled by `models.layer.mixes`.
MIXERS: dict[str, Any] = {}
EMBEDDINGS: set[str] = set()  # besides torch's, as in `Family.embedding_class`
POSITIONS: set[str] = set()  # embeddings of positions whose rows begin at `offset`


def register(family: Family) -> None:
    """Make a family known: its classes are patched as the row says."""
    FAMILIES[family.key(family.layer)] = family
    if family.norm_class:
        NORMS[family.key(family.norm_class)] = family.norm_kind
    NORMS.update((family.key(suffix), kind) for suffix, kind in family.other_norms)
    if family.linear_class:
        LINEARS.add(family.key(family.linear_class))
    DECODERS[family.key(family.decoder.suffix)] = family.decoder
    if family.head is not None:
        HEADS[family.key(family.head.suffix)] = family.head
    if family.experts:
        EXPERTS.add(family.key(family.experts.suffix))
        if not family.experts.beside:
            BLOCKS[family.key(family.experts.block)] = family.experts
    if family.tables or family.scaled_queries or family.multipliers:
        ROTARIES[family.key(family.decoder.suffix.removesuffix("Model") + "RotaryEmbedding")] = family
    if family.decoder.positions:
        POSITIONS.add(family.key("LearnedPositionalEmbedding"))
    if family.embedding_class:
        EMBEDDINGS.add(family.key(family.embedding_class))


MROPE = Decoder(suffix="TextModel", mrope=True)
SCALED = "TextScaledWordEmbedding"
GEMMA2: dict[str, Any] = {
    "norm_kind": "gemma",
    "window": "attention",
    "softcap": True,
    "embedding_class": SCALED,
    "head": Head(softcap="final_logit_softcapping"),
}
GEMMA4: dict[str, Any] = {
    "layer": "TextDecoderLayer",
    "norms": SANDWICH,
    "norm_kind": "olmo",
    "qk_norm": "head",
    "v_norm": True,
    "window": "attention",
    "embedding_class": SCALED,
    "decoder": Decoder(suffix="TextModel", output=SharedKeysOutput),
    "head": Head(softcap="final_logit_softcapping"),
}
GLM4V: dict[str, Any] = {
    "layer": "TextDecoderLayer",
    "norms": GLM4,
    "interleaved": True,
    "tables": "pairs",
    "decoder": MROPE,
    "head": None,
}
FALCON_H1: dict[str, Any] = {
    "norms": BAMBA,
    "ffn": "feed_forward",
    "pairs": True,
    "mixer": PARALLEL,
    "multipliers": True,
    "masks": ("attention_mask", "mamba_attention_mask"),  # of keys, and of tokens that are no padding
    "decoder": Decoder(norm="final_layernorm", multiplier="embedding_multiplier"),
    "head": Head(factor="lm_head_multiplier"),
}
for _family in (
    Family("llama"),  # SmolLM2 too
    Family("qwen2", window="attention"),
    Family("qwen3", qk_norm="head", window="attention"),
    Family("qwen2_vl", prefix="Qwen2VL", window="attention", decoder=MROPE, head=None),
    Family("qwen2_5_vl", prefix="Qwen2_5_VL", window="attention", decoder=MROPE, head=None),
    Family("qwen3_vl", prefix="Qwen3VLText", qk_norm="head", decoder=Decoder(mrope=True), head=None),
    Family("paddleocr_vl", prefix="PaddleOCR", decoder=MROPE, head=None),
    Family("mistral", window="config"),
    Family("phi3", window="config", inert=frozenset({"resid_attn_dropout", "resid_mlp_dropout"})),
    Family("gemma", norm_kind="gemma", embedding_class=SCALED),
    Family("gemma2", norms=SANDWICH, **GEMMA2),
    # stores attn_logit_softcapping as well, but does not use it
    Family("gemma3", norms=SANDWICH, **GEMMA2 | {"softcap": False}, qk_norm="head", decoder=Decoder("TextModel")),
    Family("gemma4", **GEMMA4, experts=Experts(suffix="TextExperts", beside=True)),
    Family("gemma4_unified", **GEMMA4),  # 12B
    Family("gemma3n", **GEMMA4 | {"decoder": Decoder("TextModel", unknown_first=True)}),
    Family("granite", **GRANITE),
    Family("olmo2", norms=POST, norm_kind="olmo", qk_norm="full"),
    Family("olmo3", norms=POST, norm_kind="olmo", qk_norm="full", window="attention"),
    Family("smollm3", prefix="SmolLM3", window="attention"),
    Family("ministral", window="attention"),
    Family("cwm", window="attention"),
    Family("seed_oss"),
    Family("arcee"),
    Family(
        "nanochat",
        prefix="NanoChat",
        norm_kind="plain",
        qk_norm="head",
        rotate_first=True,
        tables="backwards",
        decoder=Decoder(first_norm=True),
        head=Head(softcap="final_logit_softcapping"),
    ),
    Family("apertus", norms=NormRoles(pre_attn="attention_layernorm", pre_ffn="feedforward_layernorm"), qk_norm="head"),
    Family("exaone4", norms=POST, **EXAONE),
    Family(
        "muse_glimmer",
        layer="TextDecoderLayer",
        norms=SANDWICH,
        norm_class="TextCenteredRMSNorm",
        norm_kind="gemma",
        other_norms=(("RMSNorm", "olmo"),),  # the last one, and those without weights
        embedding_class="TextNormedEmbedding",
        qk_norm="head",
        head_norms=("qk_norm", "qk_norm"),
        window="attention",
        gate="gate_proj",
        decoder=Decoder("TextModel"),
        head=None,
    ),
    Family("vaultgemma", prefix="VaultGemma", norms=BEFORE, **GEMMA2),
    Family(
        "hyperclovax",
        prefix="HyperCLOVAX",
        norms=PERI,
        decoder=Decoder(multiplier="embedding_multiplier"),
        head=Head(factor="logits_scaling"),
    ),
    Family("granite_swa", prefix="GraniteSWA", window="attention", **GRANITE),
    Family("ministral3", window="config", scaled_queries=True),
    Family("hunyuan_v1_dense", prefix="HunYuanDenseV1", **HUNYUAN),
    Family("ernie4_5", prefix="Ernie4_5", interleaved=True),
    Family("helium", norm_kind="olmo", interleaved=True),
    Family("glm", interleaved=True),
    Family("glm4", norms=GLM4, interleaved=True),
    Family("glm4v", **GLM4V),
    Family("glm_ocr", **GLM4V),
    Family("youtu", mixer=LATENT),
    Family("emu3", inert=frozenset({"dropout"}), decoder=Decoder(suffix="TextModel")),
    # hybrids: most layers have something in place of attention, as a gated delta rule (`gated_delta.py`)
    Family("qwen3_5", prefix="Qwen3_5", **GATED, decoder=MROPE),
    Family("olmo_hybrid", layer="LinearAttentionDecoderLayer", norm_kind="olmo"),
    Family("olmo_hybrid", layer="AttentionDecoderLayer", norms=POST, norm_kind="olmo", qk_norm="full"),
    Family("lfm2", **LFM2, decoder=Decoder(norm="embedding_norm")),  # a short convolution (`short_conv.py`)
    Family(  # norms behind blocks are Identities where they are switched off
        "lfm3",
        norms=NormRoles("operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm"),
        qk_norm="head",
        window="attention",
        gate="g_proj",
        ffn="feed_forward",
        decoder=Decoder(norm="embedding_norm"),
    ),
    # most have Mamba2's state space (`mamba2.py`); Granite 4 is among those with experts
    Family("bamba", norms=BAMBA, ffn="feed_forward", pairs=True, decoder=Decoder(norm="final_layernorm", counts=False)),
    Family("falcon_h1", prefix="FalconH1", **FALCON_H1),  # beside attention, on the same input (`parallel_mixers.py`)
    *LAYER_NORM_FAMILIES,
    *EXPERT_FAMILIES,
):
    register(_family)


def register_wrapper(wrapper: Wrapper) -> None:
    """Make a wrapper known: steps of the decoder inside of it are captured."""
    WRAPPERS[wrapper.key("Model")] = wrapper
    HEADS[wrapper.key("ForConditionalGeneration")] = Head(
        f"model.{wrapper.decoder}", factor=wrapper.factor, softcap=wrapper.softcap
    )


REPLACED = ("image_token_id", "video_token_id", "audio_token_id")
for _wrapper in (
    Wrapper("aya_vision"),
    Wrapper("cohere2_vision"),
    Wrapper("gemma3"),
    Wrapper(
        "gemma3n",
        own_from=("embed_vision.vocab_offset", "embed_audio.vocab_offset"),
        softcap="final_logit_softcapping",
    ),
    Wrapper("gemma4", replaced=REPLACED, softcap="final_logit_softcapping"),
    Wrapper("gemma4_unified", replaced=REPLACED, softcap="final_logit_softcapping"),
    Wrapper("glm46v", prefix="Glm46V"),
    Wrapper("glm4v"),
    Wrapper("glm_ocr"),
    Wrapper("idefics3", decoder="text_model"),
    Wrapper("internvl", prefix="InternVL"),
    Wrapper("lfm2_vl"),
    Wrapper("lfm3_vl"),
    Wrapper("lighton_ocr", prefix="LightOnOcr"),
    Wrapper("llava"),
    Wrapper("llava_next"),
    Wrapper("llava_next_video"),
    Wrapper("llava_onevision"),
    Wrapper("minicpm_ocr", prefix="MiniCPMOcr"),
    Wrapper("minicpmv4_6", prefix="MiniCPMV4_6"),
    Wrapper("minicpmv4_7", prefix="MiniCPMV4_7"),
    Wrapper("mistral3"),
    Wrapper("muse_glimmer", replaced=REPLACED[:2], factor="output_multiplier", softcap="final_logit_softcapping"),
    Wrapper("paddleocr_vl", prefix="PaddleOCRVL"),
    Wrapper("qwen2_vl", prefix="Qwen2VL"),
    Wrapper("qwen2_5_vl", prefix="Qwen2_5_VL"),
    Wrapper("qwen3_5", prefix="Qwen3_5"),
    Wrapper("qwen3_5_moe", prefix="Qwen3_5Moe"),
    Wrapper("qwen3_vl", prefix="Qwen3VL"),
    Wrapper("qwen3_vl_moe", prefix="Qwen3VLMoe"),
    Wrapper("smolvlm", prefix="SmolVLM", decoder="text_model"),
    Wrapper("vipllava", prefix="VipLlava"),
    # which hear sounds
    Wrapper("audioflamingo3", prefix="AudioFlamingo3"),
    Wrapper("fun_asr_nano"),
    Wrapper("glmasr", prefix="GlmAsr"),
    Wrapper("granite_speech", replaced=REPLACED[2:]),
    Wrapper("granite_speech_plus", replaced=REPLACED[2:]),
    Wrapper("musicflamingo", prefix="MusicFlamingo"),
    Wrapper("qwen2_audio"),
    Wrapper("qwen3_asr", prefix="Qwen3ASR"),
    Wrapper("voxtral"),
):
    register_wrapper(_wrapper)


def is_dense_linear(cls: type) -> bool:
    """Whether modules of `cls` compute x W^T + b from a dense weight, or its transpose, and nothing else."""
    return cls in (nn.Linear, Conv1D) or class_key(cls) in LINEARS


def norm_kind(module: nn.Module) -> str | None:
    """What kind of norm it is, as in `Family.norm_kind`; None if it is not one that is known, of vectors."""
    cls = base_class(type(module))
    kind = "layer" if cls is nn.LayerNorm else NORMS.get(class_key(cls))
    weight = module._parameters.get("weight")
    if kind == "olmo" and getattr(module, "with_scale", True) is False:
        kind = "plain"  # without a weight there is nothing else to round
    sizes = getattr(module, "normalized_shape", ()) if weight is None else weight.shape
    return kind if len(sizes) == 1 or kind == "plain" else None
