"""A smaller model that drafts for one sequence, on steps of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core.errors import Fallback
from torch_foundry.generation.drafting import SequenceDrafts
from torch_foundry.generation.runner import DecodeRunner
from torch_foundry.kvcache.undo import Checkpoint
from torch_foundry.models.calls import LONGEST_STEP
from torch_foundry.models.decoder import decoder_plan
from torch_foundry.sampling import Sampler


class DraftModel:
    """A smaller model of the same vocabulary, patched: a `Drafter` that waits for nothing.

    It draws with the same random numbers as the model that it drafts for, so where both have the same distribution
    they draw the same token. Raises Fallback if the model can't take steps by itself.
    """

    of_prompt: list[torch.Tensor] | None = None

    def __init__(self, model: Any, prompt: torch.Tensor, capacity: int) -> None:
        """prompt: int64 [1, n]; capacity: of the sampler."""
        self.model, self._prompt, self._capacity = model, prompt, capacity
        self._cache = DynamicCache(config=model.config)
        positions = torch.arange(prompt.shape[1], device="cpu")[None]
        self._runner = DecodeRunner(model, model.generator_plan(), self._cache, 1, {"position_ids": positions})
        self._runner.ready()
        self._runner.reserve_hint(capacity - prompt.shape[1])
        self._read = self._ahead = 0  # tokens of the text whose keys and values are there, and of drafts behind them
        self.usual = False

    def begin(self, target: Sampler) -> None:
        """See `Drafter`."""
        settings, vocab_size = target.settings[0], self.model.lm_head.out_features
        assert settings is not None
        sampler = Sampler(
            settings, self._prompt, vocab_size=vocab_size, capacity=self._capacity, seed=target.seed, streams=[0]
        )
        self._runner.begin(sampler, self._prompt)
        self._runner.reuse(self._capacity - self._prompt.shape[1])

    def propose(self, sequences: Sequence[SequenceDrafts], count: int) -> None:
        """See `Drafter`."""
        (own,) = sequences
        text, plan = own.sequence.tokens, decoder_plan(self.model)
        end = len(text)
        known, captured = self._read + min(own.accepted, self._ahead), plan.captured
        self._commit(known)
        self._read, self._ahead, own.accepted = known, 0, 0
        if end - 1 - known == 1:  # the last draft was accepted as well
            self._step(text, end - 1, 1)
            self._commit(end - 1)
        elif end - 1 > known:
            self._append(text[known:-1])
        self._step(text, end, count)
        self.usual = end - 1 - known <= LONGEST_STEP and plan.captured == captured
        self._read, self._ahead = end, count - 1
        own.drafts = self._runner.sampler.ids[0, end : end + count]

    def leave(self, own: SequenceDrafts) -> None:
        """See `Drafter`."""
        self._runner.release()

    def _commit(self, length: int) -> None:
        """The first `length` tokens of the text are in the cache."""
        self._runner.commit(length - self._cache.get_seq_length())
        self._runner.settle()

    def _step(self, text: list[int], end: int, steps: int) -> None:
        """Choose `steps` tokens behind the first `end` ones, of which the last one is not in the cache yet."""
        self._runner.seek(end - 1)
        self._runner.sampler.seek([end], text[end - 1 : end])
        if not self._runner.step(steps, steps):
            raise Fallback("the draft's cache has to move")

    def _append(self, tokens: list[int]) -> None:
        """Read `tokens`, which go to the cache."""
        self._forward(input_ids=torch.tensor([tokens], device=self._runner.sampler.device))

    def _forward(self, **inputs: torch.Tensor) -> None:
        """The model's own forward pass over tokens that go to the cache."""
        undo = Checkpoint(self._cache)
        try:
            with torch.no_grad():
                self.model(**inputs, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        except BaseException:
            undo.run()
            raise
