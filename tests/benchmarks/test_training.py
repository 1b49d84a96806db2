"""benchmarks.bench_training: steps of all ways, in this process and in another, and a wrong gradient makes a row
invalid."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import adapters, bench_training, tables, unsloth_steps

FEW = ["--device", "cpu", "--quick", "--silent"]
# As unsloth is called: a model from a folder, which says that it is packed, and float32 adapters.
STANDIN = """
import os, sys
assert "transformers" not in sys.modules
assert os.environ["HF_HUB_OFFLINE"] == os.environ["UNSLOTH_DISABLE_STATISTICS"] == "1"
import peft, transformers

class FastLanguageModel:
    def from_pretrained(name, *, max_seq_length, dtype, load_in_4bit, quantization_config=None, **settings):
        assert transformers.AutoTokenizer.from_pretrained(name)("w3 w4").input_ids == [3, 4] and max_seq_length == 25
        if load_in_4bit:
            assert not quantization_config.bnb_4bit_use_double_quant
        model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
        for parameter in model.parameters() if PACKED else ():
            parameter.quant_state = None
        print(FAULT, "said by a stand-in", settings)
        return model, None

    def get_peft_model(model, *, r, target_modules, lora_alpha, random_state, use_gradient_checkpointing):
        if use_gradient_checkpointing:
            model.gradient_checkpointing_enable()
            model.enable_input_require_grads()
        more = {"task_type": "CAUSAL_LM", "lora_alpha": lora_alpha + FAULT}
        return peft.get_peft_model(model, peft.LoraConfig(r=r, target_modules=target_modules, **more))
"""


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
    gradients, calls = adapters.gradients, 0

    def wrong(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        found = gradients(*args, **options)
        if calls == {"a gradient": 4, "stock itself": 1}[fault]:  # exact, stock's error, stock, patched
            found[0][3] = 1.001 * found[0][3] if fault == "a gradient" else 9 * found[0][3]
        return found

    monkeypatch.setattr(adapters, "gradients", wrong)
    assert bench_training.main([*FEW, "--dtype", "f32", "--formats", "q4_0", "--out", str(tmp_path)]) == 1
    assert [row["valid"] for row in rows(tmp_path)] == ([True, False] if fault == "a gradient" else [False, False])


def standin(folder: Path, packed: bool = False, fault: str = "0") -> list[str]:
    """Options with a package that takes unsloth's place."""
    text = STANDIN.replace("PACKED", str(packed)).replace("FAULT", fault)
    (folder / "unsloth.py").write_text(text)
    return [*FEW, "--out", str(folder), "--unsloth", str(folder)]


@pytest.mark.cpu_only
@pytest.mark.tier("models", quick=1)
@pytest.mark.parametrize("fmt,more", [("nf4", []), ("bf16", ["--checkpointing"])])
def test_unsloth_in_a_process_of_its_own(fmt: str, more: list[str], tmp_path: Path) -> None:
    """With the same weights, adapters and prompts its gradients are stock's, and it is timed and judged as they are."""
    given = standin(tmp_path, packed=fmt == "nf4")
    assert bench_training.main([*given, "--dtype", "bf16", "--formats", fmt, *more]) == 0
    stock, row, patched = rows(tmp_path)
    assert [stock["way"], row["way"], patched["way"]] == ["stock", "unsloth", "patched"]
    assert row["valid"] and row["parity"]["error"] == pytest.approx(stock["parity"]["error"], rel=1e-3)
    assert row["speedup"] and row["times_us"]["rounds"] == 2 and row["extra"]["weight_bytes"] > 0
    row["extra"]["step_bytes"] = stock["extra"]["step_bytes"] = 0  # which the CPU doesn't count
    shown = tables.training([stock, row])[2]
    assert shown[:4] == ("tiny", fmt, "2, 24, checkpointed" if more else "2, 24", "unsloth")


@pytest.mark.cpu_only
def test_unsloth_is_judged(tmp_path: Path) -> None:
    assert bench_training.main([*standin(tmp_path, fault="1"), "--dtype", "bf16", "--formats", "bf16"]) == 1
    assert [row["valid"] for row in rows(tmp_path)] == [True, False, True]


@pytest.mark.cpu_only
@pytest.mark.tier("models", quick=1)
@pytest.mark.parametrize("fault,reason", [("1 // 0", "ZeroDivisionError"), ("0", "weights that are not packed")])
def test_why_unsloth_gave_no_steps(fault: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row says why, and the others are there."""
    assert bench_training.main([*standin(tmp_path, fault=fault), "--dtype", "bf16", "--formats", "nf4"]) == 0
    found = rows(tmp_path)
    assert [row["kind"] for row in found] == ["e2e", "skipped", "e2e"] and reason in found[1]["reason"]
    assert reason in capsys.readouterr().out


def test_unsloth_may_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsloth_steps, "WAIT", 0.01)
    monkeypatch.setattr(unsloth_steps, "save", lambda *_: None)
    asked = unsloth_steps.Asked(False, "f32", 4, 0, False, 1)
    with pytest.raises(unsloth_steps.UnslothError, match="no answer"):
        unsloth_steps.steps(tmp_path, None, [torch.zeros(1, 2, dtype=torch.long)], asked)


def test_bytes_of_what_bitsandbytes_keeps_beside_a_weight() -> None:
    layer = nn.Linear(8, 4, bias=False)
    layer.lora_A = nn.Linear(8, 2)
    state = SimpleNamespace(absmax=torch.zeros(3), state2=SimpleNamespace(absmax=torch.zeros(5)))
    layer.weight.quant_state = state  # type: ignore[attr-defined]
    assert adapters.nbytes(layer) == 4 * (32 + 3 + 5)
