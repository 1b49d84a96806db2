"""When a generation ends: Hugging Face's criteria, applied on the host to blocks of tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StopStringCriteria

from torch_foundry.core.errors import Fallback


class StoppingCriteria:
    """Maximum length, end-of-text tokens and stop strings. Raises Fallback for other criteria.

    `take` has generate()'s semantics: a row that has ended gets `pad` (if there are end-of-text tokens at all), and the
    generation ends when all rows have.
    """

    def __init__(self, criteria: Iterable[Any], input_ids: torch.Tensor, pad: int | None) -> None:
        self.max_length: int | None = None
        self.eos: set[int] = set()
        self._strings: list[StopStringCriteria] = []
        for each in criteria:
            if type(each) is MaxLengthCriteria:
                self.max_length = each.max_length if self.max_length is None else min(self.max_length, each.max_length)
            elif type(each) is EosTokenCriteria:
                self.eos.update(each.eos_token_id.tolist())
            elif type(each) is StopStringCriteria:
                self._strings.append(each)
            else:
                raise Fallback(f"{type(each).__name__} is not known")
        if self.max_length is None:
            raise Fallback("no maximum length")
        if self.eos and pad is None:
            raise Fallback("no padding token")
        self._pad = pad
        self.done = [False] * input_ids.shape[0]
        self.length = input_ids.shape[1]
        self.tokens: list[list[int]] = [[] for _ in self.done]  # new ones, of each row
        self._unpadded: int | None = None  # of these, in each row; None: all
        # stop strings look at what came before, too
        self._text = input_ids.cpu() if self._strings else None

    @property
    def chosen(self) -> list[list[int]]:
        """Of `tokens`, those before any that are padding."""
        return [row[: self._unpadded] for row in self.tokens]

    @property
    def remaining(self) -> int:
        """Tokens until the maximum length."""
        assert self.max_length is not None
        return self.max_length - self.length

    def take(self, block: list[list[int]]) -> int:
        """Take over new tokens, [B][n], up to where all rows have ended; returns how many of the n that are."""
        for place, column in enumerate(zip(*block, strict=True)):
            for row, token in enumerate(column):
                if self.done[row] and self.eos:
                    assert self._pad is not None
                    token = self._pad
                    self._unpadded = len(self.tokens[row]) if self._unpadded is None else self._unpadded
                self.tokens[row].append(token)
            self.length += 1
            self._end()
            if all(self.done):
                return place + 1
        return len(block[0])

    def _end(self) -> None:
        newest = [row[-1] for row in self.tokens]
        ended = [token in self.eos for token in newest]
        if self._text is not None:
            self._text = torch.cat([self._text, torch.tensor(newest)[:, None]], dim=1)
            for strings in self._strings:
                found = strings(self._text, None).tolist()
                ended = [a or b for a, b in zip(ended, found, strict=True)]
        full = self.remaining <= 0
        self.done = [was or now or full for was, now in zip(self.done, ended, strict=True)]
