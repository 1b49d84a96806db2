"""Where drafts of the next tokens come from: earlier text, or a smaller model.

Drafts change how long a generation takes, never its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core.errors import Fallback
from torch_foundry.generation.runner import DecodeRunner
from torch_foundry.kvcache.undo import Checkpoint
from torch_foundry.models.calls import LONGEST_STEP
from torch_foundry.models.decoder import decoder_plan
from torch_foundry.sampling import Sampler

LONGEST = 3  # tokens that are looked up


def accepted(drafts: list[int], chosen: list[int]) -> int:
    """How many of the drafts are what was chosen, up to the first that isn't."""
    return next((i for i, (a, b) in enumerate(zip(drafts, chosen, strict=False)) if a != b), len(drafts))


class PromptLookup:
    """What followed the last place where the text's newest tokens stood (A. Saxena, "Prompt Lookup Decoding", 2023).

    longest: of the sequences that are looked up, in tokens; the longest one found counts.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self.longest = longest
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

    def look_back(self, text: list[int], start: int, max_draft_tokens: int) -> Iterator[tuple[int, int, int]]:
        """What drafts would have been worth for the tokens of `text` from `start` on: for each step that would have
        had some, how many tokens were found to stand there and before, how many were drafted, and how many right."""
        while start < len(text):
            kind, found = self.propose(text, max_draft_tokens, start)
            found = found[: len(text) - start]
            num_accepted = accepted(found, text[start:])
            if found:
                yield kind, len(found), num_accepted
            start += num_accepted + 1


class DraftModel:
    """A smaller model of the same vocabulary, patched, on steps of its own.

    It draws with the same random numbers as the model that it drafts for, so where both have the same distribution
    they draw the same token. Raises Fallback if the model can't take steps by itself.
    """

    def __init__(self, model: Any, prompt: torch.Tensor, capacity: int) -> None:
        """prompt: int64 [1, n]; capacity: of the sampler."""
        self.model, self._prompt, self._capacity = model, prompt, capacity
        self._cache = DynamicCache(config=model.config)
        positions = torch.arange(prompt.shape[1], device="cpu")[None]
        self._runner = DecodeRunner(model, model.generator_plan(), self._cache, 1, {"position_ids": positions})
        self._runner.ready()
        self._runner.reserve_hint(capacity - prompt.shape[1])
        self._fed: list[int] = []  # tokens in the cache, drafts among them
        self._known = 0  # of them, the first ones that are no drafts
        self.usual = False  # whether the last `propose` neither read a prompt nor captured a graph

    def begin(self, target: Sampler) -> None:
        """Before the first draft token. target: what the other model chooses with."""
        settings, vocab_size = target.settings[0], self.model.lm_head.out_features
        assert settings is not None
        self._sampler = Sampler(
            settings, self._prompt, vocab_size=vocab_size, capacity=self._capacity, seed=target.seed, streams=[0]
        )
        self._runner.begin(self._sampler, self._prompt)

    def propose(self, text: list[int], max_draft_tokens: int) -> torch.Tensor:
        """Draft tokens that may follow `text`, which only grows between calls: int64 [max_draft_tokens] on the device.

        Waits for nothing; once they are known, `proposed` has to be told.
        """
        plan = decoder_plan(self.model)
        known, captured = self._known, plan.captured
        while known < min(len(self._fed), len(text)) and self._fed[known] == text[known]:
            known += 1
        self._runner.commit(known - self._cache.get_seq_length())
        self._runner.settle()
        self._fed, self._known = text[:known], known
        if len(text) - 1 > known:
            self._read(text[known:-1])
        self._runner.seek(len(text) - 1)
        self._sampler.seek([len(text)], text[-1:])
        if not self._runner.step(max_draft_tokens, max_draft_tokens):
            raise Fallback("the draft's cache has to move")
        self.usual = len(text) - 1 - known <= LONGEST_STEP and plan.captured == captured
        self._fed, self._known = list(text), len(text)
        return self._sampler.ids[0, len(text) : len(text) + max_draft_tokens]

    def proposed(self, tokens: list[int]) -> None:
        """These were the tokens of the last `propose`; of all but the last one keys and values are there."""
        self._fed += tokens[:-1]

    def _read(self, tokens: list[int]) -> None:
        """Append `tokens` to the cache."""
        undo = Checkpoint(self._cache)
        ids = torch.tensor([tokens], device=self._sampler.device)
        try:
            with torch.no_grad():
                self.model(input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        except BaseException:
            undo.run()
            raise
