"""Pictures of records: a roofline for each machine and what became faster or slower from commit to commit."""

from __future__ import annotations

import importlib.util
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import record

Row = dict[str, Any]
FORMATS = ("png", "svg")
TOP = 12  # curves in a picture of history: the largest changes


def write_all(folder: Path) -> list[Path]:
    """Draw what the records in `folder` hold, as PNG and SVG; returns the files. Invalid rows are left out.

    Without matplotlib nothing is drawn, and that is said.
    """
    if importlib.util.find_spec("matplotlib") is None:
        print("no plots: matplotlib is not installed", file=sys.stderr)
        return []
    rows = [row for row in record.read(sorted(folder.glob("*.jsonl"))) if row["valid"] and row["times_us"]]
    written = []
    for name, chosen in _by(rows, lambda r: r["machine"]["device_name"]).items():
        slug = "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
        written += _save(folder / f"roofline-{slug}", partial(_roofline, rows=chosen, name=name))
        written += _save(folder / f"history-{slug}", partial(_history, rows=chosen, name=name))
    return written


def _by(rows: list[Row], key: Any) -> dict[Any, list[Row]]:
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _save(stem: Path, draw: Any) -> list[Path]:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(12, 8), layout="constrained")
    try:
        if not draw(figure):
            return []
        files = [stem.with_name(f"{stem.name}.{suffix}") for suffix in FORMATS]
        for file in files:
            figure.savefig(file, dpi=120)
        return files
    finally:
        plt.close(figure)


def _roofline(figure: Any, rows: list[Row], name: str) -> bool:
    """A panel for each kernel: GB/s against flop per byte, ours filled and stock torch hollow, under the machine's."""
    rows = [r for r in rows if r["kind"] == "op" and r["gb_s"]]
    if not rows:
        return False
    newest = rows[-1]["machine"]
    kernels = sorted(_by(rows, lambda r: r["name"]).items())
    formats = sorted({r["format"] for r in rows})
    columns = min(3, len(kernels))
    grid = figure.subplots(-(-len(kernels) // columns), columns, squeeze=False).flatten().tolist()
    for axes in grid:
        axes.set_visible(False)
    for axes, (kernel, chosen) in zip(grid, kernels, strict=False):
        axes.set_visible(True)
        for fmt, some in _by(chosen, lambda r: r["format"]).items():
            style = {"color": f"C{formats.index(fmt)}", "ls": "", "ms": 4}
            ours = [(_intensity(r, "bytes"), r["gb_s"]) for r in some]
            stock = [(_intensity(r, "stock_bytes"), r["stock_gb_s"]) for r in some if r["stock_gb_s"]]
            axes.plot(*zip(*ours, strict=True), "o", **style, label=fmt)
            if stock:
                axes.plot(*zip(*stock, strict=True), "s", **style, mfc="none", alpha=0.5)
        axes.axhline(newest["read_gb_s"], color="k", ls="--", lw=1)
        axes.set(xscale="log", yscale="log", title=kernel)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    figure.supxlabel("flop / byte")
    figure.supylabel("GB/s of what must be moved")
    figure.suptitle(
        f"{name}, commit {newest['commit']}: ours filled, stock torch hollow, dashed: read bandwidth "
        f"{newest['read_gb_s']} GB/s"
    )
    return True


def _intensity(row: Row, nbytes: str) -> float:
    return max(row["flops"] or 0, 1) / row[nbytes]


def _history(figure: Any, rows: list[Row], name: str) -> bool:
    """Median time at each commit over that at the first, for the rows that changed most; nothing with one commit."""
    commits: list[str] = list(dict.fromkeys(r["machine"]["commit"] for r in sorted(rows, key=lambda r: r["when"])))
    if len(commits) < 2:
        return False
    axes = figure.subplots()
    curves: dict[str, dict[str, float]] = defaultdict(dict)
    for r in rows:
        key = f"{r['name']} {r['way']} {r['format']} " + " ".join(map(str, r["shape"].values()))
        curves[key][r["machine"]["commit"]] = r["times_us"]["median"]  # the last one of a commit counts
    changed = {}
    for key, times in curves.items():
        values = [times[c] for c in commits if c in times]
        changed[key] = max(values) / max(min(values), 1e-9)
    for key in sorted(changed, key=lambda k: -changed[k])[:TOP]:
        points = [(commits.index(c), t) for c, t in curves[key].items()]
        points.sort()
        axes.plot([p[0] for p in points], [p[1] / points[0][1] for p in points], "o-", ms=4, label=key[:70])
    axes.set_xticks(range(len(commits)), commits, rotation=45, fontsize=7)
    axes.set(xlabel="commit", ylabel="time, over that at the first")
    axes.set_title(f"{name}: what changed most in {len(commits)} commit(s)")
    axes.legend(fontsize=7)
    return True
