"""OpenAI's /v1/chat/completions."""

from __future__ import annotations

import json
from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest
from pydantic import Field, ValidationError

from torch_foundry.engine import TokenLogprobs
from torch_foundry.serving.completions import LEAST, CompletionOptions, finish_reason, usage_of
from torch_foundry.serving.errors import ApiError
from torch_foundry.serving.ids import new_id
from torch_foundry.serving.media import parts_of
from torch_foundry.serving.parsing import Piece
from torch_foundry.serving.protocol import (
    Body,
    Events,
    Messages,
    exchange_of,
    now,
    service_of,
    several,
    stream,
    texts_of,
    tool_call,
)
from torch_foundry.serving.service import Part, Prompt, Service
from torch_foundry.serving.tool_calls import ToolUse, tool_use

router = APIRouter()


class Message(Body):
    """A message of a conversation. Content is a text, or parts of the type "text"; a user's may be of the types
    "image_url", with a data URL, and "input_audio", with base64 and its format, too."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: list[Any] | None = Field(None, max_length=0)
    audio: None = None
    function_call: None = None


class Function(Body):
    """A function that the model may call; parameters: a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool, which is a function."""

    type: Literal["function"]
    function: Function


class ModelBody(Body):
    """A model's name."""

    model: str


class ToolName(Body):
    """Which function."""

    name: str


class ToolChoice(Body):
    """The tool that has to be called."""

    type: Literal["function"]
    function: ToolName


class JsonSchema(Body):
    """A schema that the answer has to meet."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Body):
    """What the answer has to be: a text, any JSON object, one of a schema, or of a grammar (Lark) or regex."""

    type: Literal["text", "json_object", "json_schema", "grammar", "regex"]
    json_schema: JsonSchema | None = None
    grammar: str | None = None
    regex: str | None = None

    async def constraint(self, service: Service, field: str) -> Any:
        """For the engine; None: any text."""
        if self.type == "text":
            return None
        source = self.json_schema.schema_ if self.json_schema else getattr(self, self.type, None)
        if source is None and self.type != "json_object":
            raise ApiError(400, f"{field}.{self.type}: missing", f"{field}.{self.type}")
        return await service.constraint(self.type, source, field)


class ToolOptions(CompletionOptions):
    """Tools, and whether they may or have to be called."""

    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def use(self) -> ToolUse:
        """What is said of tools."""
        named = self.tool_choice if isinstance(self.tool_choice, ToolChoice) else None
        choice = "function" if named else str(self.tool_choice or "auto")
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        return tool_use(tools, choice, named.function.name if named else None, single=self.parallel_tool_calls is False)


class ChatBody(ToolOptions):
    """A conversation to go on with."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None  # variables of the chat template
    generation_config: str | None = None  # JSON, as `transformers chat` sends it

    async def constraint(self, service: Service, prompt: Prompt) -> Any:
        """For the engine; None: any text."""
        form = await self.response_format.constraint(service, "response_format") if self.response_format else None
        return await service.forced_call(prompt, form)

    def conversation(self) -> Messages:
        """As chat templates read it."""
        return [_message(message, f"messages[{i}]") for i, message in enumerate(self.messages)]


def _message(message: Message, field: str) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    read = parts_of if role == "user" else texts_of
    found: dict[str, Any] = {"role": role, "content": read(message.content, f"{field}.content")}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(message, name)) is not None:
            found[name] = value
    if message.tool_calls:
        where = f"{field}.tool_calls"
        told = [(call, call.get("function") or {}) for call in message.tool_calls]
        found["tool_calls"] = [tool_call(f.get("name"), f.get("arguments"), c.get("id"), where) for c, f in told]
    return found


def _configured(body: ChatBody) -> ChatBody:
    """`body` with what its `generation_config` sets, as fields; these are refused by name as any other."""
    if body.generation_config is None:
        return body
    try:
        given = json.loads(body.generation_config)
        told = {k: v for k, v in given.items() if v is not None and not k.startswith(("_", "transformers_"))}
    except (ValueError, AttributeError):
        raise ApiError(400, "generation_config: expected a JSON object", "generation_config") from None
    if told.pop("do_sample", True) is False:
        told["temperature"] = 0.0
    if (tokens := told.pop("max_new_tokens", None)) is not None:
        told["max_completion_tokens"] = tokens
    try:
        return ChatBody(**{**body.model_dump(by_alias=True, exclude_unset=True), "generation_config": None, **told})
    except ValidationError as error:
        raise ApiError(
            400, f"generation_config.{error.errors()[0]['loc'][0]}: can't be met", "generation_config"
        ) from None


@router.post("/load_model", response_model=None)
async def load_model(body: ModelBody, http: HttpRequest) -> Any:
    """Say that the model is loaded: `transformers chat` asks before it begins."""
    service_of(http).check_model(body.model)

    async def events() -> Events:
        yield "", {"status": "ready", "cached": True}

    return await stream(http, events(), lambda error: ("", {"status": "error", "message": error.message}))


@router.post("/v1/chat/completions", response_model=None)
async def create(body: ChatBody, http: HttpRequest) -> Any:
    """Answer a conversation."""
    service, exchange, body = service_of(http), exchange_of(http), _configured(body)
    service.check_model(body.model)
    n = body.choices(service)
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: needs logprobs", "top_logprobs")
    variables = {**(body.chat_template_kwargs or {})}
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
    prompt = await service.chat(body.conversation(), body.use, variables)
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    constraints = [await body.constraint(service, prompt) for _ in range(n)]
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = body.params(service, service.room(prompt, asked), stop=body.stops, logprobs=logprobs)
    choices = several(params, constraints)
    parts, answers = service.answer(exchange, [prompt], choices), [_Answer(service) for _ in choices]
    head = {"id": new_id("chatcmpl"), "object": "chat.completion", "created": now(), "model": service.config.names[0]}

    async def events() -> Events:
        chunk = head | {"object": "chat.completion.chunk"}
        async for part in parts:
            answer, choice = answers[part.choice], {"index": part.choice, **answers[part.choice].add(part)}
            if choice["delta"] or choice["logprobs"] or answer.finish_reason:
                yield "", chunk | {"choices": [choice]} | body.usage_so_far(exchange)
        if body.wants_usage:
            yield "", chunk | {"choices": [], "usage": usage_of(exchange)}

    if body.stream:
        return await stream(http, events(), lambda error: ("", error.body("", exchange.id)), done="[DONE]")
    async for part in parts:
        answers[part.choice].add(part)
    return head | {"choices": [a.choice(i) for i, a in enumerate(answers)], "usage": usage_of(exchange)}


class _Answer:
    """A choice, as it grows."""

    def __init__(self, service: Service) -> None:
        self._tokenizer = service.tokenizer
        self._pieces: list[Piece] = []
        self._logprobs: list[dict[str, Any]] = []
        self._begun = False
        self.finish_reason: str | None = None

    def add(self, part: Part) -> dict[str, Any]:
        """Fields of a chunk's choice, which say what the part adds."""
        delta: dict[str, Any] = {} if self._begun else {"role": "assistant"}
        self._begun = True
        calls = sum(piece.kind == "tool_call" for piece in self._pieces)
        for field, kind in (("content", "content"), ("reasoning_content", "reasoning")):
            if text := "".join(piece.text for piece in part.pieces if piece.kind == kind):
                delta[field] = text
        new = [piece for piece in part.pieces if piece.kind == "tool_call"]
        if new:
            delta["tool_calls"] = [{"index": calls + i, **_call(piece)} for i, piece in enumerate(new)]
        logprobs = [
            _logprob(self._tokenizer, *each) for each in zip(part.update.tokens, part.update.logprobs, strict=False)
        ]
        self._pieces += part.pieces
        self._logprobs += logprobs
        if reason := part.update.finish_reason:
            self.finish_reason = "tool_calls" if reason == "stop" and calls + len(new) else finish_reason(reason)
        told = {"content": logprobs} if logprobs else None
        return {"delta": delta, "logprobs": told, "finish_reason": self.finish_reason}

    def choice(self, index: int) -> dict[str, Any]:
        """All of it."""
        texts = {kind: "".join(p.text for p in self._pieces if p.kind == kind) for kind in ("content", "reasoning")}
        calls = [_call(piece) for piece in self._pieces if piece.kind == "tool_call"]
        message: dict[str, Any] = {"role": "assistant", "content": texts["content"] or (None if calls else "")}
        if texts["reasoning"]:
            message["reasoning_content"] = texts["reasoning"]
        if calls:
            message["tool_calls"] = calls
        logprobs = {"content": self._logprobs} if self._logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": self.finish_reason}


def _call(piece: Piece) -> dict[str, Any]:
    return {"id": piece.id, "type": "function", "function": {"name": piece.name, "arguments": piece.text}}


def _logprob(tokenizer: Any, token: int, found: TokenLogprobs) -> dict[str, Any]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.decode([token], skip_special_tokens=False)
        whole = "\ufffd" not in text  # else a part of a character
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(text.encode()) if whole else None}

    return one(token, found.logprob) | {"top_logprobs": [one(*each) for each in found.top]}
