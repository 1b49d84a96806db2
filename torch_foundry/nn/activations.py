"""Activation functions that the kernels know, by the classes that models use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

ACTIVATIONS: dict[str, str] = {  # class -> name in ops.glu and ops.linear, but for "xielu", which is an op of its own
    "torch.nn.modules.activation.SiLU": "silu",
    "transformers.activations.SiLUActivation": "silu",
    "transformers.activations.GELUTanh": "gelu_tanh",
    "transformers.activations.NewGELUActivation": "gelu_tanh",
    "transformers.activations.FastGELUActivation": "gelu_tanh",
    "transformers.activations.GELUActivation": "gelu",
    "torch.nn.modules.activation.ReLU": "relu",
    "transformers.activations.ReLUSquaredActivation": "relu2",
    "transformers.activations.XIELUActivation": "xielu",
}
BY_TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # what follows torch's own products
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "gelu": functional.gelu,
    "relu": functional.relu,
    "relu2": lambda x: functional.relu(x).square(),
}


def activation_of(module: object) -> str | None:
    """What `module` computes; None if no kernel knows it."""
    cls = type(module)
    if module is functional.silu:
        return "silu"
    return ACTIVATIONS.get(f"{cls.__module__}.{cls.__qualname__}")


def activation_of_experts(experts: Any) -> str | None:
    """What a module of experts, packed or not, makes of gate and up; None if no kernel knows it."""
    experts = experts.__dict__.get("_dense", experts)
    if hasattr(experts, "act_fn"):
        return activation_of(experts.act_fn)
    settings = getattr(experts, "alpha", None), getattr(experts, "limit", None)
    return "clamped_swiglu" if settings == (1.702, 7.0) else None
