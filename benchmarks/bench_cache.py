"""Memory per token in each kind of KV cache: python -m benchmarks.bench_cache [--picture FILE.svg].

Divides the bytes that a cache has allocated for all layers by the tokens that it holds. No model is needed: layers are
asked for room as a forward pass does.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Gemma3TextConfig, LlamaConfig
from transformers.cache_utils import DynamicCache

from torch_foundry.diagnostics.chart import Bar, bars
from torch_foundry.kvcache.base import KVSpec
from torch_foundry.kvcache.hf_cache import new_cache, reserve_hint
from torch_foundry.kvcache.paged import PagedCache

# the shapes that matter of Llama 3.2 1B and Gemma 3 1B; four of five of Gemma's layers see 512 tokens
MODELS = {
    "Llama 3.2 1B": LlamaConfig(
        num_hidden_layers=16, num_key_value_heads=8, num_attention_heads=32, head_dim=64, hidden_size=2048
    ),
    "Gemma 3 1B": Gemma3TextConfig(
        num_hidden_layers=26, num_key_value_heads=1, num_attention_heads=4, head_dim=256, sliding_window=512
    ),
}
MIXED = {"k": "q8_0", "v": "q4_0"}
CONTEXTS = (1000, 4096, 32768)
BLOCK = 16


@dataclass(frozen=True)
class Kind:
    """A kind of cache, by what it is made with."""

    name: str
    dtype: torch.dtype = torch.float16
    kv_cache: Any = None
    paged: bool = False


KINDS = (
    Kind("f32", torch.float32),
    Kind("f16"),
    Kind("bf16", torch.bfloat16),
    Kind("k q8_0, v f16", kv_cache={"k": "q8_0"}),
    Kind("q8_0", kv_cache="q8_0"),
    Kind("k q8_0, v q4_0", kv_cache=MIXED),
    Kind("q4_0", kv_cache="q4_0"),
    Kind("f16, pages", paged=True),
    Kind("q8_0, pages", kv_cache="q8_0", paged=True),
    Kind("k q8_0, v q4_0, pages", kv_cache=MIXED, paged=True),
)


def allocated(config: Any, kind: Kind, tokens: int) -> int:
    """Bytes of a cache for one sequence of so many tokens: a prompt, then one token. As in generate(), the cache is
    told how many tokens will come. Of pages, those that the sequence owns.
    """
    spec, device = KVSpec(config.num_key_value_heads, config.head_dim), torch.device("cpu")
    cache: DynamicCache | PagedCache
    if kind.paged:
        cache = PagedCache(config, -(-tokens // BLOCK), block_size=BLOCK, kv_cache=kind.kv_cache)
    else:
        cache = new_cache(config, kind.kv_cache)
        reserve_hint(cache, range(config.num_hidden_layers), 1)
    layers: list[Any] = cache.layers
    for layer in layers:
        for new in (tokens - 1, 1):
            layer.reserve(1, spec, new, kind.dtype, device)
            layer.commit(new)
    memory = [m for layer in layers for m in layer.memory]
    assert len({m.data_ptr() for m in memory}) == 2 * config.num_hidden_layers
    return sum(m.nbytes for m in memory)


def measure() -> dict[str, dict[str, list[float]]]:
    """KiB of a token, by model and kind, for each of CONTEXTS."""
    return {
        model: {kind.name: [allocated(config, kind, n) / n / 1024 for n in CONTEXTS] for kind in KINDS}
        for model, config in MODELS.items()
    }


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """In Markdown."""
    heads = [f"{model}: {CONTEXTS[0]:,} tokens | " + " | ".join(f"{n:,}" for n in CONTEXTS[1:]) for model in found]
    lines = ["| KiB a token | " + " | ".join(heads) + " |", "|---" * (1 + len(found) * len(CONTEXTS)) + "|"]
    for kind in KINDS:
        figures = [f"{kib:.2f}" for kinds in found.values() for kib in kinds[kind.name]]
        lines.append(f"| {kind.name} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def svg(found: dict[str, dict[str, list[float]]]) -> str:
    """An SVG document: a bar for each model and kind, at the last of CONTEXTS."""
    most = max(figures[-1] for kinds in found.values() for figures in kinds.values())
    groups = {
        model: [Bar(name, figures[-1] / most, f"{figures[-1]:.2f}") for name, figures in kinds.items()]
        for model, kinds in found.items()
    }
    return bars("Memory of a token by kind of KV cache", groups, [f"KiB a token, all layers, {CONTEXTS[-1]:,} tokens"])


def main() -> None:
    """Print the table; draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=Path, metavar="FILE.svg")
    args = parser.parse_args()
    found = measure()
    print(table(found))
    if args.picture is not None:
        args.picture.write_text(svg(found))


if __name__ == "__main__":
    main()
