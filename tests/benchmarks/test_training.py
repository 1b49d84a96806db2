"""benchmarks.bench_training: steps of all ways, and a wrong gradient makes a row invalid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_training

FEW = ["--device", "cpu", "--quick", "--silent"]


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]


@pytest.mark.cpu_only
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_bench_training(dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_training.main([*FEW, "--dtype", dtype, "--formats", f"{dtype},q4_0", "--out", str(tmp_path)]) == 0
    found = rows(tmp_path)
    assert [(row["format"], row["way"]) for row in found] == [
        (dtype, "stock"), (dtype, "patched"), ("q4_0", "stock"), ("q4_0", "patched"),
    ]  # fmt: skip
    assert all(row["valid"] and row["speedup"] and row["parity"]["error"] > 0 for row in found)
    dense, packed = (row["extra"]["weight_bytes"] for row in found[2:])
    assert packed < dense
    assert capsys.readouterr().out.count("ok, off by") == 4


@pytest.mark.cpu_only
@pytest.mark.parametrize("fault", ["a gradient", "stock itself"])
def test_a_wrong_gradient_makes_a_row_invalid(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients, calls = bench_training.Comparison._gradients, 0

    def wrong(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        found = gradients(*args, **options)
        if calls == {"a gradient": 4, "stock itself": 1}[fault]:  # exact, stock's error, stock, patched
            found[0][3] = 1.001 * found[0][3] if fault == "a gradient" else 9 * found[0][3]
        return found

    monkeypatch.setattr(bench_training.Comparison, "_gradients", wrong)
    assert bench_training.main([*FEW, "--dtype", "f32", "--formats", "q4_0", "--out", str(tmp_path)]) == 1
    assert [row["valid"] for row in rows(tmp_path)] == ([True, False] if fault == "a gradient" else [False, False])
