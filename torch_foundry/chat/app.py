"""A chat in the terminal: the conversation, an input of several lines, and panes for figures and log."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widgets import Footer, RichLog, Static

from torch_foundry.chat.answer import Figures
from torch_foundry.chat.commands import Commands, Outcome
from torch_foundry.chat.pictures import told
from torch_foundry.chat.widgets import Answer, Prompt, table
from torch_foundry.core.errors import first_line

WIDE = 100  # columns from which on panes stand beside the conversation, not below it
FRAME = 1 / 20  # seconds between two looks at what the model has said

STYLE = """
#title { height: 1; background: $panel; padding: 0 1; }
#middle { height: 1fr; layout: vertical; }
.-wide #middle { layout: horizontal; }
#talk { width: 1fr; height: 1fr; padding: 0 1; }
.pane { display: none; height: auto; max-height: 10; border-top: solid $primary; padding: 0 1; }
.pane.-open { display: block; }
.-wide .pane { width: 40; height: 1fr; max-height: 100%; border-top: none; border-left: solid $primary; }
#log { min-height: 4; }
.answer { height: auto; margin: 0 0 1 0; }
.question { margin: 0 0 1 0; border-left: thick $accent; padding: 0 1; text-style: bold; }
.note { margin: 0 0 1 0; color: $text-muted; }
.fault { margin: 0 0 1 0; color: $text-error; }
Prompt { height: auto; max-height: 8; border: round $primary; padding: 0 1; }
"""


class ChatApp(App[None]):
    """commands: around the conversation. log: lines that others append to, from any thread."""

    CSS = STYLE
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "Stop", priority=True),
        Binding("ctrl+r", "send('/regenerate')", "Again", priority=True),
        Binding("ctrl+p", "send('/edit')", "Edit", priority=True),
        Binding("f1", "send('/help')", "Help"),
        Binding("f2", "pane('figures')", "Figures"),
        Binding("f3", "pane('log')", "Log"),
        Binding("pageup", "page(-1)", "", show=False, priority=True),
        Binding("pagedown", "page(1)", "", show=False, priority=True),
        Binding("ctrl+q", "quit", "Quit", priority=True),
    ]

    def __init__(self, commands: Commands, log: list[str]) -> None:
        super().__init__()
        self.commands, self._lines, self._shown = commands, log, 0
        self._pieces: SimpleQueue[str] = SimpleQueue()  # of the answer, on their way from its thread
        self._answer: Answer | None = None  # where it is shown
        self.busy = False

    def compose(self) -> ComposeResult:
        """Lay out title, conversation, panes, input and keys."""
        yield Static(id="title", markup=False)
        with Container(id="middle"):
            yield VerticalScroll(id="talk")
            yield Static("no answer yet", id="figures", classes="pane", markup=False)
            yield RichLog(id="log", classes="pane", min_width=20, wrap=True)
        yield Prompt()
        yield Footer()

    async def on_mount(self) -> None:
        """Show what there is of the conversation."""
        self.query_one("#figures").set_class(self.size.width >= WIDE, "-open")
        self.query_one("#talk").anchor()
        self.query_one("#talk").can_focus = False
        self.query_one(Prompt).focus()
        self.set_interval(FRAME, self._pump)
        self._title()
        await self._redraw()

    # ------------------------------------------------------------------------------------------------------------ keys

    def action_stop(self) -> None:
        """End the answer."""
        self.commands.conversation.stop()

    def action_send(self, line: str) -> None:
        """As if somebody had typed it."""
        self._begin(line)

    def action_pane(self, name: str) -> None:
        """Show or hide a pane."""
        self.query_one(f"#{name}").toggle_class("-open")

    def action_page(self, pages: int) -> None:
        """Scroll the conversation."""
        talk = self.query_one("#talk")
        talk.scroll_page_up(animate=False) if pages < 0 else talk.scroll_page_down(animate=False)

    async def action_quit(self) -> None:
        """Leave, behind the next token."""
        self.action_stop()
        self.exit()

    def on_prompt_sent(self, sent: Prompt.Sent) -> None:
        """Send what is in the input."""
        if sent.text.strip() and self._begin(sent.text.strip()):
            prompt = self.query_one(Prompt)
            prompt.remember(sent.text.strip())
            prompt.load_text("")

    def on_prompt_dropped(self, dropped: Prompt.Dropped) -> None:
        """Attach images whose files were dropped on the input."""
        self._begin(f"/image {dropped.text.strip()}")

    # ------------------------------------------------------------------------------------------------------- at work

    def _begin(self, line: str) -> bool:
        if self.busy:
            self.notify("one after the other: Escape stops the answer")
            return False
        self.busy = True
        self._title()
        self.run_worker(lambda: self._work(line), thread=True, exit_on_error=False)
        return True

    def _work(self, line: str) -> None:
        """In a thread of its own: the model at work must not stop the screen."""
        on_screen: Callable[..., Any] = self.call_from_thread
        try:
            outcome = self.commands.run(line)
            on_screen(self._show, line, outcome)
            figures = outcome.ask(self._pieces.put) if outcome.ask is not None else None
            on_screen(self._done, line, figures)
        except Exception as error:  # whatever a model or a file can do: the conversation goes on
            on_screen(self._failed, line, error)

    async def _show(self, line: str, outcome: Outcome) -> None:
        """What a line leads to, before the model answers."""
        talk = self.query_one("#talk")
        if outcome.leave:
            self.exit()
        if outcome.changed:
            await self._redraw()
        if outcome.text:
            await talk.mount(Static(f"{line}\n{outcome.text}", classes="note", markup=False))
        if outcome.edit is not None:
            self.query_one(Prompt).put(outcome.edit)
        if outcome.ask is not None:
            if outcome.question:
                await talk.mount(Static(outcome.question, classes="question", markup=False))
            else:
                await self._redraw(upto_question=True)
            self._answer = Answer()
            await talk.mount(self._answer)
            talk.anchor()

    async def _done(self, line: str, figures: Figures | None) -> None:
        """The model has answered, or there was nothing to answer."""
        await self._end_answer()
        if figures is not None:
            self.query_one("#figures", Static).update(table(figures))
            for call in self.commands.conversation.calls:
                note = f"calls {call.name} {call.text} (/tool answers it)"
                await self.query_one("#talk").mount(Static(note, classes="note", markup=False))
            if not figures.tokens:
                await self._returned(line, "stopped before the first word")
            elif figures.ended != "stop":
                ended = {"length": "the answer ends here: it is as long as it may be", "interrupted": "stopped"}
                await self.query_one("#talk").mount(Static(ended[figures.ended], classes="note", markup=False))
        self.busy = False
        self._title()

    async def _failed(self, line: str, error: Exception) -> None:
        """Something is wrong with the line, or the model failed: the conversation is as before."""
        await self._end_answer()
        self._lines.append(f"{type(error).__name__}: {error}")
        await self._returned(line, first_line(error))
        self.busy = False
        self._title()

    async def _returned(self, line: str, why: str) -> None:
        """Say why a line came to nothing, and give it back to whoever wrote it."""
        await self.query_one("#talk").mount(Static(why, classes="fault", markup=False))
        if not self.query_one(Prompt).text and line != "/regenerate":
            self.query_one(Prompt).put(line)

    async def _end_answer(self) -> None:
        await self._pump()
        self._answer = None

    async def _pump(self) -> None:
        """Take the text and the log's lines that have come."""
        pieces = []
        with contextlib.suppress(Empty):
            while True:
                pieces.append(self._pieces.get_nowait())
        if pieces and self._answer is not None:
            await self._answer.write("".join(pieces))
        new, self._shown = self._lines[self._shown :], len(self._lines)
        for line in new:
            self.query_one(RichLog).write(line)

    async def _redraw(self, upto_question: bool = False) -> None:
        """All messages anew, or all up to the last question."""
        talk, conversation = self.query_one("#talk"), self.commands.conversation
        last = conversation.last_question() if upto_question else None
        shown = conversation.messages if last is None else conversation.messages[: last + 1]
        await talk.remove_children()
        await talk.mount_all(
            Answer(message["content"])
            if message["role"] == "assistant"
            else Static(told(message), classes="note" if message["role"] == "system" else "question", markup=False)
            for message in shown
        )

    def _title(self) -> None:
        conversation = self.commands.conversation
        model, figures = conversation.session.model, conversation.figures
        parts = [conversation.name, str(model.device)]
        if figures is not None:
            context = getattr(model.config.get_text_config(), "max_position_embeddings", "?")
            parts += [f"{figures.prompt + figures.tokens} of {context} tokens", f"{figures.rate:.1f} tokens/s"]
        parts += ["at work ... Escape stops"] if self.busy else []
        self.query_one("#title", Static).update(" · ".join(parts))


@contextlib.contextmanager
def stderr_to(log: list[str]) -> Iterator[None]:
    """What is written to the process's stderr goes to `log` inside the block: compilers would draw over the screen,
    which textual keeps on what is `sys.__stderr__` when it starts."""
    reader, writer = os.pipe()
    terminal, before = os.dup(2), sys.__stderr__
    os.dup2(writer, 2)
    os.close(writer)

    def read() -> None:
        with open(reader, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                log.append(line.rstrip("\n"))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        with open(os.dup(terminal), "w", encoding="utf-8") as screen:
            sys.__stderr__ = screen  # type: ignore[misc]
            yield
    finally:
        sys.__stderr__ = before  # type: ignore[misc]
        os.dup2(terminal, 2)  # the pipe's last end: the thread is done
        os.close(terminal)
        thread.join()
