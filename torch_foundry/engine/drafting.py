"""Draft tokens for the requests of an engine: which of them have some, and a draft model for all of them together.

A draft counts if it is the token that the model chooses, with the random numbers that it would have had without
drafts. So drafts change how long an answer takes, never its tokens (see `torch_foundry.generation.speculation`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence as Several
from typing import Any

import torch
from torch.nn import functional

from torch_foundry.core.errors import Fallback
from torch_foundry.engine.forward import Forward
from torch_foundry.engine.mtp import READ_AT_ONCE, PagedMTPDrafter
from torch_foundry.engine.next_tokens import some_rows
from torch_foundry.engine.request import EngineConfig, SamplingParams
from torch_foundry.engine.sequence import ScheduledSequence, Sequence
from torch_foundry.generation.draft_length import DraftLengthController
from torch_foundry.generation.drafting import (
    MAX_DRAFT_TOKENS,
    PromptLookup,
    SequenceDrafts,
    SpeculationStats,
    accepted,
)
from torch_foundry.hf.generate import loaded_mtp_head
from torch_foundry.kvcache.block_manager import OutOfBlocks
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.kvcache.state_tables import StateTables
from torch_foundry.models.calls import LONGEST_STEP
from torch_foundry.sampling import Sampler


class PagedDraftModel:
    """A patched model with a paged cache of its own, as large as the engine's: a `Drafter` of many sequences.

    ValueError if it has another vocabulary than `model`, RuntimeError if it can't be run so. tokenizers: the model's
    and its own, which say whether the vocabularies are the same; without them their sizes have to be.
    """

    of_prompt: list[torch.Tensor] | None = None

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
        self.usual = False

    def begin(self, target: Sampler) -> None:
        """See `Drafter`."""
        self._sampler = target

    def leave(self, own: SequenceDrafts) -> None:
        """See `Drafter`."""
        if own.sequence.id in self.cache.manager:
            self.cache.manager.free(own.sequence.id)

    def propose(self, sequences: Several[SequenceDrafts], count: int) -> None:
        """See `Drafter`. Tokens are chosen as a sequence's row of the target's sampler says, with its random numbers;
        none where there are no blocks. Waits for the device once, if its steps can be captured."""
        captured, self.usual = self._plan.captured, True
        active = []
        for own in sequences:
            own.drafts, text = [], own.sequence.tokens
            if self._read(own.sequence) and self._reserve(own.sequence.id, text, len(text)):
                active.append(own)
        if active:
            for own, drafts in zip(active, self._draft([own.sequence for own in active], count), strict=True):
                own.drafts = drafts
        self.usual &= self._plan.captured == captured

    def _draft(self, sequences: list[Sequence], count: int) -> list[list[int]]:
        """`count` draft tokens of each, one if there is no room for more: all steps are handed over without waiting for
        one. There is room for what is known."""
        sampler, ends = self._sampler, [len(sequence.tokens) for sequence in sequences]
        choose = sampler.branch([row for each in sequences if (row := each.row) is not None], ends)
        parts = [self._part(each, each.tokens, end) for each, end in zip(sequences, ends, strict=True)]
        drafts: list[list[int]] = [[] for _ in sequences]  # that have been read
        found, logits = list[torch.Tensor](), self._run(parts)  # not read yet
        logits = some_rows(logits, [end - 1 for end in itertools.accumulate(part.wanted for part in parts)])
        if not all(self._reserve(each.id, each.tokens, len(each.tokens) + count - 1) for each in sequences):
            count = 1
        for drafted in range(count):
            if drafted:
                following = self._forward.go_on(found[-1], parts, drafted)
                if following is None:  # which is known only behind a step of single tokens
                    newest = found[-1]
                    if drafted > 1:
                        self._take(sequences, drafts, found)
                    each = zip(sequences, ends, strict=True)
                    parts = [ScheduledSequence(sequence, end + drafted - 1, [0], 1) for sequence, end in each]
                    following = self._forward(parts, None, newest)
                logits = following
            if more := sampler.vocab_size - logits.shape[1]:  # the models' vocabularies are padded differently
                logits = functional.pad(logits, (0, more), value=-math.inf)
            found.append(choose(logits).clone())
        self._take(sequences, drafts, found)
        return drafts

    def _take(self, sequences: list[Sequence], drafts: list[list[int]], found: list[torch.Tensor]) -> None:
        """Wait for draft tokens; all but the newest of each sequence are in the cache."""
        for sequence, known, new in zip(sequences, drafts, torch.stack(found, dim=1).tolist(), strict=True):
            stored = max(len(known) - 1, 0)
            known += new
            self.cache.manager.commit(sequence.id, known[stored:-1])
        found.clear()

    def _read(self, sequence: Sequence) -> bool:
        """Have all of a sequence's text but its end in the cache, and nothing else; False if it doesn't fit."""
        id, text, manager = sequence.id, sequence.tokens, self.cache.manager
        if id not in manager:
            manager.add(id, text, salt=sequence.salt)
        stored = manager.tokens(id)
        sure = max(0, len(stored) - MAX_DRAFT_TOKENS)  # behind these there may be drafts
        known = sure + accepted(stored[sure:], text[sure:])
        manager.crop(id, min(known, len(text) - 1))
        while (end := manager.length(id) + READ_AT_ONCE) < len(text):
            if not self._reserve(id, text, end):
                return False
            self._run([self._part(sequence, text, end)])
        return True

    def _reserve(self, id: int, text: list[int], length: int) -> bool:
        """Room for the first `length` tokens of a text, of which those that are not known are drafts to come; False if
        there is none, or tokens are not the draft's."""
        stored = self.cache.manager.length(id)
        if length > self._limit or max(text[stored:length], default=0) >= self._vocabulary:
            return False
        try:
            self.cache.copy(self.cache.manager.reserve(id, length - stored))
        except OutOfBlocks:
            return False
        return True

    def _part(self, sequence: Sequence, text: list[int], end: int) -> ScheduledSequence:
        start = self.cache.manager.length(sequence.id)
        few = end - start <= LONGEST_STEP
        self.usual &= few
        # all are wanted where that lets the step be a graph
        return ScheduledSequence(sequence, start, text[start:end], end - start if few else 1)

    def _run(self, parts: list[ScheduledSequence]) -> torch.Tensor:
        """Logits that are wanted; the tokens are in the cache then."""
        logits = self._forward(parts)
        for part in parts:
            self.cache.manager.commit(part.id, part.ids)
        return logits


class Drafting(DraftLengthController):
    """Drafts for the requests of one engine, and what came of them (`totals`).

    lookup: draft tokens by prompt lookup for requests that don't say how many; if none, `model` makes them, if any.
    target: the engine's sampler.
    """

    model: PagedDraftModel | PagedMTPDrafter | None

    def __init__(
        self, lookup: int | None, model: PagedDraftModel | PagedMTPDrafter | None, target: Sampler, budget: int
    ) -> None:
        super().__init__(SpeculationStats(), model, budget=budget)
        self._lookup = lookup or 0
        if model is not None:
            model.begin(target)

    def begin(self, sequence: Sequence, params: SamplingParams, *, possible: bool) -> None:
        """A request; possible: whether its next tokens can be known before those before are."""
        asked = params.prompt_lookup_num_tokens
        most = lookup = self._lookup if asked is None else asked
        if asked is None and not lookup and self.model is not None:
            most = self.model.max_draft_tokens
        if possible and most:
            sequence.drafting = SequenceDrafts(sequence, most, PromptLookup() if lookup else None, self.history.rates)

    def leave(self, sequence: Sequence) -> None:
        """A request has lost its place."""
        if self.model is not None and sequence.drafting is not None:
            self.model.leave(sequence.drafting)

    def end(self, sequence: Sequence) -> None:
        """A request has ended, or has no drafts any more."""
        self.leave(sequence)
        sequence.drafting = None

    def forget(self) -> None:
        """Let no later text continue from what the draft model has in its cache."""
        if self.model is not None:
            self.model.cache.manager.forget()

    def give(self, sequences: list[Sequence]) -> None:
        """Give `sequences`, which generate, drafts for the next step."""
        try:
            late = isinstance(self.model, PagedMTPDrafter) and self.model.catch_up()
            self.draft([sequence.drafting for sequence in sequences if sequence.drafting], len(sequences))
            self._usual &= not late
        except Fallback as fallback:  # the draft model has changed; answers don't depend on it
            self.totals.stopped = f"switched off: {fallback}"

    def take(self, scheduled: ScheduledSequence, tokens: int) -> None:
        """A step has given a request `tokens` tokens; none: a draft is to blame, so there are no more."""
        sequence = scheduled.sequence
        if sequence.drafting is not None:
            told = len(scheduled.drafts), max(0, scheduled.num_accepted), tokens
            self.note(sequence.drafting, *told)
            sequence.speculation.count(*told)
            if not tokens:
                self.end(sequence)


def paged_drafter(
    config: EngineConfig, model: Any, tokenizer: Any, forward: Forward, blocks: int
) -> PagedDraftModel | PagedMTPDrafter | None:
    """What makes an engine's draft tokens, beside prompt lookup; None: nothing does."""
    told: dict[str, Any] = {"requests": config.requests, "batch_invariant": config.batch_invariant}
    if config.use_mtp:
        try:
            head = PagedMTPDrafter(loaded_mtp_head(model), model, blocks, config.block_size, **told)
        except Fallback as fallback:
            raise RuntimeError(f"use_mtp: an engine can't run the model's MTP head: {fallback}") from None
        forward.seen = head.seen
        return head
    if config.assistant_model is None:
        return None
    both = tokenizer, config.assistant_tokenizer
    return PagedDraftModel(config.assistant_model, model, both, blocks, config.block_size, **told)
