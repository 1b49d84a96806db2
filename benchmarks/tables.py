"""Markdown tables of benchmark rows, one function per kind of record.

A row is what `harness.record` writes. `normalize` gives the rows of older scripts the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from benchmarks.parity import STRICT

Row = dict[str, Any]
Cells = tuple[object, ...]


def markdown(rows: Iterable[Cells]) -> str:
    """A table whose first row is the head."""
    head, *body = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *body])


def value(row: Row, path: str) -> Any:
    """The entry at a dotted path, such as "shape.rows"; None if there is none. "tokens_per_s" is always there."""
    if path == "tokens_per_s":
        speed = value(row, "extra.tokens_per_s.median")
        return 1e6 / row["times_us"]["median"] if speed is None else speed
    here: Any = row
    for name in path.split("."):
        here = here.get(name) if isinstance(here, dict) else None
    return here


def commit(row: Row) -> str:
    """The row's commit, seven digits; a "+" marks uncommitted edits."""
    found = re.match(r"([0-9a-f]{1,7})[0-9a-f]*(\+?)$", row["machine"]["commit"] or "")
    return "".join(found.groups()) if found else str(row["machine"]["commit"] or "-")


def normalize(row: Row, section: Row) -> Row | None:
    """A row of a script that wrote other keys, with the keys of `record`; None for a variant that was not kept."""
    if "kind" in row:
        return row
    read = section.get("read_gb_s")
    machine = {"device_name": section["device"], "commit": section["commit"], "read_gb_s": read}
    common = {"format": row["format"], "way": row.get("way", "patched"), "machine": machine, "when": section["date"]}
    common |= {"valid": True, "name": section["view"]}
    if section["view"] == "sweep":
        shape = {name: row[name] for name in ("rows", "n", "k")}
        return common | {"shape": shape, "times_us": {"median": row["us"]}} if row["kernels"] == "landed" else None
    if section["view"] == "attention":
        if row["variant"] not in (section["kept"].get(row["format"], row["variant"]), section["stock"]):
            return None
        percent = 100 * row["GB_s"] / read if "GB_s" in row else None
        common |= {"format": f"torch {row['format']}"} if row["variant"] == section["stock"] else {}
        times = {"median": row["us"]}
        return common | {"shape": {"keys": row["keys"]}, "times_us": times, "percent_of_bandwidth": percent}
    if section["view"] == "speeds":
        speeds = {"min": min(row["tok_s"]), "median": median(row["tok_s"]), "max": max(row["tok_s"])}
        shape = {"batch": row["batch"], "prompt": row["prompt"]}
        return common | {"name": row["model"], "shape": shape, "extra": {"tokens_per_s": speeds}}
    return common | row | {"shape": {}}


def newest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each case; of variants timed in one run, the fastest. Number of tokens doesn't make a case."""
    kept: dict[tuple[str, ...], Row] = {}
    for row in sorted(rows, key=lambda r: r["when"]):
        shape = str({name: part for name, part in row["shape"].items() if name != "tokens"})
        key = row.get("kind", ""), row["name"], row["way"], row["format"], shape
        before = kept.get(key)
        variants = "kind" not in row and "times_us" in row
        if before is None or not variants or _us(row) < _us(before):
            kept[key] = row
    return list(kept.values())


def _us(row: Row, which: str = "times_us") -> float:
    return float(row[which]["median"])


def _cells(row: Row) -> Cells:
    return row["when"][:10], commit(row)


def linear(rows: list[Row]) -> list[Cells]:
    """A line for each N x K: torch's f16 and our formats with one row, then four rows over one."""
    shapes: dict[tuple[int, int], dict[tuple[str, int], Row]] = {}
    for r in rows:
        if r["name"] == "linear" and "in" not in r["shape"]:
            shapes.setdefault((r["shape"]["n"], r["shape"]["k"]), {})[r["format"], r["shape"]["rows"]] = r
    formats = [f for f in ("f16", "bf16", "f32", "q8_0", "q4_0") if any((f, 1) in cells for cells in shapes.values())]
    table: list[Cells] = [
        ("N x K", "torch f16, us", *(f"{f}, us (% of read)" for f in formats), f"4 rows / 1: {', '.join(formats)}")
    ]
    for (n, k), cells in shapes.items():
        one = [cells.get((f, 1)) for f in formats]
        stock = next((r for r in one if r is not None and r["stock"].endswith("float16")), None)
        times = [f"{_us(r):.1f} ({r['percent_of_bandwidth'] or 0:.0f})" if r else "" for r in one]
        four = [
            f"{_us(cells[f, 4]) / _us(cells[f, 1]):.2f}" if (f, 1) in cells and (f, 4) in cells else "-"
            for f in formats
        ]
        table.append((f"{n}x{k}", f"{_us(stock, 'stock_times_us'):.1f}" if stock else "", *times, " / ".join(four)))
    return table


def sweep(rows: list[Row]) -> list[Cells]:
    """A line for each N x K: time of one row, then of four and of eight over it."""
    formats = list(dict.fromkeys(r["format"] for r in rows))
    times = {(r["shape"]["n"], r["shape"]["k"], r["format"], r["shape"]["rows"]): _us(r) for r in rows}
    table: list[Cells] = [("N x K", *(f"{f}, us (4 rows / 1, 8 / 1)" for f in formats))]
    for n, k in sorted({key[:2] for key in times}, key=lambda key: key[0] * key[1]):
        line: list[object] = [f"{n}x{k}"]
        for f in formats:
            one = times.get((n, k, f, 1))
            more = [times.get((n, k, f, count)) for count in (4, 8)]
            ratios = ", ".join(f"{t / one:.2f}" if t and one else "-" for t in more)
            line.append(f"{one:.1f} ({ratios})" if one else "-")
        table.append(tuple(line))
    return table


def variants(rows: list[Row]) -> list[Cells]:
    """A line for each op, format and number of rows: what lines of the tuning table cost over each shape's fastest."""
    fastest = "fastest variant"
    ways = [way for way in dict.fromkeys(r["way"] for r in rows) if way != fastest]
    found: dict[tuple[str, str, int], dict[tuple[int, int], dict[str, float]]] = {}
    for r in rows:
        shape = r["shape"]["n"], r["shape"]["k"]
        found.setdefault((r["name"], r["format"], r["shape"]["rows"]), {}).setdefault(shape, {})[r["way"]] = _us(r)
    table: list[Cells] = [
        ("op", "format", "rows", "shapes", *(f"{way} over the fastest: median, worst" for way in ways))
    ]
    for case, shapes in found.items():
        over = [[times[way] / times[fastest] for times in shapes.values()] for way in ways]
        table.append((*case, len(shapes), *(f"{median(each):.2f}, {max(each):.2f}" for each in over)))
    return table


def attention(rows: list[Row]) -> list[Cells]:
    """A line for each number of keys."""
    formats = list(dict.fromkeys(r["format"] for r in rows))
    found = {(r["shape"]["keys"], r["format"]): r for r in rows}
    table: list[Cells] = [("keys", *(f"{f}, us (% of read)" for f in formats))]
    for keys in sorted({key for key, _ in found}):
        cells = [found.get((keys, f)) for f in formats]
        share = [f" ({r['percent_of_bandwidth']:.0f})" if r and r["percent_of_bandwidth"] else "" for r in cells]
        table.append((keys, *(f"{_us(r):.1f}{s}" if r else "-" for r, s in zip(cells, share, strict=True))))
    return table


def ops(rows: list[Row]) -> list[Cells]:
    """A line for each op and shape."""
    table: list[Cells] = [("op", "format", "shape", "us", "GB/s", "% of read", "stock us", "x")]
    for r in rows:
        shape = " ".join(str(v) if name == "at" else f"{name} {v}" for name, v in r["shape"].items())
        numbers = f"{_us(r):.1f}", f"{r['gb_s']:.0f}", f"{r['percent_of_bandwidth']:.0f}"
        stock = f"{_us(r, 'stock_times_us'):.1f}" if r["stock_times_us"] else ""
        table.append((r["name"], r["format"], shape, *numbers, stock, f"{r['speedup'] or 0:.2f}"))
    return table


def models(rows: list[Row]) -> list[Cells]:
    """A line for each model, format, batch, prompt and way: tokens of all sequences a second."""
    columns = "prefill ms", "tok/s: median (min to max)", "% of read", "x", "parity", "date", "commit"
    table: list[Cells] = [("model", "format", "batch, prompt", "way", *columns)]
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
                    same if not r["way"].startswith("HF eager") else "",
                    *_cells(r),
                )
            )
    return table


def generation(rows: list[Row]) -> list[Cells]:
    """A line for each way to generate: tokens of all requests a second."""
    columns = "tok/s", "x", "over", "tokens a step", "draft tokens accepted", "step of 1, 2, 4, 8 rows, us"
    table: list[Cells] = [("model", "format", "shape", "way", *columns)]
    for r in rows:
        shape = " ".join(f"{name} {part}" for name, part in r["shape"].items())
        extra = r["extra"]
        steps = extra.get("step_us_by_rows", {})
        step = ", ".join(f"{steps[n]:.0f}" if n in steps else "-" for n in "1248") if steps else ""
        drafts = f"{extra['accepted']} of {extra.get('drafted', extra.get('guessed'))}" if "accepted" in extra else ""
        numbers = f"{value(r, 'tokens_per_s'):.0f}", f"{r['speedup']:.2f}", r["stock"]
        table.append(
            (r["name"], r["format"], shape, r["way"], *numbers, extra.get("tokens_per_step", ""), drafts, step)
        )
    return table


def turns(rows: list[Row]) -> list[Cells]:
    """A line for each way to go on with a long conversation: the wait for the first token of a short question."""
    columns = "first token, ms", "of reading all", "read again, at most", "turns before, ms", "pages, states, MiB"
    table: list[Cells] = [("model", "format", "context", "way", *columns, "date", "commit")]
    for r in rows:
        extra, took = r["extra"], r["times_us"]["median"]
        share = f"{100 * took / r['stock_times_us']['median']:.1f} %"
        before = f"{min(extra['turns_ms']):.0f} to {max(extra['turns_ms']):.0f}"
        memory = f"{extra['pages_mb']}, {extra['states_mb']}"
        numbers = f"{took / 1e3:.0f}", share, extra["read_again"], before, memory
        table.append((r["name"], r["format"], r["shape"]["context"], r["way"], *numbers, *_cells(r)))
    return table


def servers(rows: list[Row]) -> list[Cells]:
    """A line for each server and number of requests at a time."""
    columns = "prompt, answer", "tok/s", "first token, ms: median, last", "regret"
    table: list[Cells] = [("model", "format", "server", "requests", *columns)]
    for r in rows:
        shape, extra = r["shape"], r["extra"]
        first = f"{extra['first_ms']:.0f}, {extra['last_ms']:.0f}"
        numbers = f"{1e6 / _us(r):.0f}", first, f"{r['parity']['error']:.1e}"
        asked = str(shape["requests"]), f"{shape['prompt']}, {shape['tokens']}"
        table.append((r["name"], r["format"], r["way"], *asked, *numbers))
    return table


def training(rows: list[Row]) -> list[Cells]:
    """A line for each model, format and way to train adapters."""
    columns = (
        "ms a step: median (min to max)",
        "x",
        "weights, GB",
        "step beside them, GB",
        "error of gradients (stock's)",
    )
    table: list[Cells] = [("model", "format", "batch, tokens", "way", *columns)]
    stocks = {(r["name"], r["format"], str(r["shape"])): r["parity"]["error"] for r in rows if r["way"] == r["stock"]}
    for r in rows:
        ms = {name: r["times_us"][name] / 1e3 for name in ("median", "min", "max")}
        sizes = (f"{r['extra'][name] / 1e9:.2f}" for name in ("weight_bytes", "step_bytes"))
        stock = stocks[r["name"], r["format"], str(r["shape"])]
        again = ", checkpointed" if r["shape"]["again"] else ""
        table.append(
            (
                *(r["name"], r["format"], f"{r['shape']['batch']}, {r['shape']['tokens']}{again}", r["way"]),
                f"{ms['median']:.0f} ({ms['min']:.0f} to {ms['max']:.0f})",
                *(f"{r['speedup']:.2f}", *sizes, f"{r['parity']['error']:.1e} ({stock:.1e})"),
            )
        )
    return table


def processes(rows: list[Row]) -> list[Cells]:
    """A line for each model, format and way to split it: tokens of all requests a second."""
    columns = "requests", "prompt, answer", "tok/s", "ms a step", "x", "tokens, beside stock's"
    table: list[Cells] = [("model", "format", "way", *columns)]
    for r in rows:
        shape, us = r["shape"], _us(r)
        rate = shape["requests"] * r["speedup"]
        numbers = f"{1e6 * shape['requests'] / us:.1f}", f"{us / 1e3:.1f}", f"{rate:.2f}", r["parity"]["detail"]
        table.append(
            (r["name"], r["format"], r["way"], shape["requests"], f"{shape['prompt']}, {shape['tokens']}", *numbers)
        )
    return table


def speeds(rows: list[Row]) -> list[Cells]:
    """A line for each model and format."""
    table: list[Cells] = [("model", "format", "batch, prompt", "way", "tok/s: median (min to max)")]
    for r in rows:
        speed = r["extra"]["tokens_per_s"]
        middle = speed["median"] if "median" in speed else 1e6 / _us(r)  # peers' rows of one sequence
        shown = f"{middle:.0f} ({speed['min']:.0f} to {speed['max']:.0f})"
        table.append((r["name"], r["format"], f"{r['shape']['batch']}, {r['shape']['prompt']}", r["way"], shown))
    return table


def load(rows: list[Row]) -> list[Cells]:
    """A line for each format and way to load."""
    table: list[Cells] = [("format", "way", "read once", "load", "load / read", "CPU time / read's", "held", "extra")]
    for r in rows:
        times = f"{r['read_s']:.3f} s", f"{r['load_s']:.3f} s", f"{r['ratio']:.2f}", f"{r['cpu_ratio']:.2f}"
        table.append((r["format"], r["way"], *times, f"{r['held_mb']:.0f} MB", f"{r['extra_mb']:.0f} MB"))
    return table


VIEWS: dict[str, Callable[[list[Row]], list[Cells]]] = {
    view.__name__: view
    for view in (
        linear,
        sweep,
        variants,
        attention,
        ops,
        models,
        generation,
        turns,
        servers,
        training,
        processes,
        speeds,
        load,
    )
}
