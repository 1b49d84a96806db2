"""The text of a sequence while its tokens arrive, and the texts that end it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch_foundry.core.load_errors import is_fault
from torch_foundry.text import StreamDecoder


class Detokenizer:
    """Decodes tokens one by one.

    text: so far, without an incomplete character and without what may become one of the texts `stop`. found: the one of
    them that has ended it, or "". error: why the tokens could not be made a text, once the decoder has failed.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str], *, skip_special_tokens: bool = True) -> None:
        self._decoder: Any = StreamDecoder(tokenizer, skip_special_tokens=skip_special_tokens)
        self._stop = stop
        self._held = ""  # text that may be the beginning of one that stops
        self.text = self.found = ""
        self.error: RuntimeError | None = None

    def push(self, token: int) -> str:
        """Decode the next token; returns "stop" if a text of `stop` is complete, "error" if decoding failed, or ""."""
        if self._decoder is None:
            return ""
        if not self._decode(self._decoder.push, [token]):
            return "error"
        if not self._stop:
            self._show(len(self._held))
            return ""
        found = [(at, text) for text in self._stop if (at := self._held.find(text)) >= 0]
        if found:
            at, self.found = min(found)
            self.text += self._held[:at]
            self._held, self._decoder = "", None  # nothing comes behind it
            return "stop"
        self._show(len(self._held) - max((_overlap(self._held, text) for text in self._stop), default=0))
        return ""

    def finish(self) -> None:
        """Decode what is left when there are no more tokens."""
        if self._decoder is not None and self._decode(self._decoder.finish):
            self._show(len(self._held))

    def _show(self, end: int) -> None:
        self.text, self._held = self.text + self._held[:end], self._held[end:]

    def _decode(self, decode: Callable[..., str], *args: Any) -> bool:
        """Whether a call of the decoder succeeded. A fault of it is this sequence's own: the engine goes on."""
        try:
            self._held += decode(*args)
        except BaseException as fault:
            if not is_fault(fault):
                raise
            self._decoder = None
            self.error = RuntimeError(f"the answer's tokens can't be made a text: {type(fault).__name__}: {fault}")
            self.error.__cause__ = fault
            return False
        return True


def _overlap(text: str, stop: str) -> int:
    """The longest end of `text` that `stop` begins with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
