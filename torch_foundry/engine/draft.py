"""A smaller model that drafts for an engine's requests, all of them side by side."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch.nn import functional

from torch_foundry.core.errors import Fallback
from torch_foundry.engine.forward import Forward
from torch_foundry.engine.sequence import ScheduledSequence, Sequence
from torch_foundry.generation.draft_length import MAX_DRAFT_TOKENS
from torch_foundry.kvcache.block_manager import OutOfBlocks
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.kvcache.state_tables import StateTables
from torch_foundry.models.calls import LONGEST_STEP
from torch_foundry.sampling import Sampler

PIECE = 256  # tokens of a text that are read at a time


class Draft:
    """A patched model with a paged cache of its own, as large as the engine's.

    ValueError if it has another vocabulary than `model`, RuntimeError if it can't be run so. tokenizers: the model's
    and its own, which say whether the vocabularies are the same; without them their sizes have to be.
    """

    def __init__(
        self,
        draft: Any,
        model: Any,
        tokenizers: tuple[Any, Any],
        blocks: int,
        block_size: int,
        *,
        requests: int,
        batch_invariant: bool,
    ) -> None:
        if not hasattr(draft, "generator_plan"):
            raise RuntimeError("assistant_model: an engine can't run it: it is not a patched model of a known family")
        config = draft.config.get_text_config()
        ours, theirs = model.config.get_text_config().vocab_size, config.vocab_size
        if None not in tokenizers:
            if tokenizers[0].get_vocab() != tokenizers[1].get_vocab():
                raise ValueError("assistant_tokenizer: expected the tokens of the engine's, got another tokenizer")
        elif ours != theirs:  # what generate() asks as well
            raise ValueError(
                f"assistant_model: expected the model's vocabulary of {ours} tokens, got {theirs}: another tokenizer "
                "(or padding of another length; tokenizer and assistant_tokenizer would tell)"
            )
        states = StateTables(requests, 1 + LONGEST_STEP, 0)
        self.cache = PagedCache(config, blocks, block_size=block_size, states=states)
        try:
            self._forward = Forward(draft, self.cache, requests=requests, batch_invariant=batch_invariant)
        except Fallback as fallback:
            raise RuntimeError(f"assistant_model: an engine can't run it: {fallback}") from None
        self._plan = self._forward.plan
        if self._plan.device != model.device:
            raise ValueError(f"assistant_model: expected it on {model.device}, got {self._plan.device}")
        self.max_draft_tokens: int = draft.generation_config.num_assistant_tokens or MAX_DRAFT_TOKENS
        self._limit, self._vocabulary = int(config.max_position_embeddings), int(draft.lm_head.out_features)
        self._fed: dict[int, list[int]] = {}  # tokens in the cache, by sequence

    @property
    def captured(self) -> int:
        """Steps that a graph was captured of."""
        return int(self._plan.captured)

    def leave(self, id: int) -> None:
        """A sequence has lost its place."""
        if self._fed.pop(id, None) is not None:
            self.cache.manager.free(id)

    def propose(self, sequences: list[Sequence], sampler: Sampler, count: int) -> dict[int, list[int]]:
        """`count` tokens that may follow each sequence's text; fewer or none where there are no blocks.

        They are chosen as its row of `sampler` says, with its random numbers. Waits for the device `count` times.
        """
        found: dict[int, list[int]] = {sequence.id: [] for sequence in sequences}
        active = [sequence for sequence in sequences if self._read(sequence)]
        for _ in range(count):
            texts = [sequence.tokens + found[sequence.id] for sequence in active]
            ready = [self._reserve(sequence, text, len(text)) for sequence, text in zip(active, texts, strict=True)]
            active = [sequence for sequence, room in zip(active, ready, strict=True) if room]
            texts = [text for text, room in zip(texts, ready, strict=True) if room]
            if not active:
                break
            parts = [self._part(sequence, text, len(text)) for sequence, text in zip(active, texts, strict=True)]
            logits = self._forward(parts)
            self._count(parts)
            if len(logits) > len(parts):
                last = [end - 1 for end in itertools.accumulate(part.wanted for part in parts)]
                logits = logits[torch.tensor(last, dtype=torch.int32).to(logits.device, non_blocking=True)]
            if more := sampler.vocab_size - logits.shape[1]:  # the models' vocabularies are padded differently
                logits = functional.pad(logits, (0, more), value=-math.inf)
            rows = [sequence.row for sequence in active if sequence.row is not None]
            tokens, _ = sampler.peek(logits, rows, [len(text) for text in texts])
            for sequence, token in zip(active, tokens.tolist(), strict=True):
                found[sequence.id].append(token)
        return found

    def _read(self, sequence: Sequence) -> bool:
        """Have all of a sequence's text but its end in the cache, and nothing else; False if it doesn't fit."""
        fed, manager = self._fed.get(sequence.id), self.cache.manager
        if fed is None:
            manager.add(sequence.id, sequence.tokens, salt=sequence.salt)
            fed = self._fed[sequence.id] = sequence.tokens[: manager.length(sequence.id)]
        known = next((i for i, (a, b) in enumerate(zip(fed, sequence.tokens, strict=False)) if a != b), len(fed))
        known = min(known, len(sequence.tokens) - 1)
        known = manager.crop(sequence.id, known)
        del fed[known:]
        while len(sequence.tokens) - len(fed) > PIECE:
            end = len(fed) + PIECE
            if not self._reserve(sequence, sequence.tokens, end):
                return False
            part = self._part(sequence, sequence.tokens, end)
            self._forward([part])
            self._count([part])
        return True

    def _reserve(self, sequence: Sequence, text: list[int], length: int) -> bool:
        """Room for the first `length` tokens of a text; False if there is none, or tokens are not the draft's."""
        fed = len(self._fed[sequence.id])
        if length > self._limit or max(text[fed:length]) >= self._vocabulary:
            return False
        try:
            self.cache.copy(self.cache.manager.reserve(sequence.id, length - fed))
        except OutOfBlocks:
            return False
        return True

    def _part(self, sequence: Sequence, text: list[int], end: int) -> ScheduledSequence:
        start = len(self._fed[sequence.id])
        # all are wanted where that lets the step be a graph
        return ScheduledSequence(sequence, start, text[start:end], end - start if end - start <= LONGEST_STEP else 1)

    def _count(self, parts: list[ScheduledSequence]) -> None:
        for part in parts:
            self.cache.manager.commit(part.id, part.ids)
            self._fed[part.id] += part.ids
