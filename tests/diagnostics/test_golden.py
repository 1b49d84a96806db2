"""Golden logits: what the package has is what the formula gives, right kernels pass, and wrong ones don't."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from shader_text import edited_shaders

from tests.hf.tiny_cases import ALL_FAMILIES, KIN
from tools import golden as tool
from torch_foundry import ops
from torch_foundry.cli import main
from torch_foundry.core import runtime
from torch_foundry.diagnostics import golden
from torch_foundry.diagnostics.doctor import examine
from torch_foundry.diagnostics.doctor.report import Report, table

SOME = ["llama", "gemma3", "gpt_oss", "deepseek_v3", "bamba", "qwen3_next"]
CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
FAULT = ("norm_linear.metal", "gated(args.activation, value * args.gate_scale, up)", "value * up")


def test_every_family_has_a_model() -> None:
    families = sorted(ALL_FAMILIES | KIN)
    found = {family: dataclasses.asdict(recipe) for family, recipe in golden.recipes().items()}
    made = {family: dataclasses.asdict(tool.recipe(family)) for family in families}
    assert found == json.loads(json.dumps(made)), "run python -m tools.golden"
    assert golden.FILE.stat().st_size < 5_000 * len(families)
    for family in families:
        assert golden.truth(family).shape == (golden.KEPT + golden.STEPS, tool.VOCABULARY)


def test_the_file_is_what_the_tool_makes() -> None:
    """But for the order of float64 sums."""
    command = [sys.executable, "-m", "tools.golden", "--differences", *SOME]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert not found.returncode, found.stderr
    differences = json.loads(found.stdout)
    assert list(differences) == SOME and max(differences.values()) < 1e-12, differences


@pytest.mark.tier("models", quick=2)
@pytest.mark.parametrize("family", golden.recipes())
def test_weights_are_the_same_everywhere(family: str) -> None:
    """Whatever torch draws, and in every dtype (but for Apertus' constant in an activation)."""
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        states.append(golden.build(golden.recipes()[family]).state_dict())
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name
        for dtype in (torch.float16, torch.bfloat16):
            assert name.endswith("act_fn.eps") or torch.equal(tensor.to(dtype).float(), tensor.float()), name


@pytest.mark.tier("models", quick=2)
@pytest.mark.parametrize("family", SOME)
def test_patched_models_are_as_close_as_stock(family: str) -> None:
    row = golden.check(family, CPU)
    assert not row.problem and 0 < row.ours < 1e-5 and 0 < row.stock < 1e-5 and len(row.bits) == 16


def test_a_report_to_compare_devices_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    file = tmp_path / "golden.json"
    command = ["compare", "--device", "cpu", "--golden", "llama", "--json", str(file)]
    assert main(command) == 0
    assert "1 of 1 right on cpu (float32), 0 wrong, 0 skipped" in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert found["golden"] == golden.digest() and found["device"]["executor"] == "host" and found["machine"]["torch"]
    (right,) = found["families"]
    assert right["family"] == "llama" and not right["problem"]
    glu = ops.glu
    monkeypatch.setattr(ops, "glu", lambda *args, **given: 1.0001 * glu(*args, **given))
    assert main(command) == 1
    (wrong,) = json.loads(file.read_text())["families"]
    assert "relative L2 error" in wrong["problem"] and wrong["ours"] > 10 * wrong["stock"]
    assert wrong["stock"] == right["stock"] and wrong["bits"] != right["bits"]
    assert "WRONG: relative" in capsys.readouterr().out


@pytest.mark.tier("nightly")
def test_a_fault_of_a_kernel_of_steps(tmp_path: Path) -> None:
    with runtime.use_shaders(edited_shaders(tmp_path, FAULT)):
        assert "relative L2 error" in golden.check("llama", CPU).problem


def test_what_cannot_run_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that this transformers hasn't is skipped; whatever else raises is wrong."""
    recipe = golden.recipes()["llama"]
    absent = dataclasses.replace(recipe, config="OfTheFutureConfig")
    monkeypatch.setattr(golden, "recipes", lambda: {"absent": absent, "llama": recipe})
    row = golden.check("absent", CPU)
    assert row.skipped and "OfTheFutureConfig" in row.problem and row.to_json()["ours"] is None and math.isnan(row.ours)

    def truth(family: str) -> torch.Tensor:
        raise RuntimeError("/home/somebody/x.metal:3: no such function")

    monkeypatch.setattr(golden, "truth", truth)
    report = Report(None)
    examine._golden(CPU, report)
    assert report.failures == ["golden logits of llama: RuntimeError: .../x.metal:3: no such function"]
    shown = {"machine": dict.fromkeys(("torch_foundry", "python", "torch", "transformers", "system", "model", "chip"))}
    shown["machine"] |= dict.fromkeys(("machine", "cpu_cores", "memory_gib"))
    text = table(report.data | shown)
    assert "0 of 2 families as close to float64 as stock, 1 skipped" in text


@pytest.mark.parametrize(
    "options, message",
    [
        (["--golden", "no_such"], "--golden no_such: expected some of afmoe"),
        (["--json", "x.json"], "goes with --golden"),
    ],
)
def test_requests_that_cannot_be_met(options: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", "--device", "cpu", *options]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Path]]:
    """Right; with a wrong factor behind the first step's first activation; as another machine may round."""
    folder, glu = tmp_path_factory.mktemp("reports"), ops.glu
    files = folder / "right.json", folder / "wrong.json", folder / "rounded.json"
    for file in files:
        with pytest.MonkeyPatch.context() as patch:
            if file.stem == "wrong":
                patch.setattr(ops, "glu", lambda x, *rest, **to: glu(x, *rest, **to) * (1 + 1e-4 * (x.shape[1] == 1)))
            main(["compare", "--device", "cpu", "--golden", "llama", "--json", str(file)])
    (row,) = (rounded := json.loads(files[2].read_text()))["families"]
    row["bits"] = "0"
    for op in row["ops"]:
        op |= {"bits": "0", "sketch": [each * (1 + 1e-6) for each in op["sketch"]]}
    files[2].write_text(json.dumps(rounded))
    yield files


def diff(*files: Path) -> int:
    return main(["compare", "--diff", *map(str, files)])


def test_two_reports_of_one_machine(reports: tuple[Path, ...], capsys: pytest.CaptureFixture) -> None:
    right, _, rounded = reports
    assert diff(right, right) == 0
    assert "1 families bit for bit, 0 within limits, 0 differ" in capsys.readouterr().out
    assert diff(right, rounded) == 0
    assert "0 families bit for bit, 1 within limits, 0 differ" in capsys.readouterr().out


def test_the_first_op_that_differs(reports: tuple[Path, ...], capsys: pytest.CaptureFixture) -> None:
    """Not the product in which the fault is multiplied, but the first op that saw it: the report notes op by op."""
    right, wrong, _ = reports
    for files in ((right, wrong), (wrong, right)):
        assert diff(*files) == 1
        (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("llama")]
        assert "first: linear of the step, x=1x1x96 weight=64x96 residual=1x1x64" in row, row


def test_a_difference_that_only_graphs_make(reports: tuple[Path, ...], tmp_path: Path, capsys: Any) -> None:
    other = json.loads(reports[0].read_text())
    last = other["families"][0]["ops"][-1]
    last |= {"bits": "0", "sketch": [1.01 * each for each in last["sketch"]]}
    file = tmp_path / "other.json"
    file.write_text(json.dumps(other))
    assert diff(reports[0], file) == 1
    assert "logits of the replayed step 4" in capsys.readouterr().out


def test_devices_that_run_other_ops(reports: tuple[Path, ...], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Only logits are held against each other behind the place where they part."""
    other = json.loads(reports[0].read_text())
    row = other["families"][0]
    row["ops"][5]["given"], row["bits"], file = "x=2x2", "0", tmp_path / "other.json"
    file.write_text(json.dumps(other))
    assert diff(reports[0], file) == 0
    assert "llama: other ops from 6 on" in capsys.readouterr().out
    row["ops"][-8] |= {"bits": "0", "sketch": []}
    file.write_text(json.dumps(other))
    assert diff(reports[0], file) == 1
    assert "logits of the prompt, token 9" in capsys.readouterr().out


def test_a_family_that_failed_on_one(reports: tuple[Path, ...], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    other, file = json.loads(reports[0].read_text()), tmp_path / "other.json"
    other["families"] = [golden.Row("llama", problem="RuntimeError: no such function").to_json()]
    file.write_text(json.dumps(other))
    assert diff(reports[0], file) == 1
    assert "wrong in B (RuntimeError: no such function)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change, message",
    [
        (None, "is no report"),
        ({"schema": 1}, "schema 1, and this version reads 2"),
        ({"golden": "0"}, "of other models"),
        ({"machine": {"torch_foundry": "0.0.1"}}, "made by torch_foundry"),
        ({"families": []}, "no family is in both"),
        ({"families": [{"family": "llama"}]}, "damaged"),
        ({"families": 3}, "damaged"),
    ],
)
def test_what_is_no_report(reports: Any, tmp_path: Path, capsys: Any, change: Any, message: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(json.dumps([] if change is None else json.loads(reports[0].read_text()) | change))
    assert diff(reports[0], file) == 2
    assert message in capsys.readouterr().err


def test_files_that_cannot_be_read(reports: Any, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert diff(reports[0], tmp_path / "none.json") == 2
    assert "No such file" in capsys.readouterr().err
    (tmp_path / "cut.json").write_text("{")
    assert diff(reports[0], tmp_path / "cut.json") == 2
    assert "not JSON" in capsys.readouterr().err
    assert main(["compare", "--golden", "--diff", "a", "b"]) == 2
    assert "--diff: goes with neither" in capsys.readouterr().err
