"""Where drafts of the next tokens come from, earlier text or a smaller model, and what is known of a sequence's drafts.

Drafts change how long a generation takes, never its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torch import Tensor

from torch_foundry.core.limits import ROWS_TOGETHER
from torch_foundry.generation.draft_history import AcceptanceRates, DraftHistory
from torch_foundry.sampling import Sampler

MAX_DRAFT_TOKENS = ROWS_TOGETHER - 1  # draft tokens in a step, beside the newest token
LONGEST_MATCH = 3  # tokens that are looked up
LONGEST_PAUSE = 16  # tokens without drafts, at most, after which a text is looked up again


@dataclass
class SpeculationStats:
    """Cumulative statistics of speculative decoding."""

    steps: int = 0  # of the model, with drafts and without
    drafted: int = 0  # tokens
    accepted: int = 0  # of these, the ones that the model chose as well
    tokens: int = 0  # generated in these steps
    seconds: float = 0.0  # in steps that were timed: not in those that captured a graph
    without: float = 0.0  # seconds that the tokens of these steps would have taken without drafts
    times: dict[tuple[int, int], float] = field(default_factory=dict)  # as the newest source's `DraftHistory` has them
    # of each source of drafts: a draft model, an MTP head, `PromptLookup`
    histories: WeakKeyDictionary[Any, DraftHistory] = field(default_factory=WeakKeyDictionary)
    stopped: str = ""  # why the newest generation ended without

    def count(self, drafted: int, accepted: int, tokens: int) -> None:
        """A step with `drafted` drafts, or as many steps as `tokens` without, gave `tokens`."""
        self.steps += 1 if drafted else tokens
        self.drafted += drafted
        self.accepted += accepted
        self.tokens += tokens

    def __str__(self) -> str:
        share = self.accepted / self.drafted if self.drafted else 0.0
        text = f"{self.accepted} of {self.drafted} accepted ({share:.0%})"
        text += f", {self.tokens / self.steps if self.steps else 0:.2f} tokens a step"
        if self.seconds:
            text += f", {self.without / self.seconds:.2f} times as fast as without"
        return text + (f"; {self.stopped}" if self.stopped else "")


def accepted(drafts: list[int], chosen: list[int]) -> int:
    """How many of the drafts are what was chosen, up to the first that isn't."""
    return next((i for i, (a, b) in enumerate(zip(drafts, chosen, strict=False)) if a != b), len(drafts))


class PromptLookup:
    """What followed the last place where the text's newest tokens stood (A. Saxena, "Prompt Lookup Decoding", 2023).

    longest: of the sequences that are looked up, in tokens; the longest one found counts.
    """

    def __init__(self, longest: int = LONGEST_MATCH) -> None:
        self.longest = longest
        self.looked = 0  # tokens of the text whose drafts were seen, or looked back at
        self._ends: dict[tuple[int, ...], int] = {}  # of each sequence: where its last occurrence ends
        self._seen = 0  # tokens of the text that are in it, but for those that nothing follows yet

    def propose(self, text: list[int], max_draft_tokens: int, end: int | None = None) -> tuple[int, list[int]]:
        """Draft tokens that may follow the first `end` tokens of `text` (default: all), and how many tokens before them
        were found before; 0 and none if not even the newest was. Neither text nor end shrinks between calls.

        What follows is copied token by token, so it may go on into the copy: a text that repeats two tokens is drafted
        to repeat them for ever.
        """
        end = len(text) if end is None else end
        for at in range(self._seen + 1, end):
            for length in range(1, min(self.longest, at) + 1):
                self._ends[tuple(text[at - length : at])] = at
        self._seen = max(self._seen, end - 1)
        for length in range(min(self.longest, end), 0, -1):
            if (found := self._ends.get(tuple(text[end - length : end]))) is not None:
                period = text[found : min(end, found + max(max_draft_tokens, 1))]
                return length, (period * (1 + max_draft_tokens // len(period)))[:max_draft_tokens]
        return 0, []

    def look_back(self, text: list[int], max_draft_tokens: int) -> Iterator[tuple[int, int, int]]:
        """What drafts would have been worth for the tokens of `text` from `looked` on: for each step that would have
        had some, how many tokens were found to stand there and before, how many were drafted, and how many right."""
        while self.looked < len(text):
            kind, found = self.propose(text, max_draft_tokens, self.looked)
            found = found[: len(text) - self.looked]
            num_accepted = accepted(found, text[self.looked :])
            if found:
                yield kind, len(found), num_accepted
            self.looked = min(self.looked + num_accepted + 1, len(text))


@dataclass
class Text:
    """The tokens of a sequence, which only grow, up to a limit."""

    tokens: list[int]
    limit: int


class SequenceDrafts:
    """The drafts of one sequence for its next step, and the acceptance rates of those before.

    sequence: a `Text`, or what else has its attributes. lookup: where drafts come from; None: a draft model. rates: of
    the sequences before.
    """

    def __init__(
        self, sequence: Any, max_draft_tokens: int, lookup: PromptLookup | None, rates: AcceptanceRates | None = None
    ) -> None:
        self.sequence, self.lookup = sequence, lookup
        self.max_draft_tokens = min(max_draft_tokens, MAX_DRAFT_TOKENS)
        if lookup is not None:
            lookup.looked = len(sequence.tokens)
        self.kind = self.at_hand = 0  # kind and number of the drafts that there may be in the next step
        self.drafts: list[int] | Tensor = []  # int64 [n] on the device if only that knows them yet
        self.accepted = 0  # of the newest drafts that were verified
        self._pause, self._resume = 1, 0  # tokens without drafts the next time; length of the text that ends this time
        self._rates = AcceptanceRates(rates)

    @property
    def paused(self) -> int:
        """Tokens yet to come without drafts."""
        resume: int = self._resume - len(self.sequence.tokens)
        return resume

    def look(self, most: int) -> int:
        """Look for drafts, `most` at most; returns how many are at hand, of which the model's are yet to be made."""
        text, self.at_hand, self.drafts = self.sequence.tokens, 0, []
        left = min(self.max_draft_tokens, self.sequence.limit - len(text) - 1, most)
        if left < 1 or self._resume > len(text):
            return 0
        if self.lookup is None:
            self.at_hand = left
            return left
        for seen in self.lookup.look_back(text, self.max_draft_tokens):
            self.update(*seen)
        self.kind, drafts = self.lookup.propose(text, left)
        self.drafts, self.at_hand = drafts, len(drafts)
        if not drafts:
            self.pause()
        return self.at_hand

    def pause(self, tokens: int = 0) -> None:
        """Have no drafts for `tokens` tokens; default: one, and each time twice as many until a draft is accepted."""
        if not tokens:
            tokens, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        self._resume = len(self.sequence.tokens) + tokens

    def note(self, drafted: int, accepted: int) -> None:
        """Of `drafted` drafts the first `accepted` were accepted, and are part of the text by now."""
        self.accepted = accepted
        if self.lookup is not None:
            self.lookup.looked = len(self.sequence.tokens)
        self.update(self.kind, drafted, accepted)

    def update(self, kind: int, drafted: int, accepted: int) -> None:
        """Take note that the first `accepted` of `drafted` were accepted, or would have been."""
        self._rates.update(kind, drafted, accepted)
        if accepted:
            self._pause = 1

    def tokens(self, drafts: int) -> float:
        """What a step with so many of the drafts at hand gives on average, if each is accepted at the same rate when
        those before it are (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023)."""
        p = min(self._rates[self.kind], 0.99)
        return (1 - p ** (min(drafts, self.at_hand) + 1)) / (1 - p)


class Drafter(Protocol):
    """A draft model with a cache of its own.

    usual: whether the last `propose` did what each one does; it captured no graph then, and read no long text.
    of_prompt: where it wants the hidden states of the target's prompt; None: it wants none.
    """

    usual: bool
    of_prompt: list[Tensor] | None

    def begin(self, target: Sampler) -> None:
        """Before the first draft token. target: what the target model chooses with."""

    def propose(self, sequences: Sequence[SequenceDrafts], count: int) -> None:
        """Give sequences `drafts`, at most `count` each. Raises Fallback if the model can't be run."""

    def leave(self, own: SequenceDrafts) -> None:
        """A sequence has ended, or lost its place."""
