"""Records as Markdown tables, for RESULTS.md: `python -m benchmarks.results build/bench`.

Only valid rows are shown, the newest of each; rows that are not are counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import record
from benchmarks.parity import STRICT

Row = dict[str, Any]
Cells = tuple[object, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """Print what the records in a folder hold."""
    folder = Path((argv or sys.argv[1:] or ["build/bench"])[0])
    rows = [r for r in record.read(sorted(folder.glob("*.jsonl"))) if not r["attribution_only"]]
    newest = {(r["kind"], r["name"], r["way"], r["format"], str(r["shape"])): r for r in rows}
    shown = [r for r in newest.values() if r["valid"]]
    for title, part in (("linear, one row", _linear(shown)), ("other ops", _others(shown)), ("models", _models(shown))):
        if len(part) > 1:
            print(f"## {title}\n{_markdown(part)}\n")
    bad = [r for r in newest.values() if not r["valid"] and r["kind"] != "skipped"]
    print(f"{len(shown)} valid rows, {len(bad)} invalid ones left out, machines and commits:")
    for line in sorted({f"- {_where(r)}" for r in shown}):
        print(line)
    return 0


def _where(row: Row) -> str:
    m = row["machine"]
    versions = f"torch {m['torch']}, transformers {m['transformers']}, commit {m['commit']}"
    return f"{m['device_name']}, {versions}, read {m['read_gb_s']} GB/s, copy {m['copy_gb_s']} GB/s"


def _markdown(rows: Iterable[Cells]) -> str:
    head, *body = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *body])


def _us(row: Row, which: str = "times_us") -> float:
    return float(row[which]["median"])


def _linear(rows: list[Row]) -> list[Cells]:
    """A line for each N x K: torch's f16 and our formats with one row, then four rows over one."""
    found: dict[tuple[int, int], dict[tuple[str, int], Row]] = {}
    for r in rows:
        if r["kind"] == "op" and r["name"] == "linear" and "in" not in r["shape"]:
            found.setdefault((r["shape"]["n"], r["shape"]["k"]), {})[r["format"], r["shape"]["rows"]] = r
    formats = [f for f in ("f16", "bf16", "f32", "q8_0", "q4_0") if any((f, 1) in cells for cells in found.values())]
    table: list[Cells] = [("N x K", "torch f16", *formats, f"4 rows / 1: {', '.join(formats)}")]
    for (n, k), cells in found.items():
        one = [cells.get((f, 1)) for f in formats]
        stock = next((r for r in one if r is not None and r["stock"].endswith("float16")), None)
        times = [f"{_us(r):.1f} ({r['gb_s']:.0f})" if r else "" for r in one]
        four = [
            f"{_us(cells[f, 4]) / _us(cells[f, 1]):.2f}" if (f, 1) in cells and (f, 4) in cells else "-"
            for f in formats
        ]
        table.append((f"{n}x{k}", f"{_us(stock, 'stock_times_us'):.1f}" if stock else "", *times, " / ".join(four)))
    return table


def _others(rows: list[Row]) -> list[Cells]:
    table: list[Cells] = [("op", "format", "shape", "us", "GB/s", "% of read", "stock us", "x")]
    for r in rows:
        if r["kind"] == "op" and (r["name"] != "linear" or r["shape"]["rows"] not in (1, 4)):
            shape = " ".join(str(v) if name == "at" else f"{name} {v}" for name, v in r["shape"].items())
            numbers = f"{_us(r):.1f}", f"{r['gb_s']:.0f}", f"{r['percent_of_bandwidth']:.0f}"
            stock = f"{_us(r, 'stock_times_us'):.1f}" if r["stock_times_us"] else ""
            table.append((r["name"], r["format"], shape, *numbers, stock, f"{r['speedup'] or 0:.2f}"))
    return table


def _models(rows: list[Row]) -> list[Cells]:
    """Tokens of all sequences a second: median (min to max)."""
    table: list[Cells] = [
        ("model", "format", "batch, prompt", "way", "prefill ms", "tok/s", "% of read", "x", "parity")
    ]
    for r in rows:
        if r["kind"] == "e2e" and r["prefill_us"]:
            speed = r["extra"]["tokens_per_s"]
            same = "same tokens" if r["parity"]["criterion"] == STRICT else f"regret {r['parity']['error']:.1e}"
            table.append(
                (
                    *(r["name"], r["format"], f"{r['shape']['batch']}, {r['shape']['prompt']}", r["way"]),
                    f"{r['prefill_us']['median'] / 1e3:.1f}",
                    f"{speed['median']:.0f} ({speed['min']:.0f} to {speed['max']:.0f})",
                    f"{r['percent_of_bandwidth']:.0f}",
                    f"{r['speedup']:.2f}" if r["speedup"] else "",
                    same if r["way"] != "HF eager" else "",
                )
            )
    return table


if __name__ == "__main__":
    sys.exit(main())
