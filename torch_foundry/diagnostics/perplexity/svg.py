"""Qualities side by side as a picture: a bar for each, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch_foundry.diagnostics.chart import Bar, bars
from torch_foundry.diagnostics.perplexity.result import Quality, with_error


def svg(title: str, found: Mapping[str, Quality]) -> str:
    """An SVG document: mean KL divergence where there is a reference, else perplexity. `found`: by name."""
    values = []
    for name, quality in found.items():
        d = quality.against
        perplexity = f"perplexity {with_error(quality.perplexity, quality.perplexity_error, 4)}"
        if d is None:
            values.append((name, quality.perplexity, perplexity))
        else:
            values.append((name, d.kl_mean, f"KL {d.kl_mean:.2g}, top-1 {100 * d.top1:.2f} %, {perplexity}"))
    lengths = _lengths([value for _, value, _ in values])
    what = "Logarithm of the mean KL divergence from the reference" if any(q.against for q in found.values()) else ""
    rows = [Bar(name, length, label) for (name, _, label), length in zip(values, lengths, strict=True)]
    return bars(title, {"": rows}, [what or "Logarithm of the perplexity"])


def _lengths(values: list[float]) -> list[float]:
    """From 0.05 to 1, by logarithm; 0 for what is 0, 1 for what is infinite."""
    logs = [math.log(v) for v in values if 0 < v < math.inf]
    low, high = min(logs, default=0.0), max(logs, default=0.0)

    def length(value: float) -> float:
        if not value > 0:
            return 0.0
        if value == math.inf or low == high:
            return 1.0
        return 0.05 + 0.95 * (math.log(value) - low) / (high - low)

    return [length(value) for value in values]
