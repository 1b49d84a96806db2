"""A model's own MTP head that drafts for the requests of an engine, on pages of its own."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core.errors import Fallback
from torch_foundry.engine.forward import Forward
from torch_foundry.engine.sequence import ScheduledSequence, Sequence
from torch_foundry.generation.drafting import MAX_DRAFT_TOKENS, SequenceDrafts
from torch_foundry.generation.mtp import HiddenStates
from torch_foundry.kvcache.block_manager import OutOfBlocks
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.models.calls import LONGEST_STEP
from torch_foundry.models.mtp import is_head_of
from torch_foundry.sampling import Sampler

READ_AT_ONCE = 256  # tokens that a drafter reads in one step; so many hidden states may wait for the head to read them


@dataclass
class _Known:
    """What there is of a sequence: `first`, the number of the first token that the head has pages of, and the model's
    hidden states of tokens that it hasn't read yet, about how many."""

    sequence: Sequence
    first: int
    hidden: HiddenStates = field(default_factory=HiddenStates)
    waiting: int = 0


class PagedMTPDrafter:
    """A `Drafter` of many sequences. What the head keeps of a token is made of the next token and of the model's hidden
    state, so it depends on the text alone, and sequences with the same beginning share its pages, too.

    What it keeps of draft tokens, from hidden states of its own, is never committed: the next step writes over it.
    Where a prefix was found in the model's pages and not in the head's, the head knows what comes behind.
    Raises Fallback if it can't be run so.
    """

    of_prompt: list[Tensor] | None = None
    max_draft_tokens = MAX_DRAFT_TOKENS

    def __init__(self, head: Any, model: Any, blocks: int, block_size: int, **options: Any) -> None:
        """head: patched, of `model`. options: of `Forward`."""
        self._head, self._model = head, model
        self.cache = PagedCache(head.config, blocks, block_size=block_size)
        self._forward = Forward(head, self.cache, **options)
        self._made = made = list[Tensor]()  # the last norm's result of the newest step, [T, hidden]
        self._forward.seen = lambda _, hidden, ahead: made.append(hidden)
        self._plan = self._forward.plan
        self._known: dict[Hashable, _Known] = {}
        self.usual = False

    def begin(self, target: Sampler) -> None:
        """See `Drafter`."""
        self._sampler = target

    def leave(self, own: SequenceDrafts) -> None:
        """See `Drafter`."""
        self._drop(own.sequence.id)

    def seen(self, parts: Several[ScheduledSequence], hidden: Tensor, ahead: int) -> None:
        """A step of the model: see `Forward`."""
        ends = itertools.accumulate(len(part.ids) for part in parts)
        for part, end in zip(parts, ends, strict=True):
            if part.sequence.drafting.lookup is None:
                known = self._known.get(part.id) or self._begin(part.sequence, part.start)
                known.hidden.put(part.start + ahead, hidden[None, end - len(part.ids) : end])
                known.waiting += len(part.ids)

    def catch_up(self) -> bool:
        """Read what has waited for long, as of prompts; returns whether there was something."""
        late = [known for known in self._known.values() if known.waiting >= READ_AT_ONCE]
        for known in late:
            try:
                self._read(known)
            except (Fallback, OutOfBlocks):
                self._drop(known.sequence.id)
        return bool(late)

    def propose(self, sequences: Several[SequenceDrafts], count: int) -> None:
        """See `Drafter`. Tokens are chosen as a sequence's row of the target's sampler says, with its random numbers;
        none where there are no blocks. Waits for the device once."""
        if not is_head_of(self._head, self._model):
            raise Fallback("the model has another embedding or output layer than its MTP head")
        captured, self.usual = self._plan.captured, True
        active, parts, given = list[SequenceDrafts](), list[ScheduledSequence](), list[Tensor]()
        for own in sequences:
            own.drafts = []
            if (begun := self._part(own.sequence, count)) is not None:
                active.append(own)
                parts.append(begun[0])
                given.append(begun[1])
        if parts:
            drafts = self._draft(active, parts, torch.cat(given), count)
            for own, each in zip(active, torch.stack(drafts, dim=1).tolist(), strict=True):
                own.drafts = each[: own.at_hand]
        self.usual &= self._plan.captured == captured

    def _draft(
        self, active: Several[SequenceDrafts], parts: list[ScheduledSequence], hidden: Tensor, count: int
    ) -> list[Tensor]:
        """Draft tokens, `count` of int64 [n], behind `parts`: all steps are handed over without waiting for one."""
        lengths = [len(own.sequence.tokens) for own in active]
        choose = self._sampler.branch([own.sequence.row for own in active], lengths)
        logits = self._step(parts, hidden)
        for part in parts:
            self.cache.manager.commit(part.id, part.ids)
        places = [part.start + len(part.ids) for part in parts]  # of draft tokens, in the head's pages
        ends, hidden = list(itertools.accumulate(len(part.ids) for part in parts)), self._made.pop()
        if ends[-1] > len(parts):
            last = torch.tensor([end - 1 for end in ends], dtype=torch.int32).to(logits.device, non_blocking=True)
            logits, hidden = logits[last], hidden[last]
        found = [choose(logits).clone()]
        for drafted in range(1, count):
            following = self._forward.go_on(found[-1], parts, drafted, hidden)
            if following is None:
                each = zip(active, places, strict=True)
                parts = [ScheduledSequence(own.sequence, at + drafted - 1, [0], 1) for own, at in each]
                following = self._step(parts, hidden, found[-1])
            hidden = self._made.pop()
            found.append(choose(following).clone())
        return found

    def _begin(self, sequence: Sequence, start: int) -> _Known:
        """A sequence whose hidden states are known from token `start` on: behind those that others had, or, where that
        is not all before them, as if its text began there."""
        manager, id, text = self.cache.manager, sequence.id, sequence.tokens
        salt = sequence.salt + text[0].to_bytes(8, "little")  # of which its pages have only the hidden state
        first = 0
        if manager.add(id, text[1:], salt=salt) < start:
            manager.free(id)
            manager.add(id, [], salt=salt + b"%d of %d" % (start, id))  # nobody else's
            first = start
        known = self._known[id] = _Known(sequence, first)
        return known

    def _drop(self, id: Hashable) -> None:
        if self._known.pop(id, None) is not None:
            self.cache.manager.free(id)

    def _part(self, sequence: Sequence, count: int) -> tuple[ScheduledSequence, Tensor] | None:
        """The step that reads the newest tokens of a sequence, and their hidden states; there is room for `count` draft
        tokens behind. None: there is nothing to go on from, or no room."""
        known, manager = self._known.get(sequence.id), self.cache.manager
        if known is None or sequence.row is None:
            return None
        try:
            if self._start(known) + LONGEST_STEP < sequence.computed:
                self._read(known)
                self.usual = False
            at, end = self._start(known), sequence.computed
            if at == end:  # the step behind them failed
                return None
            known.waiting, hidden = 0, known.hidden.take(at, end)
            self.cache.copy(manager.reserve(sequence.id, end - at + count - 1))
        except (Fallback, OutOfBlocks):
            self._drop(sequence.id)
            return None
        return ScheduledSequence(sequence, at - known.first, sequence.tokens[at + 1 : end + 1], end - at), hidden

    def _start(self, known: _Known) -> int:
        """Number of the first token that the head has not read."""
        return known.first + self.cache.manager.length(known.sequence.id)

    def _read(self, known: _Known) -> None:
        """Read all tokens but the last one of which there are hidden states. Raises Fallback and OutOfBlocks."""
        sequence, manager = known.sequence, self.cache.manager
        at, end = self._start(known), sequence.computed - 1
        if at >= end:  # more was found than the model has read
            return
        hidden = known.hidden.take(at, end + 1)
        known.hidden.put(end, hidden[None, -1:])
        known.waiting = 1
        for first in range(at, end, READ_AT_ONCE):
            count = min(READ_AT_ONCE, end - first)
            part = ScheduledSequence(sequence, first - known.first, sequence.tokens[first + 1 : first + 1 + count])
            self.cache.copy(manager.reserve(sequence.id, count))
            self._step([part], hidden[first - at : first - at + count])
            manager.commit(sequence.id, part.ids)

    def _step(self, parts: Several[ScheduledSequence], *given: Tensor) -> Tensor:
        self._made.clear()
        return self._forward(parts, *given)
