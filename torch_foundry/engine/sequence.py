"""A sequence, from submit to result, and its part in a step. No tensors: the scheduler handles numbers only."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from typing import Any

from torch_foundry.kvcache.block_manager import Copy


@dataclass(eq=False)
class Sequence:
    """A request from submit to result: what was asked, the tokens so far, and what scheduler and engine note of it."""

    tokens: list[int]  # the prompt's, then what was chosen
    prompt: int  # how many of them are the prompt's
    limit: int  # tokens that there may be at most
    salt: bytes = b""
    sampling: Any = None  # torch_foundry.sampling.Settings
    seed: int = 0
    text: Any = None  # Detokenizer, if there is a tokenizer
    drafting: Any = None  # torch_foundry.generation.drafting.SequenceDrafts, if there may be draft tokens
    speculation: Any = None  # statistics of speculation
    constraint: Any = None  # torch_foundry.engine.next_tokens.Constraint
    bias: Any = None  # ids and what is added to their logits, on the device
    images: Any = None  # torch_foundry.engine.images.Images, if it is shown some
    top_logprobs: int | None = None  # likeliest tokens to note of each new one; None: nothing of it
    logprobs: list[Any] = field(default_factory=list)  # TokenLogprobs of each new token, if wanted

    id: int = -1  # set by the scheduler, as what follows
    computed: int = 0  # tokens that are in the cache
    preempted: int = 0  # how often it lost its blocks
    reused: int = 0  # tokens that were found in the cache when it was admitted last

    row: int | None = None  # of the sampler; set by the engine, as what follows
    fault: RuntimeError | ValueError | None = None  # why no token could be chosen
    finish_reason: str = ""

    @property
    def pending(self) -> int:
        """Tokens that are known and not in the cache: more than one only before the first new token, or once again."""
        return len(self.tokens) - self.computed

    @property
    def whole(self) -> int:
        """Tokens of the prompt that are taken in together or not at all: those up to the end of its last image."""
        return 0 if self.images is None else int(self.images.end)

    @property
    def shift(self) -> int:
        """The position of a token behind these, less its number."""
        return 0 if self.images is None else int(self.images.shift)

    @property
    def watched(self) -> bool:
        """Whether the host has a part in each of its tokens, so that they come one by one."""
        return self.constraint is not None or self.top_logprobs is not None

    @property
    def drafts(self) -> list[int]:
        """Draft tokens for the next step."""
        return [] if self.drafting is None else self.drafting.drafts

    @property
    def error(self) -> RuntimeError | ValueError | None:
        """What ended it, if it was an error."""
        return self.fault or (self.text and self.text.error)

    def append(self, token: int) -> str:
        """Add a new token; returns why the sequence ends with it ("stop", "length", "error"), or ""."""
        reason = "stop" if token in self.sampling.eos else self.text.push(token) if self.text else ""
        self.tokens.append(token)
        return reason or ("length" if len(self.tokens) >= self.limit else "")

    def finish(self, reason: str) -> None:
        """End it; with an error if the rest of its text can't be had."""
        if self.text:
            self.text.finish()
        self.finish_reason = "error" if self.error else reason


@dataclass
class ScheduledSequence:
    """A sequence in a step that computes the tokens `ids`, which begin with its token number `start`.

    wanted: of how many of them, the last ones, logits are computed. A prompt's part wants none, its end one; a
    generating sequence wants one for its newest token and one for each draft token behind it.
    """

    sequence: Sequence
    start: int
    ids: list[int]
    wanted: int = 0
    copies: list[Copy] = field(default_factory=list)  # blocks to copy before
    # set by the engine when tokens have been chosen:
    new_tokens: list[int] = field(default_factory=list)
    num_accepted: int = 0  # of the draft tokens
    error_bits: int = 0

    @property
    def id(self) -> int:
        """The sequence's."""
        return self.sequence.id

    @property
    def shows_images(self) -> bool:
        """Whether it is that part of a prompt that has its images."""
        return self.start < self.sequence.whole

    @property
    def drafts(self) -> list[int]:
        """The draft tokens at the end of `ids`."""
        return self.ids[len(self.ids) - self.wanted + 1 :] if self.wanted else []

    def behind(self, steps: int) -> ScheduledSequence:
        """The same, `steps` tokens later, of which none is known yet: each step gives one."""
        return replace(self, start=self.start + steps, ids=[0], copies=[], new_tokens=[])

    def cut(self, size: int) -> Iterator[ScheduledSequence]:
        """The same in parts of at most `size` tokens, without logits; itself if it has no more."""
        if len(self.ids) <= size:
            yield self
            return
        for at in range(0, len(self.ids), size):
            yield replace(self, start=self.start + at, ids=self.ids[at : at + size], wanted=0)


Parts = Several[ScheduledSequence]
