"""The answer to a request, while it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch_foundry.decode.pace import Guesses
from torch_foundry.engine.requests import Job, Params
from torch_foundry.loaders.errors import is_fault
from torch_foundry.sampling import Settings
from torch_foundry.text import StreamDecoder

if TYPE_CHECKING:
    from torch_foundry.engine.engine import Engine


class Stream:
    """Iterate over it for new tokens, or over `texts()` for text; while there is nothing new, the engine steps.

    tokens: so far. text: so far, without an incomplete character and without what may become a stop text; "" without a
    tokenizer. finish_reason: "" while it goes on, then "stop", "length", "cancelled" or "error", of which `error` says
    what it was: no token could be chosen (NaN logits ...), or the tokens could not be made a text. guesses: what came
    of guessing ahead.
    """

    def __init__(
        self,
        engine: Engine,
        job: Job,
        params: Params,
        settings: Settings,
        seed: int,
        tokenizer: Any,
        guesses: Guesses,
    ) -> None:
        self.engine, self.job, self.params, self.settings, self.seed = engine, job, params, settings, seed
        self.guesses, self._tokenizer = guesses, tokenizer
        self.finish_reason = ""
        self._begin()

    def _begin(self) -> None:
        self.error: RuntimeError | None = None
        self.text, self._held = "", ""  # held: text that may be the beginning of one that stops
        self._decoder = None if self._tokenizer is None else StreamDecoder(self._tokenizer, skip_special_tokens=True)

    @property
    def tokens(self) -> list[int]:
        """New ones, so far."""
        return self.job.tokens[self.job.prompt :]

    def __iter__(self) -> Iterator[int]:
        """Each new token, from the first on. Raises `error` in the end, if there is one: a RuntimeError."""
        at = 0
        while True:
            ended = self.finish_reason  # first: other threads may step
            while at < len(self.tokens):
                yield self.tokens[at]
                at += 1
            if ended:
                self._raise()
                return
            self.engine.step()

    def texts(self) -> Iterator[str]:
        """Pieces of the text, which is `text` in the end."""
        at = 0
        while True:
            ended, text = self.finish_reason, self.text
            if len(text) > at:
                yield text[at:]
                at = len(text)
            if ended:
                self._raise()
                return
            self.engine.step()

    def result(self) -> list[int]:
        """All new tokens, once the request has ended."""
        for _ in self:
            pass
        return self.tokens

    def cancel(self) -> None:
        """End the request now."""
        self.engine.cancel(self)

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    def again(self) -> str:
        """Take all tokens once more, from the first on; returns why the request ends, or ""."""
        if not self._safely(self._begin):
            return "error"
        return next((reason for at in range(self.job.prompt, len(self.job.tokens)) if (reason := self.take(at))), "")

    def take(self, at: int) -> str:
        """The job's token number `at`, the next one; returns why the request ends with it, or ""."""
        token = self.job.tokens[at]
        if token in self.settings.eos:
            return "stop"
        if self._decoder is not None:
            if not self._safely(self._push, token):
                return "error"
            if self._stopped():
                return "stop"
        return "length" if at + 1 >= self.job.limit else ""

    def _push(self, token: int) -> None:
        self._held += self._decoder.push([token])  # type: ignore[union-attr]

    def _safely(self, decode: Callable[..., None], *args: Any) -> bool:
        """Whether a call of the decoder succeeded. A fault of it is this request's own: the engine goes on."""
        try:
            decode(*args)
        except BaseException as fault:
            if not is_fault(fault):
                raise
            self._decoder = None
            self.error = RuntimeError(f"the answer's tokens can't be made a text: {type(fault).__name__}: {fault}")
            self.error.__cause__ = fault
            return False
        return True

    def _stopped(self) -> bool:
        """Move from held to shown what no stop text can begin in; whether one is there."""
        found = [at for text in self.params.stop if (at := self._held.find(text)) >= 0]
        if found:
            self.text += self._held[: min(found)]
            self._held, self._decoder = "", None  # nothing comes behind it
            return True
        keep = max((_overlap(self._held, text) for text in self.params.stop), default=0)
        cut = len(self._held) - keep
        self.text, self._held = self.text + self._held[:cut], self._held[cut:]
        return False

    def end(self, reason: str) -> None:
        """The request has ended; with an error if the rest of its text can't be had."""
        if self._decoder is not None and not self._safely(self._finish):
            reason = "error"
        self.finish_reason = reason

    def _finish(self) -> None:
        self._held += self._decoder.finish()  # type: ignore[union-attr]
        self.text, self._held = self.text + self._held, ""


def _overlap(text: str, stop: str) -> int:
    """The longest end of `text` that `stop` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
