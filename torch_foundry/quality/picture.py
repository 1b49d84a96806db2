"""Qualities side by side as a picture: a bar for each, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from torch_foundry.quality.result import Quality

WIDTH, LEFT, RIGHT, ROW, TOP = 960, 150, 400, 24, 60
COLOUR = "#3465a4"


def svg(title: str, found: Mapping[str, Quality]) -> str:
    """An SVG document: mean KL divergence where there is a reference, else perplexity. `found`: by name."""
    values = []
    for name, quality in found.items():
        d = quality.against
        perplexity = f"perplexity {quality.perplexity:.4f} ± {quality.perplexity_error:.4f}"
        if d is None:
            values.append((name, quality.perplexity, perplexity))
        else:
            values.append((name, d.kl_mean, f"KL {d.kl_mean:.2g}, top-1 {100 * d.top1:.2f} %, {perplexity}"))
    lengths = _lengths([value for _, value, _ in values])
    what = "Logarithm of the mean KL divergence from the reference" if any(q.against for q in found.values()) else ""
    rows = [(name, length, label) for (name, _, label), length in zip(values, lengths, strict=True)]
    return bars(title, rows, what or "Logarithm of the perplexity")


def bars(title: str, rows: Sequence[tuple[str, float, str]], caption: str) -> str:
    """An SVG document of horizontal bars: name, length from 0 to 1, and what is written behind it."""
    height = TOP + ROW * len(rows) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="26" font-size="16">{escape(title)}</text>',
    ]
    for i, (name, length, label) in enumerate(rows):
        y = TOP + i * ROW
        bar = length * (WIDTH - LEFT - RIGHT)
        parts.append(f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 4}" width="{bar:.1f}" height="{ROW - 8}" fill="{COLOUR}"/>')
        parts.append(f'<text x="{LEFT + bar + 6:.1f}" y="{y + 15}">{escape(label)}</text>')
    parts.append(f'<text x="12" y="{height - 12}" fill="#555753">{escape(caption)}</text></svg>')
    return "\n".join(parts) + "\n"


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
