"""Activation functions that the kernels know, by the classes that models use."""

from __future__ import annotations

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
