"""The steps of an engine: what is scheduled is computed, and its next tokens become part of the sequences."""

from __future__ import annotations

import time
from collections.abc import Collection

from torch import Tensor

from torch_foundry.core.errors import Fallback
from torch_foundry.core.limits import SAMPLE_BITS
from torch_foundry.engine.drafting import Drafting
from torch_foundry.engine.forward import Forward
from torch_foundry.engine.next_tokens import TokensAhead, fill_rows, free_rows, row_of, sample, sample_ahead
from torch_foundry.engine.scheduler import Scheduler
from torch_foundry.engine.sequence import Parts, ScheduledSequence, Sequence
from torch_foundry.sampling import Sampler
from torch_foundry.sampling.sampler import error_text


class Steps:
    """Where the host has no part in the choice of tokens, and nothing is drafted, steps go to the device in groups, one
    of which is computed while the tokens of the one before are read and dealt with.

    depth: steps of both groups; 1: tokens of each step are waited for. replaced: tokens that no step can embed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        forward: Forward,
        sampler: Sampler,
        drafting: Drafting,
        depth: int,
        replaced: Collection[int],
    ) -> None:
        self.scheduler, self.forward, self.sampler, self.drafting = scheduler, forward, sampler, drafting
        self.depth, self._replaced, self._cache, self._plan = depth, replaced, forward.cache, forward.plan
        self._ahead: TokensAhead | None = None  # of a group that is under way between two calls of `take`
        self._next_in_line: Sequence | None = None  # that waited when there was no place for it

    def take(self) -> int:
        """A step, or a group of some; returns its number of tokens, 0 if there is nothing to do.

        After an exception sequences have what they had before, and wait for the next step.
        """
        self._settle()
        ahead, self._ahead = self._ahead, None
        began, captured = time.perf_counter(), self._plan.captured
        batch = self._schedule() if ahead is None else ahead.batch
        try:
            if ahead is None and batch:
                ahead = self._start(batch)
            if any(each.sequence.drafting for each in batch):
                if ahead is not None:
                    ahead.read()
                self._note_time(batch, began, captured, ahead)
            elif ahead is not None:
                self._ahead = self._follow(ahead)
                ahead.read()
            tokens = sum(self._commit(each) for each in sorted(batch, key=lambda each: each.wanted > 0))
        except BaseException:  # the device may have gone on: rows are filled again by the next step
            self._ahead = None
            free_rows(self.sampler, [each.sequence for each in batch])
            raise
        self._settle()
        return tokens

    def _settle(self) -> None:
        """Wait for what is under way, if nobody wants it any more."""
        if self._ahead is not None and all(each.sequence.finish_reason for each in self._ahead.batch):
            self._ahead.read()
            self._ahead = None

    def _schedule(self) -> list[ScheduledSequence]:
        """What the next step computes; what it takes a place from has none in the sampler any more."""
        before = list(self.scheduler.running)
        # without a row of the sampler, which a failed step takes away, there is nothing to draft by
        self.drafting.give([each for each in before if each.pending == 1 and each.row is not None])
        batch = self.scheduler.next()
        self._next_in_line = next(iter(self.scheduler.waiting), None)
        for sequence in before:
            if sequence not in self.scheduler.running:
                free_rows(self.sampler, [sequence])
                self.drafting.leave(sequence)
        return batch

    def _start(self, batch: Parts) -> TokensAhead | None:
        """Compute a step, or hand some to the device; None: its tokens have been waited for."""
        fill_rows(self.sampler, self.scheduler.running, [each.sequence for each in batch])
        batch = sorted(batch, key=row_of)
        alone = self.depth == 1 or any(each.sequence.watched for each in batch)
        if alone or not all(each.wanted == len(each.ids) == 1 for each in batch):
            sample(self.sampler, batch, self._compute(batch))
            return None
        longest = max(each.sequence.limit - len(each.sequence.tokens) for each in batch)
        steps = min(longest, self.depth if any(each.sequence.drafting for each in batch) else self.depth // 2)
        if steps > 1 and not self.scheduler.room(batch, steps):
            steps = 1
        return sample_ahead(self.sampler, batch, self._compute(batch), steps, self.forward.go_on)

    def _follow(self, ahead: TokensAhead) -> TokensAhead | None:
        """Hand the steps behind `ahead` to the device before that is read; None: something else comes first."""
        running, waiting = [each.sequence for each in ahead.batch], self.scheduler.waiting
        left = min(sequence.limit - len(sequence.tokens) for sequence in running) - ahead.steps
        if left < 1 or any(sequence.finish_reason for sequence in running):
            return None
        if waiting and waiting[0] is not self._next_in_line:
            return None
        batch, steps = [each.behind(ahead.steps) for each in ahead.batch], min(self.depth // 2, left)
        if not self.scheduler.room(batch, ahead.steps + steps):
            return None
        try:
            logits = self._compute(batch, ahead.newest)
        except Fallback:  # the next step will say so; what was computed before is read first
            return None
        return sample_ahead(self.sampler, batch, logits, steps, self.forward.go_on)

    def _compute(self, batch: list[ScheduledSequence], tokens: Tensor | None = None) -> Tensor:
        for each in batch:
            self._cache.copy(each.copies)
        return self.forward(batch, tokens=tokens)

    def _note_time(self, batch: Parts, began: float, captured: int, ahead: TokensAhead | None) -> None:
        """Of a step that might have had draft tokens."""
        if all(each.wanted == len(each.ids) for each in batch):
            tokens, rows = sum(len(each.new_tokens) for each in batch), max(len(each.ids) for each in batch)
            seconds = time.perf_counter() - began if captured == self._plan.captured else None
            self.drafting.timed(len(batch), rows, tokens, seconds, steps=1 if ahead is None else ahead.steps)

    def _commit(self, each: ScheduledSequence) -> int:
        """Make what a step has computed and chosen part of the sequence and the cache; returns the number of tokens."""
        sequence, reason = each.sequence, ""
        if sequence.finish_reason:  # it has ended since
            return 0
        known, before = len(each.ids) - len(each.drafts), len(sequence.tokens)
        for token in each.new_tokens:
            if reason := sequence.append(token):
                break
            if token in self._replaced:
                sequence.fault = RuntimeError(not_embedded(token))
                break
        taken = len(sequence.tokens) - before
        known_ids = sequence.tokens[each.start : each.start + known]
        cached = known_ids + each.new_tokens[: max(taken - 1, 0)] if each.num_accepted >= 0 else []
        self.scheduler.commit(each, cached)
        if each.error_bits and not reason:
            if sequence.constraint is not None and each.error_bits == SAMPLE_BITS["error_nothing"]:
                sequence.fault = ValueError("min_tokens, logit_bias and the like leave no token of its language")
            else:
                sequence.fault = RuntimeError(error_text(each.error_bits))
        if sequence.fault is not None:
            reason = "error"
        elif each.wanted:
            self.drafting.take(each, taken)
        if reason:
            self.end(sequence, reason)
        return max(len(each.ids), len(cached))

    def end(self, sequence: Sequence, reason: str) -> None:
        """A sequence, if it hasn't ended; what is under way of it is not looked at."""
        if not sequence.finish_reason:
            self.scheduler.remove(sequence)
            self.drafting.end(sequence)
            sequence.finish(reason)
            free_rows(self.sampler, [sequence])


def not_embedded(token: int) -> str:
    """Why a sequence with `token` behind its images can't go on."""
    return f"token {token} is an image's or a sound's, which the model embeds in another way than texts"
