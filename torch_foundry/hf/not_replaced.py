"""What `patch` leaves alone, and why: whatever has weights and is not replaced, and models that decode by Python."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from torch_foundry.models.swap import FoundryModule, base_class, has_own_forward
from torch_foundry.models.tensor_parallel import sharding_of
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear

PACKED = FoundryEmbedding, FoundryExperts, FoundryLinear


def modules_not_replaced(
    model: nn.Module, replaced: Container[int], layers: Mapping[str, str], models: Mapping[int, type]
) -> dict[str, str]:
    """Names of the outermost modules that are left alone -> why.

    replaced: ids of the layers and leaves that are about to be. layers: decoder layers that were looked at and not
    understood -> why. models: the mixins of whole models, by id.
    """
    not_replaced: dict[str, str] = {}

    def visit(name: str, module: nn.Module, listed: bool) -> None:
        whole = isinstance(module, PreTrainedModel)
        if id(module) in replaced or isinstance(module, PACKED) or (isinstance(module, FoundryModule) and not whole):
            return
        cls = base_class(type(module))
        kind = f"{cls.__name__} of {cls.__module__}"
        if name in layers:
            not_replaced[name] = layers[name]
            return
        if whole:
            mixin = models.get(id(module)) or type(module)
            not_replaced.update((name, why) for why in _by_python(module, cls, mixin, replaced))
        elif (listed or isinstance(module, GradientCheckpointingLayer)) and any(True for _ in module.parameters()):
            not_replaced[name] = f"{kind} is not a known layer"
            return
        elif not has_own_forward(module) and any(True for _ in module.parameters(recurse=False)):
            not_replaced[name] = sharding_of(module) or "its forward was replaced"
        elif any(True for _ in module.parameters(recurse=False)):
            not_replaced[name] = f"{kind} is not a known module"
        for child, inner in module.named_children():
            visit(f"{name}.{child}" if name else child, inner, isinstance(module, nn.ModuleList))

    visit("", model, False)
    return {**not_replaced, **layers}


def _by_python(module: nn.Module, cls: type, mixin: type, replaced: Container[int]) -> Iterator[str]:
    """Why steps of a whole model are launched by Python, if they are."""
    lists = [child for child in module.children() if isinstance(child, nn.ModuleList)]
    if hasattr(mixin, "generate") and not hasattr(mixin, "generator_plan"):
        yield f"{cls.__name__} is not a known language model: generate() is Hugging Face's loop"
    elif not hasattr(mixin, "decoder_plan") and any(_is_layer(layer, replaced) for each in lists for layer in each):
        yield f"{cls.__name__} is not a known decoder: a step is launched layer by layer"


def _is_layer(module: nn.Module, replaced: Container[int]) -> bool:
    fused = id(module) in replaced or isinstance(module, FoundryModule)
    return fused and isinstance(module, GradientCheckpointingLayer)
