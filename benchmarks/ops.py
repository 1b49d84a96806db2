"""The ops that bench_ops measures: inputs, cost, the shapes that models give them, and stock torch doing the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import Case, Given, Op, Sizes
from benchmarks.models import DTYPES, Model
from torch_foundry import ops, quant
from torch_foundry import reference as plain

SAMPLE = 1024  # rows of a weight that are drawn; the others repeat them in random order


def _normal(g: torch.Generator, dtype: torch.dtype, *shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, generator=g, device=g.device) * scale).to(dtype)


# -------------------------------------------------------------------------------------------------- linear, embedding


def weight(case: Case, g: torch.Generator) -> tuple[Tensor, Tensor]:
    """A weight in the case's format and the float weights that it stands for; both [n, k]."""
    drawn = _normal(g, torch.float32, min(case.n, SAMPLE), case.k, scale=case.k**-0.5)
    order = torch.randint(0, drawn.shape[0], (case.n,), generator=g, device=g.device)
    stored = quant.quantize(drawn, case.format)
    meant = quant.dequantize(stored, case.format).to(case.dtype) if case.format not in DTYPES else stored
    return stored[order], meant[order]


def _linear_inputs(case: Case, g: torch.Generator) -> Given:
    stored, meant = weight(case, g)
    return {"x": _normal(g, case.dtype, *case.lead(case.rows), case.k), "weight": stored, "dense": meant}


def _linear_shapes(model: Model, sizes: Sizes) -> Iterator[dict[str, Any]]:
    for where, (n, k) in model.linears().items():
        for rows in sizes.rows:
            if rows <= 16 or where != "lm_head":  # only the last token of a prompt has logits
                yield {"where": where, "rows": rows, "n": n, "k": k}


def _packed(fmt: str) -> str | None:
    return None if fmt in DTYPES else fmt


LINEAR = Op(
    run=lambda x, weight, format: ops.linear(x, weight, format=_packed(format)),
    stock=lambda x, weight, format: F.linear(x, weight),
    stock_is="F.linear",
    truth=lambda x, weight, format: F.linear(x, weight),
    inputs=_linear_inputs,
    cost=lambda c, row: (2 * c.rows * c.n * c.k, c.n * row + c.rows * (c.n + c.k) * c.dtype.itemsize),
    shapes=_linear_shapes,
    packs=True,
    layouts=("2d", "3d"),
)


def _embedding_inputs(case: Case, g: torch.Generator) -> Given:
    stored, meant = weight(case, g)
    ids = torch.randint(0, case.n, case.lead(case.rows), generator=g, device=g.device)
    return {"ids": ids, "weight": stored, "dense": meant}


EMBEDDING = Op(
    run=lambda ids, weight, format: ops.embedding(
        ids, weight, format=_packed(format), dtype=DTYPES.get(format, torch.float16)
    ),
    stock=lambda ids, weight, format: F.embedding(ids, weight),
    stock_is="F.embedding",
    truth=lambda ids, weight, format: F.embedding(ids, weight),
    inputs=_embedding_inputs,
    cost=lambda c, row: (0, c.rows * (row + c.k * c.dtype.itemsize + 8)),
    shapes=lambda m, s: (
        {"where": "embed_tokens", "rows": r, "n": m.vocab_size, "k": m.hidden_size} for r in (1, s.prompt)
    ),
    packs=True,
    layouts=("2d", "3d"),
)

# --------------------------------------------------------------------------------------- norms, gated product, argmax

EPS = 1e-6


def _lowest_of_the_largest(x: Tensor) -> Tensor:
    index = torch.arange(x.shape[-1], device=x.device).expand_as(x)
    return index.masked_fill(x != x.amax(-1, keepdim=True), x.shape[-1]).amin(-1)


def _rows_of_hidden(model: Model, sizes: Sizes) -> Iterator[dict[str, Any]]:
    return ({"where": "norm", "rows": rows, "n": model.hidden_size} for rows in (1, sizes.prompt))


def _norm_inputs(case: Case, g: torch.Generator) -> Given:
    return {"x": _normal(g, case.dtype, *case.lead(case.rows), case.n), "weight": _normal(g, case.dtype, case.n)}


RMS_NORM = Op(
    run=lambda x, weight, format: ops.rms_norm(x, weight, EPS),
    stock=lambda x, weight, format: F.rms_norm(x, x.shape[-1:], weight, EPS),
    stock_is="F.rms_norm",
    truth=lambda x, weight, format: plain.rms_norm(x, weight, EPS),
    inputs=_norm_inputs,
    cost=lambda c, _: (4 * c.rows * c.n, (2 * c.rows + 1) * c.n * c.dtype.itemsize),
    shapes=_rows_of_hidden,
    layouts=("2d", "3d"),
)


def _add_norm_inputs(case: Case, g: torch.Generator) -> Given:
    return {**_norm_inputs(case, g), "residual": _normal(g, case.dtype, *case.lead(case.rows), case.n)}


def _stock_add_norm(x: Tensor, weight: Tensor, residual: Tensor, format: str) -> tuple[Tensor, Tensor]:
    h = residual + x
    return F.rms_norm(h, h.shape[-1:], weight, EPS), h


ADD_RMS_NORM = Op(
    run=lambda x, weight, residual, format: ops.add_rms_norm(x, residual, weight, EPS),
    stock=_stock_add_norm,
    stock_is="+, F.rms_norm",
    truth=lambda x, weight, residual, format: plain.add_rms_norm(x, residual, weight, EPS),
    inputs=_add_norm_inputs,
    cost=lambda c, _: (5 * c.rows * c.n, (4 * c.rows + 1) * c.n * c.dtype.itemsize),
    shapes=_rows_of_hidden,
    layouts=("2d", "3d"),
)
GLU = Op(
    run=lambda gate, up, format: ops.glu(gate, up, "silu"),
    stock=lambda gate, up, format: F.silu(gate) * up,
    stock_is="F.silu, *",
    truth=lambda gate, up, format: plain.glu(gate, up, "silu"),
    inputs=lambda c, g: {name: _normal(g, c.dtype, *c.lead(c.rows), c.n) for name in ("gate", "up")},
    cost=lambda c, _: (6 * c.rows * c.n, 3 * c.rows * c.n * c.dtype.itemsize),
    shapes=lambda m, s: ({"where": "mlp", "rows": r, "n": m.intermediate_size} for r in (1, s.prompt)),
    layouts=("2d", "3d"),
)
ARGMAX = Op(
    run=lambda logits, format: ops.argmax(logits),
    stock=lambda logits, format: logits.argmax(-1),
    stock_is="argmax",
    truth=lambda logits, format: _lowest_of_the_largest(logits),
    inputs=lambda c, g: {"logits": _normal(g, c.dtype, *c.lead(c.rows), c.n)},
    cost=lambda c, _: (c.rows * c.n, c.rows * (c.n * c.dtype.itemsize + 8)),
    shapes=lambda m, s: ({"where": "logits", "rows": r, "n": m.vocab_size} for r in (1, 8)),
    layouts=("2d", "3d"),
)

# --------------------------------------------------------------------------------------------- rope, cache, attention


def _heads(model: Model) -> tuple[int, int, int]:
    return model.num_attention_heads, model.num_key_value_heads, model.head_dim


def _rope_inputs(case: Case, g: torch.Generator) -> Given:
    (heads, kv, d), length = case.heads, case.rows
    angles = torch.rand(1, length, d, generator=g, device=g.device) * 6
    return {
        "q": _normal(g, case.dtype, 1, length, heads * d),
        "k": _normal(g, case.dtype, 1, length, kv * d),
        "v": _normal(g, case.dtype, 1, length, kv * d),
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


ROPE_AND_CACHE = Op(
    run=_rope(ops.rope_and_cache),
    stock=_rope(plain.rope_and_cache),
    stock_is="the operations of transformers",
    truth=_rope(plain.rope_and_cache),
    inputs=_rope_inputs,
    cost=_rope_cost,
    shapes=lambda m, s: ({"where": "attention", "rows": r, "n": 0, "heads": _heads(m)} for r in (1, s.prompt)),
)


def _attention_inputs(case: Case, g: torch.Generator) -> Given:
    heads, kv, d = case.heads
    caches = {name: _normal(g, case.dtype, 1, kv, case.n, d) for name in ("k_cache", "v_cache")}
    return {"q": _normal(g, case.dtype, 1, heads, case.rows, d), **caches}


def _sdpa(q: Tensor, k_cache: Tensor, v_cache: Tensor, format: str) -> Tensor:
    causal = q.shape[2] > 1  # as many queries as keys
    y = F.scaled_dot_product_attention(q, k_cache, v_cache, is_causal=causal, enable_gqa=True)
    return y.transpose(1, 2).flatten(2)


def _attention_cost(case: Case, _: int) -> tuple[int, int]:
    (heads, kv, d), queries, keys = case.heads, case.rows, case.n
    pairs = queries * keys - queries * (queries - 1) // 2
    return 4 * heads * d * pairs, 2 * (heads * queries + kv * keys) * d * case.dtype.itemsize


def _attention_shapes(model: Model, sizes: Sizes) -> Iterator[dict[str, Any]]:
    for keys in sizes.keys:
        yield {"where": "decode", "rows": 1, "n": keys, "heads": _heads(model)}
    yield {"where": "prefill", "rows": sizes.prompt, "n": sizes.prompt, "heads": _heads(model)}


def _attention_call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(q: Tensor, k_cache: Tensor, v_cache: Tensor, format: str) -> Tensor:
        return op(q, k_cache, v_cache, k_cache.shape[2], scale=q.shape[-1] ** -0.5)

    return call


ATTENTION = Op(
    run=_attention_call(ops.attention),
    stock=_sdpa,
    stock_is="scaled_dot_product_attention",
    truth=_attention_call(plain.attention),
    inputs=_attention_inputs,
    cost=_attention_cost,
    shapes=_attention_shapes,
)

OPS: dict[str, Op] = {
    "linear": LINEAR,
    "rms_norm": RMS_NORM,
    "add_rms_norm": ADD_RMS_NORM,
    "glu": GLU,
    "rope_and_cache": ROPE_AND_CACHE,
    "attention": ATTENTION,
    "embedding": EMBEDDING,
    "argmax": ARGMAX,
}


def cases(
    models: dict[str, Model], names: list[str], formats: list[str], layouts: list[str], sizes: Sizes
) -> list[Case]:
    """Every op in every format on every shape of the models, each shape once; packed formats where an op takes them."""
    found: dict[Case, Case] = {}
    for name in names:
        op = OPS[name]
        for label, model in models.items():
            for shape in op.shapes(model, sizes):
                for fmt in formats:
                    f = quant.get_format(fmt)
                    if f.packed and not (op.packs and shape["k"] % f.block_size == 0):
                        continue
                    for layout in (text for text in layouts if text in op.layouts):
                        case = Case(name, format=fmt, layout=layout, **shape)
                        named = dataclasses.replace(case, where=f"{label} {case.where}")
                        found.setdefault(dataclasses.replace(case, where=""), named)
    return list(found.values())
