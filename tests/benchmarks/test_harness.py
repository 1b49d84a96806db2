"""Clocks, records, tables and plots of the benchmarks."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks.harness import clock, machine, plots, record
from benchmarks.harness.clock import Times
from benchmarks.harness.machine import Machine
from benchmarks.harness.record import Parity, Record
from benchmarks.harness.table import generation_table, table

CPU = torch.device("cpu")
RIGHT = Parity(True, "float64", 1e-4)


def row(machine: Machine, **changes: object) -> Record:
    base = Record("op", "linear", "host", "f16", {"rows": 1, "n": 8, "k": 4}, machine)
    times, stock = Times((1e-6, 2e-6, 3e-6)), Times((4e-6,) * 3)
    measured = {"times": times, "stock_times": stock, "bytes": 4000, "stock_bytes": 8000, "flops": 64, "parity": RIGHT}
    return dataclasses.replace(base, **{**measured, **changes})  # type: ignore[arg-type]


def test_quantiles_are_numpys() -> None:
    values = [5.0, 1.0, 4.0, 2.0, 9.0, 7.0]
    for q in (0.0, 0.2, 0.5, 0.8, 1.0):
        expected = torch.quantile(torch.tensor(values, dtype=torch.float64), q).item()
        assert math.isclose(Times(tuple(values)).quantile(q), expected)
    assert Times((3.0,)).quantile(0.2) == Times((3.0,)).median == 3.0
    assert Times((1e-6, 3e-6)).as_dict() == {
        "median": 2.0, "p20": 1.4, "p80": 2.6, "min": 1.0, "avg": 2.0, "max": 3.0, "rounds": 2,
    }  # fmt: skip


def test_measure_divides_by_calls_and_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that counts work: 4 calls a run, 1 microsecond each."""
    now = [0.0]

    def run() -> None:
        now[0] += 4e-6

    def elapsed(device: torch.device, call: clock.Run) -> float:
        before = now[0]
        call()
        return now[0] - before

    monkeypatch.setattr(clock, "elapsed", elapsed)
    times = clock.measure(CPU, run, 4, rounds=7)
    assert len(times.rounds) == 7 and all(math.isclose(t, 1e-6) for t in times.rounds)
    before = now[0]
    clock.measure(CPU, run, 4, rounds=7, budget_s=0.0, warm_up_s=0.0)
    assert now[0] - before == pytest.approx(3 * clock.ROUND_S, rel=0.01)  # three rounds at least, long enough each


def test_one_step_that_swallows_the_run_is_an_artefact() -> None:
    queued = [1e-5] * 15 + [0.02]  # all is waited for in the last step
    assert "step 15 of 16" in str(clock.swallowed(queued))
    assert "step 0 of 4" in str(clock.swallowed([1.0, 0.1, 0.1, 0.1]))
    assert clock.swallowed([1e-3] * 16) is None
    assert clock.swallowed([3e-3, 1e-3, 1e-3, 1e-3]) is None  # exactly half
    assert clock.swallowed([1.0, 0.0, 0.0]) is None  # too short to say
    assert clock.swallowed([]) is None


def test_a_record_has_what_it_takes(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "new" / "ops.jsonl"
    record.append(path, [row(machine)])
    record.append(path, [row(machine, times=Times((1e-6,)))])
    first, second = record.read([path])
    assert set(record.REQUIRED) <= first.keys()
    assert first["machine"]["commit"] == "abc" and first["machine"]["torch"] == "2.13.0"
    assert first["machine"]["transformers"] == "5.23.0" and first["machine"]["read_gb_s"] == 100.0
    assert first["times_us"]["median"] == 2.0 and second["times_us"]["median"] == 1.0
    assert first["gb_s"] == 2.0 and first["percent_of_bandwidth"] == 2.0 and first["stock_gb_s"] == 2.0
    assert first["speedup"] == 2.0 and first["tflops"] == 3.2e-05
    assert first["valid"] is True and first["parity"]["ok"] is True
    json.dumps(first)


def test_the_way_that_stock_was_called_is_what_counts(machine: Machine) -> None:
    assert row(machine, as_stock=Times((8e-6,))).speedup == 0.5


@pytest.mark.parametrize("parity", [Parity(), Parity(False, "float64", 0.5, "relative L2 error 5e-1")], ids=str)
def test_no_parity_no_conclusion(machine: Machine, parity: Parity) -> None:
    bad = row(machine, parity=parity)
    assert not bad.valid and bad.speedup is None and bad.as_dict()["speedup"] is None
    line = table([bad]).splitlines()[1]
    assert "INVALID" in line and "2.00" not in line
    assert "INVALID" in generation_table([dataclasses.replace(bad, kind="e2e")])


def test_a_time_that_is_none_makes_no_speed(machine: Machine) -> None:
    below = row(machine, times=Times((1e-6, -1e-6, 2e-6)))
    assert not below.valid and below.speedup is None


def test_profiled_times_are_for_attribution_only(machine: Machine) -> None:
    profiled = row(machine, attribution_only=True)
    assert not profiled.valid and profiled.speedup is None
    assert "attribution only" in table([profiled])


def test_damaged_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "ops.jsonl"
    path.write_text('{"kind": "op"}\n')
    with pytest.raises(ValueError, match=r"ops.jsonl:1: not a record: no name"):
        list(record.read([path]))
    path.write_text("no\n")
    with pytest.raises(ValueError, match=r"ops.jsonl:1: not a record: no JSON"):
        list(record.read([path]))


def test_plots_are_pictures_of_valid_rows(machine: Machine, tmp_path: Path) -> None:
    later = dataclasses.replace(machine, commit="def")
    faster = row(later, times=Times((5e-7,)))
    other = row(machine, name="glu", flops=None, stock_times=None, parity=Parity(False))
    record.append(tmp_path / "ops.jsonl", [row(machine), faster, other])
    record.append(tmp_path / "e2e.jsonl", [row(machine, kind="skipped", times=None, reason="no GPU")])
    files = plots.write_all(tmp_path)
    assert sorted(f.name for f in files) == [
        "history-a-machine.png",
        "history-a-machine.svg",
        "roofline-a-machine.png",
        "roofline-a-machine.svg",
    ]
    for file in files:
        data = file.read_bytes()
        assert data.startswith(b"\x89PNG\r\n" if file.suffix == ".png" else b"<?xml") and len(data) > 5000
    drawn = (tmp_path / "roofline-a-machine.svg").read_text()
    assert "linear -->" in drawn and "glu -->" not in drawn  # that row is invalid


def test_nothing_to_draw(machine: Machine, tmp_path: Path) -> None:
    record.append(tmp_path / "ops.jsonl", [row(machine, parity=Parity(False))])
    assert plots.write_all(tmp_path) == []


def test_the_machine_is_measured() -> None:
    found = machine.look(CPU, quick=True)
    assert found.read_gb_s > 0 and found.copy_gb_s > 0 and found.executor == "host"
    assert machine.look(CPU, quick=True, commit="given").commit == "given"
    assert len(found.commit.rstrip("+")) == 10 or found.commit == "unknown"
    assert found.percent(None) is None and found.percent(found.read_gb_s) == 100.0
