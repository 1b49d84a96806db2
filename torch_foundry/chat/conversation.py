"""A chat with a model, without any user interface: prompts, answers as they arrive, and what these took."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from torch_foundry.core import devices, runtime
from torch_foundry.engine.detokenizer import Detokenizer
from torch_foundry.hf.api import report
from torch_foundry.io.session import Session
from torch_foundry.serving.parsing import AnswerParser, Piece

# For models that were not trained to chat: they are shown the transcript of one, and stopped where they go on with it.
TRANSCRIPT = (
    "{{ bos_token }}{% for message in messages %}{{ '\n' if not loop.first }}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\nAssistant:' }}{% endif %}"
)
NEXT_TURN = "\nUser:"


@dataclass(frozen=True)
class Figures:
    """What an answer took."""

    prompt: int  # tokens
    reused: int  # of these, the ones that were not read again
    tokens: int  # new
    first: float  # seconds until the first of them
    later: float  # seconds from then to the last
    launches: int
    drafted: int
    accepted: int
    memory: int  # bytes: what the device has allocated, or the process
    ended: str  # "stop": the model said so; "length"; "interrupted"

    @property
    def rate(self) -> float:
        """New tokens a second, behind the first one."""
        return (self.tokens - 1) / self.later if self.later > 0 else 0.0

    @property
    def prefill(self) -> float:
        """Tokens of the prompt that were read in a second."""
        return (self.prompt - self.reused) / self.first if self.first > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """All of them; times in seconds, memory in bytes."""
        return asdict(self) | {"tokens_per_second": self.rate, "prefill_tokens_per_second": self.prefill}


class _Ended(Exception):
    """Ends generate() from within: the answer is complete, or nobody wants more of it."""


class Answer(BaseStreamer):
    """Takes an answer's tokens from generate(), and hands their text to `emit` as it becomes final."""

    def __init__(self, tokenizer: Any, stop: list[str], emit: Callable[[str], None], go_on: Callable[[], bool]) -> None:
        self._text, self._emit, self._go_on = Detokenizer(tokenizer, stop), emit, go_on
        self._shown = 0  # characters
        self.tokens: list[int] = []
        self.times: list[float] = []  # of the prompt, and of each block of tokens
        self.ended = ""

    @property
    def text(self) -> str:
        """So far, of what is final."""
        return self._text.text

    def put(self, value: Any) -> None:
        """Take the prompt, which comes first, or new tokens. Raises _Ended where the answer ends early."""
        self.times.append(time.perf_counter())
        for token in value.flatten().tolist() if len(self.times) > 1 else ():
            self.tokens.append(token)
            self.ended = self.ended or self._text.push(token)
        self._show()
        if self._text.error is not None:
            raise self._text.error
        if not self.ended and not self._go_on():
            self.ended = "interrupted"
        if self.ended:
            raise _Ended

    def end(self) -> None:
        """Called by generate()."""

    def finish(self) -> None:
        """Hand out the rest, once there are no more tokens."""
        self._text.finish()
        self._show()

    def _show(self) -> None:
        if len(new := self.text[self._shown :]):
            self._shown += len(new)
            self._emit(new)


class Conversation:
    """Messages, settings and the model that answers. One thread at a time asks; any may call `stop`.

    model, tokenizer: as `torch_foundry.load` returns them. name: of the model, to be shown. system: a system message.
    tools: their JSON schemas, for templates that know them. log: is told, a line at a time, what else happened: stock
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
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings: dict[str, int | float] = {}
        self.log, self.name, self._stop = log, name, threading.Event()
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
        self.session.messages = self.messages[: bool(self.system)]

    def last_question(self) -> int | None:
        """Where the last message lies that is the user's; None if there is none."""
        return next((i for i in reversed(range(len(self.messages))) if self.messages[i]["role"] == "user"), None)

    def take_back(self) -> str:
        """Remove the last question, and what followed it, and return it; empty if there is none."""
        if (at := self.last_question()) is None:
            return ""
        text: str = self.messages[at]["content"]
        self.session.messages = self.messages[:at]
        return text

    # ------------------------------------------------------------------------------------------------------------- ask

    def ask(self, text: str, emit: Callable[[str], None], role: str = "user") -> Figures:
        """Append a message and let the model answer; `emit` gets the answer in pieces.

        role: "user", or "tool" for what a tool returned. ValueError: the conversation fills the model's context.
        """
        return self._answer([*self.messages, {"role": role, "content": text}], emit)

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
        inputs = session.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True, **session.template
        )
        prompt = inputs["input_ids"].to(session.model.device)
        stop = [] if self._chats else [NEXT_TURN]
        answer = Answer(session.tokenizer, stop, emit, lambda: not self._stop.is_set())
        options = self._options()
        limits = session.limits(prompt.shape[1], options)
        before, launches = report(session.model), runtime.counters().launches
        with contextlib.suppress(_Ended):
            session.generate(prompt, streamer=answer, **options | limits)
        answer.finish()
        self.figures = self._measured(answer, prompt.shape[1], began, before, runtime.counters().launches - launches)
        self.calls = self._calls(session.tokenizer.decode(prompt[0]), answer.text)
        if answer.tokens:
            said = answer.text if self._chats else answer.text.strip()
            session.messages = [*messages, {"role": "assistant", "content": said}]
        return self.figures

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

    def moved_to(self, model: Any, tokenizer: Any, name: str) -> Conversation:
        """The same conversation with another model, which reads it when it is asked next."""
        tools = self.session.template.get("tools")
        other = Conversation(model, tokenizer, name=name, tools=tools, log=self.log)
        other.session.messages, other.settings = self.messages, self.settings
        return other
