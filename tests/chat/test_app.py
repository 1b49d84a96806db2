"""The terminal application, driven by textual's pilot: every key, every command, screens at two sizes.

`python -m tests.chat.test_app` draws the screens again.
"""

from __future__ import annotations

import asyncio
import copy
import io
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import RichLog, Static
from transformers import AutoTokenizer

from tests.chat.conftest import Scripted
from torch_foundry.chat.app import ChatApp, stderr_to
from torch_foundry.chat.commands import Commands
from torch_foundry.chat.conversation import Conversation, Figures
from torch_foundry.chat.widgets import PART, Answer, Prompt, cut, table
from torch_foundry.demo_model import demo_model_path

Make = Callable[..., Conversation]
Test = Callable[[Pilot[None]], Awaitable[None]]
SCREENS = Path(__file__).parent / "screens"
FIGURES = Figures(40, 30, 101, 0.5, 2.5, 5050, 20, 15, 300 << 20, "stop")


def drive(
    conversation: Conversation, test: Test, size: tuple[int, int] = (80, 24), lines: tuple[str, ...] = ()
) -> None:
    """Run the application with `lines` in its log, and `test` on it."""
    session = conversation.session

    async def run() -> None:
        app = ChatApp(Commands(conversation, lambda name: (session.model, session.tokenizer, name, "")), [*lines])
        async with app.run_test(size=size) as pilot:
            await test(pilot)

    asyncio.run(run())


def app_of(pilot: Pilot[None]) -> ChatApp:
    assert isinstance(pilot.app, ChatApp)
    return pilot.app


async def idle(pilot: Pilot[None]) -> None:
    """Wait until nothing is at work."""
    for _ in range(3000):
        await pilot.pause(0.01)
        if not app_of(pilot).busy:
            await pilot.pause()
            return
    raise AssertionError("the model is still at work")


async def send(pilot: Pilot[None], text: str) -> None:
    """Type a line, send it, wait."""
    pilot.app.query_one(Prompt).put(text)
    await pilot.press("enter")
    await idle(pilot)


def screen(pilot: Pilot[None]) -> str:
    strips = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


def contents(conversation: Conversation) -> list[str]:
    return [message["content"] for message in conversation.messages]


def test_several_lines_are_typed_and_answered(scripted: Make) -> None:
    conversation = scripted("It is **cold**, <think>they say</think>.")

    async def test(pilot: Pilot[None]) -> None:
        assert "Ask, or /help" in screen(pilot)
        await pilot.press(*"hot", "ctrl+j", *"or not", "enter")
        await idle(pilot)
        assert contents(conversation)[0] == "hot\nor not" and not pilot.app.query_one(Prompt).text
        assert "It is cold, <think>they say</think>." in screen(pilot)  # no asterisks, and nothing is hidden
        assert "of 1024 tokens" in str(pilot.app.query_one("#title", Static).content)

    drive(conversation, test)


def test_history(scripted: Make) -> None:
    async def test(pilot: Pilot[None]) -> None:
        prompt = pilot.app.query_one(Prompt)
        await pilot.press("up")
        assert prompt.text == ""
        for text in ("one", "two"):
            await send(pilot, text)
        seen = []
        for key in ("up", "up", "up", "down", "down", "down"):
            await pilot.press(key)
            seen.append(prompt.text)
        assert seen == ["two", "one", "one", "two", "", ""]

    drive(scripted("1", "2"), test)


def test_escape_stops_and_nothing_is_sent_meanwhile(scripted: Make) -> None:
    conversation, begun, told = scripted("one two three four five six seven eight", "again"), threading.Event(), []
    model = conversation.session.model

    def before() -> None:
        told.append(1)
        if len(told) == 3:
            begun.set()
            conversation._stop.wait(20)

    model.before = before

    async def test(pilot: Pilot[None]) -> None:
        prompt = pilot.app.query_one(Prompt)
        await pilot.press(*"go", "enter")
        while not begun.is_set():
            await pilot.pause(0.01)
        assert app_of(pilot).busy and "Escape stops" in str(pilot.app.query_one("#title", Static).content)
        await pilot.press(*"more", "enter")  # the screen is alive, and the line is not lost
        assert prompt.text == "more" and len(model.seen) == 1
        await pilot.press("escape")
        await idle(pilot)
        assert "stopped" in screen(pilot)

    drive(conversation, test)
    question, answer = contents(conversation)
    assert len(told) == 3 and question == "go" and "one two three four".startswith(answer)


def test_a_failure_gives_the_question_back(scripted: Make) -> None:
    conversation = scripted("Fine.", ["Well, ", RuntimeError("out of luck\nand more")], "Fine again.")

    async def test(pilot: Pilot[None]) -> None:
        await send(pilot, "first")
        await send(pilot, "second")
        assert contents(conversation) == ["first", "Fine."]
        assert pilot.app.query_one(Prompt).text == "second"
        assert "Well," in screen(pilot) and "out of luck" in screen(pilot) and "and more" not in screen(pilot)
        await pilot.press("enter")
        await idle(pilot)
        assert contents(conversation) == ["first", "Fine.", "second", "Fine again."]

    drive(conversation, test)


def test_keys(scripted: Make) -> None:
    conversation = scripted("\n".join(f"line {i}  " for i in range(60)), "Another answer.")

    async def test(pilot: Pilot[None]) -> None:
        app, talk = pilot.app, pilot.app.query_one("#talk")
        await send(pilot, "hi")
        assert "line 59" in screen(pilot)
        await pilot.press("pageup")
        await pilot.pause()
        assert "line 59" not in screen(pilot) and talk.scroll_y < talk.max_scroll_y
        await pilot.press("pagedown")
        await pilot.press("f1")
        await idle(pilot)
        assert "/quantize FORMAT" in screen(pilot)
        for key, pane in (("f2", "#figures"), ("f3", "#log")):
            assert not app.query_one(pane).display
            await pilot.press(key)
            assert app.query_one(pane).display
            await pilot.press(key)
        await pilot.press("ctrl+r")
        await idle(pilot)
        assert contents(conversation) == ["hi", "Another answer."] and "line 59" not in screen(pilot)
        await pilot.press("ctrl+p")
        await idle(pilot)
        assert app.query_one(Prompt).text == "hi" and not conversation.messages and not talk.children
        await pilot.press("ctrl+d")  # deletes to the right: the input isn't empty
        assert app.is_running
        await pilot.press("ctrl+q")

    drive(conversation, test)


def test_commands_are_shown(scripted: Make) -> None:
    """Each at the end of the screen, behind the note of the one before."""
    commands = {
        "hi": "First.",
        "/regenerate": "Second.",
        "/set top_k 3": "draw among so many tokens",
        "/model other": "other reads the conversation",
        "/quantize q9": "expected one of",
        "/save /nowhere/x": "/nowhere",
        "/resume absent": "absent",
        "/tool 21": "Third.",
        "/report": "not patched",
        "/system Be brief.": "Be brief.",
        "/unknown": "expected one of",
        "/new": "a new conversation",
        "/help": "/regenerate",
    }

    async def test(pilot: Pilot[None]) -> None:
        for line, shown in commands.items():
            assert shown not in screen(pilot).replace(line, ""), line
            await send(pilot, line)
            assert shown in screen(pilot).replace(line, ""), line

    drive(scripted("First.", "Second.", "Third."), test)


def test_calls_of_tools_are_shown(tokenizer: Any) -> None:
    known = copy.copy(tokenizer)
    known.chat_template = "{# <tool_call> #}" + tokenizer.chat_template
    call = '<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "weather"}}]
    conversation = Conversation(Scripted(known, call, "Rain."), known, tools=tools)

    async def test(pilot: Pilot[None]) -> None:
        await send(pilot, "How is the weather?")
        assert 'calls weather {"place": "Oslo"} (/tool answers it)' in screen(pilot)
        await send(pilot, "/tool rain")
        assert not conversation.calls and screen(pilot).count("(/tool answers it)") == 1

    drive(conversation, test)


@pytest.mark.parametrize("how", ["/quit", "ctrl+d", "ctrl+q"])
def test_leaving(scripted: Make, how: str) -> None:
    async def test(pilot: Pilot[None]) -> None:
        if how.startswith("/"):
            pilot.app.query_one(Prompt).put(how)
        await pilot.press("enter" if how.startswith("/") else how)
        for _ in range(200):
            await pilot.pause(0.01)
            if not pilot.app.is_running or pilot.app._exit:
                return
        raise AssertionError("it goes on")

    drive(scripted(), test)


@pytest.mark.parametrize("step", [211, 100_000])
def test_long_answers_are_drawn_in_parts(scripted: Make, step: int) -> None:
    """However they come, all of it is shown, and what is done is not drawn again."""
    lines = 6 * PART
    listed, code = "".join(f"{i}. line\n" for i in range(lines)), "x = 1\n" * lines
    text = f"# Title\n\n{listed}\n```python\n{code}```\nend"

    async def test(pilot: Pilot[None]) -> None:
        answer = Answer()
        await pilot.app.query_one("#talk").mount(answer)
        for at in range(0, len(text), step):
            await answer.write(text[at : at + step])
        parts = answer.query(Static)
        assert 3 < len(parts) < lines / 5
        console = Console(width=70, record=True, file=io.StringIO())
        for part in parts:
            console.print(part.content)
        shown = console.export_text()
        assert all(f"{i} line" in shown for i in range(lines)) and shown.count("x = 1") == lines and "end" in shown
        assert "```" not in shown

    drive(scripted(), test)


def test_cutting_leaves_blocks_whole() -> None:
    table_text = "| a |\n|---|\n" + "| b |\n" * 10
    assert cut("one\n\ntwo\n\n" + table_text) == ("one\n\ntwo\n\n", table_text)
    assert cut("```\n\n- a\n\nb\n") == ("", "```\n\n- a\n\nb\n")
    whole, rest = cut("~~~c\n" + "x\n" * 5 * PART)
    assert whole.startswith("~~~c\nx\n") and whole.endswith("x\n~~~") and rest == "~~~c\nx\n"


def test_what_compilers_write_goes_to_the_log(capfd: pytest.CaptureFixture) -> None:
    log: list[str] = []
    with stderr_to(log):
        os.write(2, "compiling café\n".encode())
        print("drawn", file=sys.__stderr__, flush=True)
    os.write(2, b"after\n")
    assert log == ["compiling café"]
    assert capfd.readouterr().err == "drawn\nafter\n"


def test_log_and_figures(scripted: Make) -> None:
    async def test(pilot: Pilot[None]) -> None:
        assert pilot.app.query_one("#figures").display  # there is room for it
        await pilot.press("f3")
        for _ in range(200):
            await pilot.pause(0.01)
            if pilot.app.query_one(RichLog).lines:
                break
        assert [strip.text.strip() for strip in pilot.app.query_one(RichLog).lines] == ["a base model"]

    drive(scripted(), test, size=(120, 24), lines=("a base model",))
    assert "first token 0.500 s\n" in table(FIGURES) and "30 (75%)" in table(FIGURES)
    assert "tokens/s    40.0\n" in table(FIGURES) and "drafts      15 of 20 accepted\n" in table(FIGURES)


def drawn(conversation: Conversation, questions: list[str], size: tuple[int, int], attached: Any = ()) -> str:
    """A conversation as SVG, without what differs from run to run."""
    found = []

    async def test(pilot: Pilot[None]) -> None:
        for path in attached:
            await send(pilot, f"/image {path}")
            pilot.app.query(".note").remove()  # it has the folder's name
        for question in questions:
            await send(pilot, question)
        conversation.figures = FIGURES
        pilot.app.query_one("#figures", Static).update(table(FIGURES))
        app_of(pilot)._title()
        pilot.app.screen.set_focus(None)  # no cursor, which blinks
        await pilot.pause()
        found.append(pilot.app.export_screenshot(title="torch-foundry chat", simplify=True))

    drive(conversation, test, size)
    return re.sub(r"terminal-\d+", "terminal", found[0]) + "\n"


def draw(tokenizer: Any, size: tuple[int, int]) -> str:
    """A question and its answer."""
    answer = "## Weather\n\n- **Hot** by day, `21 °C`\n- cold by night 日本\n\n```python\nprint(21)\n```\n"
    conversation = Conversation(Scripted(tokenizer, answer), tokenizer, name="scripted, float32", system="Be brief.")
    return drawn(conversation, ["How is the weather?"], size)


@pytest.mark.parametrize("size", [(80, 24), (110, 20)], ids=lambda size: "x".join(map(str, size)))
def test_screens(tokenizer: Any, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    kept = SCREENS / f"{size[0]}x{size[1]}.svg"
    assert draw(tokenizer, size) == kept.read_text(encoding="utf-8"), f"{kept}: look at it, and see this file's top"


def test_without_colour(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    frame = "<circle[^>]*>|#c5c8c6"  # of the window, which the export adds, and its own foreground
    drawn = re.sub(frame, "", draw(tokenizer, (80, 24)))
    colours = set(re.findall("#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})", drawn))
    assert len(colours) > 1 and [c for c in colours if len(set(c)) > 1] == []


if __name__ == "__main__":
    SCREENS.mkdir(exist_ok=True)
    for width, height in ((80, 24), (110, 20)):
        svg = draw(AutoTokenizer.from_pretrained(demo_model_path()), (width, height))
        (SCREENS / f"{width}x{height}.svg").write_text(svg, encoding="utf-8")
