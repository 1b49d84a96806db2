"""OpenAI's /v1/completions, and what it shares with the other forms of OpenAI."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from fastapi import Request as HttpRequest

from torch_foundry.engine import TokenLogprobs
from torch_foundry.serving.errors import ApiError
from torch_foundry.serving.ids import new_id
from torch_foundry.serving.metrics import Exchange
from torch_foundry.serving.protocol import (
    Body,
    Events,
    SamplingBody,
    exchange_of,
    now,
    service_of,
    several,
    stream,
)
from torch_foundry.serving.service import Part, Prompt, Service

router = APIRouter()
LEAST = -9999.0  # in place of -inf, which JSON has no number for
Unused = Any  # accepted, as it changes no answer


class StreamOptions(Body):
    """What a stream has besides its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # with each chunk, as benchmarks ask vLLM
    include_obfuscation: Literal[False] | None = None


class CompletionOptions(SamplingBody):
    """Of chats and texts."""

    n: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    stream_options: StreamOptions | None = None
    user: Unused = None
    metadata: Unused = None
    safety_identifier: Unused = None
    prompt_cache_key: Unused = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None

    def choices(self, service: Service) -> int:
        """How many answers are wanted; ApiError for more than this server gives."""
        n, most = 1 if self.n is None else self.n, service.config.max_choices
        if not 1 <= n <= most:
            raise ApiError(400, f"n: expected 1 to {most}, got {n}", "n")
        return n

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with how many tokens there were."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def usage_so_far(self, exchange: Exchange) -> dict[str, Any]:
        """What a chunk of a stream says of tokens."""
        wanted = self.wants_usage and self.stream_options and self.stream_options.continuous_usage_stats
        return {"usage": usage_of(exchange)} if wanted else {}


class CompletionBody(CompletionOptions):
    """Texts, or tokens, to go on with."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None

    async def prompts(self, service: Service) -> list[Prompt]:
        """Their tokens."""
        given: list[Any] = [self.prompt] if isinstance(self.prompt, str) or _tokens(self.prompt) else self.prompt
        if not given:
            raise ApiError(400, "prompt: expected at least one", "prompt")
        return [await service.text(each) if isinstance(each, str) else Prompt(each) for each in given]


def _tokens(prompt: Any) -> bool:
    return bool(prompt) and isinstance(prompt[0], int)


@router.post("/v1/completions", response_model=None)
async def create(body: CompletionBody, http: HttpRequest) -> Any:
    """Go on with a text."""
    service, exchange = service_of(http), exchange_of(http)
    service.check_model(body.model)
    n = body.choices(service)
    prompts = await body.prompts(service)
    room = min(service.room(prompt, 16 if body.max_tokens is None else body.max_tokens) for prompt in prompts)
    choices = several(body.params(service, room, stop=body.stops, logprobs=body.logprobs), [None] * n)
    parts = service.answer(exchange, prompts, choices)
    head = {"id": new_id("cmpl"), "object": "text_completion", "created": now(), "model": service.config.names[0]}
    answers = [_Answer(service) for _ in prompts for _ in choices]

    async def events() -> Events:
        async for part in parts:
            choice = answers[part.choice].add(part)
            if choice["text"] or choice["logprobs"] or choice["finish_reason"]:
                yield "", head | {"choices": [{"index": part.choice, **choice}]} | body.usage_so_far(exchange)
        if body.wants_usage:
            yield "", head | {"choices": [], "usage": usage_of(exchange)}

    if body.stream:
        return await stream(http, events(), lambda error: ("", error.body("", exchange.id)), done="[DONE]")
    added: list[list[dict[str, Any]]] = [[] for _ in answers]
    async for part in parts:
        added[part.choice].append(answers[part.choice].add(part))
    return head | {"choices": [_joined(i, each) for i, each in enumerate(added)], "usage": usage_of(exchange)}


class _Answer:
    """A choice, as it grows."""

    def __init__(self, service: Service) -> None:
        self._tokenizer, self._offset = service.tokenizer, 0

    def add(self, part: Part) -> dict[str, Any]:
        """Fields of a chunk's choice, which say what the part adds."""
        logprobs = None
        if part.update.logprobs:
            logprobs = self._logprobs(part.update.tokens, part.update.logprobs)
        text = "".join(piece.text for piece in part.pieces)
        return {"text": text, "logprobs": logprobs, "finish_reason": finish_reason(part.update.finish_reason)}

    def _logprobs(self, tokens: Any, found: Any) -> dict[str, list[Any]]:
        named: list[tuple[str, TokenLogprobs]] = [
            (self._text(token), own) for token, own in zip(tokens, found, strict=True)
        ]
        offsets = []
        for text, _ in named:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": [text for text, _ in named],
            "token_logprobs": [max(own.logprob, LEAST) for _, own in named],
            "top_logprobs": [{self._text(token): max(value, LEAST) for token, value in own.top} for _, own in named],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return str(self._tokenizer.decode([token], skip_special_tokens=False))


def _joined(index: int, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Of what parts have added, the whole."""
    logprobs: dict[str, list[Any]] | None = None
    for part in parts:
        if part["logprobs"]:
            logprobs = {k: (logprobs or {}).get(k, []) + v for k, v in part["logprobs"].items()}
    text, reason = "".join(part["text"] for part in parts), parts[-1]["finish_reason"]
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def finish_reason(reason: str) -> str | None:
    """Of an engine's, the protocol's. An answer that the server's end has cut is as one of its full length."""
    return {"stop": "stop", "length": "length", "cancelled": "length"}.get(reason)


def usage_of(exchange: Exchange) -> dict[str, Any]:
    """Tokens of a request."""
    usage = exchange.usage
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.new,
        "total_tokens": usage.prompt + usage.new,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
