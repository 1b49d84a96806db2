"""Answers in a language: JSON schemas and grammars as masks over the vocabulary, by llguidance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_foundry.serving.errors import ApiError

LARGEST = 1 << 18  # characters of a grammar
JSON: Any = {"whitespace_pattern": r"[ \n]{0,4}"}  # bounded, or a model may write blanks for ever


class Grammars:
    """Grammars over one tokenizer's vocabulary. size: tokens that the model's logits have."""

    def __init__(self, tokenizer: Any, size: int, eos: Sequence[int]) -> None:
        self._tokenizer, self._size, self._eos = tokenizer, size, list(eos)
        self._known: Any = None

    def constraint(self, kind: str, source: Any, field: str) -> Matcher:
        """What limits one answer. kind: "json_schema" (source: a schema), "json_object", "grammar" (Lark) or "regex".

        ApiError: what is wrong with the source, by the request's field. Takes up to seconds: not for an event loop.
        """
        try:
            import llguidance
            import llguidance.hf
        except ImportError:
            raise ApiError(400, f"{field}: needs llguidance: install torch_foundry[serve]", field) from None
        if self._known is None:
            known = self._tokenizer
            self._known = llguidance.hf.from_tokenizer(known, n_vocab=max(self._size, len(known)), eos_token=self._eos)
        try:
            text = source if isinstance(source, str) else json.dumps(source)
            if len(text) > LARGEST:
                raise ValueError(f"expected at most {LARGEST} characters, got {len(text)}")
            make = llguidance.LLMatcher
            if kind in ("json_schema", "json_object"):
                source = text if kind == "json_schema" else '{"type": "object"}'
                grammar = make.grammar_from_json_schema(source, defaults=JSON)
            else:
                grammar = make.grammar_from_lark(text) if kind == "grammar" else make.grammar_from_regex(text)
            matcher = make(self._known, grammar)
            if matcher.is_error():
                raise ValueError(matcher.get_error())
        except (ValueError, TypeError, RecursionError) as error:
            raise ApiError(400, f"{field}: {str(error).strip().splitlines()[0]:.300}", field) from error
        return Matcher(matcher, self._size, field)


class Matcher:
    """A `Constraint` of the engine: what may follow the tokens so far, by a matcher that has read some of them. field:
    the request's, which is to blame where a grammar asks for more than the matcher's limits."""

    def __init__(self, matcher: Any, size: int, field: str) -> None:
        self._matcher, self._size, self._field, self._read = matcher, size, field, 0

    def allowed(self, tokens: Sequence[int]) -> Tensor:
        """See `Constraint`."""
        if len(tokens) > self._read:
            self._matcher.consume_tokens(list(tokens[self._read :]))
        self._read = len(tokens)
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        if self._matcher.is_error():
            raise ValueError(f"{self._field}: {self._matcher.get_error().strip().splitlines()[0]:.300}")
        mask = bits[:, None].bitwise_right_shift(torch.arange(8, dtype=torch.uint8)).bitwise_and(1).flatten()
        return mask[: self._size].contiguous()
