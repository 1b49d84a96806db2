"""Rotation, the cache and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import Case, Given, Op, Sizes, normal
from benchmarks.models import Model
from torch_foundry import ops
from torch_foundry.core.limits import KV_BLOCK
from torch_foundry.quant.kv import FORMATS, pack_rows
from torch_foundry.testing import reference as plain
from torch_foundry.testing import reference_attention


def _rope_inputs(case: Case, g: torch.Generator) -> Given:
    (heads, kv, d), length = case.heads, case.rows
    angles = torch.rand(1, length, d, generator=g, device=g.device) * 6
    return {
        "q": normal(g, case.dtype, 1, length, heads * d),
        "k": normal(g, case.dtype, 1, length, kv * d),
        "v": normal(g, case.dtype, 1, length, kv * d),
        "cos": angles.cos().to(case.dtype),
        "sin": angles.sin().to(case.dtype),
        "k_cache": torch.zeros(1, kv, length, d, dtype=case.dtype, device=g.device),
        "v_cache": torch.zeros(1, kv, length, d, dtype=case.dtype, device=g.device),
    }


def _rope(op: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def call(k_cache: Tensor, v_cache: Tensor, format: str, **given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = op(**given, k_cache=k_cache, v_cache=v_cache, start=0, head_dim=k_cache.shape[-1])
        return q, k_cache, v_cache

    return call


def _rope_cost(case: Case, _: int) -> tuple[int, int]:
    heads, kv, d = case.heads
    return 3 * case.rows * (heads + kv) * d, 2 * case.rows * (heads + 2 * kv + 1) * d * case.dtype.itemsize


ROPE_KV = Op(
    run=_rope(ops.rope_kv),
    stock=_rope(plain.rope_kv),
    stock_is="the operations of transformers",
    truth=_rope(plain.rope_kv),
    inputs=_rope_inputs,
    cost=_rope_cost,
    shapes=lambda m, s: ({"where": "attention", "rows": r, "n": 0, "heads": m.heads} for r in (1, s.prompt)),
)


def _attention_inputs(case: Case, g: torch.Generator) -> Given:
    heads, kv, d = case.heads
    caches = {name: normal(g, case.dtype, 1, kv, case.n, d) for name in ("k_cache", "v_cache")}
    q = normal(g, case.dtype, 1, heads, case.rows, d)
    if case.format not in FORMATS:
        return {"q": q, **caches}
    # numbers that the format and float16 both have: so stock torch and the truth get the same ones
    f, step = FORMATS[case.format], 1 / 32 if case.format == "q8_0" else 0.5
    most = f.zero - 1
    for cache in caches.values():
        cache.copy_((cache / step).round().clamp(-most, most) * step)
        cache[..., ::KV_BLOCK] = most * step if f.symmetric else -f.zero * step
    return {"q": q, **{name: pack_rows(cache, case.format) for name, cache in caches.items()}, "dense": caches}


def _sdpa(q: Tensor, k_cache: Tensor, v_cache: Tensor, format: str) -> Tensor:
    causal = q.shape[2] > 1  # as many queries as keys
    y = F.scaled_dot_product_attention(q, k_cache, v_cache, is_causal=causal, enable_gqa=True)
    return y.transpose(1, 2).flatten(2)


def _attention_cost(case: Case, row: int) -> tuple[int, int]:
    (heads, kv, d), queries, keys = case.heads, case.rows, case.n
    pairs = queries * keys - queries * (queries - 1) // 2
    return 4 * heads * d * pairs, 2 * heads * queries * d * case.dtype.itemsize + 2 * kv * keys * (
        row or d * case.dtype.itemsize
    )


def _attention_shapes(model: Model, sizes: Sizes) -> Iterator[dict[str, Any]]:
    for keys in sizes.keys:
        yield {"where": "decode", "rows": 1, "n": keys, "heads": model.heads}
    yield {"where": "prefill", "rows": sizes.prompt, "n": sizes.prompt, "heads": model.heads}


def _attention_call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(q: Tensor, k_cache: Tensor, v_cache: Tensor, format: str) -> Tensor:
        return op(q, k_cache, v_cache, k_cache.shape[2], scale=q.shape[-1] ** -0.5)

    return call


def _run(q: Tensor, k_cache: Tensor, v_cache: Tensor, format: str) -> Tensor:
    name = format if k_cache.dtype == torch.uint8 else None
    tokens, scale = k_cache.shape[2], q.shape[-1] ** -0.5
    return ops.attention(q, k_cache, v_cache, tokens, scale=scale, k_format=name, v_format=name)


ATTENTION = Op(
    run=_run,
    stock=_sdpa,
    stock_is="scaled_dot_product_attention",
    truth=_attention_call(plain.attention),
    inputs=_attention_inputs,
    cost=_attention_cost,
    shapes=_attention_shapes,
    caches=True,
)


def _new_inputs(case: Case, g: torch.Generator) -> Given:
    heads, kv, d = case.heads
    angles = torch.rand(1, 1, d, generator=g, device=g.device) * 6
    return {
        **{name: normal(g, case.dtype, 1, 1, n * d) for name, n in (("q", heads), ("k", kv), ("v", kv))},
        **{name: normal(g, case.dtype, 1, kv, case.n, d) for name in ("k_cache", "v_cache")},
        **{name: normal(g, case.dtype, d) for name in ("q_norm", "k_norm")},
        "cos": angles.cos().to(case.dtype),
        "sin": angles.sin().to(case.dtype),
    }


def _new(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(k_cache: Tensor, format: str, **given: Tensor) -> Tensor:
        tokens, d = k_cache.shape[2:]
        return op(**given, k_cache=k_cache, kv_len=tokens, head_dim=d, scale=d**-0.5, eps=1e-6)

    return call


def _new_cost(case: Case, row: int) -> tuple[int, int]:
    flops, moved = _attention_cost(case, row)
    heads, kv, d = case.heads
    return flops + 6 * (heads + kv) * d, moved + 4 * kv * d * case.dtype.itemsize


ROPE_ATTENTION = Op(
    run=_new(ops.rope_attention),
    stock=_new(reference_attention.rope_attention),
    stock_is="the operations of transformers",
    truth=_new(reference_attention.rope_attention),
    inputs=_new_inputs,
    cost=_new_cost,
    shapes=lambda m, s: ({"where": "decode", "rows": 1, "n": keys, "heads": m.heads} for keys in s.keys),
)
