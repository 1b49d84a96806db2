"""A GGUF file as a model that can be assembled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch_foundry.loaders.container import FileContainer
from torch_foundry.loaders.described import Described
from torch_foundry.loaders.gguf.config import make_config
from torch_foundry.loaders.gguf.model import GgufModel


def describe_gguf(
    container: FileContainer,
    *,
    tokens: Callable[[Any, Any, int], tuple[Callable[[], Any], dict[str, Any]]],
    mmap: bool = False,
    check_finite: bool = True,
    allow: Iterable[str] = (),
) -> Described:
    """The model in an open file. LoadError as `GgufModel` says, and what `tokens` raises.

    tokens: (metadata, file, rows of the embedding) -> what makes the tokenizer, and ids of special tokens by their
    names in transformers' configs.
    """
    model = GgufModel(container, mmap=mmap, check_finite=check_finite, allow=allow)
    tokenizer, ids = tokens(container.metadata, model.file, model.sizes["V"])
    config = make_config(model)
    for name, value in ids.items():
        setattr(config, name, value)
    import transformers

    capped = getattr(config, "attn_logit_softcapping", None) is not None
    return Described(
        config=config,
        weights=model.weights,
        file=model.file,
        dtype=model.dtype,
        tokenizer=tokenizer,
        close=container.close,
        generation_config=transformers.GenerationConfig(**{k: v for k, v in ids.items() if v is not None}),
        attn_implementation="eager" if capped else None,  # others leave the cap out
        absent=tuple(model.absent),
    )
