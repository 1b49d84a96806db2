"""Lines that begin with a slash: settings, other models, saved conversations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_foundry import quant
from torch_foundry.chat.answer import Figures
from torch_foundry.chat.conversation import Conversation
from torch_foundry.chat.pictures import described, files_in, told
from torch_foundry.hf.api import quantize, report

Ask = Callable[[Callable[[str], None]], Figures]
Load = Callable[[str], tuple[Any, Any, str, Any]]


@dataclass(frozen=True)
class Setting:
    """A number that somebody may choose, from `low` to `high`."""

    kind: type[int] | type[float]
    low: float
    high: float
    meaning: str


SETTINGS = {
    "temperature": Setting(float, 0, 100, "0: always the likeliest token"),
    "top_k": Setting(int, 0, 2**31 - 1, "draw among so many tokens; 0: among all"),
    "top_p": Setting(float, 1e-6, 1, "draw among the likeliest tokens that have this share together"),
    "min_p": Setting(float, 0, 1, "leave out tokens less likely than this share of the likeliest one"),
    "repetition_penalty": Setting(float, 1e-3, 1e3, "above 1: tokens that were there before become less likely"),
    "max_new_tokens": Setting(int, 1, 2**31 - 1, "tokens of an answer, at most"),
    "draft": Setting(int, 0, 7, "tokens that are looked up in the text and checked together, at most"),
    "seed": Setting(int, 0, 2**63 - 1, "of the next answers' random numbers"),
}


def setting(name: str, text: str) -> int | float:
    """The value of a setting. ValueError says what it may be."""
    if name not in SETTINGS:
        raise ValueError(f"{name}: expected one of {', '.join(SETTINGS)}")
    known = SETTINGS[name]
    try:
        value = known.kind(text)
    except ValueError:
        value = float("nan")
    if not known.low <= value <= known.high:
        kind = "a whole number" if known.kind is int else "a number"
        raise ValueError(f"{name} {text}: expected {kind} from {known.low:g} to {known.high:g} ({known.meaning})")
    return value


@dataclass(frozen=True)
class Outcome:
    """What a command leads to."""

    text: str = ""  # to be shown
    ask: Ask | None = None  # has the model answer
    question: str = ""  # what `ask` asks, where that is new
    edit: str | None = None  # a question that was taken back, to be asked in other words
    changed: bool = False  # the messages are others than before
    leave: bool = False


class Commands:
    """What each command does, by its method; its docstring is what `/help` says.

    conversation: the one that goes on. load: returns model, tokenizer, name and processor, as of `Conversation`, for
    what somebody calls a model; raises what says why not.
    """

    def __init__(self, conversation: Conversation, load: Load) -> None:
        self.conversation, self._load = conversation, load

    @classmethod
    def names(cls) -> list[str]:
        """All commands, in the order in which they are listed."""
        return [name.removeprefix("do_") for name in vars(cls) if name.startswith("do_")]

    def run(self, line: str) -> Outcome:
        """Do what a line says: a question, or a command after a slash, of which a part that no other begins with will
        do. ValueError: no such command, or what is wrong with what follows it."""
        if not line.startswith("/"):
            text = line.strip()
            question = told({"content": [*self.conversation.pictures.attached, {"type": "text", "text": text}]})
            return Outcome(ask=lambda emit: self.conversation.ask(text, emit), question=question)
        word, _, rest = line.strip().removeprefix("/").partition(" ")
        found = [name for name in self.names() if name.startswith(word)] if word else []
        if len(found) != 1:
            raise ValueError(f"/{word}: expected one of {', '.join(f'/{name}' for name in found or self.names())}")
        outcome: Outcome = getattr(self, f"do_{found[0]}")(rest.strip())
        return outcome

    def do_help(self, rest: str) -> Outcome:
        """this list"""
        lines = []
        for name in self.names():
            usage, colon, what = str(getattr(self, f"do_{name}").__doc__).partition(": ")
            usage, what = (usage, what) if colon else ("", usage)
            lines.append(f"{f'/{name} {usage}':<24}{what}")
        return Outcome("\n".join(lines))

    def do_new(self, rest: str) -> Outcome:
        """begin anew; the system message stays"""
        self.conversation.clear()
        return Outcome("a new conversation", changed=True)

    def do_regenerate(self, rest: str) -> Outcome:
        """answer the last question again"""
        if self.conversation.last_question() is None:
            raise ValueError("/regenerate: there is no question yet")
        return Outcome(ask=self.conversation.regenerate)

    def do_edit(self, rest: str) -> Outcome:
        """take the last question back, to ask it in other words"""
        if self.conversation.last_question() is None:
            raise ValueError("/edit: there is no question yet")
        text = self.conversation.take_back()
        return Outcome(self._attached() if self.conversation.pictures.attached else "", edit=text, changed=True)

    def do_image(self, rest: str) -> Outcome:
        """[FILE ...]: show the model images with the next question; without a file, none"""
        if rest:
            self.conversation.attach(*files_in(rest))
            return Outcome(self._attached())
        self.conversation.pictures.attached = []
        return Outcome("the next question shows no image")

    def _attached(self) -> str:
        lines = map(described, self.conversation.pictures.attached)
        return "\n".join([*lines, "shown with the next question (/image alone: not)"])

    def do_system(self, rest: str) -> Outcome:
        """[TEXT]: set the system message; without a text, remove it"""
        self.conversation.system = rest
        return Outcome("a system message was set" if rest else "no system message", changed=True)

    def do_set(self, rest: str) -> Outcome:
        """[NAME [VALUE]]: a sampling setting; without a value, the model's own; without a name, list them"""
        settings, (name, _, value) = self.conversation.settings, rest.partition(" ")
        if value:
            settings[name] = setting(name, value.strip())
        elif name:
            setting(name, "1")  # is there such a one?
            settings.pop(name, None)
        chosen = {name: settings.get(name, "the model's own") for name in SETTINGS}
        lines = [f"{each:<20}{chosen[each]!s:<17}{SETTINGS[each].meaning}" for each in SETTINGS if name in ("", each)]
        return Outcome("\n".join(lines))

    def do_model(self, rest: str) -> Outcome:
        """NAME: go on with another model: a folder, a GGUF file, or a name of the Hub's that was downloaded"""
        if not rest:
            raise ValueError("/model: expected a folder, a GGUF file, or a name on the Hub")
        self.conversation = self.conversation.moved_to(*self._load(rest))
        return Outcome(f"{self.conversation.name} reads the conversation when it is asked next")

    def do_quantize(self, rest: str) -> Outcome:
        """FORMAT: pack the model's weights: q8_0, q4_K, ..."""
        if rest.lower() not in quant.PACKABLE:
            raise ValueError(f"/quantize {rest}: expected one of {quant.listing(quant.PACKABLE)}")
        old, session = self.conversation, self.conversation.session
        model = quantize(session.model, rest)
        name = f"{old.name.partition(', ')[0]}, {rest}"
        self.conversation = old.moved_to(model, session.tokenizer, name, old.pictures.processor)
        return Outcome(f"weights are packed as {rest}; the conversation is read anew")

    def do_save(self, rest: str) -> Outcome:
        """FILE: write the conversation and its KV cache to a safetensors file"""
        if not rest:
            raise ValueError("/save: expected the name of a file")
        self.conversation.save(rest)
        return Outcome(f"saved: {rest}")

    def do_resume(self, rest: str) -> Outcome:
        """FILE: go on with a saved conversation of this model"""
        if not rest:
            raise ValueError("/resume: expected the name of a file")
        self.conversation.resume(rest)
        return Outcome("\n".join([f"resumed: {rest}", *self.gone()]), changed=True)

    def gone(self) -> list[str]:
        """A line for each image of the conversation that is not there any more."""
        why = "an image of this conversation that is gone, or another one by now; without it, nothing can be asked"
        return [f"{path}: {why}" for path in self.conversation.pictures.gone(self.conversation.messages)]

    def do_tool(self, rest: str) -> Outcome:
        """TEXT: what a tool that the model called has returned"""
        if not rest:
            raise ValueError("/tool: expected what the tool returned")
        return Outcome(ask=lambda emit: self.conversation.ask(rest, emit, role="tool"), question=rest)

    def do_report(self, rest: str) -> Outcome:
        """what was replaced in the model, what was not and why, how often stock code ran"""
        return Outcome(str(report(self.conversation.session.model)))

    def do_quit(self, rest: str) -> Outcome:
        """leave"""
        return Outcome(leave=True)
