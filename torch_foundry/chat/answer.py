"""An answer of a model: its text as it comes, and what it took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from transformers.generation.streamers import BaseStreamer

from torch_foundry.engine.detokenizer import Detokenizer


@dataclass(frozen=True)
class Figures:
    """What an answer took."""

    prompt: int  # tokens
    reused: int  # of these, the ones that were not read again
    tokens: int  # new
    first: float  # seconds until the first of them
    later: float  # seconds from then to the last
    launches: int
    drafted: int
    accepted: int
    memory: int  # bytes: what the device has allocated, or the process
    ended: str  # "stop": the model said so; "length"; "interrupted"

    @property
    def rate(self) -> float:
        """New tokens a second, behind the first one."""
        return (self.tokens - 1) / self.later if self.later > 0 else 0.0

    @property
    def prefill(self) -> float:
        """Tokens of the prompt that were read in a second."""
        return (self.prompt - self.reused) / self.first if self.first > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """All of them; times in seconds, memory in bytes."""
        return asdict(self) | {"tokens_per_second": self.rate, "prefill_tokens_per_second": self.prefill}


class Ended(Exception):
    """Ends generate() from within: the answer is complete, or nobody wants more of it."""


class Answer(BaseStreamer):
    """Takes an answer's tokens from generate(), and hands their text to `emit` as it becomes final."""

    def __init__(self, tokenizer: Any, stop: list[str], emit: Callable[[str], None], go_on: Callable[[], bool]) -> None:
        self._text, self._emit, self._go_on = Detokenizer(tokenizer, stop), emit, go_on
        self._shown = 0  # characters
        self.tokens: list[int] = []
        self.times: list[float] = []  # of the prompt, and of each block of tokens
        self.ended = ""

    @property
    def text(self) -> str:
        """So far, of what is final."""
        return self._text.text

    def put(self, value: Any) -> None:
        """Take the prompt, which comes first, or new tokens. Raises Ended where the answer ends early."""
        self.times.append(time.perf_counter())
        for token in value.flatten().tolist() if len(self.times) > 1 else ():
            self.tokens.append(token)
            self.ended = self.ended or self._text.push(token)
        self._show()
        if self._text.error is not None:
            raise self._text.error
        if not self.ended and not self._go_on():
            self.ended = "interrupted"
        if self.ended:
            raise Ended

    def end(self) -> None:
        """Called by generate()."""

    def finish(self) -> None:
        """Hand out the rest, once there are no more tokens."""
        self._text.finish()
        self._show()

    def _show(self) -> None:
        if len(new := self.text[self._shown :]):
            self._shown += len(new)
            self._emit(new)
