"""The device state of requests that share a batch, each with settings of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.limits import SAMPLE_PARAMS
from torch_foundry.sampling.sampler import check_errors, params_of, rules_of
from torch_foundry.sampling.settings import Settings

PEEKED = 1 << 26  # bytes, at most, of what `peek` copies at a time


class Slots:
    """Rows that requests come to and leave; a step is taken by any rows that lie side by side.

    A row's tokens are those that a `Sampler` with its settings, seed and stream would choose from the same logits,
    whatever the other rows are. Tensors as of `Sampler`, with `params` int32 [rows, len(SAMPLE_PARAMS)] and `rules`
    uint8 [rows, V].

    rows, capacity: of `ids`. vocab_size: V of the logits, up to 2^20.
    """

    def __init__(self, rows: int, *, capacity: int, vocab_size: int, device: torch.device | str) -> None:
        self.rows, self.capacity, self.vocab_size, self.device = rows, capacity, vocab_size, torch.device(device)
        self.settings: list[Settings | None] = [None] * rows
        self.ids = torch.zeros(rows, capacity, dtype=torch.int64, device=device)
        self.token = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.length, self.start, self.finished, self.errors = (
            torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(4)
        )
        self.streams = torch.zeros(rows, dtype=torch.int64, device=device)
        self.params = torch.zeros(rows, len(SAMPLE_PARAMS), dtype=torch.int32, device=device)
        self.rules = torch.zeros(rows, vocab_size, dtype=torch.uint8, device=device)
        self._counts: Tensor | None = None  # int32 [rows, V], once a request asks for penalties
        for row in range(rows):
            self.clear(row)

    def fill(
        self,
        row: int,
        settings: Settings,
        text: Sequence[int],
        *,
        seed: int,
        stream: int = 0,
        prompt: int | None = None,
    ) -> None:
        """Give `row` to a request whose text so far is `text`, of which the first `prompt` tokens were given (default:
        all).

        A request that was interrupted continues with the tokens that it would have had.
        ValueError: more tokens than `capacity`, a token outside the vocabulary, or settings that ban sequences.
        """
        prompt = len(text) if prompt is None else prompt
        if settings.bans_sequences:
            raise ValueError("settings: no_repeat_ngram and bad words of several tokens need a batch of their own")
        if not 0 < prompt <= len(text) <= self.capacity:
            raise ValueError(f"text: expected 1 to {self.capacity} tokens, got {len(text)}, of which {prompt} given")
        if not 0 <= min(text) <= max(text) < self.vocab_size:
            raise ValueError(f"text: expected tokens of a vocabulary of {self.vocab_size}")
        rules = rules_of(settings, self.vocab_size)
        ids = torch.tensor(text)
        self.settings[row] = settings
        self.params[row].copy_(torch.tensor(params_of(settings, seed), dtype=torch.int32))
        self.rules[row].copy_(rules)
        self.ids[row, : len(text)].copy_(ids)
        self.token[row] = text[-1]
        for tensor, value in ((self.length, len(text)), (self.start, prompt), (self.finished, 0), (self.errors, 0)):
            tensor[row] = value
        self.streams[row] = stream
        if settings.counts_tokens or self._counts is not None:
            self._count(row, settings, ids, prompt)

    def clear(self, row: int) -> None:
        """Free `row`. It may still take part in steps; their result for it means nothing."""
        self.settings[row] = None
        self.params[row].copy_(torch.tensor(params_of(Settings(), 0), dtype=torch.int32))
        self.finished[row] = 1
        self.length[row] = self.capacity  # nothing is written
        self.errors[row] = 0

    def structure(self, first: int, rows: int) -> tuple[bool, bool, bool, bool]:
        """What a step of these rows launches: a tape of one step is valid for all with the same structure."""
        kinds = [settings for settings in self.settings[first : first + rows] if settings is not None]
        return (
            any(kind.has_rules for kind in kinds),
            self._counts is not None and any(kind.counts_tokens for kind in kinds),
            any(kind.do_sample for kind in kinds),
            any(kind.do_sample and kind.truncates for kind in kinds),
        )

    def step(self, logits: Tensor, first: int = 0) -> Tensor:
        """Choose and write a token for each of the rows from `first` on; returns their `token`s, int64 [n, 1].

        logits: [n, V], as of `Sampler.step`. Nothing is waited for.
        """
        rows = slice(first, first + logits.shape[0])
        use_rules, use_counts, draw, truncate = self.structure(first, logits.shape[0])
        ops.sample(
            logits,
            self.params[rows],
            self.rules[rows],
            start=self.start[rows],
            streams=self.streams[rows],
            length=self.length[rows],
            finished=self.finished[rows],
            errors=self.errors[rows],
            ids=self.ids[rows],
            newest=self.token[rows],
            counts=self._counts[rows] if use_counts and self._counts is not None else None,
            use_rules=use_rules,
            draw=draw,
            truncate=truncate,
        )
        return self.token[rows]

    def peek(self, logits: Tensor, rows: Sequence[int], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        """What would be chosen for `rows` behind `lengths` tokens, and error bits: int64 [n] and int32 [n].

        logits: [n, V]. A row may come several times. Nothing of a row changes; for settings that don't count tokens.
        """
        most = max(1, PEEKED // (8 * self.capacity + self.vocab_size))
        if len(rows) > most:
            parts = [slice(at, at + most) for at in range(0, len(rows), most)]
            found = [self.peek(logits[part], rows[part], lengths[part]) for part in parts]
            return torch.cat([tokens for tokens, _ in found]), torch.cat([errors for _, errors in found])
        kinds = [kind for row in set(rows) if (kind := self.settings[row]) is not None]
        if any(kind.counts_tokens for kind in kinds):
            raise ValueError("peek: what may come next depends on the tokens before it")
        index = self._put(rows)
        own = index if len(set(rows)) > 1 else rows[0]
        length = self._put(lengths)
        finished, errors = torch.zeros_like(length), torch.zeros_like(length)
        token = torch.zeros(len(rows), 1, dtype=torch.int64, device=self.device)
        ops.sample(
            logits,
            self.params[own],
            self.rules[own],
            start=self.start[index],
            streams=self.streams[index],
            length=length,
            finished=finished,
            errors=errors,
            ids=torch.empty(len(rows), self.capacity, dtype=torch.int64, device=self.device),
            newest=token,
            use_rules=any(kind.has_rules for kind in kinds),
            draw=any(kind.do_sample for kind in kinds),
            truncate=any(kind.do_sample and kind.truncates for kind in kinds),
        )
        return token[:, 0], errors

    def seek(self, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Let the next token of each of `rows` be the one after so many tokens; as `Sampler.seek`."""
        self.length[self._put(rows)] = self._put(lengths)

    def _put(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(self.device, non_blocking=True)

    def check(self, row: int) -> None:
        """Wait for the device and raise RuntimeError if no token could be chosen for `row`."""
        check_errors([int(self.errors[row])])

    def _count(self, row: int, settings: Settings, ids: Tensor, prompt: int) -> None:
        """Bit 0: the token is in the prompt; above it, how often it was generated."""
        if self._counts is None:
            self._counts = torch.zeros(self.rows, self.vocab_size, dtype=torch.int32, device=self.device)
        counts = torch.zeros(self.vocab_size, dtype=torch.int32)
        ignored = settings.repetition_ignore if isinstance(settings.repetition_ignore, int) else 0
        counts[ids[ignored:prompt]] = 1
        counts.index_add_(0, ids[prompt:], torch.full((len(ids) - prompt,), 2, dtype=torch.int32))
        self._counts[row].copy_(counts)
