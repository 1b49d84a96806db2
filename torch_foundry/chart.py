"""Charts of horizontal bars, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, ROW, TOP = 960, 24, 60
COLOUR = "#3465a4"


def bars(
    title: str,
    rows: Sequence[tuple[str, float, str]],
    caption: str,
    *,
    left: int = 150,
    right: int = 400,
    colours: Sequence[str] | None = None,
) -> str:
    """An SVG document with a bar for each row: name, length from 0 to 1, and the text behind the bar.

    left, right: pixels for the names, and for the text behind the longest bar. colours: of the bars; default: one.
    """
    height = TOP + ROW * len(rows) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="26" font-size="16">{escape(title)}</text>',
    ]
    for i, (name, length, label) in enumerate(rows):
        y = TOP + i * ROW
        bar = length * (WIDTH - left - right)
        colour = colours[i] if colours else COLOUR
        parts.append(f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y + 4}" width="{bar:.1f}" height="{ROW - 8}" fill="{colour}"/>')
        parts.append(f'<text x="{left + bar + 6:.1f}" y="{y + 15}">{escape(label)}</text>')
    parts.append(f'<text x="12" y="{height - 12}" fill="#555753">{escape(caption)}</text></svg>')
    return "\n".join(parts) + "\n"
