"""Chats and servers with a model of two GGUF files: its decoder's, and that of what sees images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import torch_foundry
from tests.chat.test_images import RED, said, talk, unheard
from tests.chat.test_plain import chat
from tests.io import towers
from torch_foundry import cli
from torch_foundry.serving.app import Server

NAME = "qwen2_vl"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The decoder's, the tower's, and a picture."""
    text, tower, picture = (tmp_path / name for name in ("tiny.gguf", "mmproj-tiny.gguf", "red.png"))
    towers.write_text(NAME, text)
    towers.write_tower(NAME, tower)
    picture.write_bytes(RED)
    return text, tower, picture


def test_a_chat(files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    text, tower, picture = files
    expected = talk(torch_foundry.load(text, mmproj=tower, device="cpu"))
    expected.attach(picture)
    expected.ask("What is this?", unheard)
    options = ["--device", "cpu", "--image", str(picture), "--set", "max_new_tokens=6"]
    for model in (str(text), str(text.parent)):
        assert chat(monkeypatch, "What is this?\n", model, *options) == 0
        assert capsys.readouterr().out == said(expected) + "\n"
    elsewhere = text.parent / "towers" / "other.gguf"
    elsewhere.parent.mkdir()
    tower.rename(elsewhere)
    assert chat(monkeypatch, "What is this?\n", str(text), *options) == 2
    assert "no file of its vision tower (mmproj-*.gguf) lies beside it" in capsys.readouterr().err
    assert chat(monkeypatch, "What is this?\n", str(text), "--mmproj", str(elsewhere), *options) == 0
    assert capsys.readouterr().out == said(expected) + "\n"
    assert chat(monkeypatch, "What is this?\n", str(text), "--mmproj", str(text), *options) == 2
    assert "general.architecture: expected 'clip', of a vision tower" in capsys.readouterr().err
    # without a question about an image, the decoder alone does
    assert chat(monkeypatch, "What?\n", str(text), "--mmproj", str(text), "--device", "cpu", *options[-2:]) == 0


def test_a_server(
    files: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    served: list[Any] = []
    monkeypatch.setattr(Server, "run", lambda self: served.append(self.service))
    assert cli.main(["serve", str(files[0]), "--device", "cpu", "--images", "1", "--blocks", "64"]) == 0
    service = served[0]
    assert type(service.engine.model).__name__ == "Qwen2VLForConditionalGeneration"
    assert service.processor.tokenizer is service.tokenizer
    service.thread.close()
    service.thread.join(60)
    files[1].unlink()
    assert cli.main(["serve", str(files[0]), "--device", "cpu", "--images", "1"]) == 2
    assert "the file of a vision tower (mmproj-*.gguf) beside it" in capsys.readouterr().err


def test_a_tower_is_no_model_of_a_list(
    files: tuple[Path, Path, Path], capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(files[0].parent / "cache"))
    assert cli.main(["models", str(files[0].parent), "--device", "cpu"]) == 0
    listed = capsys.readouterr().out
    assert "tiny.gguf" in listed and "mmproj" not in listed
