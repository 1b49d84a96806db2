"""Rotary embeddings: what GGUF keys and tensors say, as transformers' `rope_parameters`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from torch_foundry.loaders.gguf.hyperparameters import shortest

LLAMA3_CONTEXT = 8192  # that all models of this kind were trained with at first; files don't say
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
    base = values["rope.freq_base"] or 1e4
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
        if values["rope.scaling.attn_factor"] is not None:
            found["attention_factor"] = values["rope.scaling.attn_factor"]
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
        return found
    if kind not in ("none", "longrope"):  # longrope without factors is no longer than others
        raise RopeError("rope.scaling.type", "'none', 'linear', 'yarn' or 'longrope'", repr(kind)[:80])
    return found


def _original(values: Mapping[str, Any]) -> int:
    return values["rope.scaling.original_context_length"] or values["context_length"]


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
