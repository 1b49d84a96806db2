"""What is known of whole models, as data: what comes before the first and after the last decoder layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutputWithPast, MoeModelOutputWithPast

from torch_foundry.patch.families import class_key
from torch_foundry.patch.swap import base_class


@dataclass(frozen=True)
class Decoder:
    """Ids to the last norm: `embed_tokens`, `layers`, `norm`, with positions by `rotary_emb`."""

    multiplier: str | None = None  # attribute of the model: a factor on the embeddings
    output: type[BaseModelOutputWithPast | MoeModelOutputWithPast] = BaseModelOutputWithPast


@dataclass(frozen=True)
class Head:
    """`lm_head` on top of a decoder called `model`, and what follows: names in the config, as far as they are set."""

    divisor: str | None = None  # logits / that
    softcap: str | None = None  # tanh(logits / that) * that


DECODERS: dict[str, Decoder] = {
    "llama.modeling_llama.LlamaModel": Decoder(),
    "qwen2.modeling_qwen2.Qwen2Model": Decoder(),
    "qwen3.modeling_qwen3.Qwen3Model": Decoder(),
    "mistral.modeling_mistral.MistralModel": Decoder(),
    "phi3.modeling_phi3.Phi3Model": Decoder(),
    "gemma.modeling_gemma.GemmaModel": Decoder(),
    "gemma2.modeling_gemma2.Gemma2Model": Decoder(),
    "gemma3.modeling_gemma3.Gemma3TextModel": Decoder(),
    "granite.modeling_granite.GraniteModel": Decoder(multiplier="embedding_multiplier"),
    "olmo2.modeling_olmo2.Olmo2Model": Decoder(),
    "olmo3.modeling_olmo3.Olmo3Model": Decoder(),
    "smollm3.modeling_smollm3.SmolLM3Model": Decoder(),
    "mixtral.modeling_mixtral.MixtralModel": Decoder(output=MoeModelOutputWithPast),
    "qwen2_moe.modeling_qwen2_moe.Qwen2MoeModel": Decoder(output=MoeModelOutputWithPast),
    "qwen3_moe.modeling_qwen3_moe.Qwen3MoeModel": Decoder(output=MoeModelOutputWithPast),
}

HEADS: dict[str, Head] = {
    "llama.modeling_llama.LlamaForCausalLM": Head(),
    "qwen2.modeling_qwen2.Qwen2ForCausalLM": Head(),
    "qwen3.modeling_qwen3.Qwen3ForCausalLM": Head(),
    "mistral.modeling_mistral.MistralForCausalLM": Head(),
    "phi3.modeling_phi3.Phi3ForCausalLM": Head(),
    "gemma.modeling_gemma.GemmaForCausalLM": Head(),
    "gemma2.modeling_gemma2.Gemma2ForCausalLM": Head(softcap="final_logit_softcapping"),
    "gemma3.modeling_gemma3.Gemma3ForCausalLM": Head(softcap="final_logit_softcapping"),
    "granite.modeling_granite.GraniteForCausalLM": Head(divisor="logits_scaling"),
    "olmo2.modeling_olmo2.Olmo2ForCausalLM": Head(),
    "olmo3.modeling_olmo3.Olmo3ForCausalLM": Head(),
    "smollm3.modeling_smollm3.SmolLM3ForCausalLM": Head(),
    "mixtral.modeling_mixtral.MixtralForCausalLM": Head(),
    "qwen2_moe.modeling_qwen2_moe.Qwen2MoeForCausalLM": Head(),
    "qwen3_moe.modeling_qwen3_moe.Qwen3MoeForCausalLM": Head(),
}


def decoder_of(module: nn.Module) -> Decoder | None:
    """What is known of `module` as a decoder."""
    return DECODERS.get(class_key(base_class(type(module))))


def head_of(module: nn.Module) -> Head | None:
    """What is known of `module` as a causal language model."""
    return HEADS.get(class_key(base_class(type(module))))


def is_plain(head: Head, config: Any) -> bool:
    """Whether the logits are what `lm_head` gives."""
    softcap = head.softcap and getattr(config, head.softcap)
    divisor = head.divisor and getattr(config, head.divisor)
    return softcap is None and divisor in (None, 1.0)


def logits_of(model: Any, head: Head, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [..., V] of the last norm's result, rounded as the stock model rounds."""
    return finished(model, head, model.lm_head(hidden))


def finished(model: Any, head: Head, logits: torch.Tensor) -> torch.Tensor:
    """Logits [..., V] of what `lm_head` gives."""
    if head.softcap is not None and (cap := getattr(model.config, head.softcap)) is not None:
        logits = torch.tanh(logits / cap) * cap
    if head.divisor is not None:
        logits = logits / getattr(model.config, head.divisor)
    return logits
