"""Two reports of golden logits, of two devices: what differs, first in the order of execution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from torch_foundry.diagnostics.compare.result import LIMIT
from torch_foundry.diagnostics.golden import SCHEMA

Report = dict[str, Any]
FIGURES = {"part": str, "op": str, "given": str, "bits": str, "sketch": list}


class NotComparable(ValueError):
    """Two things that can't be held against each other; the text says why."""


@dataclass(frozen=True)
class Different:
    """A family that differs. where: the first op, or what else; error: of it, relative L2; at: which op, from 1."""

    family: str
    what: str
    where: str = ""
    error: float = math.nan
    limit: float = math.nan
    at: int = 0


@dataclass(frozen=True)
class Difference:
    """What `difference` found. Print it."""

    machines: tuple[str, str]
    rows: list[Different]
    same: int  # families whose logits have the same bits
    near: int  # others within their limit
    notes: list[str]

    def __str__(self) -> str:
        lines = [f"{name}: {machine}" for name, machine in zip("AB", self.machines, strict=True)]
        if self.rows:
            lines.append(f"{'family':20} {'first':>5} {'error':>9} {'limit':>9}  what")
        for row in self.rows:
            figures = f"{row.at or '-':>5} " + " ".join(
                f"{'-' if v != v else f'{v:.1e}':>9}" for v in (row.error, row.limit)
            )
            lines.append(f"{row.family:20} {figures}  {row.what}{': ' if row.where else ''}{row.where}")
        lines += self.notes
        return "\n".join(
            [*lines, f"{self.same} families bit for bit, {self.near} within limits, {len(self.rows)} differ"]
        )


def difference(a: Report, b: Report) -> Difference:
    """Hold two reports of `golden.portable` against each other.

    An op differs if its outputs are further apart than rounding explains: LIMIT of float32, and twice what stock is off
    by in both reports, since what comes in is not the same either. NotComparable: one is no report, or they are of
    other versions, models or families.
    """
    for name, report in (("A", a), ("B", b)):
        _check(name, report)
    versions = [report["machine"]["torch_foundry"] for report in (a, b)]
    if versions[0] != versions[1]:
        raise NotComparable(f"made by torch_foundry {versions[0]} and {versions[1]}: make both with one version")
    if a["golden"] != b["golden"]:
        raise NotComparable(f"of other models: golden logits {a['golden']} and {b['golden']}")
    ours, theirs = ({row["family"]: row for row in report["families"]} for report in (a, b))
    both = [family for family in ours if family in theirs]
    if not both:
        raise NotComparable(f"no family is in both: {', '.join(ours)}; {', '.join(theirs)}")
    notes = [
        f"in {name} alone: {', '.join(alone)}"
        for name, alone in (("A", [f for f in ours if f not in theirs]), ("B", [f for f in theirs if f not in ours]))
        if alone
    ]
    rows, same, near = list[Different](), 0, 0
    for family in both:
        x, y = ours[family], theirs[family]
        if x["skipped"] or y["skipped"]:
            notes.append(
                f"{family}: skipped in {'both' if x['skipped'] and y['skipped'] else 'A' if x['skipped'] else 'B'}"
            )
        elif found := _row(x, y):
            rows.append(found)
        else:
            same, near = same + (x["bits"] == y["bits"]), near + (x["bits"] != y["bits"])
            if x["bits"] != y["bits"] and (at := _parted(x["ops"], y["ops"])) is not None:
                notes.append(
                    f"{family}: other ops from {at + 1} on, where A has {_name(x['ops'], at)}, B {_name(y['ops'], at)}"
                )
    machines = (_machine(a), _machine(b))
    return Difference(machines, rows, same, near, notes)


def _row(x: dict[str, Any], y: dict[str, Any]) -> Different | None:
    family, limit = x["family"], LIMIT[torch.float32] + 2 * sum(row["stock"] or 0.0 for row in (x, y))
    first, last = list(zip(x["ops"], y["ops"], strict=False)), _logits(x, y)
    stop = _parted(x["ops"], y["ops"])
    for at, (mine, other) in enumerate((*first[:stop], *(last if stop is not None else []))):
        error = _error(mine, other)
        if not error <= limit:
            where = f"{mine['op']} of the {mine['part']}, {mine['given']}"
            return Different(family, "first", where, error, limit, at + 1 if at < len(first[:stop]) else 0)
    if (x["problem"] or y["problem"]) and x["problem"] != y["problem"]:
        return Different(
            family, "wrong in " + " and ".join(f"{n} ({r['problem']})" for n, r in (("A", x), ("B", y)) if r["problem"])
        )
    return None


def _logits(x: dict[str, Any], y: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of captured steps too: behind all other ops, in any report."""
    mine, other = ([op for op in row["ops"] if op["op"] == "logits"] for row in (x, y))
    return list(zip(mine, other, strict=False))


def _parted(mine: list[dict[str, Any]], other: list[dict[str, Any]]) -> int | None:
    """Where two devices go on with other ops, or the same in other shapes."""
    keys = ("part", "op", "given")
    for at, (x, y) in enumerate(zip(mine, other, strict=False)):
        if any(x[key] != y[key] for key in keys):
            return at
    return None if len(mine) == len(other) else min(len(mine), len(other))


def _name(ops: list[dict[str, Any]], at: int) -> str:
    return f"{ops[at]['op']} ({ops[at]['given']})" if at < len(ops) else "none"


def _error(x: dict[str, Any], y: dict[str, Any]) -> float:
    """Relative L2 distance of two outputs, as their sketches tell; infinite if one has a NaN that the other has not."""
    if x["bits"] == y["bits"] or not (x["sketch"] or y["sketch"]):
        return 0.0
    if len(x["sketch"]) != len(y["sketch"]):
        return math.inf
    apart = math.sqrt(sum((p - q) ** 2 for p, q in zip(x["sketch"], y["sketch"], strict=True)) / len(x["sketch"]))
    return apart / max(x["norm"], y["norm"]) if apart else 0.0


def _machine(report: Report) -> str:
    machine, device = report["machine"], report["device"]
    known = (machine.get("chip"), device.get("name"), machine.get("system"), f"torch {machine.get('torch')}")
    return ", ".join(str(each) for each in (*known, f"transformers {machine.get('transformers')}") if each)


def _check(name: str, report: Any) -> None:
    if not isinstance(report, dict) or "golden" not in report or "schema" not in report:
        raise NotComparable(f"{name} is no report of compare --golden --json")
    if report["schema"] != SCHEMA:
        raise NotComparable(f"{name} has schema {report['schema']}, and this version reads {SCHEMA}: make it again")
    try:
        for row in report["families"]:
            if not (
                isinstance(row["family"], str) and isinstance(row["problem"], str) and isinstance(row["bits"], str)
            ):
                raise TypeError
            row["skipped"], float(row["stock"] or 0.0), report["machine"]["torch_foundry"], report["device"].get
            for op in row.setdefault("ops", []):
                if any(not isinstance(op[key], kind) for key, kind in FIGURES.items()):
                    raise TypeError
                float(op["norm"] or 0.0), [float(each) for each in op["sketch"]]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise NotComparable(f"{name} is damaged: not what compare --golden --json writes") from None
