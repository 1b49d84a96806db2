"""benchmarks.bench_tp under torchrun, on CPUs: rows of all ways, and what is wrong makes a row invalid."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import bench_tp
from benchmarks.harness import options

ROOT = Path(__file__).parents[2]
NAMES = ["one GPU: stock", "one GPU: patched", "2 GPUs: stock", "2 GPUs: patched", "2 GPUs: engine"]


@pytest.mark.tier("models")
def test_bench_tp(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "benchmarks.bench_tp"]
    command += ["--device", "cpu", "--quick", "--formats", "f32", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "tp.jsonl").read_text().splitlines()]
    assert [row["way"] for row in rows] == NAMES and all(row["valid"] and row["speedup"] for row in rows)
    assert [row["shape"]["gpus"] for row in rows] == [1, 1, 2, 2, 2]
    assert all(row["parity"]["detail"] == "equal" for row in rows) and rows[-1]["shape"]["requests"] == 2
    assert "tiny f32: not captured: nothing" in done.stderr and all(name in done.stdout for name in NAMES)


def test_other_tokens_are_wrong_unless_they_are_nearly_as_likely() -> None:
    found = object.__new__(bench_tp.Comparison)
    logits = torch.tensor([[0.0, 9.0, 8.999], [0.0, 0.0, 5.0]])
    for fmt, got, right in (("f32", 1, True), ("f32", 2, False), ("bf16", 2, True), ("bf16", 0, False)):
        found.fmt = fmt
        parity = found._parity(torch.tensor([got, 2]), logits)
        assert parity.ok == right and (parity.detail == "equal") == (got == 1)
        assert not found._parity(torch.tensor([1, 1]), logits).ok  # wherever it is
        assert not found._parity(torch.tensor([1, 2]), logits * torch.nan).ok


def test_it_is_started_by_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(options.UserError, match="expected to be started by torchrun"):
        bench_tp.main(["--device", "cpu"])
