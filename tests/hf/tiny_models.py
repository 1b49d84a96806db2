"""Tiny random models of every family, with logits far enough apart that greedy decoding does not depend on rounding."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from torch_foundry.core.runtime import reset_counters, scope_counters
from torch_foundry.hf.api import report

DEVICE = torch.device(os.environ.get("TORCH_FOUNDRY_TEST_DEVICE", "cpu"))  # of models and of what they are given
VOCAB = 120
COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_hidden_layers": 2,
}


@dataclass(frozen=True)
class Case:
    """A config class and what it gets besides COMMON."""

    config: str
    options: dict[str, Any] = field(default_factory=dict)
    attention: str = "sdpa"
    layers: int = 2
    model: str = "AutoModelForCausalLM"


LLAMA3_ROPE = {
    **{"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 64,
}
GRANITE = {
    **{"residual_multiplier": 0.4, "embedding_multiplier": 6.0},
    **{"logits_scaling": 4.0, "attention_multiplier": 0.1},
}
MOE = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
GROUPED_MOE = {
    **{"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 2},
    **{"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5},
}
LATENT = {  # multi-head latent attention; YaRN with a scale of its own
    **{"num_key_value_heads": 4, "kv_lora_rank": 48, "q_lora_rank": 40},
    **{"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 48},
    "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0},
        **{"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64},
    },
}
LATENT_MOE = {**GROUPED_MOE, **LATENT, "mlp_layer_types": ["dense", "sparse"]}  # the first layer has no experts
SHARED_MOE = {**MOE, "shared_expert_intermediate_size": 64}
SHARED_ALIKE = {**MOE, "shared_expert_intermediate_size": 32}  # as the others, which it can go with
MIXED = ["sliding_attention", "full_attention"]
LAGUNA = {
    **{**SHARED_MOE, "mlp_layer_types": ["dense", "sparse"], "moe_routed_scaling_factor": 1.5},
    **{"sliding_window": 12, "layer_types": MIXED},
}
GPT_OSS: dict[str, Any] = {
    **{"num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 12, "layer_types": MIXED},
    "rope_parameters": {
        **{"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0},
        **{"truncate": False, "original_max_position_embeddings": 64},
    },
}
# as 12B and 31B: heads of full attention are wider and share more, values are keys
GEMMA4 = {
    "sliding_window": 12,
    "layer_types": MIXED,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}
# as E2B and E4B: half of the layers attend to others' keys, and all take an embedding of their own
GEMMA4_E = {
    "sliding_window": 12,
    "layer_types": MIXED,
    "global_head_dim": 64,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCAB,
}
# as 26B-A4B: experts beside the MLP
GEMMA4_MOE = {
    **GEMMA4,
    **{"enable_moe_block": True, "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 32},
}
LFM3 = {"layer_types": ["conv", "full_attention", "sliding_attention"], "sliding_window": 12}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 32}
GRANITE4 = {**GRANITE, **MAMBA2, "layer_types": ["linear_attention", "full_attention"], "shared_intermediate_size": 96}
NEMOTRON_H = {
    **{**GROUPED_MOE, "moe_shared_expert_intermediate_size": 48},
    **{"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 2},
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"],
    "time_step_min": 0.5,
}
FALCON_H1 = {
    **{"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 32, "mamba_n_groups": 2},
    **{"embedding_multiplier": 5.0, "lm_head_multiplier": 0.5, "key_multiplier": 0.4, "mlp_multipliers": [0.9, 0.6]},
    **{"attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.7},
    "ssm_multipliers": [0.7, 0.5, 1.4, 1.5, 0.8],
}
LLAMA4_ROPE = {**GPT_OSS["rope_parameters"], "llama_4_scaling_beta": 0.4, "original_max_position_embeddings": 16}
MISTRAL4: dict[str, Any] = {**LATENT_MOE, "head_dim": 96}
MISTRAL4["rope_parameters"] = {
    **MISTRAL4["rope_parameters"],
    **{"llama_4_scaling_beta": 0.4, "original_max_position_embeddings": 16, "partial_rotary_factor": 32 / 96},
}
NTK_ALPHA_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 50.0, "factor": 1.0}
PARTIAL_ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}

# of half of the layers of which gates are cut off; some ids have no row in the layers' table
GEMMA3N = {
    **{"sliding_window": 12, "layer_types": MIXED, "num_kv_shared_layers": 2, "final_logit_softcapping": 30.0},
    **{"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 100, "laurel_rank": 16},
    "activation_sparsity_pattern": [0.5, 0.0],
}
SIZES = {"conv1d": 0.5, "conv.conv": 0.5, "_scale": 0.5, "_coefs": 0.5, "modality_router": 4.0}  # of parameters

FAMILIES = {
    "llama": Case("LlamaConfig"),
    "llama-biased": Case(
        "LlamaConfig", {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE}, attention="eager"
    ),
    "qwen2": Case("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen3": Case("Qwen3Config"),
    "mistral": Case("MistralConfig", {"sliding_window": 12}),
    "phi3": Case("Phi3Config", {"rope_parameters": PARTIAL_ROPE, "sliding_window": None}),
    "gemma": Case("GemmaConfig"),
    "gemma2": Case("Gemma2Config", {"sliding_window": 12}, attention="eager"),
    "gemma3": Case("Gemma3TextConfig", {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}),
    "granite": Case("GraniteConfig", GRANITE),
    "olmo2": Case("Olmo2Config"),
    "olmo3": Case("Olmo3Config", {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}),
    "smollm3": Case("SmolLM3Config", {"no_rope_layers": [1, 0]}),
    "mixtral": Case("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 12}),
    # the second layer has no experts
    "qwen2_moe": Case(
        "Qwen2MoeConfig", {**MOE, "shared_expert_intermediate_size": 64, "mlp_only_layers": [1], "qkv_bias": True}
    ),
    "qwen3_moe": Case("Qwen3MoeConfig", {**MOE, "norm_topk_prob": True}, attention="eager"),
    "gpt_oss": Case("GptOssConfig", GPT_OSS, attention="eager"),
}
NORMS = 1 + (transformers.__version__ >= "5.23")  # of Bamba's groups, which older versions norm as one
# Those whose blocks are the same in other combinations: each gets fewer tests (tests/hf/test_kin.py).
KIN = {
    "ministral": Case("MinistralConfig", {"sliding_window": 12, "layer_types": MIXED}),
    "gemma4": Case("Gemma4TextConfig", GEMMA4),
    "gemma3n": Case("Gemma3nTextConfig", GEMMA3N, layers=4),
    "gemma4_unified": Case("Gemma4UnifiedTextConfig", {**GEMMA4, "use_bidirectional_attention": "vision"}),
    "gemma4_moe": Case("Gemma4TextConfig", GEMMA4_MOE),
    "gemma4_e": Case("Gemma4TextConfig", GEMMA4_E, layers=4),
    "cwm": Case("CwmConfig", {"sliding_window": 12, "layer_types": MIXED, "rope_parameters": LLAMA3_ROPE}),
    "seed_oss": Case("SeedOssConfig", {"attention_bias": True, "attention_out_bias": False}),
    "nanochat": Case("NanoChatConfig"),
    "arcee": Case("ArceeConfig", {"mlp_bias": True}),
    "apertus": Case("ApertusConfig"),
    "nemotron": Case("NemotronConfig"),
    "jais2": Case("Jais2Config"),
    "starcoder2": Case("Starcoder2Config", {"sliding_window": 12}, attention="eager"),
    "stablelm": Case("StableLmConfig", {"num_attention_heads": 2, "use_qkv_bias": True}),
    "stablelm-parallel": Case("StableLmConfig", {"num_attention_heads": 2, "use_parallel_residual": True}),
    "phi": Case("PhiConfig", {"num_attention_heads": 2}),
    "olmo": Case("OlmoConfig"),
    "gpt_neox": Case("GPTNeoXConfig", {"num_attention_heads": 2, "hidden_act": "gelu"}),
    "gpt_neox-in-turn": Case(
        "GPTNeoXConfig",
        {"num_attention_heads": 2, "use_parallel_residual": False, "attention_bias": False},
        attention="eager",
    ),
    "falcon": Case("FalconConfig", {"num_attention_heads": 2, "bias": True}),
    "falcon-in-turn": Case(
        "FalconConfig",
        {"num_attention_heads": 2, "multi_query": False, "parallel_attn": False},
        attention="eager",
    ),
    "cohere": Case("CohereConfig", {"logit_scale": 0.25}),
    "cohere2": Case(
        "Cohere2Config", {"num_attention_heads": 2, "logit_scale": 0.25, "sliding_window": 12, "layer_types": MIXED}
    ),
    "exaone4": Case("Exaone4Config", {"sliding_window": 12, "layer_types": MIXED}),
    "vaultgemma": Case("VaultGemmaConfig", {"sliding_window": 12, "layer_types": MIXED}, attention="eager"),
    "hyperclovax": Case("HyperCLOVAXConfig", {**GRANITE, "logits_scaling": 0.25, "use_post_norm": False}),
    "granite_swa": Case(
        "GraniteSWAConfig",
        {**GRANITE, "sliding_window": 12, "layer_types": MIXED, "layer_rope_theta": [1e4, 50.0]},
        attention="eager",
    ),
    "hyperclovax-peri": Case("HyperCLOVAXConfig", {**GRANITE, "residual_multiplier": 1.0}),
    "ministral3": Case("Ministral3Config", {"sliding_window": 12, "rope_parameters": LLAMA4_ROPE}),
    "hunyuan_v1_dense": Case("HunYuanDenseV1Config", {"attention_bias": True, "rope_parameters": NTK_ALPHA_ROPE}),
    "ernie4_5": Case("Ernie4_5Config", {"use_bias": True}),
    "helium": Case("HeliumConfig", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    "glm": Case("GlmConfig"),
    "glm4": Case("Glm4Config", {"attention_bias": True}),
    "emu3": Case("Emu3TextConfig", model="Emu3ForCausalLM"),
    "phimoe": Case(
        "PhimoeConfig",
        {"num_local_experts": 6, "router_jitter_noise": 0.3, "attention_bias": True, "lm_head_bias": True},
    ),
    "granitemoe": Case("GraniteMoeConfig", {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3}),
    "mellum": Case("MellumConfig", {**MOE, "sliding_window": 12, "layer_types": MIXED}),
    "olmoe": Case("OlmoeConfig", {**MOE, "num_attention_heads": 2, "num_key_value_heads": 1}),
    # the first layer has no experts
    "glm4_moe": Case("Glm4MoeConfig", {**GROUPED_MOE, "first_k_dense_replace": 1}),
    "deepseek_v2": Case(
        "DeepseekV2Config",
        {**GROUPED_MOE, **LATENT, "q_lora_rank": None, "topk_method": "greedy", "first_k_dense_replace": 1},
    ),
    # as 236B: groups of experts are chosen by the best of each
    "deepseek_v2-grouped": Case(
        "DeepseekV2Config", {**GROUPED_MOE, **LATENT, "topk_method": "group_limited_greedy", "first_k_dense_replace": 1}
    ),
    "deepseek_v3": Case("DeepseekV3Config", {**LATENT_MOE, "n_shared_experts": 1}),
    "glm4_moe_lite": Case("Glm4MoeLiteConfig", LATENT_MOE, attention="eager"),
    # the first layer has no experts; queries grow every 16 positions
    "mistral4": Case("Mistral4Config", {**MISTRAL4, "first_k_dense_replace": 1}, model="Mistral4ForCausalLM"),
    "mistral4-direct": Case(
        "Mistral4Config",
        {**MISTRAL4, "q_lora_rank": None},
        attention="eager",
        model="Mistral4ForCausalLM",
    ),
    "youtu": Case("YoutuConfig", {**LATENT, "rope_interleave": False}),
    "glm4_moe-normed": Case("Glm4MoeConfig", {**GROUPED_MOE, "use_qk_norm": True}),
    "afmoe": Case(
        "AfmoeConfig",
        {
            **{**MOE, "num_dense_layers": 1, "num_shared_experts": 2, "route_scale": 2.5, "mup_enabled": True},
            **{"sliding_window": 12, "layer_types": MIXED},
        },
    ),
    "ernie4_5_moe": Case(
        "Ernie4_5_MoeConfig",
        {
            **{"moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 32},
            **{"moe_num_shared_experts": 2, "moe_layer_start_index": 1},
        },
    ),
    "hunyuan_v1_moe": Case("HunYuanMoEV1Config", {"num_experts": 6, "moe_topk": 3, "rope_parameters": NTK_ALPHA_ROPE}),
    "dots1": Case("Dots1Config", {**GROUPED_MOE, "norm_topk_prob": True, "sliding_window": 12, "layer_types": MIXED}),
    "solar_open": Case("SolarOpenConfig", {**GROUPED_MOE, "norm_topk_prob": False}),
    "minimax_m2": Case("MiniMaxM2Config", {"num_local_experts": 6, "num_experts_per_tok": 3}, attention="eager"),
    "exaone_moe": Case(
        "ExaoneMoeConfig", {**MOE, "sliding_window": 12, "layer_types": MIXED, "mlp_layer_types": ["sparse", "dense"]}
    ),
    "kolibri1": Case("Kolibri1Config", {**SHARED_MOE, "sliding_window": 12, "layer_types": MIXED}),
    "granitemoeshared": Case(
        "GraniteMoeSharedConfig",
        {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3, "shared_intermediate_size": 64},
    ),
    "granitemoe_swa": Case(
        "GraniteMoeSWAConfig",
        {
            **{**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3},
            **{"sliding_window": 12, "layer_types": MIXED, "layer_rope_theta": [1e4, 0]},
        },
        attention="eager",
    ),
    "hy_v3": Case("HYV3Config", MOE),
    # layers have numbers of heads of their own, and rotate all or half of each
    "laguna": Case("LagunaConfig", {**LAGUNA, "num_attention_heads_per_layer": [4, 2]}),
    "laguna-elements": Case("LagunaConfig", {**LAGUNA, "gating": "per-element"}, attention="eager"),
    "flint": Case(
        "FlintConfig",
        {**SHARED_MOE, "mlp_only_layers": [], "sliding_window": 12, "layer_types": MIXED},
        attention="eager",
    ),
    "bamba": Case(
        "BambaConfig",
        {**MAMBA2, "mamba_n_groups": NORMS, "attn_layer_indices": [1], "attention_bias": True, "mamba_proj_bias": True},
        attention="eager",
    ),
    # without rotation, as most were published
    "granite4": Case("GraniteMoeHybridConfig", {**GRANITE4, "num_local_experts": 0}),
    "granite4_moe": Case(
        "GraniteMoeHybridConfig",
        {**GRANITE4, "num_local_experts": 6, "num_experts_per_tok": 3, "position_embedding_type": "rope"},
    ),
    # layers of all four kinds; step sizes in prompts have a lower bound
    "nemotron_h": Case("NemotronHConfig", NEMOTRON_H, layers=5),
    # a state space beside attention, in every layer; without a norm, as most were published
    "falcon_h1": Case("FalconH1Config", FALCON_H1),
    "falcon_h1-normed": Case(
        "FalconH1Config",
        {**FALCON_H1, "mamba_rms_norm": True, "projectors_bias": True, "attention_bias": True, "mlp_bias": True},
        attention="eager",
    ),
    "flex_olmo": Case("FlexOlmoConfig", {"num_local_experts": 6, "num_experts_per_tok": 3, "norm_topk_prob": True}),
    # the first layer has no experts
    "lfm2_moe": Case("Lfm2MoeConfig", {**MOE, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    "lfm2": Case("Lfm2Config", {"layer_types": ["conv", "full_attention"], "block_multiple_of": 16}),
    "lfm3": Case("Lfm3Config", LFM3, layers=3),
    "lfm3-plain": Case("Lfm3Config", {**LFM3, "use_sandwich_norm": False, "use_attention_gate": False}, "eager", 3),
}
# most of whose layers keep a recurrent state; transformers drafts no tokens for them
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}
HYBRIDS = {
    "qwen3_next": Case("Qwen3NextConfig", {**DELTA, **SHARED_MOE, "mlp_only_layers": [1], "norm_topk_prob": True}),
    "qwen3_5": Case("Qwen3_5TextConfig", DELTA, attention="eager"),
    "qwen3_5_moe": Case("Qwen3_5MoeTextConfig", {**DELTA, **SHARED_ALIKE}),
    # without rotation, as it was published
    "olmo_hybrid": Case("OlmoHybridConfig", {**DELTA, "rope_parameters": {"rope_type": "default", "rope_theta": None}}),
}
ALL_FAMILIES = FAMILIES | HYBRIDS


def case(family: str) -> Case:
    """What a family's models are made of."""
    return (ALL_FAMILIES | KIN)[family]


def options(family: str, layers: int | None = None, **sizes: int) -> dict[str, Any]:
    """What the config of a family's models is given. sizes: in place of those of COMMON."""
    layers = layers or case(family).layers
    given = {**COMMON, **case(family).options, "num_hidden_layers": layers, **sizes}
    for per_layer in ("layer_types", "no_rope_layers", "activation_sparsity_pattern"):
        if per_layer in given:
            given[per_layer] = (given[per_layer] * layers)[:layers]
    return given


def settings(family: str, layers: int | None = None, **sizes: int) -> Any:
    """The config of a family's models."""
    return config(case(family).config, **options(family, layers, **sizes))


def build(
    family: str, dtype: torch.dtype = torch.float32, layers: int | None = None, seed: int = 0, **sizes: int
) -> PreTrainedModel:
    """A new model, the same for the same arguments, in eval mode. sizes: in place of those of COMMON."""
    of = case(family)
    made_of = settings(family, layers, **sizes)
    torch.manual_seed(seed)
    cls = getattr(transformers, of.model)
    make = getattr(cls, "from_config", None) or cls._from_config
    model = make(made_of, attn_implementation=of.attention).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name or "bias" in name:
                parameter.add_(0.3 * noise)  # away from ones and zeros
            else:
                parameter.copy_(next((size for part, size in SIZES.items() if part in name), 0.06) * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(0.8)
            if name.endswith("_bias"):
                buffer.add_(0.3 * torch.randn(buffer.shape, generator=generator))
    model.generation_config.eos_token_id = None  # always generate as much as was asked for
    return model.to(DEVICE, dtype)


@functools.cache
def shared(family: str) -> PreTrainedModel:
    """A stock model that several tests read."""
    return build(family)


def ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    """Random token ids, none of them special."""
    return torch.randint(3, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def padded(lengths: list[int]) -> dict[str, torch.Tensor]:
    """A batch with left padding."""
    width = max(lengths)
    inputs = {
        "input_ids": ids(len(lengths), width),
        "attention_mask": torch.ones(len(lengths), width, dtype=torch.long, device=DEVICE),
    }
    for row, length in enumerate(lengths):
        inputs["input_ids"][row, : width - length] = 0
        inputs["attention_mask"][row, : width - length] = 0
    return inputs


def classes(model: nn.Module) -> list[type]:
    """The class of every module."""
    return [type(module) for module in model.modules()]


PROMPT = ids(1, 12)


def tokens(model: Any, **options: Any) -> list[list[int]]:
    """Twelve tokens after PROMPT, greedily."""
    inputs = {"input_ids": PROMPT, "attention_mask": torch.ones_like(PROMPT)}
    return model.generate(**inputs, max_new_tokens=12, **{"do_sample": False, **options}).tolist()


@torch.no_grad()
def launches_of_a_step(model: Any) -> dict[str, int]:
    """Launches of a decode step behind PROMPT, by scope. It is captured, so run by parts."""
    cache = DynamicCache(config=model.config)
    model(PROMPT, past_key_values=cache)
    reset_counters()
    model(PROMPT[:, :1], past_key_values=cache)
    return {name: found.launches for name, found in scope_counters().items()}


def fused_all(model: Any) -> bool:
    """Whether the fused path ran, and nothing else."""
    seen = report(model)
    return bool(seen.fused) and not seen.fallbacks


def assert_equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> None:
    """Bit for bit."""
    assert len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def config(name: str, **options: Any) -> Any:
    """A tiny config of any class of transformers."""
    kind: Any = getattr(transformers, name, None) or pytest.skip(f"transformers {transformers.__version__}: no {name}")
    given = {**COMMON, **options}.items()
    return kind(**{key: value for key, value in given if not isinstance(getattr(kind, key, 0), property)})


def random_model(settings: Any, seed: int = 0) -> PreTrainedModel:
    """A model with the weights that transformers starts from."""
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(settings).eval().to(DEVICE)
