"""Reasoning, content and tool calls in an answer's text, while it arrives: transformers' response parser."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch_foundry.serving.ids import new_id

START = "\x02"  # where an answer begins, for templates of ours: no prompt has to be searched for it
THINK: dict[str, Any] = {"open": "<think>", "close": "</think>", "content": "text"}
# as Hermes 2 Pro, Qwen 2.5 and Qwen 3 write them: <tool_call>{"name": ..., "arguments": {...}}</tool_call>
JSON_CALL: dict[str, Any] = {
    "open_pattern": r"\s*<tool_call>",
    "close": "</tool_call>",
    "content": "text",
    "repeats": True,
}
# as Qwen 3.5 and Qwen3-Coder: <tool_call><function=name><parameter=key>value</parameter></function></tool_call>
XML_CALL: dict[str, Any] = {
    "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
    "close_pattern": r"</function>\s*</tool_call>",
    "content": "xml-inline",
    "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    "repeats": True,
}


@dataclass
class Piece:
    """A part of an answer. kind: "content", "reasoning" or "tool_call"; text: what is added; of a tool call, its
    arguments as JSON."""

    kind: str
    text: str
    name: str = ""

    @cached_property
    def id(self) -> str:
        """That no other piece has; most are never asked."""
        return new_id("call")


class AnswerParser:
    """Cuts an answer's text into pieces.

    The tokenizer's `response_template` decides; without one, what its chat template speaks of: `<think>`, and
    `<tool_call>` if the request has tools. A tool call comes when it is complete; one that can't be parsed is content.

    prompt: the conversation that the answer continues, which may have begun with it; "": no conversation, all of the
    answer is content.
    """

    def __init__(self, tokenizer: Any, prompt: str, tools: Sequence[dict[str, Any]]) -> None:
        self._parser: Any = None
        self._raw = ""  # of a region that is only known when it ends
        if not prompt:
            return
        template = own_template(tokenizer)
        prefix = prompt
        if template is None:
            template = _template(tokenizer, bool(tools))
            prefix = START + ("<think>" if is_thinking(prompt) else "")
        if template is not None:
            self._parser = tokenizer.get_response_parser(template, prefix=prefix, tools=list(tools) or None)

    def feed(self, text: str) -> list[Piece]:
        """Pieces that are certain once `text` has come."""
        if self._parser is None:
            return [Piece("content", text)] if text else []
        try:
            return self._pieces(self._parser.feed(text))
        except (ValueError, KeyError):
            return self._give_up(text)

    def finish(self) -> list[Piece]:
        """The rest."""
        if self._parser is None:
            return []
        try:
            return self._pieces(self._parser.finalize()[1])
        except (ValueError, KeyError):
            return self._give_up("")

    def _give_up(self, text: str) -> list[Piece]:
        """The model has written what its template can't read: all that follows is content."""
        raw, self._raw, self._parser = self._raw, "", None
        return [Piece("content", raw + text)] if raw + text else []

    def _pieces(self, events: list[dict[str, Any]]) -> list[Piece]:
        pieces: list[Piece] = []
        for event in events:
            name, kind = event["field"], event["type"]
            if name in ("content", "reasoning_content", "thinking"):
                if kind == "region_chunk" and event["text"]:
                    pieces.append(Piece("content" if name == "content" else "reasoning", event["text"]))
            elif kind == "region_chunk":
                self._raw += event["text"]
            elif kind == "region_close":
                pieces += _calls(event["value"]) or [Piece("content", self._raw)]
                self._raw = ""
        return pieces


def own_template(tokenizer: Any) -> Any:
    """The tokenizer's response template, which reads special tokens too; None if it has none."""
    return getattr(tokenizer, "response_template", None)


def is_thinking(prompt: str) -> bool:
    """Whether an answer begins among the model's thoughts."""
    return prompt.rstrip().endswith("<think>")


def call_style(tokenizer: Any) -> dict[str, Any] | None:
    """How the model writes calls, by its chat template: JSON_CALL or XML_CALL; None: not known, or its own."""
    text = tokenizer.chat_template or ""
    if own_template(tokenizer) is not None or "<tool_call>" not in text:
        return None
    return XML_CALL if "<function=" in text else JSON_CALL


def _template(tokenizer: Any, tools: bool) -> dict[str, Any] | None:
    fields: dict[str, Any] = {}
    if "<think>" in (tokenizer.chat_template or ""):
        fields["reasoning_content"] = THINK
    if tools and (style := call_style(tokenizer)):
        fields["tool_calls"] = style
    if not fields:
        return None
    return {"start_anchor": START, "fields": fields | {"content": {"content": "text"}}}


def _calls(value: Any) -> list[Piece]:
    """Tool calls of a region's value: parsed, or the text of a JSON object; none if it is something else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return []
    found = []
    for each in value if isinstance(value, list) else [value]:
        call = each.get("function", each) if isinstance(each, dict) else {}
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
        if not isinstance(name, str) or not name:
            return []
        found.append(Piece("tool_call", arguments if isinstance(arguments, str) else json.dumps(arguments), name))
    return found


@dataclass
class Block:
    """Pieces of one kind behind each other; each tool call is one. text: so far."""

    kind: str
    index: int
    name: str
    id: str
    text: str = ""


class Blocks:
    """The blocks of an answer, for protocols whose answers are lists."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open = False

    def add(self, pieces: Sequence[Piece]) -> list[tuple[str, Block, str]]:
        """What happens to them: "open", "delta" with its text, or "close"."""
        events = []
        for piece in pieces:
            if not self._open or piece.kind == "tool_call" or self.all[-1].kind != piece.kind:
                events += self.close()
                self.all.append(Block(piece.kind, len(self.all), piece.name, piece.id))
                events.append(("open", self.all[-1], ""))
                self._open = True
            self.all[-1].text += piece.text
            events.append(("delta", self.all[-1], piece.text))
            if piece.kind == "tool_call":
                events += self.close()
        return events

    def close(self) -> list[tuple[str, Block, str]]:
        """The same, of the last block, behind which nothing comes."""
        closed, self._open = self._open, False
        return [("close", self.all[-1], "")] if closed else []

    @property
    def calls(self) -> bool:
        """Whether there is a tool call."""
        return any(block.kind == "tool_call" for block in self.all)
