"""What all protocols ask for: prompts of conversations, and answers as they come."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from torch_foundry.core.load_errors import is_fault
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.serving.engine_thread import EngineThread, Request, Update
from torch_foundry.serving.errors import ApiError, api_error, log_fault
from torch_foundry.serving.grammar import Grammars
from torch_foundry.serving.mailbox import Mailbox, News
from torch_foundry.serving.media import pixels_of, samples_of
from torch_foundry.serving.metrics import Exchange, Metrics
from torch_foundry.serving.parsing import AnswerParser, Piece, own_template
from torch_foundry.serving.tool_calls import NO_TOOLS, ToolUse, call_grammar
from torch_foundry.text.media import MAX_BYTES, MAX_PIXELS, MAX_SECONDS, hears, in_parts, inputs_of, sees, shown_in


@dataclass(frozen=True)
class ServerConfig:
    """What a server allows. ValueError names what is out of range.

    names: of the model, as requests give them; the first is told. api_keys: one of them is asked for, if there are any.
    max_body: bytes of a request. max_prompt, max_tokens: tokens of a prompt, and of each answer; None: what the model
        and its cache have room for. max_choices: answers to one prompt (n).
    concurrent, per_key: requests at a time, in all and of one key; more are refused with 429.
    max_images: that a request may show, of at most `max_pixels` pixels each. max_sounds: that it may have, of at most
        `max_seconds` each. 0: none.
    timeout: seconds for an answer; body_timeout: for the body of a request to come, and for a client to take a part of
        the answer. drain: what running answers get when the server is stopped.
    origins: of web pages that may call the server (CORS).
    """

    names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    max_body: int = MAX_BYTES
    max_prompt: int | None = None
    max_tokens: int | None = None
    max_choices: int = 8
    max_images: int = 4
    max_pixels: int = MAX_PIXELS
    max_sounds: int = 0
    max_seconds: float = MAX_SECONDS
    concurrent: int = 256
    per_key: int | None = None
    timeout: float = 600.0
    body_timeout: float = 30.0
    drain: float = 30.0
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            none = value == 0 and name in ("max_images", "max_sounds")
            if isinstance(value, int | float) and not (value > 0 or none):  # NaN too
                raise ValueError(f"{name}: expected a positive number, got {value}")
        if not self.names or not all(self.names):
            raise ValueError("names: expected the name of the model")


@dataclass
class Part:
    """What has come of a choice: pieces of its text, and the update that they are from."""

    choice: int
    pieces: list[Piece]
    update: Update


@dataclass(frozen=True)
class Prompt:
    """Tokens of a prompt; of a conversation, its text and the tools that it speaks of.

    inputs: with images or sounds, what the model's processor has made of all of it.
    """

    ids: list[int]
    text: str = ""
    use: ToolUse = NO_TOOLS
    inputs: Any = None


class Service:
    """A model that answers. Its methods are for the event loop's thread.

    processor: of a model that is shown images or hears sounds, with the engine's tokenizer; None: it does neither.
    ValueError: the engine has no tokenizer, or sounds are allowed but not understood by the processor.
    """

    def __init__(self, engine: Engine, config: ServerConfig, processor: Any = None) -> None:
        if engine.tokenizer is None:
            raise ValueError("engine: a server needs one with a tokenizer")
        if config.max_sounds and not hears(processor):
            raise ValueError(f"max_sounds: expected a processor that takes sounds, got {type(processor).__name__}")
        self.engine, self.config, self.tokenizer = engine, config, engine.tokenizer
        self.processor = processor
        self.metrics = Metrics(engine)
        self.thread = EngineThread(engine)
        self._mail: Mailbox | None = None
        eos = engine.model.generation_config.eos_token_id
        ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
        self._grammars = Grammars(self.tokenizer, engine.model.lm_head.out_features, ends)
        self._tokenize = ThreadPoolExecutor(1, "tokenize")  # one at a time: tokenizers may be changed by a call

    @property
    def defaults(self) -> dict[str, Any]:
        """Sampling parameters of requests that don't say: the model's own."""
        config = self.engine.model.generation_config
        if not config.do_sample:
            return {}
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {name: value for name in names if (value := getattr(config, name, None))}

    def check_model(self, name: str) -> None:
        """ApiError for another model than this server's."""
        if name not in self.config.names:
            known = ", ".join(self.config.names)
            raise ApiError(
                404, f"model: {name!r:.80} is not here; this server has {known}", "model", code="model_not_found"
            )

    async def chat(self, messages: list[dict[str, Any]], use: ToolUse, variables: dict[str, Any]) -> Prompt:
        """The prompt of a conversation, by the tokenizer's chat template. variables: what else the template reads.

        ApiError: it can't be made, or has images or sounds that this server doesn't take.
        """
        if not self.tokenizer.chat_template:
            raise ApiError(400, "messages: this model has no chat template; /v1/completions takes texts", "messages")
        shown = self._taken(messages, "image", self.config.max_images if sees(self.processor) else 0)
        heard = self._taken(messages, "audio", self.config.max_sounds)

        def render() -> Prompt:
            images = [pixels_of(part, self.config.max_pixels) for part in shown]
            sounds = [samples_of(part, self.processor, self.config.max_seconds) for part in heard]
            told = {"tools": list(use.tools) or None, "add_generation_prompt": True, "tokenize": False, **variables}
            text = self.tokenizer.apply_chat_template(
                messages if self.processor is None else in_parts(messages), **told
            )
            if images or sounds:
                return self.shown(text, images, sounds, use)
            return replace(self._plain(text), text=text, use=use)

        return await self.encoded(render, "messages: the chat template failed")

    def _taken(self, messages: list[dict[str, Any]], kind: str, most: int) -> list[dict[str, Any]]:
        """The parts of a kind, "image" or "audio". ApiError: more than `most`."""
        parts = shown_in(messages, kind)
        verb, what = ("is shown", "images") if kind == "image" else ("hears", "sounds")
        if parts and not most:
            raise ApiError(400, f"{parts[0]['field']}: this server's model {verb} no {what}", parts[0]["field"])
        if len(parts) > most:
            raise ApiError(400, f"messages: expected at most {most} {what}, got {len(parts)}", "messages")
        return parts

    def shown(self, text: str, images: list[Any], sounds: list[Any], use: ToolUse, field: str = "messages") -> Prompt:
        """The prompt of a rendered conversation with images or sounds, of the request's `field`."""
        try:
            inputs = inputs_of(self.processor, text, images, sounds)
        except ValueError as fault:
            raise ApiError(400, f"{field}: {fault}", field) from fault
        return Prompt(inputs["input_ids"][0].tolist(), text, use, inputs)

    async def text(self, prompt: str) -> Prompt:
        """The prompt that is a text."""
        return await self.encoded(lambda: Prompt(self.tokenizer(prompt)["input_ids"]), "prompt: the tokenizer failed")

    async def _count(self, text: str) -> int:
        """Tokens of a text."""
        if not text:
            return 0
        return len((await self.encoded(lambda: self._plain(text), "reasoning: the tokenizer failed")).ids)

    def _plain(self, text: str) -> Prompt:
        return Prompt(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    async def encoded(self, work: Callable[[], Prompt], failed: str) -> Prompt:
        """What `work`, which the tokenizer's thread does, returns. ApiError: its own, or `failed` for other faults."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._tokenize, work)
        except BaseException as fault:
            if not is_fault(fault) or isinstance(fault, ApiError):
                raise
            raise ApiError(
                400, f"{failed}: {type(fault).__name__}: {fault!s:.200}", failed.partition(":")[0]
            ) from fault

    async def constraint(self, kind: str, source: Any, field: str) -> Any:
        """What limits an answer to a language, as of `Grammars.constraint`."""
        work = functools.partial(self._grammars.constraint, kind, source, field)
        return await asyncio.get_running_loop().run_in_executor(self._tokenize, work)

    async def forced_call(self, prompt: Prompt, form: Any = None, field: str = "response_format") -> Any:
        """`form`, which limits the answer by the request's `field`; what limits it to calls, if the request forces one.

        ApiError: both.
        """
        if not prompt.use.forced:
            return form
        if form is not None:
            raise ApiError(400, f"{field}: can't be met beside a tool_choice that forces a call", field)
        return await self.constraint("grammar", call_grammar(self.tokenizer, prompt.text, prompt.use), "tool_choice")

    def room(self, prompt: Prompt, asked: int | None, field: str = "max_tokens") -> int:
        """New tokens of an answer, of which `asked` are wanted; ApiError if that is more than this server gives."""
        most = self.config.max_prompt or self.engine.limit - 1
        if len(prompt.ids) > most:
            message = f"the prompt has {len(prompt.ids)} tokens, of {most} that this server takes"
            raise ApiError(400, message, code="context_length_exceeded")
        left = self.engine.limit - len(prompt.ids)
        if asked is not None and self.config.max_tokens is not None and asked > self.config.max_tokens:
            raise ApiError(400, f"{field}: expected at most {self.config.max_tokens}, got {asked}", field)
        return min(n for n in (asked, self.config.max_tokens, left) if n is not None)

    async def answer(
        self, exchange: Exchange, prompts: Sequence[Prompt], choices: Sequence[SamplingParams]
    ) -> AsyncIterator[Part]:
        """Parts of all choices of the first prompt, of the second ..., as they come, until all have ended.

        ApiError: what the request is refused with, or why it could not be answered to the end.
        """
        pairs = [(prompt, params) for prompt in prompts for params in choices]
        if len(pairs) > self.config.max_choices:
            message = f"prompt: expected at most {self.config.max_choices} answers to all, got {len(pairs)}"
            raise ApiError(400, message, "prompt")
        mail, news = self._mailbox(), News()

        def tell(number: int) -> Callable[[Update], Any]:
            return lambda update: mail.send(news, number, update)

        exchange.usage.prompt, thought = sum(len(prompt.ids) for prompt in prompts), [""] * len(pairs)
        parsers = [AnswerParser(self.tokenizer, prompt.text, prompt.use.tools) for prompt, _ in pairs]
        for number, (prompt, params) in enumerate(pairs):
            if prompt.text and own_template(self.tokenizer) is not None:
                params = replace(params, skip_special_tokens=False)
            exchange.requests.append(Request(prompt.inputs or prompt.ids, params, tell(number), exchange.salt))
            try:
                self.thread.submit(exchange.requests[-1])
            except RuntimeError as error:
                raise api_error(error) from None
        left = exchange.began + self.config.timeout - time.perf_counter()
        timer = mail.loop.call_later(max(left, 0), news.expire)
        going, first = set(range(len(pairs))), True
        try:
            while going:
                for number, update in await news.take():
                    if number not in going:
                        continue
                    if update.error is not None:
                        if not isinstance(update.error, ValueError):
                            log_fault(exchange.id, update.error)
                        raise api_error(update.error) from update.error
                    if first:
                        self.metrics.first_token.observe(time.perf_counter() - exchange.began)
                        exchange.usage.cached, first = update.cached, False
                        self.metrics.count_prompt(exchange.usage.prompt, update.cached)
                    exchange.usage.new += len(update.tokens)
                    self.metrics.new_tokens.inc(len(update.tokens))
                    pieces = parsers[number].feed(update.text)
                    if update.finish_reason:
                        pieces += parsers[number].finish()
                    call = next((i for i, piece in enumerate(pieces) if piece.kind == "tool_call"), None)
                    if call is not None and pairs[number][0].use.single:  # the answer ends with it
                        self.thread.cancel(exchange.requests[number])
                        pieces, update = pieces[: call + 1], replace(update, finish_reason="stop", stop="")
                    thought[number] += "".join(piece.text for piece in pieces if piece.kind == "reasoning")
                    if update.finish_reason:
                        exchange.usage.reasoning += await self._count(thought[number])
                        exchange.finish_reasons.append(update.finish_reason)
                        going.remove(number)
                    yield Part(number, pieces, update)
        except TimeoutError:
            raise ApiError(504, f"no answer within {self.config.timeout} seconds") from None
        finally:
            timer.cancel()

    def _mailbox(self) -> Mailbox:
        """Of the loop that runs."""
        loop = asyncio.get_running_loop()
        if self._mail is None or self._mail.loop is not loop:
            self._mail = Mailbox(loop)
        return self._mail

    def end(self, exchange: Exchange) -> None:
        """Nobody waits for its answers any more."""
        for request in exchange.requests:
            self.thread.cancel(request)
