"""Conversations without an interface: answers, figures, stopping, failing, and what is kept of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torch_foundry
from torch_foundry.chat.commands import Commands, setting
from torch_foundry.chat.conversation import Conversation
from torch_foundry.demo_model import draft_model_path

HOT = "What is the opposite of hot?"
Make = Callable[..., Conversation]


@pytest.fixture(scope="module")
def demo() -> Any:
    """The small one that drafts for the demo model."""
    return torch_foundry.load(draft_model_path(), device="cpu", progress=False)


def unheard(text: str) -> None:
    pass


def test_answers_are_those_of_a_session_and_measured(demo: Any) -> None:
    """The second turn reads only what is new."""
    conversation, session, heard = Conversation(*demo), torch_foundry.Session(*demo), []
    first = conversation.ask(HOT, heard.append)
    assert "".join(heard) == session.send(HOT)
    assert (first.reused, first.ended) == (0, "stop") and first.tokens > 5
    assert first.launches >= 2 * 5 * (first.tokens - 1)  # two layers of five launches
    assert first.rate > 0 and first.prefill > 0 and first.memory > 1 << 20
    second = conversation.ask("And of small?", heard.append)
    assert conversation.messages[-1]["content"] == session.send("And of small?")
    assert second.reused == session.reused >= first.prompt
    assert second.to_json()["tokens_per_second"] == second.rate


def test_drafts_are_counted_and_change_nothing(demo: Any) -> None:
    conversation = Conversation(*demo)
    conversation.settings |= {"max_new_tokens": 24}
    plain = conversation.ask("Tell me a story.", unheard)
    said = conversation.messages[-1]["content"]
    conversation.settings["draft"] = 4
    drafted = conversation.regenerate(unheard)
    assert conversation.messages[-1]["content"] == said and plain.ended == drafted.ended == "length"
    assert drafted.drafted >= drafted.accepted and drafted.drafted > 0 == plain.drafted


def test_stopping_keeps_what_was_said_and_the_conversation_goes_on(demo: Any) -> None:
    whole = Conversation(*demo)
    whole.settings["max_new_tokens"] = 24
    whole.ask("Tell me a story.", unheard)
    conversation, heard = Conversation(*demo), []

    def emit(text: str) -> None:
        heard.append(text)
        if len(heard) == 5:
            conversation.stop()

    figures = conversation.ask("Tell me a story.", emit)
    said = conversation.messages[-1]["content"]
    assert figures.ended == "interrupted" and 5 <= figures.tokens <= 8
    assert said == "".join(heard) and whole.messages[-1]["content"].startswith(said)
    assert conversation.ask(HOT, unheard).reused >= figures.prompt  # the cache has survived


@pytest.mark.parametrize("words", [[], ["Once upon"]])
def test_a_model_that_fails_leaves_the_messages_as_they_were(scripted: Make, words: list[str]) -> None:
    conversation = scripted("Hello.", [*words, RuntimeError("out of luck")], "All is well.")
    conversation.ask("Hi", unheard)
    before = copy.deepcopy(conversation.messages)
    with pytest.raises(RuntimeError, match="out of luck"):
        conversation.ask("Go on", unheard)
    assert conversation.messages == before
    conversation.ask("Again?", unheard)
    assert [m["content"] for m in conversation.messages] == ["Hi", "Hello.", "Again?", "All is well."]


def test_a_model_without_a_chat_template_goes_on_with_a_transcript(tokenizer: Any, scripted: Make) -> None:
    base, log = copy.deepcopy(tokenizer), []
    base.chat_template = None
    made = scripted(" Fine.\nUse this.\nUser: And you?\nAssistant: Well.")
    conversation = Conversation(made.session.model, base, system="Be brief.", log=log.append)
    assert "no chat template" in log[0]
    heard: list[str] = []
    conversation.ask("How are you?", heard.append)
    assert conversation.session.model.seen[0].endswith("System: Be brief.\nUser: How are you?\nAssistant:")
    assert "".join(heard) == " Fine.\nUse this."  # not a letter of the next turn
    assert conversation.messages[-1]["content"] == "Fine.\nUse this."


def test_regenerating_and_taking_back(scripted: Make) -> None:
    conversation = scripted("One.", "Two.", "Three.", system="Count.")
    with pytest.raises(ValueError, match="no question"):
        conversation.regenerate(unheard)
    conversation.ask("a", unheard)
    conversation.ask("b", unheard)
    conversation.regenerate(unheard)
    assert [m["content"] for m in conversation.messages] == ["Count.", "a", "One.", "b", "Three."]
    assert conversation.take_back() == "b" and len(conversation.messages) == 3
    conversation.clear()
    assert conversation.messages == [{"role": "system", "content": "Count."}]
    assert conversation.take_back() == ""


def test_no_piece_has_half_a_character(scripted: Make) -> None:
    text, heard = "Straße 日本語 👩‍👩‍👧‍👦 🇪🇺 end", []
    scripted(text).ask("Hi", heard.append)
    assert "".join(heard) == text and len(heard) > 3
    assert not any("\ufffd" in piece for piece in heard)


def test_settings_go_to_generate(scripted: Make) -> None:
    commands = Commands(scripted("a", "b", "c"), lambda name: pytest.fail(name))
    for line in ("/set temperature 0.5", "/set top_k 3", "/set max_new_tokens 7", "Hi"):
        if (ask := commands.run(line).ask) is not None:
            ask(unheard)
    options = commands.conversation.session.model.options
    assert {k: options[k] for k in ("do_sample", "temperature", "top_k", "max_new_tokens")} == {
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 3,
        "max_new_tokens": 7,
    }
    commands.run("/set temperature 0")
    commands.conversation.ask("Hi", unheard)
    assert commands.conversation.session.model.options["do_sample"] is False
    assert "top_k               3 " in commands.run("/set").text
    commands.run("/set top_k")
    assert "top_k" not in commands.conversation.settings


@pytest.mark.parametrize(
    "name, text", [("warmth", "1"), ("temperature", "hot"), ("top_p", "0"), ("top_k", "2.5"), ("min_p", "nan")]
)
def test_settings_that_nothing_can_have(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=name):
        setting(name, text)


def test_save_resume_and_another_model(demo: Any, tmp_path: Path) -> None:
    file, other = tmp_path / "chat.safetensors", torch_foundry.load(draft_model_path(), device="cpu", progress=False)
    commands = Commands(Conversation(*demo), lambda name: (*other, name, ""))
    commands.conversation.ask(HOT, unheard)
    said = list(commands.conversation.messages)
    commands.run(f"/save {file}")
    assert commands.run("/new").changed and not commands.conversation.messages
    assert commands.run(f"/resume {file}").changed
    assert commands.conversation.messages == said and commands.conversation.session.tokens
    commands.run("/model another")
    assert commands.conversation.name == "another" and commands.conversation.messages == said
    assert "q8_0" in commands.run("/quantize q8_0").text
    assert commands.conversation.name == "another, q8_0"
    assert commands.conversation.regenerate(unheard).reused == 0
    assert commands.conversation.messages == said


@pytest.mark.parametrize(
    "line, message",
    [
        ("/", "expected one of /help"),
        ("/nothing", "expected one of /help"),
        ("/s", "expected one of /system, /set, /save"),
        ("/regenerate", "no question"),
        ("/edit", "no question"),
        ("/model", "expected a folder"),
        ("/quantize q9", "expected one of"),
        ("/save", "expected the name"),
        ("/resume", "expected the name"),
        ("/tool", "expected what the tool"),
    ],
)
def test_commands_that_cannot_be_done(scripted: Make, line: str, message: str) -> None:
    commands = Commands(scripted(), lambda name: pytest.fail(name))
    with pytest.raises(ValueError, match=message):
        commands.run(line)


def test_every_command_is_explained(scripted: Make) -> None:
    commands = Commands(scripted("An answer.", "It is 21 °C."), lambda name: pytest.fail(name))
    lines = commands.run("/help").text.splitlines()
    assert [line.split()[0] for line in lines] == [f"/{name}" for name in commands.names()]
    assert all(len(line) > 26 for line in lines)
    assert commands.run("/quit").leave and commands.run("/report").text
    commands.run("/system Be kind.")
    assert commands.conversation.system == "Be kind."
    commands.run("/system")
    assert commands.conversation.messages == []
    commands.run("/tool 21")  # is asked, not answered yet
    ask = commands.run("/tool 21").ask
    assert ask is not None and ask(unheard).tokens and commands.conversation.messages[0]["role"] == "tool"
