"""doctor on a Mac, as far as Linux can show it: the Metal executor on the mock of Metal, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "metal"))
import build

ROOT = Path(__file__).parents[2]

# The variants of kernels that the CPU runs are compiled; tests/metal/test_models.py runs the GPU's own.
DOCTOR = """
import sys
from tests.metal.variants import same_variants
from torch_foundry.cli import main
with same_variants(of="cpu", on="mps"):
    sys.exit(main({arguments!r}))
"""


def test_doctor_on_the_mock_of_metal(tmp_path: Path) -> None:
    if reason := build.unavailable():
        pytest.skip(reason)
    path = tmp_path / "report.json"
    code = DOCTOR.format(arguments=["doctor", "--device", "mps", "--quick", "--json", str(path)])
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "TORCH_FOUNDRY_EXTENSION": str(build.build())}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    report = json.loads(path.read_text())
    assert report["complete"] and not report["failures"] and report["emulated"]
    assert report["device"]["name"] == "mps" and report["device"]["executor"] == "metal"
    assert report["device"]["metal"]["library"] in ("jit", "metallib")
    assert report["kernels"]["compiled"] == report["kernels"]["all"]
    assert report["checks"]["passed"] == report["checks"]["all"] > 50
    assert report["dispatch"]["indirect_us"] > 0 and all(row["valid"] for row in report["gemv"])
    assert "emulated on the CPU: figures say nothing about a GPU" in result.stdout
    assert "as an indirect command buffer" in result.stdout
