"""`torch-foundry doctor` as a user runs it, on the host executor: codes, table, report, what goes wrong on the way."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from shader_text import edited_shaders

from torch_foundry import ops
from torch_foundry.aot import prebuild
from torch_foundry.cli import main
from torch_foundry.core import runtime
from torch_foundry.diagnostics import golden
from torch_foundry.diagnostics.doctor import examine, measure, selfcheck

SHADERS = Path(__file__).parents[2] / "shaders"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three kernels, three checks and one weight: enough for everything but the checks themselves."""
    calls, suite = list(prebuild.calls()), selfcheck.suite(quick=False)
    monkeypatch.setattr(prebuild, "calls", lambda device: iter(calls[:3]))
    monkeypatch.setattr(selfcheck, "suite", lambda quick: suite[:3])
    one = {"llama": golden.recipes()["llama"]}
    monkeypatch.setattr(golden, "recipes", lambda: one)
    monkeypatch.setattr(
        measure, "gemv_jobs", lambda quick, emulated: [("tiny", 64, 64, "f16"), ("tiny", 64, 64, "q8_0")]
    )


def doctor(path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--device", "cpu", "--json", str(path), *options])
    return code, json.loads(path.read_text())


@pytest.mark.tier("models")
def test_all_right(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """The whole quick run: every kernel, every check, every figure."""
    code, report = doctor(tmp_path / "report.json", "--quick")
    assert code == 0 and report["complete"] and report["failures"] == []
    kernels, checks = report["kernels"], report["checks"]
    assert kernels["compiled"] == kernels["all"] == len(prebuild.of_dense_models("cpu")) and not kernels["failed"]
    assert checks["passed"] == checks["all"] == len(checks["names"]) > 30
    assert {name.split()[0].rstrip(":") for name in checks["names"]} == {
        "rms_norm", "layer_norm", "linear", "embedding", "glu", "rope_kv", "attention", "rope_attention", "demo",
        "norm_linear", "norm_glu", "norm_qkv", "sample", "moe_route", "moe_glu", "moe_down", "moe_linear",
    }  # fmt: skip
    assert "golden" not in report  # its kernels are many
    assert report["bandwidth"]["read_gb_s"] > 0 and report["dispatch"]["one_by_one_us"] > 0
    assert report["dispatch"]["replayed_us"] > 0 and report["indirect"]["indirect_us"] is None
    assert all(row["valid"] and row["gb_s"] > 0 for row in report["gemv"])
    assert {row["format"] for row in report["gemv"]} == set(measure.QUICK_FORMATS)
    out = capsys.readouterr().out
    assert "this executor has no indirect command buffers" in out
    assert "emulated on the CPU: figures say nothing about a GPU" in out and report["emulated"]
    assert f"{checks['all']} of {checks['all']} passed" in out and "NOT COMPLETE" not in out
    assert f"report: {tmp_path / 'report.json'}" in out


@pytest.mark.usefixtures("few")
def test_the_report_goes_into_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--device", "cpu"]) == 0
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"torch-foundry-doctor-\d{4}-\d\d-\d\d-\d{6}\.json", path.name)
    assert json.loads(path.read_text())["complete"]


@pytest.mark.usefixtures("few")
def test_a_wrong_kernel_is_found(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    fault = ("rms_norm.metal", "float(args.hidden) + args.eps)", "float(args.hidden) * 1.01f + args.eps)")
    with runtime.use_shaders(edited_shaders(tmp_path, fault)):
        code, report = doctor(tmp_path / "report.json")
    assert code == 1 and report["complete"]
    assert [row["name"] for row in report["checks"]["failed"]] == report["checks"]["names"]
    assert "relative L2 error" in report["failures"][0]
    out = capsys.readouterr().out
    assert "0 of 3 passed" in out and "3 FAILED" in out and "please open an issue and attach this report" in out


@pytest.mark.usefixtures("few")
def test_a_kernel_that_does_not_compile_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("glu.metal:12: error: no member named 'frob'")

    monkeypatch.setattr(prebuild, "calls", lambda device: iter([("glu silu float16", broken)]))
    code, report = doctor(tmp_path / "report.json")
    assert code == 1
    assert report["kernels"]["failed"][0]["name"] == "glu silu float16"
    assert "no member named 'frob'" in report["failures"][0]
    assert report["checks"]["passed"] == 3  # the rest is looked at all the same


@pytest.mark.usefixtures("few")
def test_a_figure_without_a_right_result_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    linear = ops.linear

    def wrong(x: torch.Tensor, weight: torch.Tensor, **options: Any) -> torch.Tensor:
        y = linear(x, weight, **options)
        return ops.glu(y, y) if options["format"] == "q8_0" else y

    monkeypatch.setattr(ops, "linear", wrong)
    code, report = doctor(tmp_path / "report.json")
    assert code == 1
    assert {row["format"]: row["valid"] for row in report["gemv"]} == {"f16": True, "q8_0": False}
    assert re.search(r"tiny +64 x 64 +[\d.]+ +INVALID", capsys.readouterr().out)


@pytest.mark.usefixtures("few")
def test_a_section_that_breaks_is_a_failure_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*args: Any) -> Any:
        raise RuntimeError("MPS backend out of memory")

    monkeypatch.setattr(measure, "bandwidth", out_of_memory)
    code, report = doctor(tmp_path / "report.json")
    assert code == 1 and report["complete"] and "bandwidth" not in report
    assert report["failures"] == ["bandwidth: RuntimeError: MPS backend out of memory"]
    assert report["dispatch"]["launches"] > 0


@pytest.mark.usefixtures("few")
def test_ctrl_c_leaves_a_report_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "dispatch", interrupted)
    code, report = doctor(tmp_path / "report.json")
    assert code == 130
    assert not report["complete"] and report["interrupted"] and report["at"] == "dispatch"
    assert report["checks"]["passed"] == 3 and "read_gb_s" in report["bandwidth"]
    assert "NOT COMPLETE: ended at: dispatch" in capsys.readouterr().out
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.usefixtures("few")
def test_a_crash_leaves_what_was_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file as it is at the moment in which a driver ends the process."""
    seen: list[dict[str, Any]] = []
    path = tmp_path / "report.json"

    def looked_at(*args: Any) -> Any:
        seen.append(json.loads(path.read_text()))
        raise RuntimeError("the end")

    monkeypatch.setattr(measure, "dispatch", looked_at)
    doctor(path)
    assert seen[0]["at"] == "dispatch" and not seen[0]["complete"] and seen[0]["checks"]["passed"] == 3
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]  # nothing temporary is left


@pytest.mark.parametrize("device, message", [("meta", "hold no data"), ("abacus", "abacus"), ("xpu", "not on xpu")])
def test_what_cannot_run_is_said_and_recorded(
    device: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "report.json"
    assert main(["doctor", "--device", device, "--json", str(path)]) == 2
    report = json.loads(path.read_text())
    assert (
        not report["complete"] and message in report["failures"][0] and report["machine"]["torch"] == torch.__version__
    )
    assert message in capsys.readouterr().out


def test_a_package_that_does_not_load_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> Any:
        raise ImportError("torch_foundry was built for torch 2.11.0 and torch 2.15.0 is installed: build it again")

    monkeypatch.setattr(examine, "examine", fails)
    code, report = doctor(tmp_path / "report.json")
    assert code == 2 and "built for torch 2.11.0" in report["failures"][0]


def test_a_report_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["doctor", "--device", "cpu", "--json", str(tmp_path / "absent" / "report.json")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_the_device_that_is_picked(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "cpu"
    if runtime.has_executor("cuda") and torch.cuda.is_available():
        expected = "cuda"
    if runtime.has_executor("mps") and torch.backends.mps.is_available():
        expected = "mps"
    assert runtime.default_device().type == expected
