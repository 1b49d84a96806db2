"""The norm and the gated product: what works on rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.cases import Case, Given, Op, Sizes, normal
from benchmarks.models import Model
from torch_foundry import ops
from torch_foundry.testing import reference as plain

EPS = 1e-6


def _rows_of_hidden(model: Model, sizes: Sizes) -> Iterator[dict[str, Any]]:
    return ({"where": "norm", "rows": rows, "n": model.hidden_size} for rows in (1, sizes.prompt))


def _norm_inputs(case: Case, g: torch.Generator) -> Given:
    return {"x": normal(g, case.dtype, *case.lead(case.rows), case.n), "weight": normal(g, case.dtype, case.n)}


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


GLU = Op(
    run=lambda gate, up, format: ops.glu(gate, up, "silu"),
    stock=lambda gate, up, format: F.silu(gate) * up,
    stock_is="F.silu, *",
    truth=lambda gate, up, format: plain.glu(gate, up, "silu"),
    inputs=lambda c, g: {name: normal(g, c.dtype, *c.lead(c.rows), c.n) for name in ("gate", "up")},
    cost=lambda c, _: (6 * c.rows * c.n, 3 * c.rows * c.n * c.dtype.itemsize),
    shapes=lambda m, s: ({"where": "mlp", "rows": r, "n": m.intermediate_size} for r in (1, s.prompt)),
    layouts=("2d", "3d"),
)
