"""Tokens for an engine's requests from the logits of a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_foundry.decode.drafts import accepted
from torch_foundry.engine.scheduler import Chunk
from torch_foundry.sampling import Slots


class Chooser:
    """Chooses for requests that have rows in `slots`, in the order of these rows. Both ways wait for the device."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots

    def __call__(self, chunks: Sequence[Chunk], rows: Sequence[int], logits: Tensor) -> list[tuple[list[int], int]]:
        """The new tokens of each chunk, and error bits. logits: of each chunk as many as it has guesses, and one."""
        slots = self.slots
        first = list(itertools.accumulate((1 + len(chunk.guesses) for chunk in chunks), initial=0))
        guessed = [i for i, chunk in enumerate(chunks) if chunk.guesses]
        single = [i for i, chunk in enumerate(chunks) if not chunk.guesses]
        self._single([rows[i] for i in single], self._some(logits, [first[i] for i in single]))
        parts = [slots.token[:, 0], slots.errors]
        where = [(i, row) for i in guessed for row in range(first[i], first[i + 1])]
        if where:
            lengths = [len(chunks[i].job.tokens) + row - first[i] for i, row in where]
            parts += slots.peek(self._some(logits, [row for _, row in where]), [rows[i] for i, _ in where], lengths)
        found = torch.cat(parts).tolist()
        token, errors, peeked = found[: slots.rows], found[slots.rows : 2 * slots.rows], found[2 * slots.rows :]
        new = {i: ([token[rows[i]]], errors[rows[i]]) for i in single}
        at = 0
        for i in guessed:
            count = first[i + 1] - first[i]
            chosen, bits = peeked[at : at + count], peeked[len(where) + at : len(where) + at + count]
            right = accepted(chunks[i].guesses, chosen)
            # a guess without scores may have cost the tokens before it theirs (0 times infinity is NaN in attention):
            # once more, without guesses
            chunks[i].right = -1 if any(bits) else right
            new[i] = chosen[: chunks[i].right + 1], 0
            at += count
        if guessed:
            slots.seek([rows[i] for i in guessed], [len(chunks[i].job.tokens) + len(new[i][0]) for i in guessed])
        return [new[i] for i in range(len(chunks))]

    def several(
        self, rows: Sequence[int], logits: Tensor, go_on: Callable[[Tensor], Tensor | None], steps: int
    ) -> list[list[tuple[int, int]]]:
        """Up to `steps` tokens for each row, one step after the other: a token and error bits for each.

        go_on: the logits [n, V] behind the rows' tokens, int64 [n]; None: no further. All is handed to the device
        before anything is read.
        """
        slots, found = self.slots, []
        newest = slots.token[:, 0]
        place = None if list(rows) == list(range(len(rows))) else torch.tensor(rows).to(slots.device, non_blocking=True)
        following: Tensor | None = logits
        while following is not None:
            self._single(rows, following)
            found.append(torch.cat([newest, slots.errors]))
            if len(found) == steps:
                break
            following = go_on(newest[: len(rows)] if place is None else newest[place])
        return [[(step[row], step[slots.rows + row]) for row in rows] for step in torch.stack(found).tolist()]

    def _single(self, rows: Sequence[int], logits: Tensor) -> None:
        at = 0
        while at < len(rows):  # runs of neighbours
            end = at + 1
            while end < len(rows) and rows[end] == rows[end - 1] + 1:
                end += 1
            self.slots.step(logits[at:end], first=rows[at])
            at = end

    def _some(self, logits: Tensor, rows: list[int]) -> Any:
        if rows == list(range(len(logits))):
            return logits
        return logits[torch.tensor(rows, dtype=torch.int32).to(self.slots.device, non_blocking=True)]
