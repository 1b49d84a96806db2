"""linear and embedding, and the projections after a norm: weights may be packed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import Case, Given, Op, Sizes, normal
from benchmarks.models import DTYPES, Model
from torch_foundry import ops, quant
from torch_foundry import reference as plain

SAMPLE = 1024  # rows of a weight that are drawn; the others repeat them in random order
EPS = 1e-6


def weight(case: Case, g: torch.Generator, n: int) -> tuple[Tensor, Tensor]:
    """A weight in the case's format and the float weights that it stands for; both [n, k]."""
    drawn = normal(g, torch.float32, min(n, SAMPLE), case.k, scale=case.k**-0.5)
    order = torch.randint(0, drawn.shape[0], (n,), generator=g, device=g.device)
    stored = quant.quantize(drawn, case.format)
    meant = quant.dequantize(stored, case.format).to(case.dtype) if case.format not in DTYPES else stored
    return stored[order], meant[order]


def _linear_inputs(case: Case, g: torch.Generator) -> Given:
    stored, meant = weight(case, g, case.n)
    return {"x": normal(g, case.dtype, *case.lead(case.rows), case.k), "weight": stored, "dense": {"weight": meant}}


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
    stored, meant = weight(case, g, case.n)
    ids = torch.randint(0, case.n, case.lead(case.rows), generator=g, device=g.device)
    return {"ids": ids, "weight": stored, "dense": {"weight": meant}}


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

# ------------------------------------------------------------------------------- a norm and the projections after it


def _fused_inputs(*names: str) -> Callable[[Case, torch.Generator], Given]:
    """x, the norm's weight and a matrix for each name; q, k and v have the heads' sizes, others all the rows."""

    def inputs(case: Case, g: torch.Generator) -> Given:
        heads, kv, d = case.heads
        sizes = {"q": heads * d, "k": kv * d, "v": kv * d}
        drawn = {name: weight(case, g, sizes.get(name, case.n)) for name in names}
        return {
            "x": normal(g, case.dtype, *case.lead(case.rows), case.k),
            "norm": normal(g, case.dtype, case.k),
            **{name: stored for name, (stored, _) in drawn.items()},
            "dense": {name: meant for name, (_, meant) in drawn.items()},
        }

    return inputs


def _glu(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, rms_norm: Callable[..., Tensor]) -> Tensor:
    h = rms_norm(x, norm)
    return F.silu(F.linear(h, gate)) * F.linear(h, up)


def _qkv(x: Tensor, norm: Tensor, q: Tensor, k: Tensor, v: Tensor, rms_norm: Callable[..., Tensor]) -> Tensor:
    h = rms_norm(x, norm)
    return torch.cat([F.linear(h, w) for w in (q, k, v)], -1)


def _torchs_norm(x: Tensor, norm: Tensor) -> Tensor:
    return F.rms_norm(x, norm.shape, norm, EPS)


def _exact_norm(x: Tensor, norm: Tensor) -> Tensor:
    return plain.rms_norm(x, norm, EPS)


def _few(sizes: Sizes) -> Iterator[int]:
    return (rows for rows in sizes.rows if rows <= 16)  # as the ops take


NORM_GLU = Op(
    run=lambda x, norm, gate, up, format: ops.norm_glu(x, norm, EPS, gate, up, format=_packed(format)),
    stock=lambda format, **given: _glu(**given, rms_norm=_torchs_norm),
    stock_is="F.rms_norm, 2 F.linear, F.silu, *",
    truth=lambda format, **given: _glu(**given, rms_norm=_exact_norm),
    inputs=_fused_inputs("gate", "up"),
    cost=lambda c, row: (4 * c.rows * c.n * c.k, 2 * c.n * row + (c.rows * (c.n + c.k) + c.k) * c.dtype.itemsize),
    shapes=lambda m, s: ({"where": "mlp", "rows": r, "n": m.intermediate_size, "k": m.hidden_size} for r in _few(s)),
    packs=True,
    layouts=("2d", "3d"),
)
NORM_LINEAR = Op(
    run=lambda x, norm, q, k, v, format: ops.norm_linear(x, norm, EPS, (q, k, v), formats=[_packed(format)] * 3),
    stock=lambda format, **given: _qkv(**given, rms_norm=_torchs_norm),
    stock_is="F.rms_norm, 3 F.linear, cat",
    truth=lambda format, **given: _qkv(**given, rms_norm=_exact_norm),
    inputs=_fused_inputs("q", "k", "v"),
    cost=lambda c, row: (2 * c.rows * c.n * c.k, c.n * row + (c.rows * (c.n + c.k) + c.k) * c.dtype.itemsize),
    shapes=lambda m, s: (
        {"where": "qkv", "rows": r, "n": m.qkv, "k": m.hidden_size, "heads": m.heads} for r in _few(s)
    ),
    packs=True,
    layouts=("2d", "3d"),
)
