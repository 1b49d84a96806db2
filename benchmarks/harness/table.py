"""Records for the eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.harness.record import Record

COLUMNS = ("name", "format", "shape", "us", "p20..p80", "GB/s", "% bw", "launches", "stock us", "x", "parity", "notes")


def table(records: Sequence[Record]) -> str:
    """One line a record. No speed-up is shown for a row without parity."""
    rows = [COLUMNS, *(_row(r) for r in records)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    left = {0, 1, 2, 10, 11}
    return "\n".join(
        "  ".join(f"{c:<{w}}" if i in left else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )


def _row(r: Record) -> tuple[str, ...]:
    shape = " ".join(f"{name}={value}" for name, value in r.shape.items())
    if r.kind == "skipped":
        return (r.name, r.format, shape, *[""] * 7, "skipped", f"{r.way}: {r.reason}")
    notes = [r.way, *r.flags]
    if r.attribution_only:
        notes.append("attribution only")
    if not r.valid:
        notes.append(r.parity.detail or r.parity.criterion)
    spread = "" if r.times is None else f"{1e6 * r.times.quantile(0.2):.1f}..{1e6 * r.times.quantile(0.8):.1f}"
    return (
        r.name,
        r.format,
        shape,
        "" if r.times is None else f"{1e6 * r.times.median:.1f}",
        spread,
        _number(r.gb_s),
        _number(r.machine.percent(r.gb_s)),
        _number(r.launches),
        "" if r.stock_times is None else f"{1e6 * r.stock_times.median:.1f}",
        "" if r.speedup is None else f"{r.speedup:.2f}",
        "ok" if r.valid else "INVALID",
        "; ".join(notes),
    )


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.1f}"
