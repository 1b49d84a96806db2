"""Rotary embeddings: transformers' `rope_parameters` as GGUF keys and tensors."""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_foundry.loaders.gguf.architectures import Architecture
from torch_foundry.loaders.gguf.rope import llama3_factors


def rope_metadata(model: Any, architecture: Architecture) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(keys without the architecture's name, tensors). ValueError for a kind of scaling that files can't say."""
    config = model.config
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    found = dict(config.rope_parameters)
    values: dict[str, Any] = {}
    if "full_attention" in found:
        values["rope.freq_base_swa"] = float(found["sliding_attention"]["rope_theta"])
        if found["sliding_attention"].get("rope_type", "default") != "default":
            raise ValueError("rope_parameters: GGUF can't say a scaling of the layers with a sliding window")
        found = dict(found["full_attention"])
    dims = int(head * found.get("partial_rotary_factor", 1.0)) if architecture.partial_rope else head
    base = float(found["rope_theta"])
    values |= {"rope.freq_base": base, "rope.dimension_count": dims}
    kind = found.get("rope_type", "default")
    original = found.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", 0)
    if kind == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(found["factor"])}
    elif kind == "yarn":
        values |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(found["factor"])}
        values["rope.scaling.original_context_length"] = original
        for name in ("beta_fast", "beta_slow"):
            if found.get(name) is not None:
                values[f"rope.scaling.yarn_{name}"] = float(found[name])
        if (attention := found.get("attention_factor")) is not None:
            values["rope.scaling.attn_factor"] = attention / (0.1 * math.log(max(found["factor"], 1.0)) + 1.0)
    elif kind == "llama3":
        values["rope.scaling.original_context_length"] = original
        return values, {"rope_freqs.weight": llama3_factors(found, base, dims)}
    elif kind == "longrope" and architecture.partial_rope:
        values["rope.scaling.original_context_length"] = original
        if found.get("attention_factor") is not None:
            values["rope.scaling.attn_factor"] = float(found["attention_factor"])
        return values, {f"rope_factors_{n}.weight": torch.tensor(found[f"{n}_factor"]) for n in ("long", "short")}
    elif kind == "longrope" and found["long_factor"] == found["short_factor"]:
        return values, {"rope_freqs.weight": torch.tensor(found["long_factor"])}
    elif kind != "default":
        raise ValueError(f"rope_parameters: GGUF can't say rope_type={kind!r}")
    elif architecture.partial_rope and original:
        values["rope.scaling.original_context_length"] = original
    return values, {}
