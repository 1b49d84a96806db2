"""A whole model of one layer in a GGUF file, with a vocabulary of 288 tokens; parts of it to be changed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod

from .gguf_bytes import F32, I32, TF32, U32, Gguf, info, key, numbers, pad, scalar, string, strings

VOCABULARY, HIDDEN, KV, INNER = 288, 64, 32, 96
NORMAL, CONTROL, BYTE = 1, 3, 6


@cache
def dense(count: int) -> bytes:
    """F32 numbers near 0, the same for every tensor of that size."""
    return struct.pack(f"<{count}f", *((i * 37 % 101 - 50) / 500 for i in range(count)))


@dataclass
class Model:
    """keys: values with their types. tensors: (dims, type, bytes), None for F32 numbers that fit."""

    keys: dict[str, bytes]
    tensors: dict[str, tuple[list[int], int, bytes | None]]

    def put(self, name: str, value: bytes) -> Model:
        self.keys[name] = value
        return self

    def without(self, *names: str) -> Model:
        for name in names:
            (self.tensors if name in self.tensors else self.keys).pop(name)
        return self

    def tensor(self, name: str, dims: list[int], kind: int = TF32, data: bytes | None = None) -> Model:
        self.tensors[name] = (dims, kind, data)
        return self

    def bytes(self) -> bytes:
        infos, data = [], bytearray()
        for name, (dims, kind, raw) in self.tensors.items():
            infos.append(info(name, dims, kind, len(data)))
            raw = dense(prod(dims)) if raw is None else raw
            data += raw + bytes(pad(len(raw), 32))
        return Gguf([key(k, v) for k, v in self.keys.items()], infos, bytes(data)).bytes()


def spm_tokens() -> list[str]:
    pieces = [f"▁w{i}" for i in range(VOCABULARY - 259)]
    return ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *pieces]


def vocabulary() -> dict[str, bytes]:
    types = [2, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (VOCABULARY - 259)]
    return {
        "tokenizer.ggml.model": string("llama"),
        "tokenizer.ggml.tokens": strings(spm_tokens()),
        "tokenizer.ggml.scores": numbers(F32, [-float(i) for i in range(VOCABULARY)]),
        "tokenizer.ggml.token_type": numbers(I32, types),
        "tokenizer.ggml.bos_token_id": scalar(U32, 1),
        "tokenizer.ggml.eos_token_id": scalar(U32, 2),
    }


def layer(index: int = 0) -> dict[str, tuple[list[int], int, bytes | None]]:
    shapes = {
        "attn_norm": [HIDDEN], "attn_q": [HIDDEN, HIDDEN], "attn_k": [HIDDEN, KV], "attn_v": [HIDDEN, KV],
        "attn_output": [HIDDEN, HIDDEN], "ffn_norm": [HIDDEN], "ffn_gate": [HIDDEN, INNER], "ffn_up": [HIDDEN, INNER],
        "ffn_down": [INNER, HIDDEN],
    }  # fmt: skip
    return {f"blk.{index}.{name}.weight": (dims, TF32, None) for name, dims in shapes.items()}


def model(architecture: str = "llama") -> Model:
    """A sound one: 4 heads of 16, 2 of them for keys and values."""
    ints = {
        "context_length": 128, "embedding_length": HIDDEN, "block_count": 1, "feed_forward_length": INNER,
        "attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 16, "vocab_size": VOCABULARY,
    }  # fmt: skip
    keys = {
        "general.architecture": string(architecture),
        **{f"{architecture}.{name}": scalar(U32, value) for name, value in ints.items()},
        f"{architecture}.attention.layer_norm_rms_epsilon": scalar(F32, 1e-5),
        f"{architecture}.rope.freq_base": scalar(F32, 1e4),
        **vocabulary(),
    }
    tensors: dict[str, tuple[list[int], int, bytes | None]] = {
        "token_embd.weight": ([HIDDEN, VOCABULARY], TF32, None),
        **layer(),
        "output_norm.weight": ([HIDDEN], TF32, None),
        "output.weight": ([HIDDEN, VOCABULARY], TF32, None),
    }
    return Model(keys, tensors)


def letters() -> list[str]:
    """GPT-2's names of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [chr(b if b in plain else 256 + rest.index(b)) for b in range(256)]


def bpe(merges: list[str] | None = None) -> Model:
    """The model with GPT-2's kind of vocabulary: bytes, 31 pairs, one control token."""
    made = [f"{left} {right}" for left in "abcdefgh" for right in "ijkl"][:31]
    file = model()
    for name in ("scores", "bos_token_id", "eos_token_id"):
        del file.keys[f"tokenizer.ggml.{name}"]
    tokens = [*letters(), *(pair.replace(" ", "") for pair in made), "<|end|>"]
    file.keys |= {
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string("gpt-2"),
        "tokenizer.ggml.tokens": strings(tokens),
        "tokenizer.ggml.token_type": numbers(I32, [NORMAL] * 287 + [CONTROL]),
        "tokenizer.ggml.merges": strings(made if merges is None else merges),
        "tokenizer.ggml.eos_token_id": scalar(U32, 287),
    }
    return file


def changed(change: Callable[[Model], object], base: Callable[[], Model] = model) -> Callable[[], bytes]:
    """The file after that change."""

    def build() -> bytes:
        file = base()
        change(file)
        return file.bytes()

    return build
