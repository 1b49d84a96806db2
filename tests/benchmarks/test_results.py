"""RESULTS.md is what the records hold; targets that are missed are called so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import results, tables


def test_results_are_generated() -> None:
    assert (results.HERE / "RESULTS.md").read_text() == results.document(), "run `make results`"


def test_every_record_is_shown_or_superseded() -> None:
    index = json.loads((results.RECORDS / "index.json").read_text())
    shown = [name for section in index["sections"] for name in section["files"]]
    named = [*shown, *index["other"], *index["superseded"]]
    files = {path.relative_to(results.RECORDS).as_posix() for path in results.RECORDS.glob("*/*")}
    assert len(named) == len(set(named)) and set(named) == files


def test_every_target_is_of_a_table() -> None:
    index = json.loads((results.RECORDS / "index.json").read_text())
    targets = json.loads((results.RECORDS / "targets.json").read_text())
    assert {target["section"] for target in targets} <= {section["title"] for section in index["sections"]}
    text = results.document()
    assert all(f"| {target['what']} |" in text for target in targets)


def row(us: float, **shape: Any) -> dict[str, Any]:
    machine = {"device_name": "a machine", "commit": "0123456789+"}
    fixed = {"name": "linear", "way": "cpu", "format": "f16", "machine": machine, "when": "2026-11-21T00:00:00"}
    return fixed | {"kind": "op", "shape": shape, "times_us": {"median": us}, "percent_of_bandwidth": 50.0}


@pytest.mark.parametrize(
    ("bounds", "met"), [({"at_most": 2}, "met"), ({"at_most": 1.5}, "**missed** by 1 of 2 rows"), ({"at_least": 3}, "")]
)
def test_target_is_held_against_the_worst_row(bounds: dict[str, float], met: str) -> None:
    rows = [row(10, rows=1, n=1), row(12, rows=4, n=1), row(10, rows=1, n=2), row(20, rows=4, n=2)]
    target = {"what": "4 over 1", "match": {"shape.rows": 4}, "over": {"shape.rows": 1}, "measure": "times_us.median"}
    date, commit, what, seen, share, limit, verdict = results._target(target | bounds, rows)
    assert (date, commit, what, share) == ("2026-11-21", "0123456+", "4 over 1", "")
    assert seen == ("1.2 times" if "at_least" in bounds else "2 times")
    assert verdict == (met or "**missed** by 2 of 2 rows") and str(limit).endswith("times")


def test_newest_row_of_each_case_is_kept() -> None:
    later = row(9, rows=1, tokens=32) | {"when": "2026-11-22T00:00:00"}
    other = row(7, rows=2, tokens=64)
    kept = tables.newest([later, row(8, rows=1, tokens=64), other])
    assert len(kept) == 2 and later in kept and other in kept
