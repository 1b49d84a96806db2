"""A norm and the projections after it, in one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import Case, Given, Op, Sizes, normal
from benchmarks.ops.matrices import packed, weight
from torch_foundry import ops
from torch_foundry.testing import reference as plain

EPS = 1e-6


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
    run=lambda x, norm, gate, up, format: ops.norm_glu(x, norm, EPS, gate, up, format=packed(format)),
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
    run=lambda x, norm, q, k, v, format: ops.norm_linear(x, norm, EPS, (q, k, v), formats=[packed(format)] * 3),
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


def _qkv_inputs(case: Case, g: torch.Generator) -> Given:
    _, kv, d = case.heads
    angles = torch.rand(1, 1, d, generator=g, device=g.device) * 6
    cache = torch.zeros(case.rows, kv, 1, d, dtype=case.dtype, device=g.device)
    tables = {"cos": angles.cos().to(case.dtype), "sin": angles.sin().to(case.dtype)}
    return {**_fused_inputs("q", "k", "v")(case, g), **tables, "k_cache": cache, "v_cache": cache.clone()}


def _norm_qkv(
    x: Tensor, norm: Tensor, format: str, k_cache: Tensor, v_cache: Tensor, cos: Tensor, sin: Tensor, **w: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows, formats = x.view(-1, 1, x.shape[-1]), [packed(format)] * 3  # a token of each sequence
    weights, d = (w["q"], w["k"], w["v"]), k_cache.shape[-1]
    y = ops.norm_qkv(rows, norm, EPS, weights, cos, sin, k_cache, v_cache, 0, head_dim=d, formats=formats)
    return y, k_cache, v_cache


def _by_parts(rms_norm: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    def call(
        x: Tensor, norm: Tensor, format: str, k_cache: Tensor, v_cache: Tensor, cos: Tensor, sin: Tensor, **w: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        h, d = rms_norm(x, norm).view(-1, 1, x.shape[-1]), k_cache.shape[-1]
        q, k, v = (F.linear(h, w[name]) for name in ("q", "k", "v"))
        y = plain.rope_kv(q, k, v, cos, sin, k_cache, v_cache, 0, head_dim=d)
        return y, k_cache, v_cache

    return call


NORM_QKV = Op(
    run=_norm_qkv,
    stock=_by_parts(_torchs_norm),
    stock_is="F.rms_norm, 3 F.linear, rope and cache",
    truth=_by_parts(_exact_norm),
    inputs=_qkv_inputs,
    cost=NORM_LINEAR.cost,
    shapes=NORM_LINEAR.shapes,
    packs=True,
)
