"""Where guesses of the next tokens come from: earlier text, or a smaller model.

Guesses change how long a generation takes, never its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core.errors import Fallback
from torch_foundry.decode.steps import Steps
from torch_foundry.kvcache.undo import Undo
from torch_foundry.patch.calls import LONGEST_STEP
from torch_foundry.sampling import Sampler, Settings

LONGEST = 3  # tokens that are looked up


def accepted(guesses: list[int], chosen: list[int]) -> int:
    """How many of the guesses are what was chosen, up to the first that isn't."""
    return next((i for i, (a, b) in enumerate(zip(guesses, chosen, strict=False)) if a != b), len(guesses))


class PromptLookup:
    """What followed the last place where the text's newest tokens stood (A. Saxena, "Prompt Lookup Decoding", 2023).

    longest: of the sequences that are looked up, in tokens; the longest one found counts.
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self.longest = longest
        self._ends: dict[tuple[int, ...], int] = {}  # of each sequence: where its last occurrence ends
        self._seen = 0  # tokens of the text that are in it, but for those that nothing follows yet

    def propose(self, text: list[int], most: int, end: int | None = None) -> tuple[int, list[int]]:
        """`most` tokens that may follow the first `end` tokens of `text` (default: all), and how many tokens were found
        to stand there and before; 0 and none if not even the newest did. Neither text nor end shrinks between calls.

        What follows is copied token by token, so it may go on into the copy: a text that repeats two tokens is guessed
        to repeat them for ever.
        """
        end = len(text) if end is None else end
        for at in range(self._seen + 1, end):
            for length in range(1, min(self.longest, at) + 1):
                self._ends[tuple(text[at - length : at])] = at
        self._seen = max(self._seen, end - 1)
        for length in range(min(self.longest, end), 0, -1):
            if (found := self._ends.get(tuple(text[end - length : end]))) is not None:
                period = text[found : min(end, found + max(most, 1))]
                return length, (period * (1 + most // len(period)))[:most]
        return 0, []

    def look_back(self, text: list[int], start: int, most: int) -> Iterator[tuple[int, int, int]]:
        """What guesses would have been worth for the tokens of `text` from `start` on: for each step that would have
        had some, how many tokens were found to stand there and before, how many were guessed, and how many right."""
        while start < len(text):
            kind, found = self.propose(text, most, start)
            found = found[: len(text) - start]
            right = accepted(found, text[start:])
            if found:
                yield kind, len(found), right
            start += right + 1


class DraftModel:
    """A smaller model of the same vocabulary, patched, on steps of its own.

    It draws with the same random numbers as the model that it guesses for, so where both have the same distribution
    they draw the same token. Raises Fallback if the model can't take steps by itself.
    """

    def __init__(self, model: Any, prompt: torch.Tensor, capacity: int) -> None:
        """prompt: int64 [1, n]; capacity: of the sampler."""
        self.model, self._prompt, self._capacity = model, prompt, capacity
        self._cache = DynamicCache(config=model.config)
        self._steps = Steps(
            model, model.generator_plan(), 1, {"position_ids": torch.arange(prompt.shape[1], device="cpu")[None]}
        )
        self._steps.ready()
        self._steps.expect(self._cache, capacity - prompt.shape[1])
        self._fed: list[int] = []  # tokens in the cache, guesses among them
        self._known = 0  # of them, the first ones that are no guesses
        self.usual = False  # whether the last `propose` neither read a prompt nor recorded a tape

    def begin(self, settings: Settings, seed: int) -> None:
        """Before the first guess: how, and with which random numbers, the other model chooses."""
        self._sampler = self._steps.sampler = Sampler(
            settings,
            self._prompt,
            vocab_size=self.model.lm_head.out_features,
            capacity=self._capacity,
            seed=seed,
            streams=[0],
        )

    def propose(self, text: list[int], most: int) -> torch.Tensor:
        """`most` tokens that may follow `text`, which only grows between calls: int64 [most] on the model's device.

        Waits for nothing; once they are known, `proposed` has to be told.
        """
        plan = self.model.model.decoder_plan()
        right, recorded = self._known, plan.recorded
        while right < min(len(self._fed), len(text)) and self._fed[right] == text[right]:
            right += 1
        self._steps.count(right - self._cache.get_seq_length())
        self._fed, self._known = text[:right], right
        if len(text) - 1 > right:
            self._read(text[right:-1])
        self._steps.position = len(text) - 1
        self._sampler.seek([len(text)], text[-1:])
        if not self._steps.submit(self._cache, most, most):
            raise Fallback("the draft's cache has to move")
        self.usual = len(text) - 1 - right <= LONGEST_STEP and plan.recorded == recorded
        self._fed, self._known = list(text), len(text)
        return self._sampler.ids[0, len(text) : len(text) + most]

    def proposed(self, tokens: list[int]) -> None:
        """These were the tokens of the last `propose`; of all but the last one keys and values are there."""
        self._fed += tokens[:-1]

    def _read(self, tokens: list[int]) -> None:
        """Append `tokens` to the cache."""
        undo = Undo(self._cache)
        ids = torch.tensor([tokens], device=self._sampler.device)
        try:
            with torch.no_grad():
                self.model(input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        except BaseException:
            undo.run()
            raise
