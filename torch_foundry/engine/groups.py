"""What a forward pass over pages is about: sequences, and those of the same length side by side."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Part:
    """A sequence in a step: `ids`, the first of which is token number `start`, and logits of the last `wanted` of them.

    name: in the cache's block manager, which has room for them.
    """

    name: Hashable
    start: int
    ids: list[int]
    wanted: int


@dataclass
class Group:
    """Sequences with the same number of new tokens, side by side in a step.

    first: of its tokens among all of the step. rows: int32 [B, 2], where the first one lies and how many there are.
    table: int32 [B, blocks]. positions: int32 [B, L]. pieces: what attention is taken of at a time: the first token,
    how many, and their rows.
    """

    first: int
    batch: int
    length: int
    rows: Tensor
    table: Tensor
    positions: Tensor
    pieces: list[tuple[int, int, Tensor]]

    @property
    def tokens(self) -> slice:
        """Its tokens among all of the step."""
        return slice(self.first, self.first + self.batch * self.length)
