"""`torch_foundry.save_gguf`: a model as a GGUF file."""

from __future__ import annotations

import os
from typing import Any


def save_gguf(model: Any, path: str | os.PathLike[str], tokenizer: Any = None) -> None:
    """Write `model`, patched or not, to the GGUF file `path`, weights as they are stored: packed ones block for block.

    The model stays as it is. Vectors (norms, biases) become float32, as in all such files; Gemma's norms, which files
    hold raised by 1, lose what float32 can't hold of that. tokenizer: goes into the file; without one, `load` needs
    allow=("VOCAB_MISSING",). The file appears under its name when it is whole.

    ValueError for a model of an unknown family, one with settings that GGUF can't say, weights in formats that it
    hasn't (those of mlx, GPTQ, AWQ or bitsandbytes; `unpatch(model, dequantize=True)` makes weights dense), or a
    tokenizer that it can't describe.
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
