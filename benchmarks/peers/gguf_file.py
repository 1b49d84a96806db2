"""A model with random weights as a GGUF file for llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch_foundry.io.gguf.writer import describe_model, write_gguf


def write(path: Path, network: Any, *, words: bool = False) -> None:
    """Write `network`, packed or not. words: with a token for each word `w0`, `w1` ...; without, it has no vocabulary.

    A file has an end token; a server that may not ignore it ends a random text with `w2`.
    """
    metadata, tensors = describe_model(network)
    count = network.config.vocab_size
    metadata[f"{metadata['general.architecture']}.vocab_size"] = count
    metadata["tokenizer.ggml.model"] = "llama" if words else "none"
    if words:
        metadata["tokenizer.ggml.tokens"] = [f"▁w{i}" for i in range(count)]
        metadata["tokenizer.ggml.scores"] = [0.0] * count
        metadata["tokenizer.ggml.token_type"] = [1] * count  # normal ones
    write_gguf(path, metadata, tensors)
