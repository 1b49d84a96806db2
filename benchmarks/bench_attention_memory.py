"""Memory of one layer's attention beside its inputs: python -m benchmarks.bench_attention_memory.

Counts what torch's allocator hands out while the newest tokens look at a cache: by stock transformers, eager and with
torch's scaled_dot_product_attention, and patched. The mask that stock code makes once for all layers is an input here.
On the CPU, where all allocations can be seen.
"""

from __future__ import annotations

import argparse
import functools
import types
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import eager_attention_forward

from benchmarks.harness.allocations import most_allocated
from benchmarks.tables import markdown
from torch_foundry import ops
from torch_foundry.testing.tolerance import assert_norm, double, generator, normal

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
QUERIES = (1, 64)  # a decode step, and a part of a prompt
CONTEXTS = (1024, 4096, 16384, 32768)
SCALE = HEAD_DIM**-0.5

Call = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]


def _stock(forward: Callable[..., tuple[Tensor, Tensor | None]]) -> Call:
    """transformers' function, as a layer calls it in eval mode."""
    config = LlamaConfig(num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM)
    layer = types.SimpleNamespace(
        config=config, num_key_value_groups=HEADS // KV_HEADS, training=False, is_causal=True, layer_idx=0
    )
    return lambda q, k, v, mask: forward(layer, q, k, v, mask, scaling=SCALE, dropout=0.0)[0].flatten(2)


WAYS: dict[str, Call] = {
    "eager": _stock(eager_attention_forward),
    "sdpa": _stock(sdpa_attention_forward),
    "patched": lambda q, k, v, mask: ops.attention(q, k, v, k.shape[2], scale=SCALE),
}


@torch.no_grad()
def measure(queries: int, context: int, dtype: torch.dtype = torch.float32) -> dict[str, int]:
    """Bytes by way, the output among them. Mismatch: the result of one is not that of the others."""
    g = generator(queries, context)
    q = normal(g, 1, HEADS, queries, HEAD_DIM, dtype=dtype)
    k, v = (normal(g, 1, KV_HEADS, context, HEAD_DIM, dtype=dtype) for _ in range(2))
    seen = torch.arange(context) <= torch.arange(context - queries, context)[:, None]
    mask = torch.zeros(1, 1, queries, context, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    given = (q, k, v, mask if queries > 1 else None)
    found: dict[str, Tensor] = {name: call(*given) for name, call in WAYS.items()}
    truth = WAYS["eager"](*double(given))
    for name in ("sdpa", "patched"):
        assert_norm(found[name], truth, found["eager"])
    return {name: most_allocated(functools.partial(call, *given)) for name, call in WAYS.items()}


def table(contexts: Sequence[int] = CONTEXTS) -> str:
    """In Markdown."""
    lines: list[tuple[object, ...]] = [("new tokens", "context", *(f"{name}, KiB" for name in WAYS))]
    for queries in QUERIES:
        for context in contexts:
            found = measure(queries, context)
            lines.append((queries, f"{context:,}", *(f"{n / 1024:,.1f}" for n in found.values())))
    return markdown(lines)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(table())
