"""A smaller model that guesses for an engine's requests, all of them side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from torch_foundry.core.errors import Fallback
from torch_foundry.decode.speculation import MOST
from torch_foundry.engine.forward import Forward
from torch_foundry.engine.groups import Part
from torch_foundry.engine.requests import Job
from torch_foundry.kvcache.blocks import OutOfBlocks
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.patch.calls import LONGEST_STEP
from torch_foundry.sampling import Slots

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
        exact: bool,
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
        self.cache = PagedCache(config, blocks, block_size=block_size)
        try:
            self._forward = Forward(draft, self.cache, requests=requests, exact=exact)
        except Fallback as fallback:
            raise RuntimeError(f"assistant_model: an engine can't run it: {fallback}") from None
        self._plan = self._forward.plan
        if self._plan.device != model.device:
            raise ValueError(f"assistant_model: expected it on {model.device}, got {self._plan.device}")
        self.most: int = draft.generation_config.num_assistant_tokens or MOST
        self._limit, self._vocabulary = int(config.max_position_embeddings), int(draft.lm_head.out_features)
        self._fed: dict[int, list[int]] = {}  # tokens in the cache, by job

    @property
    def recorded(self) -> int:
        """Steps that a tape was recorded of."""
        return int(self._plan.recorded)

    def leave(self, name: int) -> None:
        """A job has lost its place."""
        if self._fed.pop(name, None) is not None:
            self.cache.manager.free(name)

    def reset(self) -> None:
        """Nothing is in the cache."""
        self.cache.manager.reset()
        self._fed.clear()
        self._forward.reset()

    def propose(self, jobs: Sequence[Job], slots: Slots, rows: Sequence[int], count: int) -> dict[int, list[int]]:
        """`count` tokens that may follow each job's text; fewer or none where there are no blocks.

        They are chosen as the job's row in `slots` says, with its random numbers. Waits for the device `count` times.
        """
        found: dict[int, list[int]] = {job.name: [] for job in jobs}
        active = [pair for pair in zip(jobs, rows, strict=True) if self._read(pair[0])]
        for _ in range(count):
            texts = [job.tokens + found[job.name] for job, _ in active]
            ready = [self._reserve(job, text, len(text)) for (job, _), text in zip(active, texts, strict=True)]
            active = [pair for pair, room in zip(active, ready, strict=True) if room]
            texts = [text for text, room in zip(texts, ready, strict=True) if room]
            if not active:
                break
            parts = [self._part(job, text, len(text)) for (job, _), text in zip(active, texts, strict=True)]
            logits = self._forward(parts)
            self._count(parts)
            if len(logits) > len(parts):
                last = [end - 1 for end in itertools.accumulate(part.wanted for part in parts)]
                logits = logits[torch.tensor(last, dtype=torch.int32).to(logits.device, non_blocking=True)]
            if more := slots.vocab_size - logits.shape[1]:  # the models' vocabularies are padded differently
                logits = functional.pad(logits, (0, more), value=-math.inf)
            tokens, _ = slots.peek(logits, [row for _, row in active], [len(text) for text in texts])
            for (job, _), token in zip(active, tokens.tolist(), strict=True):
                found[job.name].append(token)
        return found

    def _read(self, job: Job) -> bool:
        """Have all of a job's text but its end in the cache, and nothing else; False if it doesn't fit."""
        fed, manager = self._fed.get(job.name), self.cache.manager
        if fed is None:
            manager.add(job.name, job.tokens, salt=job.salt)
            fed = self._fed[job.name] = job.tokens[: manager.length(job.name)]
        right = next((i for i, (a, b) in enumerate(zip(fed, job.tokens, strict=False)) if a != b), len(fed))
        right = min(right, len(job.tokens) - 1)
        manager.crop(job.name, right)
        del fed[right:]
        while len(job.tokens) - len(fed) > PIECE:
            end = len(fed) + PIECE
            if not self._reserve(job, job.tokens, end):
                return False
            part = self._part(job, job.tokens, end)
            self._forward([part])
            self._count([part])
        return True

    def _reserve(self, job: Job, text: list[int], length: int) -> bool:
        """Room for the first `length` tokens of a job's text; False if there is none, or tokens are not the draft's."""
        fed = len(self._fed[job.name])
        if length > self._limit or max(text[fed:length]) >= self._vocabulary:
            return False
        try:
            self.cache.copy(self.cache.manager.reserve(job.name, length - fed))
        except OutOfBlocks:
            return False
        return True

    def _part(self, job: Job, text: list[int], end: int) -> Part:
        start = len(self._fed[job.name])
        # all are wanted where that lets the step be a tape
        return Part(job.name, start, text[start:end], end - start if end - start <= LONGEST_STEP else 1)

    def _count(self, parts: Sequence[Part]) -> None:
        for part in parts:
            assert isinstance(part.name, int)
            self.cache.manager.commit(part.name, part.ids)
            self._fed[part.name] += part.ids
