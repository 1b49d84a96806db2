"""A model's own MTP head that drafts for one sequence: it goes on from the model's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core.errors import Fallback
from torch_foundry.generation.draft_model import DraftModel
from torch_foundry.generation.drafting import SequenceDrafts
from torch_foundry.generation.runner import DecodeRunner
from torch_foundry.models.calls import LONGEST_STEP
from torch_foundry.models.decoder import decoder_plan
from torch_foundry.models.weights import AUTO
from torch_foundry.sampling import Sampler


class HiddenStates:
    """What the last norm of a model gave for the tokens of a text, as long as nobody has used it.

    Each step begins behind the first token of the one before: what that had of drafts that were rejected doesn't count.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, Tensor]] = []  # number of the first token, and [n, hidden] from it on

    def put(self, first: int, hidden: Tensor) -> None:
        """hidden: [1, n, hidden] of the tokens from number `first` on, which may change afterwards."""
        self._parts.append((first, hidden[0].clone()))

    def take(self, first: int, end: int) -> Tensor:
        """[end - first, hidden] of these tokens, which are forgotten, like those before. Raises Fallback if some are
        missing."""
        ends = [*(start for start, _ in self._parts[1:]), end]
        found = [part[max(first - at, 0) : stop - at] for (at, part), stop in zip(self._parts, ends, strict=False)]
        self._parts = []
        rows = torch.cat([part for part in found if len(part)]) if any(map(len, found)) else torch.empty(0)
        if len(rows) != end - first:
            raise Fallback("hidden states of some tokens are missing")
        return rows


class MTPDrafter(DraftModel):
    """A `Drafter` that waits for nothing. Its state of a token is made of the next token and the model's hidden state.

    Draft tokens behind the first follow from hidden states of its own; the model's take their place once these tokens
    were verified. Raises Fallback if the head can't take steps by itself.
    """

    def __init__(self, head: Any, target: DecodeRunner, prompt: Tensor, capacity: int) -> None:
        """head: patched. target: of the model, whose steps are watched from now on. prompt, capacity: as of
        `DraftModel`."""
        super().__init__(head, prompt, capacity + LONGEST_STEP)  # rows of a step may go beyond the last token
        self._target, self._hidden = target, HiddenStates()
        self.of_prompt = []  # hidden states [1, n, hidden] of the prompt's end, in order
        self._first = 0  # number of the first token that the head knows
        self._offset: int | None = None  # of positions from numbers of tokens

    def begin(self, target: Sampler) -> None:
        """See `Drafter`."""
        super().begin(target)
        parts = self.of_prompt or []
        at = self._read = self._first = self._prompt.shape[1] - sum(part.shape[1] for part in parts)
        for part in parts:
            self._hidden.put(at, part)
            at += part.shape[1]
        self.of_prompt = []
        self._target.seen = self._see

    def _see(self, position: int, hidden: Tensor) -> None:
        """A step of the target; the first one's token is that behind the prompt."""
        if self._offset is None:
            self._offset = position - self._prompt.shape[1]
        self._hidden.put(position - self._offset, hidden)

    def propose(self, sequences: Sequence[SequenceDrafts], count: int) -> None:
        """See `Drafter`."""
        (own,) = sequences
        text, plan = own.sequence.tokens, decoder_plan(self.model)
        captured, end, own.accepted = plan.captured, len(text), 0
        known, new = self._read, len(text) - 1 - self._read
        hidden = self._hidden.take(known, end - 1)
        few = new if new <= LONGEST_STEP and known > self._first else 1
        self.usual = new == few and known > self._first
        if not self.usual:
            few = min(few, new - 1)  # steps are for a cache that is not empty
            self._append_beside(text[known + 1 : end - few], hidden[: new - few])
            if not few:
                return self._keep(end - 1)
        start = end - 1 - few
        self._runner.seek(start)
        if few == 1:
            self._choose(text, end, count, hidden[-1:])
            self._keep(end - 1)
            own.drafts = self._runner.sampler.ids[0, end : end + count]
        else:
            more = torch.tensor(text[start + 2 :], dtype=torch.int64)
            sampler, behind = self._runner.choose(text[start + 1], more, start + 2, LONGEST_STEP, hidden)
            first = sampler.token[few - 1]
            self._keep(end - 1)
            own.drafts = first
            if count > 1:
                self._runner.seek(end - 1)
                self._choose([*text, 0], end + 1, count - 1, behind[0, few - 1 : few], first)
                own.drafts = torch.cat([first, self._runner.sampler.ids[0, end + 1 : end + count]])
        self.usual &= plan.captured == captured

    def leave(self, own: SequenceDrafts) -> None:
        """See `Drafter`."""
        self._target.seen = None
        super().leave(own)

    def _choose(self, text: list[int], end: int, steps: int, hidden: Tensor, newest: Tensor | None = None) -> None:
        """`steps` tokens behind the first `end` ones. hidden: [1, hidden] behind the last but one of these. newest: the
        last, if only the device knows it."""
        self._runner.sampler.seek([end], text[end - 1 : end] if newest is None else None)
        if newest is not None:
            self._runner.sampler.token.copy_(newest[None])
        if not self._runner.step(steps, steps, hidden):
            raise Fallback("the head's cache has to move")

    def _keep(self, known: int) -> None:
        """All before token `known` are in the cache, with the model's hidden states."""
        self._read = known
        self._commit(known - self._first)

    def _append_beside(self, tokens: list[int], hidden: Tensor) -> None:
        """Read `tokens`, each behind its row of `hidden`, layer by layer; they go to the cache."""
        ids = torch.tensor([tokens], device=self._runner.sampler.device)
        with torch.no_grad():
            x = decoder_plan(self.model).embed_beside(ids, hidden[None], AUTO)
        at = torch.arange(self._read, self._read + len(tokens), device=x.device)[None]
        self._forward(inputs_embeds=x, position_ids=at)
