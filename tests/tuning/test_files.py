"""Tables as files: round trip, damage, foreign ones; and the command that makes them."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from pathlib import Path

import kit
import pytest
import test_linear
import torch

import torch_foundry
from torch_foundry import ops, quant
from torch_foundry.cli import main, tune
from torch_foundry.core import tuning
from torch_foundry.diagnostics import tune as tuner
from torch_foundry.testing import timing, tolerance

KEY = tuning.Key("linear", "q8_0", 1, 4864, 896)
CHOICE = {"outputs": 2, "steps": 2, "split": 4, "simdgroups": 8, "chains": 1}


def table() -> tuning.Table:
    return tuning.new_table("host", "a machine").with_entry(tuning.Entry(KEY, CHOICE, 1.5, 2.5))


def test_round_trip() -> None:
    path = tuning.write(table())
    assert tuning.read(path) == table()
    assert tuning.choice("host", KEY) != CHOICE
    tuning.load_files()
    assert tuning.choice("host", KEY) == CHOICE
    same_bucket = tuning.Key("linear", "q8_0", 1, 4200, 1000)
    assert tuning.choice("host", same_bucket) == CHOICE
    assert tuning.choice("host", tuning.Key("linear", "q8_0", 1, 9000, 896)) != CHOICE
    assert tuning.choice("sm_90", KEY) != CHOICE


# What becomes of a table's text, and how the warning names it.
DAMAGE = {
    "cut off": (lambda text: text[: len(text) // 2], "not a tuning table"),
    "no JSON": (lambda text: "\0\1", "not a tuning table"),
    "not UTF-8": (lambda text: b"\xff\xfe" + text.encode(), "not a tuning table"),
    "no table": (lambda text: "[]", "not a tuning table"),
    "another version": (lambda text: text.replace('"version": 2', '"version": 99'), "written by another version"),
    "unknown op": (lambda text: text.replace('"op": "linear"', '"op": "conv"'), "conv"),
    "unknown format": (lambda text: text.replace("q8_0", "q9_9"), "q9_9"),
    "no such value": (lambda text: text.replace('"outputs": 2', '"outputs": 5'), "outputs"),
    "breaks a limit": (lambda text: text.replace('"simdgroups": 8', '"simdgroups": 2'), "simdgroups"),
    "a part is missing": (lambda text: text.replace('"split": 4, ', ""), "expected outputs, steps, split"),
    "rows": (lambda text: text.replace('"rows": 1', '"rows": 0'), "rows"),
    "text for a number": (lambda text: text.replace('"n": 4864', '"n": "many"'), "not a tuning table"),
    "another choice": (lambda text: text.replace('"outputs": 2', '"outputs": 4'), "not as it was written"),
    "another shape": (lambda text: text.replace('"n": 4864', '"n": 896'), "not as it was written"),
    "another device": (lambda text: text.replace("a machine", "machine b"), "not as it was written"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_warns_and_changes_nothing(damage: str) -> None:
    path = tuning.write(table())
    before = path.read_text()
    change, reason = DAMAGE[damage]
    after = change(before)
    path.write_bytes(after if isinstance(after, bytes) else after.encode())
    assert path.read_bytes() != before.encode()
    default = tuning.choice("host", KEY)
    with pytest.warns(UserWarning, match=f"{path.name}.*{reason}.*the built-in choices are used"):
        tuning.load_files()
    assert tuning.choice("host", KEY) == default


def test_a_cache_that_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "directory", lambda: Path("/dev/null/tuning"))
    tuning.load_files()


def test_files_of_other_kernels_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    tuning.write(table())
    monkeypatch.setattr(tuning, "shaders_digest", lambda: "0" * 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuning.load_files()
    assert tuning.choice("host", KEY) != CHOICE


# ----------------------------------------------------------------------------------------------------------- the search


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is what the test says it is: fewer outputs, less time."""
    monkeypatch.setattr(timing, "seconds", lambda *_, **__: float(tuning.choice("host", KEY_SMALL)["outputs"]))


KEY_SMALL = tuning.Key("linear", "q8_0", 1, 40, 256)


def test_an_op_launches_what_is_chosen_now_and_after_forget_what_was_before() -> None:
    x, weight = torch.randn(1, 256), torch.zeros(40, 272, dtype=torch.uint8)

    def launched() -> str:
        with torch_foundry.capture() as graph:
            ops.linear(x, weight, format="q8_0")
        return graph.launches()[0].kernel

    before = launched()
    tuning.use("host", KEY_SMALL, tuning.choice("host", KEY_SMALL) | {"outputs": 1})
    assert launched() != before
    tuning.forget()
    assert launched() == before


def test_the_fastest_wins_and_is_used(quick: None) -> None:
    entry = tuner.tune(KEY_SMALL, torch.device("cpu"))
    assert entry.choice["outputs"] == 1 and entry.default_us == 8 * entry.us
    assert tuning.choice("host", KEY_SMALL) == entry.choice


def test_a_wrong_candidate_never_wins(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    right = tuner.Workload.check

    def check(self: tuner.Workload) -> None:
        if tuning.choice("host", KEY_SMALL)["outputs"] == 1:
            raise tolerance.Mismatch("seeded")
        right(self)

    monkeypatch.setattr(tuner.Workload, "check", check)
    assert tuner.tune(KEY_SMALL, torch.device("cpu")).choice["outputs"] == 2


@pytest.mark.parametrize("op", ["linear", "moe_glu", "moe_down"])
def test_a_wrong_result_is_noticed(op: str) -> None:
    work = tuner.workload(tuning.Key(op, "q8_0", 1, 40, 256), torch.device("cpu"))
    work.check()
    right = work.calls[0]
    work.calls = [lambda: right() * 1.001]
    with pytest.raises(tolerance.Mismatch):
        work.check()


TUNED = set(tuning.OPS) - set(tuning.BY_MATRICES)  # decisions 049, 052


def test_keys_are_one_a_bucket_and_one_row_first() -> None:
    keys = tuner.keys(["f16"], [(4864, 896), (4200, 1000), (896, 4864)], [4])
    linear = [(k.rows, k.n, k.k) for k in keys if k.op == "linear"]
    assert linear == [(1, 4864, 896), (4, 4864, 896), (1, 896, 4864), (4, 896, 4864)]
    assert [k.n for k in keys if k.op == "attention"] == list(tuner.TUNED_HEAD_DIMS)
    keys = tuner.keys(["q4_k", "q8_0"], list(tuner.SHAPES), [1])
    assert {(k.op, k.format) for k in keys} == set(itertools.product(TUNED - {"attention"}, ("q4_k", "q8_0")))
    assert all(k.k % 256 == 0 for k in keys if k.format == "q4_k")


# ---------------------------------------------------------------------------------------------------------- the command

ARGS = ["tune", "--device", "cpu", "--formats", "q8_0", "--shapes", "40x256", "--rows", "1"]


def test_command(
    quick: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["tune", "--device", "cpu", "--show"]) == 0
    assert "nothing tuned for host yet" in capsys.readouterr().out
    assert main(ARGS) == 0
    out = capsys.readouterr().out
    assert "1 x 256 -> 40" in out and "outputs=1" in out

    tuned: list[tuning.Key] = []
    monkeypatch.setattr(tuner, "tune", lambda key, device: tuned.append(key))
    assert main(ARGS) == 0 and not tuned  # what is there is not measured again

    exported = tmp_path / "table.json"
    assert main(["tune", "--device", "cpu", "--export", str(exported)]) == 0
    kept = tuning.path_of(tuning.new_table("host"))
    before = kept.read_text()
    kept.unlink()
    assert main(["tune", "--device", "cpu", "--import", str(exported)]) == 0
    assert kept.read_text() == before


def test_a_format_drops_its_own_shapes_only(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    """And says so: rows of 320 are whole blocks of q8_0, not of q4_k."""
    shapes = ["--shapes", "40x320,40x256", "--rows", "1"]
    assert main(["tune", "--device", "cpu", "--formats", "q8_0,q4_k", *shapes]) == 0
    said = capsys.readouterr()
    lines = [line.split()[:6] for line in said.out.splitlines() if " -> " in line]
    expected = {("q8_0", "320"), ("q4_k", "256")}  # for q8_0 the two are one bucket
    for op in ("linear", "norm_linear"):
        assert {(f, k) for o, f, _, _, k, _ in lines if o == op} == expected, said.out
    first, _, _ = said.err.partition("\n")  # then a progress bar, where this takes long
    assert first == "q4_k: not for 40x320, whose rows are not whole blocks of 256"
    assert main(["tune", "--device", "cpu", "--formats", "q4_k", "--shapes", "40x320"]) == 2
    assert "nothing to tune" in capsys.readouterr().err


def test_a_k_quant_costs_other_formats_no_default_shape() -> None:
    shapes = list(tuner.SHAPES)
    alone, beside = (tuner.keys(formats, shapes, [1]) for formats in (["f16"], ["f16", "q4_k"]))
    assert [key for key in beside if key.format == "f16"] == alone
    assert any(k.k == 896 for k in alone) and {k.op for k in alone} == TUNED
    left = tuner.left_out(["f16", "q4_k"], shapes)
    assert set(left) == {"q4_k"} and (128, 896) in left["q4_k"] and (1152, 896) in left["q4_k"]


def test_the_table_says_what_its_shapes_are() -> None:
    lines = tune.describe(
        table()
        .with_entry(tuning.Entry(tuning.Key("norm_linear", "f16", 1, 6144, 4096), {}, 1.0, 2.0))
        .with_entry(tuning.Entry(tuning.Key("attention", "f16", 1, 128, 1), {}, 1.0, 2.0))
    ).splitlines()
    assert "1 x 4096 -> 6144" in lines[2] and "head_dim 128" in lines[3] and "head_dim" not in lines[2]


def test_command_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.json"
    foreign.write_text(tuning.dumps(replace(table(), family="apple9")))
    old = tmp_path / "old.json"
    old.write_text(tuning.dumps(replace(table(), shaders="123")))
    for args, message in (
        (["--import", str(foreign)], "made for family apple9, but this is family host: tune again"),
        (["--import", str(old)], "made for shaders 123, but this is shaders"),
        (["--import", str(tmp_path / "none.json")], "none.json: No such file"),
        (["--formats", "q9_9"], f"--formats: expected some of {quant.listing(quant.FORMATS)}, got 'q9_9'"),
        (["--shapes", "12by4"], "--shapes: expected whole numbers above 0, got '12by4'"),
        (["--rows", "3"], "--rows: expected some of 1, 2, 4, 8, got '3'"),
    ):
        assert main(["tune", "--device", "cpu", *args]) == 2
        assert message in capsys.readouterr().err


def test_a_damaged_table_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    path = tuning.write(table())
    path.write_text("{")
    assert main(["tune", "--device", "cpu", "--show"]) == 2
    assert f"{path}: not a tuning table" in capsys.readouterr().err


def test_env_is_seen_by_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FOUNDRY_GEMV_SPLIT_K", "2")
    monkeypatch.setenv("TORCH_FOUNDRY_GEMV_COLS_PER_TG", "2")
    tuning.load_environment()
    assert tuning.choice("host", KEY)["split"] == 2
    test_linear.check(test_linear.inputs(test_linear.Case(1, 9, 1024, "q8_0"), kit.F32))
    monkeypatch.undo()
    tuning.load_environment()
