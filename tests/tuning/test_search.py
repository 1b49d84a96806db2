"""How `tune` finds a choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from torch_foundry import patched
from torch_foundry.cli import main
from torch_foundry.core import tuning
from torch_foundry.demo_model import demo_model_path
from torch_foundry.diagnostics import tune
from torch_foundry.diagnostics.tune import Choice

CPU = torch.device("cpu")
FAMILY = "host"
LANES = tuning.Key("norm_linear", "q8_0", 1, 64, 256)
MATRICES = tuning.Key("norm_matrices", "q8_0", 1, 64, 256)


def times(monkeypatch: pytest.MonkeyPatch, of: Any) -> list[Choice]:
    """`of` says how long a choice takes; returns those that are measured, and compiles nothing."""
    measured: list[Choice] = []

    def time(key: tuning.Key, family: str, device: Any, work: Any, choice: Choice) -> float:
        measured.append(choice)
        return float(of(choice))

    monkeypatch.setattr(tune, "_time", time)
    monkeypatch.setattr(tune, "_compile", lambda *args: None)
    return measured


def test_matrices_have_keys_where_they_are_wanted() -> None:
    shapes = [(64, 512), (64, 1024)]
    without, both = (tune.keys(["q8_0"], shapes, [1, 8], wanted) for wanted in (False, True))
    more = [key for key in both if key not in without]
    assert set(more) == {tuning.Key(op, "q8_0", 1, 64, k) for op in ("matrices", "norm_matrices") for k in (512, 1024)}
    lanes = [tuning.Key("norm_linear", "q8_0", rows, 64, 512) for rows in (1, 8)]
    by_matrices = tuning.Key("norm_matrices", "q8_0", 1, 64, 512)
    assert max(map(both.index, lanes)) < both.index(by_matrices)  # which have to beat what is found for lanes


def test_no_keys_for_formats_that_matrices_do_not_take() -> None:
    """f32, and packed formats whose codes are no fragments, have none; f16 has."""
    found = tune.keys(["f32", "q6_k", "f16", "q4_k"], [(64, 512)], [1], by_matrices=True)
    assert {key.format for key in found if "matrices" in key.op} == {"f16", "q4_k"}


@pytest.mark.parametrize("by_lanes, chosen", [(20.0, 32), (9.0, 0)])
def test_matrices_are_used_where_a_row_takes_no_longer(
    monkeypatch: pytest.MonkeyPatch, by_lanes: float, chosen: int
) -> None:
    def of(choice: Choice) -> float:
        if not choice["outputs"]:
            return by_lanes
        return 10.0 + 5 * (choice["outputs"] != 32) + abs(choice["split"] - 4) + abs(choice["simdgroups"] - 8)

    measured = times(monkeypatch, of)
    entry = tune.tune(MATRICES, CPU)
    assert (entry.choice["outputs"], entry.us, entry.default_us) == (chosen, min(10.0, by_lanes), by_lanes)
    assert tuning.choice(FAMILY, MATRICES) == entry.choice
    assert {choice["outputs"] for choice in measured} == {0, 16, 32}
    assert sum(choice["outputs"] == 0 for choice in measured) == 1  # no neighbour of a choice by matrices


def test_lanes_are_measured_without_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    by_matrices = {**tuning.choice(FAMILY, MATRICES), "outputs": 16}
    tuning.use(FAMILY, MATRICES, by_matrices)
    times(monkeypatch, lambda choice: 1.0 + tuning.choice(FAMILY, MATRICES)["outputs"])
    assert tune.tune(LANES, CPU).us == 1.0
    assert tuning.choice(FAMILY, MATRICES) == by_matrices


def test_neighbours_are_compiled_before_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Side by side: each neighbour's kernel, and nothing that breaks a limit."""
    lists = []

    class KernelList(tune.KernelList):
        def __init__(self, device: torch.device) -> None:
            super().__init__(device)
            lists.append(self)

    monkeypatch.setattr(tune, "KernelList", KernelList)
    work = tune.workload(LANES, CPU)
    now = tuning.choice(FAMILY, LANES)
    near = [{**now, "outputs": outputs, "steps": 1} for outputs in (1, 2)]
    tune._compile(LANES, FAMILY, CPU, work, [*near, {**near[0], "outputs": 8, "steps": 4}])
    assert len(lists) == 1 and len(lists[0]) == 2
    entries = [entry for _, entry in lists[0].names()]
    assert [f", {outputs}, 1, " in entry for outputs, entry in zip((1, 2), entries, strict=True)] == [True, True]


@pytest.mark.parametrize("by_matrices", [False, True])
def test_keys_of_a_model(by_matrices: bool) -> None:
    """One for each bucket that a prompt or a step asks for, single rows first, and nothing else."""
    layer = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 2}
    options = {"head_dim": 64, "num_hidden_layers": 2, "vocab_size": 320, "tie_word_embeddings": False}
    model = LlamaForCausalLM(LlamaConfig(**layer, **options)).to(torch.float16).eval()
    with patched(model, quantize="q8_0"):
        found = tune.keys_of(model, CPU, by_matrices)
    fields = [(key.op, key.format, key.rows) for key in found]
    assert fields == sorted(fields, key=lambda each: (each[2], "matrices" in each[0]))
    assert len({(key.op, key.format, key.rows, *tuning.bucket(key)) for key in found}) == len(found)
    shapes = {op: {(key.n, key.k) for key in found if (key.op, key.rows) == (op, 1)} for op, *_ in fields}
    assert shapes["linear"] == {(256, 256), (320, 256), (256, 1024)}  # o, the output layer, down
    assert shapes["norm_linear"] == {(512, 256), (2048, 256)}  # q, k and v; gate and up
    assert shapes["linear_routes"] == {(128, 256), (1024, 256), (256, 1024)}  # of a prompt; o has the bucket of k
    assert [(key.format, key.n) for key in found if key.op == "attention"] == [("f16", 64)]
    assert {key.format for key in found if key.op != "attention"} == {"q8_0"}
    assert ("norm_matrices" in {key.op for key in found}) == by_matrices


def test_nothing_to_tune() -> None:
    with pytest.raises(ValueError, match="no kernel of the model is chosen by shape"):
        tune.keys_of(torch.nn.ReLU(), CPU)


def test_command_for_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    seen: list[tuning.Key] = []

    def tuned(key: tuning.Key, device: torch.device) -> tuning.Entry:
        seen.append(key)
        return tuning.Entry(key, tuning.choice(FAMILY, key), 1.0, 2.0)

    monkeypatch.setattr(tune, "tune", tuned)
    command = ["tune", str(demo_model_path()), "--device", "cpu", "--dtype", "float16", "--quantize", "q4_0"]
    assert main(command) == 0
    assert {key.format for key in seen} == {"f16", "q4_0"} and "norm_linear q4_0" in capsys.readouterr().out
    assert max(key.k for key in seen) == 768 and all(key.op not in tuning.BY_MATRICES for key in seen)
    first = len(seen)
    assert main(command) == 0 and len(seen) == first  # all are there


def test_a_model_that_asks_for_nothing(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def nothing(*args: Any) -> Any:
        raise ValueError("no kernel of the model is chosen by shape")

    monkeypatch.setattr(tune, "keys_of", nothing)
    assert main(["tune", str(demo_model_path()), "--device", "cpu"]) == 2
    assert f"{demo_model_path()}: no kernel of the model is chosen" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, message",
    [
        (["x", "--shapes", "64x64"], "--shapes: expected either shapes or a model"),
        (["x", "--rows", "1"], "--rows: expected either shapes or a model"),
        (["--quantize", "q8_0"], "--quantize: expected a model"),
        (["--dtype", "float16"], "--dtype: expected a model"),
        (["/no/such", "--quantize", "q9"], "--quantize q9: expected one of"),
        (["/no/such"], "/no/such: no such model directory"),
    ],
)
def test_bad_options(options: list[str], message: str, capsys: Any) -> None:
    assert main(["tune", "--device", "cpu", *options]) == 2
    assert message in capsys.readouterr().err
