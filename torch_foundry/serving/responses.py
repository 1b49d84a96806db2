"""OpenAI's /v1/responses. Nothing is stored: a conversation comes whole with each request."""

from __future__ import annotations

import itertools
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field

from torch_foundry.serving.completions import Unused
from torch_foundry.serving.engine_thread import Update
from torch_foundry.serving.errors import ApiError
from torch_foundry.serving.ids import new_id
from torch_foundry.serving.media import parts_of
from torch_foundry.serving.metrics import Exchange
from torch_foundry.serving.parsing import Block, Blocks
from torch_foundry.serving.protocol import (
    Body,
    Events,
    Messages,
    SamplingBody,
    exchange_of,
    now,
    service_of,
    stream,
    texts_of,
    tool_call,
)
from torch_foundry.serving.service import Prompt, Service
from torch_foundry.serving.tool_calls import ToolUse, tool_use

router = APIRouter()
TEXTS = ("input_text", "output_text", "text")


class Tool(Body):
    """A function that the model may call; parameters: a JSON schema."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Body):
    """The tool that has to be called."""

    type: Literal["function"]
    name: str


class Format(Body):
    """What the answer has to be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class Text(Body):
    """Of the answer's text."""

    format: Format | None = None
    verbosity: None = None


class Reasoning(Body):
    """What a chat template is told (`reasoning_effort`)."""

    effort: str | None = None
    summary: Unused = None


class ResponsesBody(SamplingBody):
    """A conversation to go on with."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    store: Literal[False] | None = None
    previous_response_id: None = None
    include: list[str] | None = Field(None, max_length=0)
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    user: Unused = None
    metadata: Unused = None
    safety_identifier: Unused = None
    prompt_cache_key: Unused = None
    service_tier: Literal["auto", "default"] | None = None

    @property
    def use(self) -> ToolUse:
        """What is said of tools."""
        named = self.tool_choice if isinstance(self.tool_choice, ToolChoice) else None
        choice = "function" if named else str(self.tool_choice or "auto")
        functions = [tool.model_dump(exclude_none=True, exclude={"type"}) for tool in self.tools or ()]
        tools = [{"type": "function", "function": function} for function in functions]
        return tool_use(tools, choice, named.name if named else None, single=self.parallel_tool_calls is False)

    def conversation(self) -> Messages:
        """As chat templates read it: calls, and what was thought before them, belong to one turn of the assistant."""
        found: Messages = [{"role": "system", "content": self.instructions}] if self.instructions else []
        if isinstance(self.input, str):
            return [*found, {"role": "user", "content": self.input}]
        for i, item in enumerate(self.input):
            _add(found, item, f"input[{i}]")
        return found


def _add(found: Messages, item: dict[str, Any], field: str) -> None:
    kind = item.get("type", "message")
    if kind == "message" and item.get("role") in ("user", "assistant", "system", "developer"):
        read = parts_of if item["role"] == "user" else texts_of
        text = read(item.get("content"), f"{field}.content", TEXTS)
        if item["role"] == "assistant" and found and found[-1]["role"] == "assistant" and not found[-1]["content"]:
            found[-1]["content"] = text
            return
        found.append({"role": "system" if item["role"] == "developer" else item["role"], "content": text})
    elif kind == "function_call_output":
        text = texts_of(item.get("output"), f"{field}.output", TEXTS)
        found.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
    elif kind in ("function_call", "reasoning"):
        if not found or found[-1]["role"] != "assistant":
            found.append({"role": "assistant", "content": ""})
        if kind == "function_call":
            call = tool_call(item.get("name"), item.get("arguments"), item.get("call_id"), field)
            found[-1].setdefault("tool_calls", []).append(call)
        else:
            parts = item.get("content") or item.get("summary") or []
            found[-1]["reasoning_content"] = texts_of(parts, field, ("reasoning_text", "summary_text"))
    else:
        known = "message, function_call, function_call_output, reasoning"
        raise ApiError(400, f"{field}: expected an item of the type {known}, got {kind!r:.60}", field)


@router.post("/v1/responses", response_model=None)
async def create(body: ResponsesBody, http: HttpRequest) -> Any:
    """Answer a conversation."""
    service, exchange = service_of(http), exchange_of(http)
    service.check_model(body.model)
    effort = body.reasoning.effort if body.reasoning else None
    prompt = await service.chat(body.conversation(), body.use, {"reasoning_effort": effort} if effort else {})
    room = service.room(prompt, body.max_output_tokens, "max_output_tokens")
    params = body.params(service, room, constraint=await _constraint(body, service, prompt))
    parts = service.answer(exchange, [prompt], [params])
    answer = _Answer(body, exchange, service.config.names[0])

    async def events() -> Events:
        numbers = itertools.count()

        def event(name: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
            return name, {"type": name, "sequence_number": next(numbers), **data}

        begun = False
        async for part in parts:
            if not begun:
                begun = True
                yield event("response.created", {"response": answer.whole(None)})
                yield event("response.in_progress", {"response": answer.whole(None)})
            happened = answer.blocks.add(part.pieces)
            happened += answer.blocks.close() if part.update.finish_reason else []
            for what in happened:
                for each in _block_events(*what):
                    yield event(*each)
            if part.update.finish_reason:
                whole = answer.whole(part.update)
                yield event(f"response.{whole['status']}", {"response": whole})

    if body.stream:
        return await stream(http, events(), lambda error: ("error", {"type": "error", **error.body("", "")["error"]}))
    last = Update()
    async for part in parts:
        answer.blocks.add(part.pieces)
        last = part.update
    return answer.whole(last)


async def _constraint(body: ResponsesBody, service: Service, prompt: Prompt) -> Any:
    form, found = body.text.format if body.text else None, None
    if form is not None and form.type != "text":
        if form.type == "json_schema" and form.schema_ is None:
            raise ApiError(400, "text.format.schema: missing", "text.format.schema")
        found = await service.constraint(form.type, form.schema_, "text.format")
    return await service.forced_call(prompt, found, "text.format")


class _Answer:
    """The response, as it grows."""

    def __init__(self, body: ResponsesBody, exchange: Exchange, model: str) -> None:
        self.blocks, self._exchange = Blocks(), exchange
        self._head = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": now(),
            "model": model,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "tool_choice": "auto",
            "tools": [],
            "temperature": body.temperature,
            "top_p": body.top_p,
            **body.model_dump(include={"tools", "tool_choice"}, exclude_none=True),
            "metadata": body.metadata or {},
            "error": None,
        }

    def whole(self, last: Update | None) -> dict[str, Any]:
        """All of it; None: it goes on."""
        if last is None:
            return self._head | {"status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        status = "completed" if last.finish_reason == "stop" else "incomplete"
        why = None if status == "completed" else {"reason": "max_output_tokens"}
        usage = self._exchange.usage
        return self._head | {
            "status": status,
            "incomplete_details": why,
            "output": [_item(block, status) for block in self.blocks.all],
            "usage": {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
                "output_tokens": usage.new,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning},
                "total_tokens": usage.prompt + usage.new,
            },
        }


def _item(block: Block, status: str) -> dict[str, Any]:
    """A block as an item of the output; as it begins, it is in progress and empty."""
    empty = status == "in_progress"
    if block.kind == "tool_call":
        told = {"call_id": block.id, "name": block.name, "arguments": "" if empty else block.text}
        return {"id": f"fc_{block.id[5:]}", "type": "function_call", "status": status, **told}
    content = [] if empty else [_content(block)]
    if block.kind == "reasoning":
        return {"id": f"rs_{block.id[5:]}", "type": "reasoning", "summary": [], "content": content, "status": status}
    return {"id": f"msg_{block.id[5:]}", "type": "message", "role": "assistant", "status": status, "content": content}


def _content(block: Block, *, empty: bool = False) -> dict[str, Any]:
    text = "" if empty else block.text
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _block_events(kind: str, block: Block, text: str) -> list[tuple[str, dict[str, Any]]]:
    item = _item(block, "in_progress" if kind != "close" else "completed")
    at = {"item_id": item["id"], "output_index": block.index}
    inside = at | {"content_index": 0}
    name = {"tool_call": "function_call_arguments", "reasoning": "reasoning_text"}.get(block.kind, "output_text")
    call = block.kind == "tool_call"
    extra: dict[str, Any] = {"logprobs": []} if block.kind == "content" else {}
    if kind == "open":
        added = ("response.output_item.added", {"output_index": block.index, "item": item})
        part = ("response.content_part.added", inside | {"part": _content(block, empty=True)})
        return [added] if call else [added, part]
    if kind == "delta":
        return [(f"response.{name}.delta", (at if call else inside | extra) | {"delta": text})]
    done = ("response.output_item.done", {"output_index": block.index, "item": item})
    if call:
        return [(f"response.{name}.done", at | {"name": block.name, "arguments": block.text}), done]
    ended = ("response.content_part.done", inside | {"part": _content(block)})
    return [(f"response.{name}.done", inside | extra | {"text": block.text}), ended, done]
