"""Charts of horizontal bars, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

NARROWEST, LONGEST_BAR, ROW, MARGIN = 720, 400, 24, 12
COLOUR = "#3465a4"
LETTER = 0.58  # of the font's size: more than the mean width of a sans-serif letter


@dataclass(frozen=True)
class Bar:
    """A row: its name, the bar's length from 0 to 1, the text behind it, and what kind of thing it is."""

    name: str
    length: float
    label: str
    kind: str = ""


def bars(
    title: str, groups: Mapping[str, Sequence[Bar]], caption: Sequence[str], colours: Mapping[str, str] | None = None
) -> str:
    """An SVG document with a bar for each row, in groups under their headings ("" has none), and lines of text below.

    colours: of the kinds; those that occur are explained in a key. It is as wide as its longest texts ask for.
    """
    rows = [row for group in groups.values() for row in group]
    left = MARGIN + max((_width(row.name) for row in rows), default=0) + 8
    right = max((row.length * LONGEST_BAR + 6 + _width(row.label) for row in rows), default=0)
    lines = max([_width(title, 16), *map(_width, caption)])
    width = int(max(NARROWEST, left + right + MARGIN, lines + 2 * MARGIN))
    parts = [_text(MARGIN, 26, title, 'font-size="16"')]
    y = 44
    if kinds := [kind for kind in colours or {} if any(row.kind == kind for row in rows)]:
        x = float(MARGIN)
        for kind in kinds:
            parts += [_rect(x, y, 12, 12, _colour(kind, colours)), _text(x + 18, y + 10, kind)]
            x += 18 + _width(kind) + 18
        width = max(width, int(x))
        y += ROW
    for heading, group in groups.items():
        if heading:
            parts.append(_text(MARGIN, y + 17, heading, 'font-weight="bold"'))
            y += ROW
        for row in group:
            end = left + row.length * LONGEST_BAR
            parts.append(_text(left - 8, y + 15, row.name, 'text-anchor="end"'))
            parts.append(_rect(left, y + 4, end - left, ROW - 8, _colour(row.kind, colours)))
            parts.append(_text(end + 6, y + 15, row.label))
            y += ROW
    for line in caption:
        y += 20
        parts.append(_text(MARGIN, y, line, 'fill="#555753"'))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{y + MARGIN}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts]) + "</svg>\n"


def _colour(kind: str, colours: Mapping[str, str] | None) -> str:
    return (colours or {}).get(kind, COLOUR)


def _width(text: str, size: int = 12) -> float:
    return LETTER * size * len(text)


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{" " if more else ""}{more}>{escape(text)}</text>'
