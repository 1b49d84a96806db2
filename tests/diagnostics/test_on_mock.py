"""doctor on a Mac, as far as Linux can show it: the Metal executor on the mock of Metal, in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "metal"))
import build

pytestmark = pytest.mark.tier("metal")
ROOT = Path(__file__).parents[2]

# The variants of kernels that the CPU runs are compiled; tests/metal/test_models.py runs the GPU's own.
DOCTOR = """
import sys, torch
from tests.metal.variants import same_variants
from torch_foundry.cli import main
with same_variants(of="cpu", on="mps"):
    code = main({arguments!r})
made = [event for event in torch.ops.mock_metal.trace() if event.startswith("pipeline")]
print(len(made), "pipelines of", *sorted({{event.split()[-1].split("_")[0] for event in made}}))
sys.exit(code)
"""
PIPELINES = 60  # at most: each costs a Mac without Xcode some tenths of a second
# Of ops: the first word of a name.
FAMILIES = "attention copy embedding glu layer linear moe norm read rms rope sample subnormal"


def test_doctor_on_the_mock_of_metal(tmp_path: Path) -> None:
    if reason := build.unavailable():
        pytest.skip(reason)
    path = tmp_path / "report.json"
    code = DOCTOR.format(arguments=["doctor", "--device", "mps", "--quick", "--icb", "--json", str(path)])
    command = [sys.executable, "-c", code]
    own = {"TORCH_FOUNDRY_EXTENSION": str(build.build()), "TORCH_FOUNDRY_METAL_ARCHIVE": "0"}
    environment = {**os.environ, **own}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    report = json.loads(path.read_text())
    assert report["complete"] and not report["failures"] and report["emulated"]
    assert report["device"]["name"] == "mps" and report["device"]["executor"] == "metal"
    assert report["device"]["metal"]["library"] in ("jit", "metallib")
    assert report["kernels"]["compiled"] == report["kernels"]["all"]
    assert report["checks"]["passed"] == report["checks"]["all"] > 30
    assert report["indirect"]["indirect_us"] > 0 and all(row["valid"] for row in report["gemv"])
    assert "emulated on the CPU: figures say nothing about a GPU" in result.stdout
    assert "as an indirect command buffer" in result.stdout
    count, families = re.findall(r"^(\d+) pipelines of (.*)$", result.stdout, re.M)[0]
    assert 30 < int(count) <= PIPELINES and families == FAMILIES, (count, families)


INDIRECT = """
import sys, torch, torch_foundry.core.extension
from pathlib import Path
from torch_foundry.aot import prebuild
from tests.metal.variants import same_variants
from torch_foundry.diagnostics.doctor import examine, machine, measure, selfcheck
from torch_foundry.diagnostics.doctor.report import Report
calls, suite, mock = list(prebuild.calls())[:1], selfcheck.suite(True)[:1], torch.ops.mock_metal
prebuild.calls = lambda device: iter(calls)
selfcheck.suite = lambda quick: suite
measure.gemv_jobs = lambda quick, emulated: [("tiny", 64, 64, "f16")]
mock.trace()
with same_variants(of="cpu", on="mps"):
    report = Report(Path({path!r}))
    report.data["machine"] = machine.machine()
    examine.examine(torch.device("mps"), report, True, {icb})
events = [e.split()[0] for e in mock.trace() if e.startswith(("dispatch", "icb"))]
first = events.index("icb") if "icb" in events else len(events)
print("icb" in events, "dispatch" in events[first:], report.failures, report.data["indirect"]["no_indirect"])
"""


@pytest.mark.parametrize(
    ("icb", "expected"),
    [
        (False, "False False [] indirect command buffers not measured: --icb does so, last"),
        (True, "True False [] None"),
    ],
    ids=["unasked", "asked"],
)
def test_indirect_command_buffers_come_last_or_not_at_all(icb: bool, expected: str, tmp_path: Path) -> None:
    """A GPU that fails on one ignores all that this process submits afterwards."""
    if reason := build.unavailable():
        pytest.skip(reason)
    code = INDIRECT.format(path=str(tmp_path / "report.json"), icb=icb)
    environment = {**os.environ, "TORCH_FOUNDRY_EXTENSION": str(build.build())}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.stdout.strip().splitlines()[-1:] == [expected], result.stderr[-3000:]
