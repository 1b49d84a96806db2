"""The routed experts of a few tokens, read where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import Case, Given, Op, Sizes, normal
from benchmarks.models import Model
from benchmarks.ops.matrices import packed, weight
from torch_foundry import ops

# What is measured is the experts that tokens go to; more than these would take memory, and no time.
EXPERTS = 8


def _ids(case: Case, g: torch.Generator) -> Tensor:
    """Experts of each token, none twice."""
    chosen = case.heads[1]
    drawn = torch.rand(case.rows, EXPERTS, generator=g, device=g.device)
    return drawn.argsort(1)[:, :chosen].int()


def _experts(case: Case, g: torch.Generator, n: int) -> tuple[Tensor, Tensor]:
    stored, meant = weight(case, g, EXPERTS * n)
    return stored.view(EXPERTS, n, -1), meant.view(EXPERTS, n, -1)


def _glu_inputs(case: Case, g: torch.Generator) -> Given:
    drawn = {name: _experts(case, g, case.n) for name in ("gate", "up")}
    return {
        "x": normal(g, case.dtype, case.rows, case.k),
        "ids": _ids(case, g),
        **{name: stored for name, (stored, _) in drawn.items()},
        "dense": {name: meant for name, (_, meant) in drawn.items()},
    }


def _glu(x: Tensor, ids: Tensor, gate: Tensor, up: Tensor, format: str) -> Tensor:
    rows = x[:, None, :, None]
    g, u = (torch.matmul(w[ids.long()], rows).squeeze(-1) for w in (gate, up))
    return F.silu(g) * u


def _down_inputs(case: Case, g: torch.Generator) -> Given:
    stored, meant = _experts(case, g, case.n)
    ids = _ids(case, g)
    weights = torch.rand(ids.shape, generator=g, device=g.device)
    x = normal(g, case.dtype, *ids.shape, case.k)
    return {"x": x, "ids": ids, "weights": weights, "weight": stored, "dense": {"weight": meant}}


def _down(x: Tensor, ids: Tensor, weights: Tensor, weight: Tensor, format: str) -> Tensor:
    y = torch.matmul(weight[ids.long()], x[..., None]).squeeze(-1)
    return (y * weights.to(y.dtype)[..., None]).sum(1)


def _shapes(model: Model, sizes: Sizes, where: str) -> Iterator[dict[str, Any]]:
    inner, chosen = model.experts
    n, k = (inner, model.hidden_size) if where == "gate_up" else (model.hidden_size, inner)
    for rows in (r for r in sizes.rows if r <= 16 and inner):
        yield {"where": where, "rows": rows, "n": n, "k": k, "heads": (0, chosen, 0)}


def _cost(case: Case, row: int, matrices: int) -> tuple[int, int]:
    """Of a token's experts; those of several tokens are read once at least."""
    chosen = case.heads[1]
    pairs, read = case.rows * chosen, min(EXPERTS, case.rows * chosen)
    activations = (pairs * case.n + (case.rows if matrices == 2 else pairs) * case.k) * case.dtype.itemsize
    return 2 * pairs * case.n * case.k * matrices, read * case.n * row * matrices + activations


MOE_GLU = Op(
    run=lambda x, ids, gate, up, format: ops.moe_glu(x, ids, gate, up, format=packed(format)),
    stock=_glu,
    stock_is="experts taken, 2 matmul, F.silu, *",
    truth=_glu,
    inputs=_glu_inputs,
    cost=lambda c, row: _cost(c, row, 2),
    shapes=lambda m, s: _shapes(m, s, "gate_up"),
    packs=True,
)
MOE_DOWN = Op(
    run=lambda x, ids, weights, weight, format: ops.moe_down(x, ids, weights, weight, format=packed(format)),
    stock=_down,
    stock_is="experts taken, matmul, sum",
    truth=_down,
    inputs=_down_inputs,
    cost=lambda c, row: _cost(c, row, 1),
    shapes=lambda m, s: _shapes(m, s, "down"),
    packs=True,
)
