"""Tiny random models of every family, with logits far enough apart that greedy decoding does not depend on rounding."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from tests.hf.tiny_cases import ALL_FAMILIES, COMMON, KIN, SIZES, VOCAB, Case
from torch_foundry.core.runtime import reset_counters, scope_counters
from torch_foundry.hf.api import report

DEVICE = torch.device(os.environ.get("TORCH_FOUNDRY_TEST_DEVICE", "cpu"))  # of models and of what they are given


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
            if any(part in name for part in ("norm", "bias", "ln_1", "ln_2")):
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
