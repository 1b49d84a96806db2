"""Inputs of the ops on mixtures of experts, and checks against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import torch
from kit import BF16, F16, F32
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.testing import reference_moe as plain
from torch_foundry.testing import weights as blocks
from torch_foundry.testing.tolerance import assert_norm, double

EPS = 1e-5
Given = dict[str, Any]


@dataclass(frozen=True)
class Case(kit.Case):
    tokens: int = 1
    experts: int = 6
    k: int = 2
    hidden: int = 256
    inner: int = 24
    format: str | None = None
    normed: bool = True
    scale: float = 1.0
    biased: bool = False
    gated: bool = True
    shared: bool = False  # the last of the k experts has matrices of its own


def matrices(g: torch.Generator, experts: int, n: int, k: int, format: str | None, dtype: torch.dtype) -> Tensor:
    packed = format is not None and quant.FORMATS[format].packed
    weight = kit.normal(g, experts * n, k, dtype=F32 if packed else dtype, scale=k**-0.5)
    return (blocks.packed(weight, format) if format and packed else weight).view(experts, n, -1)


def biases(c: Case, g: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Of gate and up, which take turns in one tensor."""
    both = kit.normal(g, c.experts, 2 * c.inner, dtype=dtype)
    return both[:, ::2], both[:, 1::2]


def of_shared(c: Case, g: torch.Generator, dtype: torch.dtype) -> Tensor:
    return matrices(g, 1, c.inner, c.hidden, c.format, dtype)[0]


def experts_of(c: Case, g: torch.Generator) -> Tensor:
    return torch.stack([torch.randperm(c.experts, generator=g)[: c.k] for _ in range(c.tokens)]).int()


def route_inputs(
    tokens: int,
    experts: int,
    hidden: int,
    dtype: torch.dtype,
    shared: bool,
    kind: str = "llama",
    biased: bool = False,
) -> Given:
    g = kit.generator(tokens, experts, hidden)
    return {
        "x": kit.normal(g, tokens, hidden, dtype=dtype, scale=3.0),
        "norm_weight": kit.normal(g, hidden, dtype=dtype),
        "eps": EPS,
        "weight": kit.normal(g, experts, hidden, dtype=dtype, scale=2 * hidden**-0.5),
        "kind": kind,
        "shared": kit.normal(g, 1, hidden, dtype=dtype, scale=hidden**-0.5) if shared else None,
        "bias": kit.normal(g, experts, dtype=dtype, scale=4.0) if biased else None,
    }


def check_route(given: Given, k: int, normalize: bool = True, rule: Given | None = None) -> None:
    """Ids where the float64 logits leave no doubt, weights where the ids are right. rule: options of moe_choose."""
    given = {**given, "normalize": normalize, **(rule or {})}
    ids, weights = ops.moe_route(**given, k=k)
    wide = double(given)
    true_ids, true_weights = plain.moe_route(**wide, k=k)
    h = plain.rms_norm(wide["x"], wide["norm_weight"], EPS, kind=given["kind"])
    logits = h @ wide["weight"].t() + (0.0 if wide["bias"] is None else wide["bias"])
    ordered = logits.sort(descending=True).values
    sure = ((ordered[:, :-1] - ordered[:, 1:])[:, :k] > 1e-3).all(-1)
    if rule is not None:  # what is added and grouped may be near each other where logits are not
        g, bias = kit.generator(k), 0.0 if wide["bias"] is None else wide["bias"]
        for _ in range(8):
            noise = 1e-3 * kit.normal(g, logits.shape[1], dtype=torch.float64)
            sure = (plain.moe_route(**{**wide, "bias": bias + noise}, k=k)[0] == true_ids).all(-1) & sure
    assert sure.any()
    kit.assert_equal(ids[sure], true_ids[sure])
    kit.assert_bound(weights[sure], true_weights[sure], 1e-4 * true_weights[sure].abs() + 1e-7)
    if rule is None:
        for row, own in zip(logits, ids[:, :k].tolist(), strict=True):  # in doubt: experts nearly as good, each once
            assert len(set(own)) == k
            torch.testing.assert_close(row[own], row.sort(descending=True).values[:k], rtol=0, atol=1e-3)


def glu_inputs(c: Case, dtype: torch.dtype) -> Given:
    g = kit.generator(c)
    return {
        "x": kit.normal(g, c.tokens, c.hidden, dtype=dtype, scale=3.0 if c.normed else 1.0),
        "ids": experts_of(c, g),
        "gate": matrices(g, c.experts, c.inner, c.hidden, c.format, dtype) if c.gated else None,
        "up": matrices(g, c.experts, c.inner, c.hidden, c.format, dtype),
        "norm_weight": kit.normal(g, c.hidden, dtype=dtype) if c.normed else None,
        "eps": EPS,
        "format": c.format,
        "biases": (biases(c, g, dtype)[0] if c.gated else None, biases(c, g, dtype)[1]) if c.biased else (None, None),
        "activation": "silu" if c.gated else "relu2",
        "shared": (of_shared(c, g, dtype) if c.gated else None, of_shared(c, g, dtype)) if c.shared else (None, None),
    }


def check_glu(given: Given) -> None:
    assert_norm(ops.moe_glu(**given), plain.moe_glu(**double(given)), plain.moe_glu(**given))


CASES = [
    *((Case(tokens=t), F32) for t in (1, 3, 17)),
    (Case(normed=False, k=3, tokens=2), F16),
    (Case(hidden=257, inner=9), F32),
    (Case(tokens=4, hidden=264, inner=31, k=4), BF16),
    (Case(format="q8_0", hidden=896, k=4), F16),
    (Case(format="q4_0", hidden=320, inner=33, tokens=2, normed=False), BF16),
    (Case(format="q4_k", hidden=512, inner=7), F32),
    (Case(format="q6_k", hidden=256, tokens=5, experts=2), F16),
    (Case(format="affine5_g32_f16", hidden=320), F16),
    (Case(format="nf4", hidden=192, inner=9), BF16),
    (Case(format="fp8_g32", hidden=96, inner=9, tokens=2), F16),
    (Case(experts=1, k=1, tokens=3, inner=1), F32),
    (Case(tokens=3, k=4, shared=True), F32),
    (Case(format="q4_0", hidden=320, inner=33, tokens=2, k=3, shared=True), F16),
    (Case(format="q8_0", hidden=256, tokens=2, k=1, shared=True), BF16),
    (Case(tokens=3, hidden=264, inner=9, k=3, biased=True), F16),
    (Case(format="mxfp4", hidden=288, inner=33, tokens=2, biased=True), BF16),
]


def down_inputs(c: Case, dtype: torch.dtype) -> Given:
    """Of `inner` outputs, from `hidden` elements."""
    g = kit.generator(c)
    return {
        "x": kit.normal(g, c.tokens, c.k, c.hidden, dtype=dtype),
        "ids": experts_of(c, g),
        "weights": torch.rand(c.tokens, c.k, generator=g),
        "weight": matrices(g, c.experts, c.inner, c.hidden, c.format, dtype),
        "format": c.format,
        "residual": kit.normal(g, c.tokens, c.inner, dtype=dtype) if c.normed else None,
        "scale": c.scale,
        "bias": biases(c, g, dtype)[1] if c.biased else None,
        "shared": of_shared(c, g, dtype) if c.shared else None,
    }


def check_down(given: Given) -> None:
    assert_norm(ops.moe_down(**given), plain.moe_down(**double(given)), plain.moe_down(**given))


def many(given: Given) -> Tensor:
    """moe_down by the ops for many tokens."""
    experts, (tokens, k, inner) = given["weight"].shape[0], given["x"].shape
    order, tiles = ops.moe_group(given["ids"], experts)
    rows, how = given["x"].view(tokens * k, inner), {"format": given["format"], "bias": given["bias"]}
    y = ops.moe_linear(rows, order, tiles, given["weight"], **how)
    return ops.moe_combine(y, given["ids"], given["weights"], experts, residual=given["residual"], scale=given["scale"])


def check_many(given: Given) -> None:
    assert_norm(many(given), plain.moe_down(**double(given)), plain.moe_down(**given))
