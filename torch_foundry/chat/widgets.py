"""What the terminal application is made of: its input, how answers and figures look."""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from rich.markdown import Markdown as RichMarkdown
from textual.containers import Vertical
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import Static, TextArea

from torch_foundry.chat.answer import Figures
from torch_foundry.chat.pictures import are_dropped

PART = 40  # lines that are drawn again as they change
ITEM = re.compile(r"(?:[-*+]|\d+[.)]) ")
PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class Prompt(TextArea):
    """The input: Enter sends, Ctrl+J begins a line; Up and Down at its edges bring back what was sent before."""

    class Sent(Message):
        """A line, or several, that somebody wants to send."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Dropped(Sent):
        """Files of images, as a terminal names those that are dropped on it."""

    def __init__(self) -> None:
        super().__init__(soft_wrap=True, show_line_numbers=False, placeholder="Ask, or /help")
        self.sent: list[str] = []
        self._at = 0  # among these; its length: what is being written

    def remember(self, text: str) -> None:
        """Add what was sent to the history."""
        self.sent = [*(each for each in self.sent if each != text), text]
        self._at = len(self.sent)

    def put(self, text: str) -> None:
        """Write a text that is to be edited."""
        self.load_text(text)
        self.move_cursor(self.document.end)

    async def _on_key(self, event: Key) -> None:
        if event.key == "enter":
            self.post_message(self.Sent(self.text))
        elif event.key in ("ctrl+j", "shift+enter", "alt+enter"):
            self.insert("\n")
        elif event.key == "ctrl+d" and not self.text:
            self.app.exit()
        elif event.key == "up" and self.cursor_at_first_line and self._at > 0:
            self._recall(self._at - 1)
        elif event.key == "down" and self.cursor_at_last_line and self._at < len(self.sent):
            self._recall(self._at + 1)
        else:
            return await super()._on_key(event)
        event.stop()
        event.prevent_default()

    async def _on_paste(self, event: Paste) -> None:
        if are_dropped(event.text):
            self.post_message(self.Dropped(event.text))
            event.stop()
            event.prevent_default()  # else TextArea takes it

    def _recall(self, at: int) -> None:
        self._at = at
        self.put(self.sent[at] if at < len(self.sent) else "")


class Answer(Vertical):
    """Markdown that grows. What is above the last lines never changes and is drawn once: an answer may be long."""

    def __init__(self, text: str = "") -> None:
        super().__init__(classes="answer")
        self._text = text
        self._part = Static()  # the last one
        self._source = ""  # of that

    async def on_mount(self) -> None:
        """Show what there is from the start."""
        await self.mount(self._part)
        await self.write(self._text)

    async def write(self, text: str) -> None:
        """Append text."""
        lines = text.splitlines(keepends=True)
        for at in range(0, len(lines), PART):
            self._source += "".join(lines[at : at + PART])
            if self._source.count("\n") >= PART:
                whole, rest = cut(self._source)
                if whole:
                    self._part.update(markdown(whole))
                    self._part, self._source = Static(), rest
                    await self.mount(self._part)
        self._part.update(markdown(self._source))


def cut(text: str) -> tuple[str, str]:
    """Cut Markdown where a block begins: what comes before is whole, and what is behind may still change.

    A block that is four parts long is cut in itself, code into two blocks of code.
    """
    lines = text.splitlines(keepends=True)
    at, fence = 0, ""  # the line that has opened a block of code
    for i, line in enumerate(lines):
        mark = line.lstrip()[:3]
        if fence:
            fence = "" if mark == fence.lstrip()[:3] else fence
            continue
        if i and (ITEM.match(line) or (not lines[i - 1].strip() and line[:1].strip())):
            at = i
        if mark in ("```", "~~~"):
            fence = line
    if at == 0 and len(lines) > 4 * PART:
        end = fence.lstrip()[:3]
        return "".join(lines[:-1]) + end, fence + lines[-1]
    return "".join(lines[:at]), "".join(lines[at:])


def markdown(text: str) -> RichMarkdown:
    """Markdown for a `Static`; what looks like HTML, such as <think>, is shown as it is."""
    shown = RichMarkdown("")
    shown.parsed = PARSER.parse(text)
    return shown


def table(figures: Figures) -> str:
    """Figures for the eye, a line each."""
    drafts = f"{figures.accepted} of {figures.drafted} accepted" if figures.drafted else "none"
    rows = {
        "tokens/s": f"{figures.rate:.1f}",
        "prefill": f"{figures.prefill:.1f} tokens/s",
        "first token": f"{figures.first:.3f} s",
        "prompt": f"{figures.prompt} tokens",
        "reused": f"{figures.reused} ({figures.reused / figures.prompt:.0%})",
        "answer": f"{figures.tokens} tokens ({figures.ended})",
        "drafts": drafts,
        "launches": f"{figures.launches / max(figures.tokens, 1):.1f} a token",
        "memory": f"{figures.memory / 2**20:.0f} MiB",
    }
    return "\n".join(f"{name:<12}{value}" for name, value in rows.items())
