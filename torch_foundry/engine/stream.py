"""The answer to a request, while it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch_foundry.engine.next_tokens import TokenLogprobs
from torch_foundry.engine.sequence import Sequence
from torch_foundry.generation.drafting import SpeculationStats


class Stream:
    """What a caller holds of a request. Iterate over it for new tokens, or over `texts()` for text; while there is
    nothing new, the engine steps."""

    def __init__(self, sequence: Sequence, step: Callable[[], int], cancel: Callable[[Stream], None]) -> None:
        self.sequence, self._step, self._cancel = sequence, step, cancel

    @property
    def tokens(self) -> list[int]:
        """New ones, so far."""
        return self.sequence.tokens[self.sequence.prompt :]

    @property
    def text(self) -> str:
        """So far, without an incomplete character and what may become a stop text; "" without a tokenizer."""
        return self.sequence.text.text if self.sequence.text else ""

    @property
    def finish_reason(self) -> str:
        """ "" while it goes on, then "stop", "length", "cancelled" or "error"."""
        return self.sequence.finish_reason

    @property
    def error(self) -> RuntimeError | ValueError | None:
        """What an "error" was: no token could be chosen (NaN logits ...), or the tokens could not be made a text; a
        ValueError if what was asked for can't be: its constraint said so, or its other settings leave it no token."""
        return self.sequence.error

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """Of each new token so far, if `SamplingParams.logprobs` is set."""
        return self.sequence.logprobs

    @property
    def speculation(self) -> SpeculationStats:
        """What came of speculative decoding."""
        return self.sequence.speculation

    def __iter__(self) -> Iterator[int]:
        """Each new token, from the first on. Raises `error` in the end, if there is one."""
        at = 0
        while True:
            ended = self.finish_reason  # first: other threads may step
            while at < len(self.tokens):
                yield self.tokens[at]
                at += 1
            if ended:
                self._raise()
                return
            self._step()

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
            self._step()

    def result(self) -> list[int]:
        """All new tokens, once the request has ended."""
        for _ in self:
            pass
        return self.tokens

    def cancel(self) -> None:
        """End the request now."""
        self._cancel(self)

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error
