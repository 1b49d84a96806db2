"""Rotary embeddings: GGUF keys and tensors as transformers' `rope_parameters`, and the other way round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from torch_foundry.io.gguf.architecture import Architecture
from torch_foundry.io.gguf.blocks import head_dim, said_of_two_kinds
from torch_foundry.io.gguf.hyperparameters import shortest

LLAMA3_CONTEXT = 8192  # that all models of this kind were trained with at first; files don't say
STILL = 1e30  # what frequencies are divided by where nothing turns
CLOSE = 1e-4  # relative; frequencies computed in float32 by others
FACTORS = ("rope_factors_short.weight", "rope_factors_long.weight")


class RopeError(ValueError):
    """Settings that no model has; the text says which: (key, expected, found)."""

    def __init__(self, key: str, expected: str, found: str) -> None:
        super().__init__(key, expected, found)
        self.key, self.expected, self.found = key, expected, found


def rope_parameters(values: Mapping[str, Any], factors: Mapping[str, torch.Tensor], dims: int) -> dict[str, Any]:
    """From hyperparameters, and the file's tensors of factors by name (float32 [dims / 2], by what frequencies are
    divided), for `dims` rotated dimensions of a head. RopeError says what is wrong."""
    base = values["rope.freq_base"]
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    for name, tensor in factors.items():
        if not bool((torch.isfinite(tensor) & (tensor > 0)).all()):
            raise RopeError(name, "factors that are more than 0", f"{tensor.min().item():g} to {tensor.max().item():g}")
    if "rope_freqs.weight" in factors:
        return found | _from_factors(factors["rope_freqs.weight"], values, base, dims)
    if factors:
        for name in FACTORS:
            if name not in factors:
                raise RopeError(name, "factors for short and long texts", "none of these")
        found |= {"rope_type": "longrope", "original_max_position_embeddings": _original(values)}
        found |= {f"{name.split('_')[2].split('.')[0]}_factor": _listed(factors[name]) for name in FACTORS}
        original, attention = _original(values), values["rope.scaling.attn_factor"]
        usual = longrope_attention(values["context_length"] / original, original)
        if attention is not None and not math.isclose(attention, usual, rel_tol=1e-6):  # which float32 has rounded
            found["attention_factor"] = attention
        return found
    kind, factor = values["rope.scaling.type"], values["rope.scaling.factor"]
    if kind == "linear":
        return found if factor == 1 else found | {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        found |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": _original(values)}
        for name in ("beta_fast", "beta_slow"):
            if values[f"rope.scaling.yarn_{name}"] is not None:
                found[name] = values[f"rope.scaling.yarn_{name}"]
        if (attention := values["rope.scaling.attn_factor"]) is not None:
            found["attention_factor"] = attention * (0.1 * math.log(max(factor, 1.0)) + 1.0)
        if (beta := values.get("attention.temperature_scale")) is not None:
            found["llama_4_scaling_beta"] = beta
        if (multiplier := values.get("rope.scaling.yarn_log_multiplier")) is not None:
            found |= {"mscale": 1.0, "mscale_all_dim": multiplier}
        return found
    if kind not in ("none", "longrope"):  # longrope without factors is no longer than others
        raise RopeError("rope.scaling.type", "'none', 'linear', 'yarn' or 'longrope'", repr(kind)[:80])
    return found


def proportional(values: Mapping[str, Any], factors: Mapping[str, torch.Tensor], dims: int) -> dict[str, Any]:
    """Those of Gemma 4's layers without a window: pairs behind the first are divided by so much that none turns."""
    for name in ("rope.scaling.type", *factors):
        if name != "rope_freqs.weight" and values.get(name) != "none":
            raise RopeError(name, "none", "one")
    share = 1.0
    if (given := factors.get("rope_freqs.weight")) is not None:
        turned = int((given == 1).sum())
        if not turned or not bool((given[:turned] == 1).all() and (given[turned:] > STILL / 2).all()):
            raise RopeError("rope_freqs.weight", f"ones, and {STILL:g} behind them", "others")
        share = turned / len(given)
    base = values["rope.freq_base"]
    return {"rope_type": "proportional", "rope_theta": base, "partial_rotary_factor": share}


def _original(values: Mapping[str, Any]) -> int:
    return values["rope.scaling.original_context_length"] or values["context_length"]


def longrope_attention(scale: float, original: int) -> float:
    """What longrope, for texts `scale` times as long as the `original` ones, multiplies queries and keys by if nobody
    says it: transformers computes it, llama.cpp takes 1."""
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0


def plain_frequencies(base: float, dims: int) -> torch.Tensor:
    """Of the rotary embedding without any scaling: float32 [dims / 2]."""
    return 1.0 / (base ** (torch.arange(0, dims, 2, dtype=torch.int64).float() / dims))


def llama3_factors(found: Mapping[str, Any], base: float, dims: int) -> torch.Tensor:
    """What Llama 3.1's scaling divides each frequency by: float32 [dims / 2]."""
    plain = plain_frequencies(base, dims).double()
    low, high = found["low_freq_factor"], found["high_freq_factor"]
    turns = found["original_max_position_embeddings"] * plain / (2 * math.pi)  # in the context trained with at first
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 / ((1 - smooth) / found["factor"] + smooth)).float()


def _from_factors(factors: torch.Tensor, values: Mapping[str, Any], base: float, dims: int) -> dict[str, Any]:
    """The settings of Llama 3.1's scaling that give these factors; if there are none, the factors as they are."""
    if bool((factors == 1).all()):
        return {}
    context = values["rope.scaling.original_context_length"] or LLAMA3_CONTEXT
    common = {
        "rope_type": "llama3",
        "factor": _round(factors.max().item()),
        "original_max_position_embeddings": context,
    }
    for low, high in ((1.0, 4.0), _solved(factors.double(), plain_frequencies(base, dims).double(), context)):
        found = common | {"low_freq_factor": low, "high_freq_factor": high}
        if high > low > 0 and torch.allclose(llama3_factors(found, base, dims), factors, rtol=CLOSE, atol=0):
            return found
    listed = _listed(factors)
    same = {"short_factor": listed, "long_factor": listed, "factor": 1.0, "attention_factor": 1.0}
    return {"rope_type": "longrope", "original_max_position_embeddings": values["context_length"]} | same


def _solved(factors: torch.Tensor, plain: torch.Tensor, context: int) -> tuple[float, float]:
    """Low and high: between 1 and the largest factor, (1 / factor) is linear in the frequency."""
    largest = factors.max()
    between = (factors > 1 + CLOSE) & (factors < largest * (1 - CLOSE))
    if int(between.sum()) < 2:
        return 0.0, 0.0
    smooth = (1 / factors[between] - 1 / largest) / (1 - 1 / largest)
    turns = context * plain[between] / (2 * math.pi)
    first, last = int(turns.argmax()), int(turns.argmin())
    slope = (smooth[first] - smooth[last]) / (turns[first] - turns[last])
    low = turns[last] - smooth[last] / slope
    return _round(low.item()), _round((low + 1 / slope).item())


def _listed(factors: torch.Tensor) -> list[float]:
    return [shortest(value) for value in factors.tolist()]


def _round(value: float) -> float:
    """A setting that somebody chose, without what float32 has left on it."""
    rounded = round(value, 3)
    return rounded if math.isclose(rounded, value, rel_tol=CLOSE) else value


def rope_metadata(model: Any, architecture: Architecture) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(keys without the architecture's name, tensors). ValueError for a kind of scaling that files can't say."""
    config = model.config
    head = head_dim(config)
    found = dict(config.rope_parameters)
    values: dict[str, Any] = {}
    factors: dict[str, torch.Tensor] = {}
    if "full_attention" in found:
        values["rope.freq_base_swa"] = float(found["sliding_attention"]["rope_theta"])
        if found["sliding_attention"].get("rope_type", "default") != "default":
            raise ValueError("rope_parameters: GGUF can't say a scaling of the layers with a sliding window")
        found = dict(found["full_attention"])
    of_latent = architecture.blocks == "latent"
    head = said_of_two_kinds(config)["attention.key_length"] if architecture.blocks == "two_kinds" else head
    head = config.qk_rope_head_dim if of_latent else head
    dims = int(head * found.get("partial_rotary_factor", 1.0)) if architecture.partial_rope else head
    base = float(found["rope_theta"])
    values |= {"rope.freq_base": base, "rope.dimension_count": dims}
    kind = found.get("rope_type", "default")
    own: int = getattr(config, "original_max_position_embeddings", 0)
    original = int(found.get("original_max_position_embeddings") or own or 0)
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
        if (beta := found.get("llama_4_scaling_beta")) is not None:
            values["attention.temperature_scale"] = beta
            values["attention.temperature_length"] = original if of_latent else None
        multiplier = found.get("mscale_all_dim")
        values["rope.scaling.yarn_log_multiplier"] = multiplier and multiplier * (0.1 if of_latent else 1)
    elif kind == "proportional" and architecture.blocks == "two_kinds" and found.get("factor", 1.0) == 1.0:
        turned = int(dims * found.get("partial_rotary_factor", 1.0) // 2)
        factors["rope_freqs.weight"] = torch.tensor([1.0] * turned + [STILL] * (dims // 2 - turned))
    elif kind == "llama3":
        values["rope.scaling.original_context_length"] = original
        factors["rope_freqs.weight"] = llama3_factors(found, base, dims)
    elif kind == "longrope" and architecture.partial_rope:
        values["rope.scaling.original_context_length"] = original
        usual = longrope_attention(found.get("factor") or config.max_position_embeddings / original, original)
        values["rope.scaling.attn_factor"] = float(found.get("attention_factor") or usual)
        factors = {f"rope_factors_{n}.weight": torch.tensor(found[f"{n}_factor"]) for n in ("long", "short")}
    elif kind == "longrope" and found["long_factor"] == found["short_factor"]:
        factors["rope_freqs.weight"] = torch.tensor(found["long_factor"])
    elif kind != "default":
        raise ValueError(f"rope_parameters: GGUF can't say rope_type={kind!r}")
    elif architecture.partial_rope and original:
        values["rope.scaling.original_context_length"] = original
    return values, factors
