"""The generation loop: blocks of tokens are handed to the device, and read when they are ready."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from torch_foundry.core import devices
from torch_foundry.core.errors import Fallback
from torch_foundry.generation.runner import DecodeRunner
from torch_foundry.generation.stopping import StoppingCriteria
from torch_foundry.models.outputs import path_to_decoder, replaced_ids
from torch_foundry.sampling import Sampler

OVERLAPPED = 4  # tokens: blocks up to that size are read while the device is at the next one


class PendingTokens:
    """Tokens on their way to the host."""

    def __init__(self, sampler: Sampler, start: int, tokens: int, steps: int) -> None:
        """Columns `start` to `start + tokens` of the sampler's text, which `steps` steps were taken for."""
        self.tokens, self.steps = tokens, steps
        found = torch.cat([sampler.ids[:, start : start + tokens], sampler.errors[:, None]], dim=1)
        self._host, self._wait = devices.of(found.device).read(found)

    def read(self) -> list[list[int]]:
        """Wait; of each row the tokens, and its error bits."""
        self._wait()
        return self._host.tolist()


class GenerationLoop:
    """One call of generate()."""

    def __init__(self, runner: DecodeRunner, stops: StoppingCriteria, every: int, streamer: Any) -> None:
        self.runner, self.stops, self.every, self.streamer = runner, stops, every, streamer
        self.sampler, self.plan = runner.sampler, runner.plan
        self._replaced = replaced_ids(path_to_decoder(runner.model)[-2])  # behind these a step is not one of ids
        self._start = stops.length  # of what is generated together
        self._depth = 2 if every <= OVERLAPPED else 1  # blocks that may be under way
        self._waiting: deque[PendingTokens] = deque()

    def run(self, tokens: int | None = None) -> None:
        """Generate, from the sampler's newest token on, until the text ends, or `tokens` tokens.

        The cache counts what was read: an exception leaves it as it was at the last read.
        """
        self._start = self.stops.length
        # tokens: at most, in blocks, not in a block yet
        limit, chosen, fresh = max(1, self.stops.remaining), 0, int(not self.stops.tokens[0])
        limit = limit if tokens is None else min(limit, tokens)
        while not all(self.stops.done) and self.stops.length < self._start + limit:
            while chosen < limit and len(self._waiting) < self._depth:
                tokens = self._submit(chosen, fresh, limit - chosen)
                if not tokens:
                    break
                chosen, fresh = chosen + tokens, 0
            if self._read() and not all(self.stops.done):
                chosen = self._beyond_an_image()
        for block in self._waiting:  # which nobody wants any more: after this nothing is under way
            block.read()

    def take_first(self) -> None:
        """Read the sampler's first token alone."""
        self._waiting.append(PendingTokens(self.sampler, self._start, 1, 0))
        self._read()

    def _submit(self, chosen: int, fresh: int, left: int) -> int:
        """Hand the next block to the device; returns its number of tokens, 0 if others have to be read first."""
        tokens = min(self.every, left)
        steps = tokens - fresh
        try:
            if steps and not self.runner.step(steps, left - fresh):
                return 0
        except Fallback as fallback:
            if fresh:
                tokens, steps = fresh, 0
            elif self._waiting:
                return 0
            else:
                self.plan.eager[f"step of generate: {fallback}"] += 1
                self.runner.step_by_layers()
                tokens, steps = 1, 0
        self._waiting.append(PendingTokens(self.sampler, self._start + chosen, tokens, steps))
        return tokens

    def _beyond_an_image(self) -> int:
        """One token, chosen by the model's own forward pass of the newest ones, whose embedding is not a row of the
        table; steps that read it are taken back. Returns how many tokens are chosen by then."""
        while self._waiting:
            self._waiting.popleft().read()
        self.runner.rewind(self.stops.length, [row[-1] for row in self.stops.tokens])
        self.plan.eager["step of generate: the token of an image"] += 1
        self.runner.step_by_layers()
        chosen = self.stops.length - self._start
        self._waiting.append(PendingTokens(self.sampler, self._start + chosen, 1, 0))
        return chosen + 1

    def _read(self) -> bool:
        """Wait for a block; what of it is part of the text goes to the cache's count and to the streamer. Returns
        whether it ends with a token that steps don't embed as stock code does."""
        block = self._waiting.popleft()
        found = block.read()
        self.plan.reads += 1
        if any(row[-1] for row in found):
            self.sampler.check()
        columns = list(zip(*(row[:-1] for row in found), strict=True))
        cut = next((i + 1 for i, ids in enumerate(columns) if not self._replaced.isdisjoint(ids)), 0)
        kept = self.stops.take([row[: cut or -1] for row in found])
        self.plan.tokens += kept
        self.runner.commit(block.steps - (block.tokens - kept))
        self.runner.settle()
        if self.streamer is not None:
            for column in zip(*(row[-kept:] for row in self.stops.tokens), strict=True):
                self.streamer.put(torch.tensor(column, device="cpu"))
        return bool(cut)
