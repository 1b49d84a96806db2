"""`torch-foundry chat` without a terminal."""

from __future__ import annotations

import copy
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chat.conftest import Scripted
from torch_foundry.chat.commands import Commands
from torch_foundry.chat.conversation import Conversation
from torch_foundry.cli import main
from torch_foundry.cli.chat import converse
from torch_foundry.cli.loading import find_model


class Typed(io.StringIO):
    def isatty(self) -> bool:
        return True


def chat(monkeypatch: pytest.MonkeyPatch, text: str, *options: str, typed: bool = False) -> int:
    monkeypatch.setattr("sys.stdin", (Typed if typed else io.StringIO)(text))
    return main(["chat", "--device", "cpu", *options])


def test_a_pipe_is_one_question(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    assert chat(monkeypatch, "What is the opposite of hot?\n") == 0
    assert capsys.readouterr().out == "The opposite of hot is cold.\n"


def test_lines_are_questions_and_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    lines = "What is the opposite of hot?\n\n/set seed\n/edit\n/nothing\n/quit\nnever asked\n"
    assert chat(monkeypatch, lines, "--json", "--set", "seed=3", typed=True) == 1  # a line failed
    out, err = capsys.readouterr()
    (answer,) = map(json.loads, out.splitlines())
    assert answer["text"] == "The opposite of hot is cold." and answer["ended"] == "stop"
    assert "seed                the model's own" in err and "/nothing: expected one of" in err


@pytest.mark.parametrize("as_json", [False, True])
def test_calls_of_tools_are_shown(tokenizer: Any, as_json: bool, capsys: pytest.CaptureFixture) -> None:
    known = copy.copy(tokenizer)
    known.chat_template = "{# <tool_call> #}" + tokenizer.chat_template
    call = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "weather"}}]
    talk = Conversation(Scripted(known, call, "Rain."), known, tools=tools)
    assert not converse(Commands(talk, lambda name: None), io.StringIO("How is it?\n/tool rain\n"), as_json)  # type: ignore[arg-type,return-value]
    out, err = capsys.readouterr()
    assert ('calls weather {"place": "Oslo"} (/tool answers it)\n' in err) != as_json and err.count("calls") <= 1
    if not as_json:
        assert out == f"{call}\nRain.\n"
        return
    first, second = map(json.loads, out.splitlines())
    assert first["calls"] == [{"name": "weather", "arguments": '{"place": "Oslo"}'}] and first["text"] == call
    assert second["text"] == "Rain." and "calls" not in second


@pytest.mark.parametrize(
    "text, options, message",
    [
        (" \n", [], "nothing came through the pipe"),
        ("hi", ["--set", "warmth=1"], "--set warmth: expected one of"),
        ("hi", ["--quantize", "q9"], "--quantize q9"),
        ("hi", ["--resume", "absent.safetensors"], "--resume absent.safetensors"),
        ("hi", ["--tools", "absent.json"], "--tools absent.json: cannot be read"),
        ("hi", ["Somebody/Some-Model"], "hf download Somebody/Some-Model"),
        ("hi " * 2000, [], "the model's context 1024"),
    ],
)
def test_what_cannot_be_done(
    monkeypatch: pytest.MonkeyPatch, text: str, options: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    assert chat(monkeypatch, text, *options) == 2
    out, err = capsys.readouterr()
    assert message in err and err.startswith("torch-foundry: ") and not out


def test_names_of_the_hub_are_looked_up_in_its_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.stdin", Typed("hi\n"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--Somebody--Some-Model"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert find_model(Path("Somebody/Some-Model")) == snapshot
    assert find_model(Path("Somebody/Some-Model/x.gguf")) == snapshot / "x.gguf"
    assert find_model(Path("Somebody/Other")) == Path("Somebody/Other")
    assert main(["chat", "--device", "cpu", "--plain", "some-model"]) == 2
    assert "some-model: no such model directory; in the Hub's cache: Somebody/Some-Model" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Somebody" / "Some-Model").mkdir(parents=True)
    assert find_model(Path("Somebody/Some-Model")) == Path("Somebody/Some-Model")  # a folder goes first


@pytest.mark.parametrize("there", [True, False])
def test_a_terminal_gets_the_application(
    there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Or a sentence that says what is missing."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    run = []
    if there:
        monkeypatch.setattr(
            "torch_foundry.chat.app.ChatApp.run", lambda app: run.append(app.commands.conversation.name)
        )
    else:
        monkeypatch.delitem(sys.modules, "torch_foundry.chat.app", raising=False)
        monkeypatch.setitem(sys.modules, "torch_foundry.chat.app", None)
    assert chat(monkeypatch, "", typed=True) == (0 if there else 2)
    assert run == (["demo model, float32"] if there else [])
    assert there or "pip install 'torch_foundry[chat]'" in capsys.readouterr().err
