"""Large GGUF files of a Llama with random weights, to measure loading with."""

from __future__ import annotations

from pathlib import Path

import torch

from torch_foundry import quant
from torch_foundry.io.gguf.architectures import LLAMA
from torch_foundry.io.gguf.slots import BLOCK, EMBEDDING, NORM
from torch_foundry.io.gguf.writer import Tensor, write_gguf

HIDDEN, INNER, HEADS, KV_HEADS, VOCABULARY = 2048, 8192, 32, 8, 4096
SIZES = {"H": HIDDEN, "F": INNER, "Q": HIDDEN, "K": HIDDEN // HEADS * KV_HEADS, "V": VOCABULARY}


def write(path: Path, nbytes: int, fmt: str) -> int:
    """A file of about `nbytes` bytes (as many layers as fit, at least one); its size."""
    shapes = {slot.tensor: [SIZES[letter] for letter in slot.shape.split()] for slot in LLAMA.layer}
    layer = sum(_tensor(shape, fmt).nbytes for shape in shapes.values())
    layers = max(1, nbytes // layer)
    tensors = {EMBEDDING.tensor: _tensor([VOCABULARY, HIDDEN], fmt), NORM.tensor: _tensor([HIDDEN], fmt)}
    for index in range(layers):
        tensors |= {BLOCK.format(index) + name: _tensor(shape, fmt) for name, shape in shapes.items()}
    metadata = {
        "general.architecture": "llama",
        "llama.context_length": 4096,
        "llama.embedding_length": HIDDEN,
        "llama.block_count": layers,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    write_gguf(path, metadata, tensors)
    return path.stat().st_size


def _tensor(shape: list[int], fmt: str) -> Tensor:
    if len(shape) == 1:
        return Tensor(shape, "f32", lambda: torch.ones(shape))
    known = quant.get_format(fmt)

    def read() -> torch.Tensor:
        block = quant.quantize(torch.randn(1, known.block_size * 64), fmt)
        row = known.row_size(shape[-1])
        return block.repeat(1, -(-row // block.shape[1]))[:, :row].expand(*shape[:-1], row)

    return Tensor(shape, fmt, read)


def read_once(path: Path) -> None:
    """Read the file into new memory, in the calls that a plain reader makes."""
    size = path.stat().st_size
    out = torch.empty(size, dtype=torch.uint8).numpy().data
    with open(path, "rb", buffering=0) as file:
        at = 0
        while at < size:
            at += file.readinto(out[at : at + (8 << 20)])
