"""Which tokens are computed next. Standard library and the block manager only: no tensors."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable

from torch_foundry.engine.sequence import ScheduledSequence, Sequence
from torch_foundry.kvcache.block_manager import BlockManager, OutOfBlocks


class Scheduler:
    """Iteration-level scheduling (Yu et al., "Orca", 2022) of sequences over the blocks of one cache.

    A step has at most `budget` tokens. First each running sequence that generates gets its one; what is left goes to
    prompts in the order of arrival, in parts, so a long one delays nobody by more than a step, and last to draft
    tokens. What a prompt has up to its last image is not cut: it may exceed the budget. Sequences are admitted in the
    order of arrival, never past one that doesn't fit yet. When blocks run out, the one admitted last gives up its own
    and waits at the front of the queue; it computes its tokens again later (what is still in kept blocks excepted).
    """

    def __init__(self, manager: BlockManager, *, running: int, budget: int) -> None:
        if running < 1 or budget < running:
            raise ValueError(f"expected running >= 1 and budget >= running, got {running} and {budget}")
        self.manager, self.max_running, self.budget = manager, running, budget
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in the order of admission
        self._ids = itertools.count()

    def add(self, sequence: Sequence) -> None:
        """Number and queue a sequence."""
        sequence.id = next(self._ids)
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; between steps. Its full blocks are kept while nobody needs them."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.manager.free(sequence.id)
        else:
            self.waiting.remove(sequence)

    def next(self) -> list[ScheduledSequence]:
        """What the next step computes, for which there are blocks. Empty if there is nothing to do."""
        batch: dict[int, ScheduledSequence] = {}
        left, preempted = self.budget, False  # images may take more than is left
        generating = [sequence for sequence in self.running if sequence.pending == 1]
        reading = [sequence for sequence in self.running if sequence.pending > 1]
        for sequence in (*generating, *reading):
            while left > 0 and sequence in self.running:
                try:
                    batch[sequence.id] = scheduled = self._schedule(sequence, left)
                    left -= len(scheduled.ids)
                    break
                except OutOfBlocks:
                    preempted = True
                    victim = self.running[-1]
                    self._preempt(victim)
                    if (taken := batch.pop(victim.id, None)) is not None:
                        left += len(taken.ids)
        while self.waiting and len(self.running) < self.max_running and left > 0 and not preempted:
            admitted = self._admit(self.waiting[0], left)
            if admitted is None:
                break
            self.waiting.popleft()
            batch[admitted.id] = admitted
            left -= len(admitted.ids)
        for sequence in generating if left > 0 else ():
            if sequence.id in batch and (drafts := sequence.drafts[: min(left, self.manager.states.ring - 2)]):
                left -= self._add(batch[sequence.id], drafts)
        return list(batch.values())

    def room(self, batch: Iterable[ScheduledSequence], tokens: int) -> bool:
        """Room for `tokens` tokens, in place of one, of each of `next`; False if there is not enough for all."""
        batch = list(batch)
        if sum(self.manager.needs(each.id, tokens) for each in batch) > self.manager.available:
            return False
        try:
            for each in batch:
                each.copies += self.manager.reserve(each.id, tokens)
        except OutOfBlocks:
            return False
        return True

    def commit(self, scheduled: ScheduledSequence, ids: list[int]) -> None:
        """The tokens `ids` are in the cache; the room of rejected draft tokens is given back."""
        sequence = scheduled.sequence
        self.manager.commit(sequence.id, ids, turn=sequence.prompt)
        sequence.computed += len(ids)
        if scheduled.drafts:
            self.manager.crop(sequence.id, sequence.computed)

    def _schedule(self, sequence: Sequence, left: int) -> ScheduledSequence:
        """The next tokens, at most `left`, but all up to the last image; logits of the last one if no more are known.
        Raises OutOfBlocks."""
        start, count = sequence.computed, sequence.whole
        if start >= count:
            count = self.manager.step(sequence.id, min(sequence.pending, left))
        copies = self.manager.reserve(sequence.id, count)
        ids = sequence.tokens[start : start + count]
        return ScheduledSequence(sequence, start, ids, int(count == sequence.pending), copies)

    def _add(self, scheduled: ScheduledSequence, drafts: list[int]) -> int:
        """Draft tokens to a step, if there are blocks for them; returns how many."""
        try:
            scheduled.copies += self.manager.reserve(scheduled.id, len(scheduled.ids) + len(drafts))
        except OutOfBlocks:
            return 0
        scheduled.ids += drafts
        scheduled.wanted += len(drafts)
        return len(drafts)

    def _admit(self, sequence: Sequence, left: int) -> ScheduledSequence | None:
        """Begin with a sequence, if there are blocks for all of its tokens."""
        manager = self.manager
        sequence.computed = sequence.reused = manager.add(
            sequence.id, sequence.tokens, salt=sequence.salt, least=sequence.whole
        )
        # one block more for each running one, or this one would soon be the victim of their next tokens
        if manager.needs(sequence.id, sequence.pending) + len(self.running) > manager.available and self.running:
            manager.free(sequence.id)
            return None
        try:
            scheduled = self._schedule(sequence, left)
        except OutOfBlocks:
            manager.free(sequence.id)
            return None
        self.running.append(sequence)
        return scheduled

    def _preempt(self, sequence: Sequence) -> None:
        self.waiting.appendleft(sequence)
        self.running.remove(sequence)
        self.manager.free(sequence.id)
        sequence.computed = 0
        sequence.preempted += 1
