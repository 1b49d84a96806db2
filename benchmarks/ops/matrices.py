"""linear and embedding: weights may be packed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import Case, Given, Op, Sizes, normal
from benchmarks.models import DTYPES, Model
from torch_foundry import ops, quant
from torch_foundry.testing import weights

SAMPLE = 1024  # rows of a weight that are drawn; the others repeat them in random order


def weight(case: Case, g: torch.Generator, n: int) -> tuple[Tensor, Tensor]:
    """A weight in the case's format and the float weights that it stands for; both [n, k]."""
    drawn = normal(g, torch.float32, min(n, SAMPLE), case.k, scale=case.k**-0.5)
    order = torch.randint(0, drawn.shape[0], (n,), generator=g, device=g.device)
    stored = weights.packed(drawn, case.format)
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


def packed(fmt: str) -> str | None:
    """The format as ops take it: None for dense weights."""
    return None if fmt in DTYPES else fmt


LINEAR = Op(
    run=lambda x, weight, format: ops.linear(x, weight, format=packed(format)),
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
        ids, weight, format=packed(format), dtype=DTYPES.get(format, torch.float16)
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
