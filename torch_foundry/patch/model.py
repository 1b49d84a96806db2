"""The swapped model class: what has to hold for a model as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_foundry.nn import FoundryEmbedding, FoundryLinear
from torch_foundry.patch.swap import FoundryModule


class ModelMixin(FoundryModule):
    """Methods of a swapped `PreTrainedModel`, usually an `...ForCausalLM`."""

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        # .to(device) copies buffers one by one; a packed weight that two modules share has to stay one
        shared = shared_packed(self)  # type: ignore[arg-type]
        result = super()._apply(fn, recurse)  # type: ignore[misc]
        for first, *others in shared:
            for other in others:
                other._buffers["weight"] = first._buffers["weight"]
        return result

    def tie_weights(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; packed weights stay tied as they are."""
        if self._foundry.state.quantized:
            return None
        return super().tie_weights(*args, **kwargs)  # type: ignore[misc]

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> Any:
        """As stock; packed embeddings cannot be resized."""
        if self._foundry.state.quantized and args + tuple(kwargs.values()) != ():
            raise RuntimeError("packed embeddings cannot be resized; unpatch(model, dequantize=True) makes them dense")
        return super().resize_token_embeddings(*args, **kwargs)  # type: ignore[misc]

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        """As stock, with packed weights written dense, so that any transformers can read the result."""
        if self._foundry.state.quantized and kwargs.get("state_dict") is None:
            kwargs["state_dict"] = dense_state_dict(self)  # type: ignore[arg-type]
        return super().save_pretrained(save_directory, *args, **kwargs)  # type: ignore[misc]


def shared_packed(model: nn.Module) -> list[list[nn.Module]]:
    """Groups of modules that share one packed weight."""
    groups: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        if isinstance(module, FoundryLinear | FoundryEmbedding):
            groups.setdefault(id(module.weight), []).append(module)
    return [group for group in groups.values() if len(group) > 1]


def dense_state_dict(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state dict with packed weights dequantised to the model's dtype; shared ones once."""
    dtype: torch.dtype = model.dtype  # type: ignore[assignment]
    state = dict(model.state_dict())
    dense: dict[int, torch.Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, FoundryLinear | FoundryEmbedding):
            key = id(module.weight)
            if key not in dense:
                dense[key] = module.dequantized(dtype)
            state[f"{name}.weight"] = dense[key]
    return state
