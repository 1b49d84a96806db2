"""What comes before the first and after the last decoder layer of the models in `models/families.py`."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import nn

from torch_foundry.core.errors import Fallback
from torch_foundry.models.families import DECODERS, HEADS, WRAPPERS
from torch_foundry.models.family import Decoder, Head, Wrapper, class_key
from torch_foundry.models.swap import base_class


def decoder_of(module: nn.Module) -> Decoder | None:
    """What is known of `module` as a decoder."""
    return DECODERS.get(class_key(type(module)))


def head_of(module: nn.Module) -> Head | None:
    """What is known of `module` as a causal language model, or one that is shown images."""
    return HEADS.get(class_key(type(module)))


def wrapper_of(module: nn.Module) -> Wrapper | None:
    """What is known of `module` as a wrapper of a decoder."""
    return WRAPPERS.get(class_key(type(module)))


def replaced_ids(model: Any) -> frozenset[int]:
    """Ids that `model`, if it is a wrapper, embeds as padding, or by itself: not as captured steps do."""
    if (wrapper := wrapper_of(model)) is None:
        return frozenset()
    own = min((attrgetter(name)(model) for name in wrapper.own_from), default=None)
    found = () if own is None else range(own, model.config.get_text_config().vocab_size)
    return frozenset(found) | _padding(model, wrapper)


def _padding(model: Any, wrapper: Wrapper) -> frozenset[int]:
    return frozenset(found for name in wrapper.replaced if (found := getattr(model.config, name, None)) is not None)


def embedding_read_by(model: Any) -> Any:
    """The embedding of `model` if stock code reads rows of its weight; None if not."""
    if (wrapper := wrapper_of(model)) is None or not _padding(model, wrapper):
        return None
    own = getattr(model.config.get_text_config(), "hidden_size_per_layer_input", None)
    return model.get_input_embeddings() if own else None


def path_to_decoder(model: nn.Module) -> list[Any]:
    """The modules from `model`, whose head is known, to its decoder. Raises Fallback if they are others."""
    head = head_of(model)
    if head is None:
        raise Fallback(f"{base_class(type(model)).__name__} is not a known language model")
    path = [model]
    for name in head.decoder.split("."):
        if (child := path[-1]._modules.get(name)) is None:
            raise Fallback("the decoder is not a known one")
        path.append(child)
    if not hasattr(path[-1], "decoder_plan"):
        raise Fallback("the decoder is not a known one")
    return path


def check_around(model: nn.Module) -> None:
    """Raise Fallback if `model`, or what lies between it and its decoder, does more than its own code when called:
    captured steps and engines call the decoder alone."""
    for module in path_to_decoder(model)[:-1]:
        if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
            raise Fallback(f"hook on {type(module).__name__}")


def is_plain(head: Head, config: Any) -> bool:
    """Whether the logits are what `lm_head` gives."""
    config = config.get_text_config()
    softcap = head.softcap and getattr(config, head.softcap)
    divisor = head.divisor and getattr(config, head.divisor)
    factor = head.factor and getattr(config, head.factor)
    return softcap is None and divisor in (None, 1.0) and factor in (None, 1.0)


def logits_of(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Logits [..., V] of the last norm's result, rounded as the stock model rounds."""
    return finished(model, model.lm_head(hidden))


def finished(model: Any, logits: torch.Tensor) -> torch.Tensor:
    """Logits [..., V] of what `lm_head` gives."""
    head, config = head_of(model), model.config.get_text_config()
    assert head is not None
    if head.divisor is not None:
        logits = logits / getattr(config, head.divisor)
    if head.factor is not None:
        logits = logits * getattr(config, head.factor)
    if head.softcap is not None and (cap := getattr(config, head.softcap)) is not None:
        logits = torch.tanh(logits / cap) * cap
    return logits


def number(buffer: torch.Tensor, dtype: torch.dtype) -> float:
    """The value of a buffer of one number, rounded to `dtype`. On the meta device, where there is none, 1."""
    return 1.0 if buffer.is_meta else float(buffer.to(dtype))
