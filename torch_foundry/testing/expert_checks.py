"""Checks of the ops on mixtures of experts: for few tokens and for many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_foundry import ops, quant
from torch_foundry.testing import reference_moe as plain
from torch_foundry.testing.tolerance import (
    BF16,
    F16,
    F32,
    assert_bound,
    assert_equal,
    assert_norm,
    double,
    generator,
    normal,
)

Given = dict[str, Any]
Device = torch.device | str
EXPERTS, CHOSEN, HIDDEN, INNER = 5, 2, 320, 33


def experts(quick: bool) -> Iterator[tuple[str, Callable[[Device], None]]]:
    """Name and check of each."""
    for dtype in (F16,) if quick else (F32, F16, BF16):
        short = str(dtype).removeprefix("torch.")
        if not quick:
            yield f"moe_choose 8 of 60 {short}", partial(_choice, dtype)
        for name in (None,) if quick else (None, "q8_0", "q4_0"):
            label = f"{name or 'dense'} {short}"
            yield f"moe_glu {label}", partial(_glu, dtype, name)
            for tokens in (1, 3):
                yield f"moe_down {label}, {tokens} tokens", partial(_down, dtype, name, tokens, False)
            yield f"moe_linear {label}, 70 tokens", partial(_down, dtype, name, 70, True)
    yield "moe_route 3 of 40, with a shared expert", _route


def _on(given: Given, device: Device) -> Given:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in given.items()}


def _weight(g: torch.Generator, n: int, dtype: torch.dtype, name: str | None) -> Tensor:
    dense = normal(g, EXPERTS * n, HIDDEN, dtype=dtype, scale=HIDDEN**-0.5)
    return (dense if name is None else quant.quantize(dense.float(), name)).view(EXPERTS, n, -1)


def _ids(g: torch.Generator, tokens: int) -> Tensor:
    ids = torch.stack([torch.randperm(EXPERTS, generator=g)[:CHOSEN] for _ in range(tokens)]).int()
    ids[-1, -1] = EXPERTS  # which is none
    return ids


def _choice(dtype: torch.dtype, device: Device) -> None:
    logits = normal(generator("choice"), 9, 60, dtype=dtype, scale=3.0).round()  # many are equal
    ids, weights = ops.moe_choose(logits.to(device), 8)
    true_ids, true_weights = plain.moe_choose(logits.double(), 8)
    assert_equal(ids.cpu(), true_ids)
    assert_bound(weights.cpu(), true_weights, 1e-5 * true_weights)


def _route(device: Device) -> None:
    """Logits far apart, so that the choice is no matter of rounding."""
    g = generator("route")
    order = torch.stack([torch.randperm(40, generator=g) for _ in range(4)]).double()
    basis = torch.linalg.qr(normal(g, 64, 4, dtype=torch.float64)).Q.t()  # a direction for each token
    given: Given = {
        "x": (basis * 3).float(),
        "norm_weight": torch.ones(64),
        "eps": 1e-6,
        "weight": (order.t() @ basis * 0.05).float(),
        "shared": normal(g, 1, 64, dtype=F32, scale=0.1),
        "k": 3,
    }
    ids, weights = ops.moe_route(**_on(given, device))
    true_ids, true_weights = plain.moe_route(**double(given))
    assert_equal(ids.cpu(), true_ids)
    assert_bound(weights.cpu(), true_weights, 1e-4 * true_weights)


def _glu(dtype: torch.dtype, name: str | None, device: Device) -> None:
    g = generator("glu")
    given: Given = {
        "x": normal(g, 3, HIDDEN, dtype=dtype, scale=3.0),
        "ids": _ids(g, 3),
        "gate": _weight(g, INNER, dtype, name),
        "up": _weight(g, INNER, dtype, name),
        "norm_weight": normal(g, HIDDEN, dtype=dtype),
        "eps": 1e-5,
        "format": name,
    }
    assert_norm(ops.moe_glu(**_on(given, device)).cpu(), plain.moe_glu(**double(given)), plain.moe_glu(**given))


def _down(dtype: torch.dtype, name: str | None, tokens: int, tiles: bool, device: Device) -> None:
    g = generator("down", tokens)
    given: Given = {
        "x": normal(g, tokens, CHOSEN, HIDDEN, dtype=dtype),
        "ids": _ids(g, tokens),
        "weights": torch.rand(tokens, CHOSEN, generator=g),
        "weight": _weight(g, INNER, dtype, name),
        "format": name,
        "residual": normal(g, tokens, INNER, dtype=dtype),
        "scale": 0.5,
    }
    placed = _on(given, device)
    if tiles:
        x, ids, weight = placed["x"].view(-1, HIDDEN), placed["ids"], placed["weight"]
        y = ops.moe_linear(x, *ops.moe_group(ids, EXPERTS), weight, format=name)
        got = ops.moe_combine(y, ids, placed["weights"], EXPERTS, residual=placed["residual"], scale=0.5)
    else:
        got = ops.moe_down(**placed)
    assert_norm(got.cpu(), plain.moe_down(**double(given)), plain.moe_down(**given))
