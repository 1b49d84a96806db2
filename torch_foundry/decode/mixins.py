"""Which whole models get more than `patch.model.ModelMixin`: known decoders and causal language models."""

from __future__ import annotations

from torch import nn
from transformers.generation.utils import GenerationMixin

from torch_foundry.decode.decoder import DecoderMixin
from torch_foundry.decode.generator import CountingMixin, GeneratorMixin
from torch_foundry.decode.models import decoder_of, head_of
from torch_foundry.patch.model import ModelMixin


def mixin_of(model: nn.Module) -> type[ModelMixin] | None:
    """The mixin for `model`; None if nothing more is known of it."""
    if decoder_of(model) is not None:
        return DecoderMixin
    if head_of(model) is not None:
        return GeneratorMixin
    return CountingMixin if isinstance(model, GenerationMixin) else None
