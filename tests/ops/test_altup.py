"""Streams of Gemma 3n against float64, and against transformers' modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import kit
import pytest
import torch
from kit import BF16, F16, F32, Fault
from torch import Tensor
from transformers.models.gemma3n.configuration_gemma3n import Gemma3nTextConfig
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nTextAltUp

from torch_foundry import ops
from torch_foundry.testing import reference_altup as plain


@dataclass(frozen=True)
class Case(kit.Case):
    tokens: int = 3
    hidden: int = 96
    streams: int = 4
    active: int = 0
    scaled: bool = True


# One stream fewer and most, rows of one simdgroup and of several, of more than all threads take at once, odd ones.
CASES = [
    (Case(), F32),
    (Case(tokens=1, hidden=2048), BF16),
    (Case(hidden=600, active=2), F16),
    (Case(streams=2, hidden=33, scaled=False), F32),
    (Case(streams=8, hidden=40, active=7), F32),
    (Case(tokens=2, hidden=8300, streams=3), F32),
]
BENCH = [Case(tokens=tokens, hidden=2048) for tokens in (1, 32)]


def inputs(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    g, n, shape = kit.generator(case), case.streams, (case.tokens, case.hidden)
    return {
        "x": kit.normal(g, n, *shape, dtype=dtype),
        "activated": kit.normal(g, *shape, dtype=dtype, scale=2),
        "norm": kit.normal(g, case.hidden, dtype=dtype),
        "router": kit.normal(g, n, case.hidden, dtype=dtype, scale=2),
        "predicting": kit.normal(g, n * n, n, dtype=dtype),
        "correcting": kit.normal(g, n, n, dtype=dtype),
        "own_scale": kit.normal(g, case.hidden, dtype=dtype) if case.scaled else None,
        "others": [kit.normal(g, *shape, dtype=dtype, scale=3) for _ in range(n - 1)],
        "scale": case.hidden**-0.5,
        "active": case.active,
    }


def results(module: Any, given: dict[str, Any]) -> list[Tensor]:
    """All five ops, each on inputs of its own."""
    x, routed = given["x"], (given["norm"], given["router"])
    how = {"scale": given["scale"], "active": given["active"]}
    predicted = module.altup_predict(x, *routed, given["predicting"], 1e-6, **how)
    correcting = given["activated"], *routed, given["correcting"], 1e-6
    corrected, own = module.altup_correct(x, *correcting, **how, own_scale=given["own_scale"])
    added = module.altup_add(x, given["activated"], given["norm"], 1e-6)
    return [
        predicted, corrected, own, added, module.altup_expand(x[0], given["others"], 1e-5),
        module.altup_collapse(x[0], given["others"], 1e-5),
    ]  # fmt: skip


def wide(given: dict[str, Any]) -> dict[str, Any]:
    return kit.double(given) | {"others": [other.double() for other in given["others"]]}


def run(**given: Any) -> list[Tensor]:
    return results(ops, given)


def reference(**given: Any) -> list[Tensor]:
    return results(plain, given)


def cost(case: Case, dtype: torch.dtype) -> tuple[int, int]:
    elements = case.tokens * case.hidden * case.streams
    return 8 * case.streams * elements, 10 * elements * dtype.itemsize


def check(given: dict[str, Any]) -> None:
    with kit.poisoned_outputs():
        found = run(**given)
    for got, truth, stock in zip(found, reference(**wide(given)), reference(**given), strict=True):
        kit.assert_norm(got, truth, stock)


@kit.cases(*CASES)
def test_accuracy(case: Case, dtype: torch.dtype) -> None:
    check(inputs(case, dtype))


@torch.no_grad()
@pytest.mark.parametrize("corrected", [False, True])
def test_as_in_transformers(corrected: bool) -> None:
    config = Gemma3nTextConfig(hidden_size=64, num_attention_heads=2, num_hidden_layers=5, num_kv_shared_layers=0)
    given = inputs(Case(hidden=64), F32) | {"scale": 1 / 64}
    module = Gemma3nTextAltUp(config)
    module.router_norm.weight.copy_(given["norm"])
    module.modality_router.weight.copy_(given["router"] * 9)
    module.prediction_coefs.weight.copy_(given["predicting"])
    module.correction_coefs.weight.copy_(given["correcting"])
    module.correct_output_scale.copy_(given["own_scale"])
    predicted, both, own, *_ = run(**given | {"router": given["router"] * 9})
    if corrected:
        stock = module.correct(given["x"][:, None], given["activated"][None])
        torch.testing.assert_close(own, module.scale_corrected_output(stock[0, 0]), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(both, stock[:, 0], rtol=1e-5, atol=1e-5)
    else:
        torch.testing.assert_close(predicted, module.predict(given["x"][:, None])[:, 0], rtol=1e-5, atol=1e-5)


def test_rows_of_zeros() -> None:
    """No length to be matched, and none to match."""
    x, other = torch.zeros(2, 8), torch.ones(2, 8)
    kit.assert_equal(ops.altup_expand(x, [other], 1e-5), torch.zeros(2, 2, 8))
    kit.assert_equal(ops.altup_expand(other, [x], 1e-5)[1], x)


@pytest.mark.cpu_only
def test_lane_orders() -> None:
    given = inputs(Case(hidden=600, active=1), F32)
    kit.in_every_lane_order(lambda: torch.cat([y.flatten() for y in run(**given)]))


def test_empty() -> None:
    given = inputs(Case(tokens=0), F32)
    assert [y.numel() for y in run(**given)] == [0] * 6


@pytest.mark.cpu_only
def test_opcheck() -> None:
    given = inputs(Case(), F32)
    x, norm, router, others = (given[name] for name in ("x", "norm", "router", "others"))
    kit.opcheck("altup_predict", x, norm, router, given["predicting"], 1e-6, 0.1, 1)
    correcting = given["activated"], norm, router, given["correcting"]
    kit.opcheck("altup_correct", x, *correcting, 1e-6, 0.1, 1, given["own_scale"])
    kit.opcheck("altup_add", x, given["activated"], norm, 1e-6)
    kit.opcheck("altup_expand", x[0], others, 1e-5)
    kit.opcheck("altup_collapse", x[0], others, 1e-5)


def test_bad_inputs() -> None:
    given = inputs(Case(), F32)
    bad = [
        ("x", given["x"].double(), r"x: expected dtype Float or Half or BFloat16, got Double"),
        ("x", given["x"][:1], r"x: expected 2 to 8 streams, got \[1, 3, 96\]"),
        ("norm", given["norm"][:3], r"norm: expected \[hidden=96\], got \[3\]"),
        ("router", given["router"].half(), r"router: expected dtype Float, got Half"),
        ("predicting", given["predicting"][:4], r"coefs: expected \[16, streams=4\], got \[4, 4\]"),
        ("correcting", given["predicting"], r"coefs: expected \[4, streams=4\], got \[16, 4\]"),
        ("activated", given["activated"][:2], r"activated: expected \[tokens=3, hidden=96\], got \[2, 96\]"),
        ("own_scale", given["own_scale"][:2], r"own_scale: expected \[hidden=96\], got \[2\]"),
        ("active", 4, r"active: expected one of 4 streams, got 4"),
        ("scale", float("nan"), r"scale: expected a finite number"),
        ("others", [], r"others: expected 1 to 7 tensors, got 0"),
        ("others", [given["x"][0, :2]], r"others: expected \[tokens=3, hidden=96\], got \[2, 96\]"),
    ]
    for name, value, message in bad:
        with kit.refuses(message):
            run(**{**given, name: value})


def _fault(name: str, old: str, new: str, case: Case = Case()) -> Fault:
    return Fault(f"altup-{name}", "altup.metal", old, new, lambda: test_accuracy(case, F32))


FAULTS = [
    _fault("no-tanh", "precise::tanh(inverse", "(inverse"),
    _fault("router-of-the-first", "x + args.active * stream + first", "x + first", Case(active=2)),
    _fault("coefficients-transposed", "fma(c[p * N + q], v[q], sum)", "fma(c[q * N + p], v[q], sum)"),
    _fault("no-own-input", "float sum = v[p];", "float sum = 0.0f;"),
    _fault("no-one-to-a-correction", "c[r] = 1.0f + coefficient", "c[r] = coefficient"),
    _fault("change-of-the-first", "x[args.active * stream + first + i])", "x[first + i])", Case(active=2)),
    _fault("own-of-the-first", "uint(p) == args.active", "p == 0", Case(active=2)),
    _fault("own-unscaled", "float(T(v)) * float(scale[i])", "float(T(v))"),
    _fault("added-to-all", "uint p = 1;", "uint p = 0;"),
    _fault(
        "added-unweighed", "float(added[first + i]) * inverse * float(norm[i])", "float(added[first + i]) * inverse"
    ),
    _fault("as-long-as-itself", "sqrt(other) * rsqrt(max(own", "sqrt(own) * rsqrt(max(own"),
    _fault("a-sum-for-the-mean", "args.scale * (has_onto", "1.0f * (has_onto"),
]
