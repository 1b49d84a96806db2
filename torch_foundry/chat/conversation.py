"""A chat with a model, without any user interface: prompts, answers as they arrive, and what these took."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from torch_foundry.chat.answer import Answer, Ended, Figures
from torch_foundry.chat.pictures import Pictures, text_of
from torch_foundry.core import devices, runtime
from torch_foundry.hf.api import report
from torch_foundry.io.session import Session
from torch_foundry.serving.parsing import AnswerParser, Piece
from torch_foundry.text.media import in_parts, inputs_of, shown_in

# For models that were not trained to chat: they are shown the transcript of one, and stopped where they go on with it.
TRANSCRIPT = (
    "{{ bos_token }}{% for message in messages %}{{ '\n' if not loop.first }}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\nAssistant:' }}{% endif %}"
)
NEXT_TURN = "\nUser:"


class Conversation:
    """Messages, settings and the model that answers. One thread at a time asks; any may call `stop`.

    model, tokenizer: as `torch_foundry.load` returns them. name: of the model, to be shown. system: a system message.
    tools: their JSON schemas, for templates that know them. processor: of a model that is shown images, with that
    tokenizer; or, in words, why it is shown none. log: is told, a line at a time, what else happened: stock
    code that ran and why, what a model without a chat template is shown.

    An exchange that fails leaves the messages as before.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "model",
        system: str = "",
        tools: list[dict[str, Any]] | None = None,
        processor: Any = "it has no processor of images",
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings: dict[str, int | float] = {}
        self.log, self.name, self._stop = log, name, threading.Event()
        self.pictures = Pictures(processor)
        self._logged: list[str] = []
        self.figures: Figures | None = None  # of the last answer
        self.calls: list[Piece] = []  # of tools, in it
        self._chats = bool(tokenizer.chat_template)
        template: dict[str, Any] = {} if self._chats else {"chat_template": TRANSCRIPT}
        if tools:
            template["tools"] = tools
        self.session = Session(model, tokenizer, system=system or None, template=template)
        if not self._chats:
            log(f"{name} has no chat template: it is shown a transcript (User: ... Assistant: ...), which it continues")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All of them, a system message too."""
        return self.session.messages

    @property
    def system(self) -> str:
        """The system message; empty if there is none."""
        first = self.messages[:1]
        return first[0]["content"] if first and first[0]["role"] == "system" else ""

    @system.setter
    def system(self, text: str) -> None:
        rest = self.messages[1:] if self.system else self.messages
        self.session.messages = [*([{"role": "system", "content": text}] if text else []), *rest]

    def clear(self) -> None:
        """Begin anew; the system message stays."""
        self.session.messages, self.pictures.attached = self.messages[: bool(self.system)], []

    def last_question(self) -> int | None:
        """Where the last message lies that is the user's; None if there is none."""
        return next((i for i in reversed(range(len(self.messages))) if self.messages[i]["role"] == "user"), None)

    def take_back(self) -> str:
        """Remove the last question, and what followed it, and return its text; empty if there is none. Its images are
        attached to the next one."""
        if (at := self.last_question()) is None:
            return ""
        question = self.messages[at]
        self.pictures.attached = [*shown_in([question])]
        self.session.messages = self.messages[:at]
        return text_of(question)

    def attach(self, *paths: str | os.PathLike[str]) -> None:
        """Let the next question show the images in these files, behind those that it shows by now. ValueError says what
        is wrong with one, or why this model is shown none; then none is."""
        self.pictures.check(self.name)
        self.pictures.attached = [*self.pictures.attached, *map(self.pictures.add, paths)]

    # ------------------------------------------------------------------------------------------------------------- ask

    def ask(self, text: str, emit: Callable[[str], None], role: str = "user") -> Figures:
        """Append a message, with the images that are attached, and let the model answer; `emit` gets the answer in
        pieces.

        role: "user", or "tool" for what a tool returned. ValueError: the conversation fills the model's context, or an
        image can't be shown.
        """
        attached = self.pictures.attached if role == "user" else []
        content = [*attached, {"type": "text", "text": text}] if attached else text
        figures = self._answer([*self.messages, {"role": role, "content": content}], emit)
        if attached and figures.tokens:
            self.pictures.attached = []
        return figures

    def regenerate(self, emit: Callable[[str], None]) -> Figures:
        """Answer the last question again, in place of what followed it. ValueError if there is none."""
        if (at := self.last_question()) is None:
            raise ValueError("there is no question yet")
        return self._answer(self.messages[: at + 1], emit)

    def stop(self) -> None:
        """End the answer that is under way, behind its next token; what there is of it stays."""
        self._stop.set()

    def _answer(self, messages: list[dict[str, Any]], emit: Callable[[str], None]) -> Figures:
        session, began = self.session, time.perf_counter()
        self._stop.clear()
        inputs = self._prompt(messages)
        prompt = inputs["input_ids"].to(session.model.device)
        stop = [] if self._chats else [NEXT_TURN]
        answer = Answer(session.tokenizer, stop, emit, lambda: not self._stop.is_set())
        options = self._options()
        limits = session.limits(prompt.shape[1], options)
        before, launches = report(session.model), runtime.counters().launches
        with contextlib.suppress(Ended):
            session.generate(prompt, shown=inputs, streamer=answer, **options | limits)
        answer.finish()
        self.figures = self._measured(answer, prompt.shape[1], began, before, runtime.counters().launches - launches)
        self.calls = self._calls(session.tokenizer.decode(prompt[0]), answer.text)
        if answer.tokens:
            said = answer.text if self._chats else answer.text.strip()
            session.messages = [*messages, {"role": "assistant", "content": said}]
        return self.figures

    def _prompt(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """`input_ids` [1, n], and what the model's processor makes of images."""
        render, told = self.session.tokenizer.apply_chat_template, {"add_generation_prompt": True}
        told |= self.session.template
        if shown_in(messages):
            self.pictures.check(self.name)
            images = self.pictures.of(messages)
            return inputs_of(self.pictures.processor, render(in_parts(messages), tokenize=False, **told), images)
        messages = messages if isinstance(self.pictures.processor, str) else in_parts(messages)
        return {"input_ids": render(messages, return_tensors="pt", return_dict=True, **told)["input_ids"]}

    def _calls(self, prompt: str, answer: str) -> list[Piece]:
        if not (tools := self.session.template.get("tools")):
            return []
        parser = AnswerParser(self.session.tokenizer, prompt, tools)
        return [piece for piece in [*parser.feed(answer), *parser.finish()] if piece.kind == "tool_call"]

    def _options(self) -> dict[str, Any]:
        """What generate() takes for the settings; what nobody has set is the model's own choice."""
        options: dict[str, Any] = dict(self.settings)
        if (seed := options.pop("seed", None)) is not None:
            torch.manual_seed(seed)
        if (temperature := options.pop("temperature", None)) is not None:
            options |= {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        if draft := options.pop("draft", None):
            options["prompt_lookup_num_tokens"] = draft
        tokenizer = self.session.tokenizer
        if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
            options["pad_token_id"] = tokenizer.eos_token_id
        return options

    def _measured(self, answer: Answer, prompt: int, began: float, before: Any, launches: int) -> Figures:
        model, after = self.session.model, report(self.session.model)
        reasons = [f"no graph: {reason}" for reason in after.eager]
        reasons += [f"stock code ran: {reason}" for reason in after.fallbacks]
        for reason in reasons:
            if reason not in self._logged:
                self.log(reason)
        self._logged = reasons
        drafts = [(d.drafted, d.accepted) if (d := each.speculation) else (0, 0) for each in (before, after)]
        times = answer.times[1:]
        return Figures(
            prompt=prompt,
            reused=self.session.reused,
            tokens=len(answer.tokens),
            first=times[0] - began if times else 0.0,
            later=times[-1] - times[0] if times else 0.0,
            launches=launches,
            drafted=drafts[1][0] - drafts[0][0],
            accepted=drafts[1][1] - drafts[0][1],
            memory=devices.of(model.device).memory(model.device),
            ended=answer.ended or self._why(answer.tokens),
        )

    def _why(self, tokens: list[int]) -> str:
        ends = self.session.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        return "stop" if tokens and tokens[-1] in ends else "length"

    # ------------------------------------------------------------------------------------------ save, resume, move on

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write messages and cache to a file, as `Session.save` does."""
        self.session.save(path)

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on with what `save` wrote. LoadError if it is not of this model; then nothing has changed."""
        session = self.session
        self.session = Session.restore(path, session.model, session.tokenizer, template=session.template)

    def moved_to(self, model: Any, tokenizer: Any, name: str, processor: Any) -> Conversation:
        """The same conversation with another model, which reads it when it is asked next."""
        tools = self.session.template.get("tools")
        other = Conversation(model, tokenizer, name=name, tools=tools, processor=processor, log=self.log)
        other.pictures = self.pictures.moved_to(processor)
        other.session.messages, other.settings = self.messages, self.settings
        return other
