"""`torch_foundry.save_gguf`: a model as a GGUF file."""

from __future__ import annotations

import os
from typing import Any


def save_gguf(model: Any, path: str | os.PathLike[str], tokenizer: Any = None) -> None:
    """Write `model`, patched or not, to the GGUF file `path`. Packed weights are written block for block.

    The model is not changed. Vectors (norms, biases) become float32, as in all GGUF files. Gemma's norms are stored
    with 1 added, which costs their last digits in float32. tokenizer: is stored in the file; without one, `load` needs
    allow=("VOCAB_MISSING",). The file appears at `path` only when it is complete.

    ValueError: a model of an unknown family, settings or a tokenizer that GGUF can't describe, or weights in formats of
    mlx, GPTQ, AWQ or bitsandbytes, which GGUF doesn't have (`unpatch(model, dequantize=True)` makes them dense).
    """
    from torch_foundry.loaders.gguf.file import write_gguf
    from torch_foundry.loaders.gguf.write import describe_model

    metadata, tensors = describe_model(model)
    if tokenizer is not None:
        from torch_foundry.text.export import gguf_from_tokenizer

        metadata |= gguf_from_tokenizer(tokenizer, model.config.vocab_size)
        ends = model.generation_config.eos_token_id
        others = [i for i in (ends if isinstance(ends, list) else []) if i != tokenizer.eos_token_id]
        for name, end in zip(("eot", "eom"), others, strict=False):
            metadata[f"tokenizer.ggml.{name}_token_id"] = end
    write_gguf(path, metadata, tensors)
