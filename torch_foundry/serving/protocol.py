"""What bodies of requests have in common: strict fields, sampling options, conversations, server-sent events."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, model_validator

from torch_foundry.engine import SamplingParams
from torch_foundry.serving.errors import ApiError, api_error, log_fault
from torch_foundry.serving.metrics import Exchange
from torch_foundry.serving.service import Service

Messages = list[dict[str, Any]]
ENCODER = json.JSONEncoder(ensure_ascii=False)
Events = AsyncIterator[tuple[str, dict[str, Any]]]  # name of an event ("": it has none), and its data


class Body(BaseModel):
    """Fields that are not listed are refused by name, and none is read as another type."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _is_unicode(cls, data: Any) -> Any:
        if (field := _not_unicode(data)) is not None:
            raise ApiError(400, f"{field}: expected Unicode text, got half of a surrogate pair", field)
        return data


def _not_unicode(data: Any) -> str | None:
    """The field of JSON whose text can't be encoded, as tokenizers do, or has such a name in it."""
    waiting = [("", data)]
    while waiting:
        field, value = waiting.pop()
        if isinstance(value, str) and not _encodes(value):
            return field
        if isinstance(value, list):
            waiting += [(f"{field}[{i}]", each) for i, each in enumerate(value)]
        elif isinstance(value, dict):
            if any(not _encodes(name) for name in value):
                return field or "body"
            waiting += [(f"{field}.{name}".lstrip("."), each) for name, each in value.items()]
    return None


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class SamplingBody(Body):
    """How tokens are chosen. What a request leaves out is as the model's generation_config says."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None  # 0 and -1: all tokens
    stream: bool | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None

    def params(self, service: Service, max_tokens: int, **more: Any) -> SamplingParams:
        """For the engine. ApiError: what is out of range, by the field's name."""
        names = SamplingBody.model_fields.keys() - {"model", "stream", "logit_bias"}
        told = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.top_k in (0, -1):
            told["top_k"] = None
        if wrong := [token for token in self.logit_bias or () if not token.isdecimal()]:
            raise ApiError(400, f"logit_bias: expected ids of tokens, got {wrong[0]!r:.60}", "logit_bias")
        bias = {int(token): value for token, value in (self.logit_bias or {}).items()}
        try:
            return SamplingParams(**{**service.defaults, **told}, logit_bias=bias, max_tokens=max_tokens, **more)
        except ValueError as error:
            raise api_error(error) from error


def several(params: SamplingParams, constraints: Sequence[Any]) -> list[SamplingParams]:
    """The same for a choice with each of `constraints`, each with a seed of its own if there is one. ApiError: what
    can't be met beside them, by the field's name."""
    seeds = [None if params.seed is None else params.seed + i for i in range(len(constraints))]
    try:
        return [replace(params, seed=seed, constraint=own) for seed, own in zip(seeds, constraints, strict=True)]
    except ValueError as error:
        raise api_error(error) from error


def texts_of(content: Any, field: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a message's content: a text, or parts of these kinds. ApiError names a part of another kind."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ApiError(400, f"{field}: expected a text or a list of parts", field)
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in kinds or not isinstance(part.get("text"), str):
            where = f"{field}[{i}]"
            raise ApiError(400, f"{where}: expected a part of the type {' or '.join(kinds)}, got {kind!r:.60}", where)
    return "".join(part["text"] for part in content)


def tool_call(name: Any, arguments: Any, id: Any, field: str) -> dict[str, Any]:
    """A call as chat templates read it: its arguments are an object, given as one or as JSON."""
    try:
        known = json.loads(arguments or "{}") if isinstance(arguments, str) else arguments
    except ValueError:
        known = None
    if not isinstance(name, str) or not isinstance(known, dict):
        raise ApiError(400, f"{field}: expected the name of a function, and arguments that are a JSON object", field)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": known}}


def service_of(http: HttpRequest) -> Service:
    """The server's."""
    return http.app.state.service


def exchange_of(http: HttpRequest) -> Exchange:
    """Of this request, as the gate has begun it."""
    return http.state.exchange


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


async def stream(
    http: HttpRequest, events: Events, failed: Callable[[ApiError], tuple[str, dict[str, Any]]], *, done: str = ""
) -> StreamingResponse:
    """Server-sent events. What fails before the first of them is a response with its status; later, the event `failed`.

    done: what the stream ends with.
    """
    first = await anext(events)

    async def lines() -> AsyncIterator[str]:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            try:
                yield _line(*first)
                async for name, data in events:
                    yield _line(name, data)
            except Exception as error:
                if not isinstance(error, ApiError):
                    log_fault(exchange_of(http).id, error)
                yield _line(*failed(api_error(error)))
        if done:
            yield f"data: {done}\n\n"

    headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


def _line(name: str, data: dict[str, Any]) -> str:
    return f"{f'event: {name}' + chr(10) if name else ''}data: {ENCODER.encode(data)}\n\n"
