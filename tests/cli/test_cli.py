"""The torch-foundry command: figures, equal tokens, and one clear line for what can't be met."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from shader_text import edited_shaders

import torch_foundry
from torch_foundry import LoadError
from torch_foundry.cli import main
from torch_foundry.cli.loading import name_of
from torch_foundry.core import runtime


def generate(directory: Path, *options: str) -> int:
    return main(["generate", "--model", str(directory), "--prompt", "abc", "--max-new-tokens", "6", *options])


def rows(out: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith(("stock ", "patched "))}


def test_generate_runs_stock_and_patched_and_prints_figures(tiny_model: Path, capsys: pytest.CaptureFixture) -> None:
    assert generate(tiny_model) == 0
    out = capsys.readouterr().out
    assert "--- stock" in out and "--- patched" in out and "tokens equal: yes" in out
    assert "executor: host (cpu)" in out
    figures = rows(out)
    assert int(figures["patched"][0]) == int(figures["stock"][0]) > 0
    assert figures["stock"][3] == "-"  # stock code launches none of our kernels
    assert float(figures["patched"][3]) > 2 * 5  # two layers of several launches each
    assert "stock code ran" not in out  # no fallbacks


def test_what_models_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen2.5-0.5B").mkdir()
    (tmp_path / "link-1.5").symlink_to("Qwen2.5-0.5B")
    monkeypatch.chdir(tmp_path / "Qwen2.5-0.5B")
    told = {".": "Qwen2.5-0.5B", "..": tmp_path.name, "../link-1.5": "link-1.5", "m-q4_0.gguf": "m-q4_0", "a/b": "b"}
    assert {name: name_of(Path(name), "demo") for name in told} == told
    assert name_of(None, "demo") == "demo"


def test_several_prompts_and_figures_for_machines(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    more = tmp_path / "prompts.txt"
    more.write_text("ghi\n\njk\n")
    options = ["--prompt", "de", "--prompts", str(more)]
    assert generate(tiny_model, "--silent", *options) == 0
    out = capsys.readouterr().out
    assert "---" not in out and "prompt 3, 2, 3, 2 tokens" in out
    assert len([line for line in out.splitlines() if line.startswith(("stock ", "patched "))]) == 8
    assert generate(tiny_model, "--json", *options) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["prompt"] for each in found["prompts"]] == ["abc", "de", "ghi", "jk"]
    assert [each["prompt_tokens"] for each in found["prompts"]] == [3, 2, 3, 2] and found["equal"] is True
    for each in found["prompts"]:
        assert each["stock"]["text"] == each["patched"]["text"] and each["patched"]["launches"] > 0
        assert 0 < each["patched"]["tokens"] <= 6


@pytest.mark.parametrize("options", [["--dtype", "float16"], ["--temperature", "0.7", "--seed", "3"], ["--raw"]])
def test_generate_with_options(tiny_model: Path, options: list[str], capsys: pytest.CaptureFixture) -> None:
    assert generate(tiny_model, *options) == 0
    assert set(rows(capsys.readouterr().out)) == {"stock", "patched"}


def test_a_seed_gives_the_same_text_again(tiny_model: Path, capsys: pytest.CaptureFixture) -> None:
    texts = []
    for seed in ("1", "1", "2"):
        generate(tiny_model, "--temperature", "1.5", "--seed", seed, "--no-compare", "--max-new-tokens", "24")
        texts.append(capsys.readouterr().out.split("\n\n")[0])
    assert texts[0] == texts[1] != texts[2]


def test_quantized_weights_are_the_same_on_both_sides(tiny_model: Path, capsys: pytest.CaptureFixture) -> None:
    assert generate(tiny_model, "--quantize", "q8_0") == 0
    out = capsys.readouterr().out
    assert "weights q8_0" in out and "tokens equal: yes" in out


def test_compare_prints_the_drift_table(tiny_model: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", "--model", str(tiny_model), "--prompt", "abcdef"]) == 0
    out = capsys.readouterr().out
    assert "model.layers.1" in out and "no stage is out of line" in out


@pytest.mark.tier("models")
def test_compare_looks_at_decode_steps(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """A fault in a kernel that no prompt goes through is named, and the exit code says so."""
    fault = ("norm_linear.metal", "gated(args.activation, value * args.gate_scale, up)", "value * up")
    with runtime.use_shaders(edited_shaders(tmp_path, fault)):
        assert main(["compare", "--model", str(tiny_model), "--prompt", "abcdef"]) == 1
    assert "first out of line: model.layers.0 of the decode step, by norm_glu" in capsys.readouterr().out


def _remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _write(name: str, text: str) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / name).write_text(text)

    return write


def _truncate(directory: Path) -> None:
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _other_shape(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"hidden_size": 128}))


@pytest.mark.parametrize(
    "damage, message",
    [
        (shutil.rmtree, "no such model directory"),
        (_remove("config.json"), "it has no config.json"),
        (_write("config.json", "{"), "config.json: cannot be read"),
        (_write("config.json", '["not", "a", "model"]'), "not the config of a model"),
        (_write("config.json", '{"model_type": "no_such_model"}'), "cannot load the model"),
        (_remove("model.safetensors"), "no weights in it"),
        (_truncate, "cannot load the model"),
        (_other_shape, "cannot load the model"),
        (_write("model.safetensors", "not a safetensors file"), "cannot load the model"),
        (_write("tokenizer.json", "{}"), "cannot load the model"),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_broken_directories_get_one_line_and_exit_code_2(
    tiny_model: Path, tmp_path: Path, damage: Callable[[Path], object], message: str, capfd: pytest.CaptureFixture
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(tiny_model, directory)
    damage(directory)
    assert generate(directory) == 2
    *before, line = capfd.readouterr().err.strip().replace("\r", "\n").splitlines()
    assert line.startswith(f"torch-foundry: {directory}") and message in line
    assert all(other.startswith("Loading weights") for other in before)  # a progress bar


@pytest.mark.parametrize(
    "line, message",
    [
        ("generate --max-new-tokens 0", "--max-new-tokens 0"),
        ("generate --no-compare --temperature 1e-320", "an infinite score can't be drawn from"),
        ("generate --quantize q9", "--quantize q9: expected one of"),
        ("generate --device abacus", "--device abacus"),
        ("generate --device meta", "--device meta"),
        ("generate --temperature -1", "--temperature"),
        ("generate --temperature inf", "--temperature"),
        ("generate --temperature nan", "--temperature"),
        (
            "generate --seed 99999999999999999999999",
            "--seed 99999999999999999999999: expected 0 to 18446744073709551615",
        ),
        ("generate --seed -1", "--seed -1"),
        ("generate --prompt ''", "the prompt has no tokens"),
        ("generate --prompts absent.txt", "--prompts absent.txt: cannot be read"),
        ("bench -p 3000", "beyond the model's 2048 positions"),
        ("bench -r 0", "--repeats 0"),
        ("bench -n 0 --llmfit x.json", "--llmfit: expected new tokens"),
        ("bench --quantize q9", "--quantize q9"),
        ("bench --json /nowhere/x.json", "/nowhere/x.json: cannot be written"),
    ],
)
def test_requests_that_cannot_be_met(tiny_model: Path, line: str, message: str, capsys: pytest.CaptureFixture) -> None:
    command, *more = shlex.split(line)
    given = ["--model", str(tiny_model), "--prompt", "abc"] if command == "generate" else [str(tiny_model)]
    assert main([command, *given, *more]) == 2
    assert message in capsys.readouterr().err


def test_the_largest_seed(tiny_model: Path) -> None:
    assert generate(tiny_model, "--seed", str(2**64 - 1), "--temperature", "1", "--no-compare") == 0


def test_the_name_of_a_model_is_no_path(capsys: pytest.CaptureFixture) -> None:
    name = "Somebody/Some-Model"
    assert generate(Path(name)) == 2
    assert f"hf download {name} --local-dir Some-Model" in capsys.readouterr().err
    with pytest.raises(LoadError, match=r"hf download Somebody/Some-Model --local-dir Some-Model.*\[ABSENT\]"):
        torch_foundry.load(name)
    with pytest.raises(LoadError, match=r"no such file \[ABSENT\]"):
        torch_foundry.load("absent.gguf")


@pytest.mark.parametrize("command", ["generate", "compare", "perplexity", "profile", "tune", "doctor"])
def test_one_default_device(command: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command, and load(), asks the one place that knows."""
    monkeypatch.chdir(tmp_path)  # doctor begins with a report

    class Asked(Exception):
        pass

    def default_device() -> torch.device:
        raise Asked

    monkeypatch.setattr(runtime, "default_device", default_device)
    model = [] if command in ("tune", "doctor") else ["--model", str(tiny_model)]
    with pytest.raises(Asked):
        main([command, *model])
    with pytest.raises(Asked):
        torch_foundry.load(tiny_model)


def test_unknown_options_are_refused_by_argparse(tiny_model: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as exit_code:
        generate(tiny_model, "--dtype", "float8")
    assert exit_code.value.code == 2
    assert "float8" in capsys.readouterr().err


def test_without_a_model_the_demo_model_answers(capsys: pytest.CaptureFixture) -> None:
    assert main(["generate", "--prompt", "What is the opposite of hot?", "--max-new-tokens", "20"]) == 0
    out = capsys.readouterr().out
    assert out.count("The opposite of hot is cold.\n") == 2  # stock and patched
    assert "tokens equal: yes" in out


def test_a_gguf_file_is_a_model_too(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from tests.io.gguf_models import make, write

    file = tmp_path / "model.gguf"
    write(file, "qwen3", make("qwen3"))
    assert generate(file, "--raw") == 0
    assert "tokens equal: yes" in capsys.readouterr().out
    file.write_bytes(file.read_bytes()[:-1])
    assert generate(file, "--raw") == 2
    assert "[DATA_SHORT]" in capsys.readouterr().err


def test_without_a_command_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "torch-foundry chat MODEL" in out and "hf download" in out
    (tmp_path / "models--Somebody--Some-Model" / "snapshots").mkdir(parents=True)
    assert main([]) == 0
    assert "In the Hub's cache: Somebody/Some-Model\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "typed, expected",
    [
        (["ge"], ["generate"]),
        (["generate", "--sil"], ["--silent"]),
        (["chat", "--pl"], ["--plain"]),
        (["completion", "z"], ["zsh"]),
        (["chat", "models/a"], ["models/a b.gguf"]),
        (["chat", "Some"], ["Somebody/Some-Model"]),
    ],
)
def test_bash_completes(typed: list[str], expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["completion", "bash"]) == 0
    words = " ".join(["torch-foundry", *typed])
    script = f"{capsys.readouterr().out}\nCOMP_WORDS=({words}); COMP_CWORD={len(typed)}; _torch_foundry\n"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a b.gguf").touch()
    for name in ("Somebody--Some-Model", "Else--Model"):
        (tmp_path / "hub" / f"models--{name}" / "snapshots").mkdir(parents=True)
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub")}
    script += "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    told: dict[str, Any] = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": True}
    found = subprocess.run(["bash", "-c", script], **told)
    assert found.stdout.splitlines() == expected and not found.stderr


def test_bench_prints_a_line_for_each_test(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "bench.json"
    options = ["-p", "12,0", "-n", "9", "-d", "0,20", "-r", "2", "--json", str(file)]
    options += ["--llmfit", str(shared := tmp_path / "llmfit.json")]
    assert main(["bench", str(tiny_model), "--device", "cpu", *options]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert not err  # no stock code, all steps captured
    names = ["pp12", "tg9", "pp12 @ d20", "tg9 @ d20"]
    assert [line.split("|")[5].strip() for line in lines[2:]] == names
    found = json.loads(file.read_text())
    assert [each["test"] for each in found] == names and found[3]["n_depth"] == 20
    for each in found:
        assert len(each["samples_ts"]) == 2 and 0 < each["min_ts"] <= each["avg_ts"] <= each["max_ts"]
        size = each["n_prompt"] or each["n_gen"]
        rates = [size / (ns / 1e9) for ns in each["samples_ns"]]
        assert each["samples_ts"] == pytest.approx(rates, rel=1e-3) and each["backend"] == "host"
    told = json.loads(shared.read_text())
    assert told.keys() == {"schemaVersion", "submittedAtUnix", "tool", "hardware", "results"}
    assert told["hardware"]["hwClass"] == "CPU_ONLY" and told["hardware"]["gpuCount"] == 0
    assert told["hardware"]["cpuCores"] >= 1 and told["hardware"]["os"] in ("linux", "macos")
    assert [(each["model"].endswith(" @ d20"), each["avgOutputTokens"]) for each in told["results"]] == [
        (False, 9),
        (True, 9),
    ]
    for theirs, ours in zip(told["results"], (found[1], found[3]), strict=True):
        assert (theirs["avgTps"], theirs["minTps"], theirs["maxTps"], theirs["numRuns"]) == (
            *(ours["avg_ts"], ours["min_ts"], ours["max_ts"]),
            2,
        )
        assert theirs["avgTotalMs"] == pytest.approx(sum(ours["samples_ns"]) / 2e6, rel=1e-3)
