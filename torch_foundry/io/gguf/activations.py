"""Numbers of an activation function that files have among their metadata, one for each block (xIELU's, of Apertus)."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from torch_foundry.core.load_errors import LoadError
from torch_foundry.io.gguf.keys import elements
from torch_foundry.io.gguf.slots import MODEL_LAYER
from torch_foundry.io.weights import Weight

# The key, which has no architecture's name before it -> the parameter or buffer of a block, and its shape.
XIELU: dict[str, tuple[str, tuple[int, ...]]] = {
    **{f"xielu.alpha_{sign}": (f"mlp.act_fn.alpha_{sign}", (1,)) for sign in "np"},
    **{f"xielu.{name}": (f"mlp.act_fn.{name}", ()) for name in ("beta", "eps")},
}
FIXED = {"xielu.beta": 0.5, "xielu.eps": -1e-6}  # in transformers' code


def activations(model: Any) -> dict[str, Weight]:
    """The weights of a GgufModel that its metadata hold. LoadError HP_MISSING, HP_TYPE, HP_RANGE."""
    found = {}
    for key, (parameter, shape) in XIELU.items():
        for index, value in enumerate(_numbers(model, key)):
            load = functools.partial(_load, value, shape)
            found[MODEL_LAYER.format(index) + parameter] = Weight(shape, "f32", key, load, load_as=load)
    return found


def _numbers(model: Any, key: str) -> list[float]:
    said, expected = model.container.metadata.get(key), f"a number for each of {model.layers} blocks"
    if said is None:
        raise LoadError("HP_MISSING", model.file, key, expected=expected, found="none")
    listed = elements(said, model.layers) or [said] * model.layers
    if set(map(type, listed)) != {float} or not all(map(math.isfinite, listed)):
        raise LoadError("HP_TYPE", model.file, key, expected=expected, found=str(said)[:80])
    if key in FIXED and any(not math.isclose(value, FIXED[key], rel_tol=0.01) for value in listed):
        raise LoadError("HP_RANGE", model.file, key, expected=str(FIXED[key]), found=str(listed)[:80])
    return listed


def _load(value: float, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.full(shape, value, dtype=dtype or torch.float32, device=device)


def said_of_activations(model: Any) -> dict[str, list[float]]:
    """The inverse: metadata of a transformers model."""
    layers = range(model.config.num_hidden_layers)
    return {key: [_number(model, index, parameter) for index in layers] for key, (parameter, _) in XIELU.items()}


def _number(model: Any, index: int, parameter: str) -> float:
    path, _, leaf = (MODEL_LAYER.format(index) + parameter).rpartition(".")
    return float(getattr(model.get_submodule(path), leaf))
