"""Activation functions that the kernels know, by the classes that models use."""

from __future__ import annotations

from typing import Any

ACTIVATIONS: dict[str, str] = {  # class -> name in ops.glu
    "torch.nn.modules.activation.SiLU": "silu",
    "transformers.activations.SiLUActivation": "silu",
    "transformers.activations.GELUTanh": "gelu_tanh",
    "transformers.activations.GELUActivation": "gelu",
}


def activation_of(module: object) -> str | None:
    """What `module` computes; None if no kernel knows it."""
    cls = type(module)
    return ACTIVATIONS.get(f"{cls.__module__}.{cls.__qualname__}")


def activation_of_experts(experts: Any) -> str | None:
    """What a module of experts, packed or not, makes of gate and up; None if no kernel knows it."""
    experts = experts.__dict__.get("_dense", experts)
    if hasattr(experts, "act_fn"):
        return activation_of(experts.act_fn)
    settings = getattr(experts, "alpha", None), getattr(experts, "limit", None)
    return "clamped_swiglu" if settings == (1.702, 7.0) else None
