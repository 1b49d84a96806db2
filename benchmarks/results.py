"""Writes RESULTS.md from benchmarks/records: `python -m benchmarks.results`.

With a folder, such as build/bench, prints what its records hold. Only valid rows are shown, the newest of each case;
rows that are not valid are counted.

records/index.json says which files make which table, which command repeats them, and what no row says (the date and
commit of scripts that didn't record them). records/targets.json has the targets: rows of a table by `match` (dotted
path: value), a `measure` and the bound of each of them; with `over`, the measure is divided by that of the row that
differs in these fields alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import record
from benchmarks.tables import VIEWS, Cells, Row, commit, linear, markdown, models, newest, normalize, ops, value

HERE = Path(__file__).parent
RECORDS = HERE / "records"
HEAD = """# Results
Written from [records/](records) by `make results`; don't edit. The command of a table repeats it, on a machine with
that device. Times are medians; "% of read" is the share of the read bandwidth that was measured in the same run. A row
of the benchmarks is here only if its result was held against a reference in the same run. A commit with "+" had edits;
where a script recorded none, it is the commit that brought the rows. There are no figures from an Apple GPU.

Targets: [records/targets.json](records/targets.json). What was tried, learned and dropped, and figures whose rows were
not kept: [docs/decisions](../docs/decisions/README.md)."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments:
        print(_folder(Path(arguments[0])))
    else:
        (HERE / "RESULTS.md").write_text(document())
    return 0


def document() -> str:
    """RESULTS.md, of the records as they are."""
    index = json.loads((RECORDS / "index.json").read_text())
    targets = json.loads((RECORDS / "targets.json").read_text())
    parts = [HEAD]
    for device in dict.fromkeys(section["device"] for section in index["sections"]):
        sections = [section for section in index["sections"] if section["device"] == device]
        parts.append(f"## {device}")
        lines = [line for section in sections for line in _targets(section, targets)]
        if lines:
            head = "date", "commit", "what", "seen (the worst, of several rows)", "% of read", "target", "met"
            parts.append(markdown([head, *lines]))
        parts += [_section(section) for section in sections]
    for title, key in (("Without a run", "other"), ("Older records", "superseded")):
        links = [f"- [{path}](records/{path}): {note}." for path, note in index[key].items()]
        parts.append("\n".join([f"## {title}", *links]))
    return "\n\n".join(parts) + "\n"


def _valid(section: Row) -> list[Row]:
    lines = [line for name in section["files"] for line in (RECORDS / name).read_text().splitlines()]
    rows = [normalize(json.loads(line), section) for line in lines]
    return [r for r in rows if r is not None and r["valid"]]


def _section(section: Row) -> str:
    parts = [f"### {section['title']}"]
    if "note" in section:
        parts.append(section["note"])
    if section["view"] in VIEWS:
        rows = newest(_valid(section))
        parts += [f"```\n{section['command']}\n```", markdown(VIEWS[section["view"]](rows))]
        parts.append("\n".join(sorted({f"- {_where(r)}" for r in rows})))
    else:
        text = (RECORDS / section["files"][0]).read_text().rstrip("\n")
        console = section["view"] == "console"
        parts.append(f"```\n$ {section['command']}\n{text}\n```" if console else f"`{section['command']}`\n\n{text}")
    return "\n\n".join(parts)


def _targets(section: Row, targets: list[Row]) -> list[Cells]:
    wanted = [target for target in targets if target["section"] == section["title"]]
    return [_target(target, _valid(section)) for target in wanted]


def _target(target: Row, valid: list[Row]) -> Cells:
    rows = newest(valid)
    matching = [
        row
        for row in rows
        if all(value(row, path) == wanted for path, wanted in target["match"].items())
        and (row.get("bytes") or 0) >= target.get("from_bytes", 0)
    ]
    seen = sorted((_measured(target, row, [*rows, *valid]), i) for i, row in enumerate(matching))
    least = "at_least" in target
    bound = target["at_least"] if least else target["at_most"]
    worst, at = seen[0] if least else seen[-1]
    missed = sum(number < bound if least else number > bound for number, _ in seen)
    row, unit = matching[at], _unit(target)
    percent = row.get("percent_of_bandwidth")
    met = "met" if not missed else "**missed**" if len(seen) == 1 else f"**missed** by {missed} of {len(seen)} rows"
    share = f"{percent:.0f}" if percent is not None and "over" not in target else ""
    limits = f"{'at least' if least else 'at most'} {bound:g}{unit}"
    return row["when"][:10], commit(row), target["what"], f"{worst:.4g}{unit}", share, limits, met


def _measured(target: Row, row: Row, rows: list[Row]) -> float:
    number = float(value(row, target["measure"]))
    if "over" not in target:
        return number
    shape = row["shape"] | {name[6:]: part for name, part in target["over"].items() if name.startswith("shape.")}
    shape = {name: part for name, part in shape.items() if part is not None}
    fields = {"name": row["name"], "way": row["way"], "format": row["format"]}
    fields |= {name: part for name, part in target["over"].items() if not name.startswith("shape.")}
    same_run = (r for r in rows if r["machine"] == row["machine"] and r["shape"] == shape)
    other = next(r for r in same_run if all(r[name] == part for name, part in fields.items()))
    return number / float(value(other, target["measure"]))


def _unit(target: Row) -> str:
    if "over" in target or target["measure"] in ("speedup", "ratio"):
        return " times"
    return {"percent_of_bandwidth": " %", "host_us": " us"}.get(target["measure"], " tok/s")


def _folder(folder: Path) -> str:
    rows = [r for r in record.read(sorted(folder.glob("*.jsonl"))) if not r["attribution_only"]]
    last = newest(rows)
    shown = [r for r in last if r["valid"]]
    op_rows = [r for r in shown if r["kind"] == "op"]
    others = [r for r in op_rows if r["name"] != "linear" or r["shape"]["rows"] not in (1, 4)]
    tables = ("linear, few rows", linear(op_rows)), ("other ops", ops(others)), ("models", models(shown))
    parts = [f"## {title}\n{markdown(table)}\n" for title, table in tables if len(table) > 1]
    bad = [r for r in last if not r["valid"] and r["kind"] != "skipped"]
    parts.append(f"{len(shown)} valid rows, {len(bad)} invalid ones left out, machines and commits:")
    return "\n".join([*parts, *sorted({f"- {_where(r)}" for r in shown})])


def _where(row: Row) -> str:
    m = row["machine"]
    parts = [m["device_name"], row["when"][:10], f"commit {commit(row)}"]
    parts += [f"{name} {m[name]}" for name in ("torch", "transformers") if name in m]
    parts += [f"{name} {m[f'{name}_gb_s']} GB/s" for name in ("read", "copy") if m.get(f"{name}_gb_s")]
    return ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
