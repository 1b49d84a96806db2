"""Anthropic's /v1/messages, which coding agents speak."""

from __future__ import annotations

import json
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field

from torch_foundry.engine import SamplingParams
from torch_foundry.serving.engine_thread import Update
from torch_foundry.serving.errors import ApiError
from torch_foundry.serving.ids import new_id
from torch_foundry.serving.media import joined, part_of
from torch_foundry.serving.metrics import Exchange
from torch_foundry.serving.parsing import Block, Blocks
from torch_foundry.serving.protocol import (
    Body,
    Events,
    Messages,
    SamplingBody,
    exchange_of,
    service_of,
    stream,
    texts_of,
    tool_call,
)
from torch_foundry.serving.service import Prompt, Service
from torch_foundry.serving.tool_calls import ToolUse, tool_use

router = APIRouter()
Unused = Any  # accepted, as it changes no answer: prefixes are cached in any case


class Message(Body):
    """A turn: a text, or blocks (text, image, thinking, tool_use, tool_result)."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class Tool(Body):
    """A tool of the client's; input_schema: a JSON schema."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: Unused = None
    eager_input_streaming: Unused = None


class ToolChoice(Body):
    """Whether tools may be called, or one has to be: any of them, or the one called `name`."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks first, if its chat template can be told (`enable_thinking`)."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Unused = None
    display: Unused = None


class Conversation(Body):
    """What is counted: a conversation and its tools."""

    model: str
    messages: list[Message] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: Unused = None

    @property
    def use(self) -> ToolUse:
        """What is said of tools."""
        tools = [{"type": "function", "function": _function(tool)} for tool in self.tools or ()]
        choice = self.tool_choice or ToolChoice(type="auto")
        known = {"any": "required", "tool": "function"}.get(choice.type, choice.type)
        return tool_use(tools, known, choice.name, single=bool(choice.disable_parallel_tool_use))

    async def prompt(self, service: Service) -> Prompt:
        """Its tokens."""
        service.check_model(self.model)
        found: Messages = [{"role": "system", "content": texts_of(self.system, "system")}] if self.system else []
        for i, message in enumerate(self.messages):
            found += _turns(message, f"messages[{i}].content")
        variables = {} if self.thinking is None else {"enable_thinking": self.thinking.type != "disabled"}
        return await service.chat(found, self.use, variables)


class MessagesBody(Conversation):
    """A conversation to go on with."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Unused = None
    service_tier: Literal["auto", "standard_only"] | None = None

    def params(self, service: Service, room: int, constraint: Any) -> SamplingParams:
        """For the engine."""
        told: dict[str, Any] = {name: getattr(self, name) for name in ("model", "temperature", "top_p", "top_k")}
        return SamplingBody(**told).params(service, room, stop=self.stop_sequences or [], constraint=constraint)


@router.post("/v1/messages", response_model=None)
async def create(body: MessagesBody, http: HttpRequest) -> Any:
    """Answer a conversation."""
    service, exchange = service_of(http), exchange_of(http)
    prompt = await body.prompt(service)
    room = service.room(prompt, body.max_tokens)
    params = body.params(service, room, await service.forced_call(prompt))
    parts, blocks = service.answer(exchange, [prompt], [params]), Blocks()
    head: dict[str, Any] = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": body.model}
    last = Update()

    async def events() -> Events:
        begun = False
        async for part in parts:
            if not begun:
                begun, usage = True, _usage(exchange) | {"output_tokens": 0}
                told = head | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
                yield "message_start", {"type": "message_start", "message": told}
            happened = blocks.add(part.pieces)
            happened += blocks.close() if part.update.finish_reason else []
            for what in happened:
                data = _block_event(*what)
                yield data["type"], data
            if part.update.finish_reason:
                delta = _ending(part.update, blocks)
                yield "message_delta", {"type": "message_delta", "delta": delta, "usage": _usage(exchange)}
        yield "message_stop", {"type": "message_stop"}

    if body.stream:
        return await stream(http, events(), lambda error: ("error", error.body("/v1/messages", exchange.id)))
    async for part in parts:
        blocks.add(part.pieces)
        last = part.update
    content = [_content(block) for block in blocks.all]
    return head | {"content": content, **_ending(last, blocks), "usage": _usage(exchange)}


@router.post("/v1/messages/count_tokens", response_model=None)
async def count_tokens(body: Conversation, http: HttpRequest) -> Any:
    """Count the tokens of a conversation."""
    return {"input_tokens": len((await body.prompt(service_of(http))).ids)}


def _function(tool: Tool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, "parameters": tool.input_schema}


def _turns(message: Message, field: str) -> Messages:
    """As chat templates read it: results of tools are turns of their own, before what the user says."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    results: Messages = []
    said: dict[str, Any] = {"role": message.role}
    parts = []
    for i, block in enumerate(message.content):
        where, kind = f"{field}[{i}]", block.get("type")
        if kind == "tool_use" and message.role == "assistant":
            call = tool_call(block.get("name"), block.get("input"), block.get("id"), where)
            said.setdefault("tool_calls", []).append(call)
        elif kind == "tool_result" and message.role == "user":
            text = texts_of(block.get("content"), f"{where}.content")
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        elif kind == "thinking" and message.role == "assistant":
            said["reasoning_content"] = said.get("reasoning_content", "") + str(block.get("thinking", ""))
        elif (kind == "text" and isinstance(block.get("text"), str)) or (kind == "image" and message.role == "user"):
            parts.append(part_of(block, where))
        else:
            known = "text, thinking, tool_use" if message.role == "assistant" else "text, image, tool_result"
            raise ApiError(400, f"{where}: expected a block of the type {known}, got {kind!r:.60}", where)
    said["content"] = joined(parts)
    return results + ([said] if said["content"] or len(said) > 2 or not results else [])


def _content(block: Block, *, empty: bool = False) -> dict[str, Any]:
    """A block as the protocol has it. empty: as it begins."""
    text = "" if empty else block.text
    if block.kind == "tool_call":
        given = {} if empty else json.loads(block.text or "{}")
        return {"type": "tool_use", "id": block.id.replace("call_", "toolu_"), "name": block.name, "input": given}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": ""}
    return {"type": "text", "text": text}


def _block_event(kind: str, block: Block, text: str) -> dict[str, Any]:
    if kind == "open":
        return {"type": "content_block_start", "index": block.index, "content_block": _content(block, empty=True)}
    if kind == "close":
        return {"type": "content_block_stop", "index": block.index}
    names = {
        "tool_call": ("input_json_delta", "partial_json"),
        "reasoning": ("thinking_delta", "thinking"),
        "content": ("text_delta", "text"),
    }
    name, field = names[block.kind]
    return {"type": "content_block_delta", "index": block.index, "delta": {"type": name, field: text}}


def _ending(update: Update, blocks: Blocks) -> dict[str, Any]:
    """Why it ended. An answer that the server's end has cut is as one of its full length."""
    if update.finish_reason != "stop":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if update.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": update.stop}
    return {"stop_reason": "tool_use" if blocks.calls else "end_turn", "stop_sequence": None}


def _usage(exchange: Exchange) -> dict[str, Any]:
    usage = exchange.usage
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.new,
    }
