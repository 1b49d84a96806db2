"""Records for the eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.harness.record import Record

COLUMNS = ("name", "format", "shape", "us", "p20..p80", "GB/s", "% bw", "launches", "stock us", "x", "parity", "notes")


def table(records: Sequence[Record]) -> str:
    """One line a record. No speed-up is shown for a row without parity."""
    return _lines([COLUMNS, *(_row(r) for r in records)], left={0, 1, 2, 10, 11})


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


GENERATION = (
    *("model", "format", "way", "batch", "prompt", "prefill ms", "tok/s min", "avg", "max"),
    *("GB/s", "% bw", "launches", "x", "parity", "notes"),
)


def generation_table(records: Sequence[Record]) -> str:
    """One line a record of a whole model. Tokens a second are those of all sequences of the batch."""
    return _lines([GENERATION, *(_generation_row(r) for r in records)], left={0, 1, 2, 13, 14})


def _generation_row(r: Record) -> tuple[str, ...]:
    where = (r.name, r.format, r.way, _text(r.shape.get("batch")), _text(r.shape.get("prompt")))
    if r.kind == "skipped":
        return (*where, *[""] * 8, "skipped", r.reason or "")
    speeds = r.extra.get("tokens_per_s", {})
    notes = [*r.flags, *([] if r.valid and not r.parity.detail else [r.parity.detail or r.parity.criterion])]
    return (
        *where,
        "" if r.prefill is None else f"{1e3 * r.prefill.median:.1f}",
        *(_number(speeds.get(name)) for name in ("min", "avg", "max")),
        _number(r.gb_s),
        _number(r.machine.percent(r.gb_s)),
        _number(r.launches),
        "" if r.speedup is None else f"{r.speedup:.2f}",
        "ok" if r.valid else "INVALID",
        "; ".join(notes),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _lines(rows: Sequence[tuple[str, ...]], left: set[int]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{c:<{w}}" if i in left else f"{c:>{w}}" for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
