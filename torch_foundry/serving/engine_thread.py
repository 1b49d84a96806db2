"""One thread that steps an engine and tells requests what came; other threads submit and cancel."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch_foundry.engine import Engine, QueueFull, SamplingParams, Stream, TokenLogprobs

LAST_STEP = 10.0  # seconds that the end of Python waits for


class Closing(RuntimeError):
    """The engine's thread takes no more requests."""


@dataclass(frozen=True)
class Update:
    """What a step has brought a request: new text and tokens, the latter's log-probabilities if they are wanted.

    finish_reason: as of `Stream`; "" while it goes on. stop: the stop text that ended it, if one did. cached: tokens of
    the prompt that the cache had. error: what an "error" is: a ValueError if the request was not accepted.
    """

    text: str = ""
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()
    finish_reason: str = ""
    stop: str = ""
    cached: int = 0
    error: Exception | None = None

    @staticmethod
    def joined(updates: Sequence[Update]) -> Update:
        """All of them as one; at least one."""
        if len(updates) == 1:
            return updates[0]
        tokens = tuple(token for each in updates for token in each.tokens)
        logprobs = tuple(own for each in updates for own in each.logprobs)
        return replace(updates[-1], text="".join(each.text for each in updates), tokens=tokens, logprobs=logprobs)


@dataclass(eq=False)
class Request:
    """A prompt, as `Engine.submit` takes it, how it is answered, and whom to tell.

    tell is called by the engine's thread, must return at once, and raises if nobody is there any more: the request is
    cancelled then. The last update has a finish reason.
    """

    prompt: Sequence[int] | Mapping[str, Any]
    params: SamplingParams
    tell: Callable[[Update], Any]
    salt: bytes = b""
    cancelled: bool = False


@dataclass(eq=False)
class _Running:
    """A request that the engine has, and how much of its text and tokens has been told."""

    request: Request
    stream: Stream
    text: int = 0
    tokens: int = 0
    error: Exception | None = None

    def news(self) -> Update | None:
        """What is new since it was asked last."""
        stream, sequence = self.stream, self.stream.sequence
        ended, text = stream.finish_reason, stream.text[self.text :]
        tokens = sequence.tokens[sequence.prompt + self.tokens :]
        if not (ended or text or tokens):
            return None
        logprobs = stream.logprobs[self.tokens :]
        self.text, self.tokens = self.text + len(text), self.tokens + len(tokens)
        error = self.error or stream.error
        cached = min(sequence.reused, sequence.prompt)
        if ended and error is not None:
            return Update(text, tokens, logprobs, "error", cached=cached, error=error)
        return Update(text, tokens, logprobs, ended, sequence.text.found if sequence.text else "", cached)


class EngineThread:
    """Steps `engine` while there is something to do. Nobody polls: `Request.tell` is called after each step.

    A step that raises ends the requests that ran with an error; the others go on. When Python ends, requests are
    cancelled and the step is waited for: a thread that comes back from C++ later would abort the process.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._changed = threading.Condition()  # guards what follows
        self._free = engine.config.requests + engine.config.queue  # requests that may still come
        self._new: list[Request] = []
        self._closing = self._cancelled = False
        self._live: list[_Running] = []  # the thread's own
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        atexit.register(self._leave)  # before the thread can end, which takes it back
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False once it has ended, in whatever way."""
        return self._thread.is_alive()

    def submit(self, request: Request) -> None:
        """Queue a request. QueueFull: as many wait as the engine takes. Closing: there are no more steps."""
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise Closing("the server is shutting down")
            if not self._free:
                raise QueueFull(f"{self.engine.config.queue} requests are waiting, as many as this server takes")
            self._free -= 1
            self._new.append(request)
            self._changed.notify()

    def cancel(self, request: Request) -> None:
        """End a request before the next step; what has ended stays as it is."""
        with self._changed:
            request.cancelled = self._cancelled = True
            self._changed.notify()

    def close(self, *, now: bool = False) -> None:
        """Take no more requests, and end when those that run are answered. now: they are cancelled."""
        with self._changed:
            self._closing = True
            self._cancelled = self._cancelled or now
            for request in (*self._new, *(each.request for each in self._live)) if now else ():
                request.cancelled = True
            self._changed.notify()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        self._thread.join(timeout)

    def _leave(self) -> None:
        self.close(now=True)
        self.join(LAST_STEP)

    def _run(self) -> None:
        try:
            while self._take():
                try:
                    self.engine.step()
                except Exception as error:
                    self._fail(error)
                self._tell()
        finally:
            atexit.unregister(self._leave)

    def _take(self) -> bool:
        """Wait for something to do, and take what others have asked for; False when there will be nothing any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._new or self._live or self._closing)
            room = self.engine.config.queue - len(self.engine.scheduler.waiting)
            new, self._new = self._new[:room], self._new[room:]
            cancelled, self._cancelled = self._cancelled, bool(self._new) and self._cancelled
        for request in new:
            self._begin(request)
        for each in self._live if cancelled else ():
            if each.request.cancelled:
                each.stream.cancel()
        return bool(self._live) or not self._closing

    def _begin(self, request: Request) -> None:
        try:
            stream = self.engine.submit(request.prompt, request.params, salt=request.salt)
            self._live.append(_Running(request, stream))
        except Exception as error:
            self._say(request, Update(finish_reason="error", error=error))

    def _say(self, request: Request, update: Update) -> None:
        if update.finish_reason:
            with self._changed:
                self._free += 1
        try:
            request.tell(update)
        except Exception:  # nobody is there any more
            self.cancel(request)

    def _fail(self, error: Exception) -> None:
        """A step has failed: what ran is to blame, or what waited, if nothing ran."""
        running = list(self.engine.scheduler.running)
        for each in self._live:
            if not running or each.stream.sequence in running:
                each.error = RuntimeError(f"a step failed: {type(error).__name__}")
                each.error.__cause__ = error
                each.stream.cancel()

    def _tell(self) -> None:
        for each in self._live:
            if update := each.news():
                self._say(each.request, update)
        self._live = [each for each in self._live if not each.stream.finish_reason]
