"""`torch-foundry perplexity`: its lines, files and refusals."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from torch_foundry.cli import main
from torch_foundry.diagnostics.perplexity import perplexity

TEXT = "The quick brown fox jumps over the lazy dog. " * 3


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_formats_against_the_dense_model(
    tiny_model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, picture = tmp_path / "q.json", tmp_path / "q.svg"
    command = ["perplexity", "--model", str(tiny_model), "--text", str(text), "--context", "32"]
    files = ["--json", str(report), "--picture", str(picture)]
    assert main([*command, "--quantize", "q8_0", "Q4_0", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cpu, float32, a dense KV cache"
    assert lines[1].startswith("reference: perplexity ") and "windows of 32" in lines[1]
    assert [line.split()[:2] for line in lines[2:]] == [["weights", "bits"], ["q8_0", "8.50"], ["q4_0", "4.50"]]
    found = json.loads(report.read_text())
    assert list(found) == ["q8_0", "q4_0"]
    assert 0 < found["q8_0"]["against"]["kl_mean"] < found["q4_0"]["against"]["kl_mean"]
    drawn = "".join(ET.parse(picture).getroot().itertext())
    assert "q8_0" in drawn and "top-1" in drawn

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    dense = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    expected = perplexity(dense, tokenizer(TEXT, return_tensors="pt").input_ids[0], context=32)
    assert found["q4_0"]["against"]["perplexity"] == pytest.approx(expected.perplexity, rel=1e-6)
    assert found["q4_0"]["tokens"] == expected.tokens == len(TEXT) - 1


def test_a_packed_cache_against_the_dense_one(
    tiny_model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["perplexity", "--model", str(tiny_model), "--text", str(text), "--json", str(tmp_path / "q.json")]
    errors = []
    for kinds in ("q8_0", "q8_0,q4_0", "Q4_0"):
        assert main([*command, "--kv-cache", kinds]) == 0
        errors.append(json.loads((tmp_path / "q.json").read_text())["as it is"]["against"]["kl_mean"])
    assert "keys q4_0, values q4_0" in capsys.readouterr().out
    assert 1e-9 < errors[0] < errors[1] < errors[2]
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--kv-cache", "q5_0"])
    assert "expected one of f32, f16, bf16, q8_0, q4_0, or two" in capsys.readouterr().err


def test_a_model_alone_and_against_another(
    tiny_model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["perplexity", "--model", str(tiny_model), "--text", str(text)]
    report = tmp_path / "q.json"
    assert main([*command, "--picture", str(tmp_path / "alone.svg")]) == 0
    assert "KL" not in capsys.readouterr().out and ET.parse(tmp_path / "alone.svg")
    assert main([*command, "--against", str(tiny_model), "--json", str(report)]) == 0
    against = json.loads(report.read_text())["as it is"]["against"]
    assert against["ratio"] == pytest.approx(1, abs=1e-5) and against["kl_mean"] < 1e-9 and against["top1"] == 1


def test_requests_that_cannot_be_met(
    tiny_model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["perplexity", "--model", str(tiny_model)]

    def refused(*more: str) -> str:
        assert main([*command, *more]) == 2
        return capsys.readouterr().err

    empty, binary = tmp_path / "empty.txt", tmp_path / "binary"
    empty.write_text("")
    binary.write_bytes(b"\xff\xfe\xff")
    assert "too short: expected at least 2 tokens, got 0" in refused("--text", str(empty))
    assert "cannot be read" in refused("--text", str(binary))
    assert "cannot be read" in refused("--text", str(tmp_path / "absent"))
    assert "--quantize q9: expected some of q8_0, " in refused("--text", str(text), "--quantize", "q9")
    assert "--quantize iq1_s: expected some of q8_0, " in refused("--text", str(text), "--quantize", "iq1_s")
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--picture", "q.png"])
    assert "ends in .svg" in capsys.readouterr().err
    assert "context: expected 2 to 2048 tokens, got 1" in refused("--text", str(text), "--context", "1")
    for option, file in (("--json", "absent/q.json"), ("--picture", "absent/q.svg")):
        where = ["--text", str(tmp_path / "no text"), option, str(tmp_path / file)]
        assert f"{file}: cannot be written" in refused(*where), "it is found before anything else"
    kept, new = tmp_path / "kept.json", tmp_path / "new.json"
    kept.write_text("kept")
    refused("--text", str(tmp_path / "no text"), "--json", str(kept))
    refused("--text", str(tmp_path / "no text"), "--json", str(new))
    assert kept.read_text() == "kept" and not new.exists()

    renamed = tmp_path / "renamed"
    shutil.copytree(tiny_model, renamed)
    file = renamed / "tokenizer.json"
    vocabulary = json.loads(file.read_text())
    ids = vocabulary["model"]["vocab"]
    ids["T"], ids["q"] = ids["q"], ids["T"]
    file.write_text(json.dumps(vocabulary))
    assert Tokenizer.from_file(str(file)).get_vocab_size()
    assert "its tokenizer gives other tokens than the model's" in refused(
        "--text", str(text), "--against", str(renamed)
    )

    config = LlamaConfig.from_pretrained(tiny_model, vocab_size=300)
    wider = tmp_path / "wider"
    shutil.copytree(tiny_model, wider)
    LlamaForCausalLM(config).save_pretrained(wider)
    assert "against: expected the model's vocabulary of 257 tokens, got one of 300" in refused(
        "--text", str(text), "--against", str(wider)
    )
