"""The tokens behind those that a step has computed: logits, as requests change them, through the sampler."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torch_foundry.core import devices
from torch_foundry.engine.sequence import Parts, ScheduledSequence
from torch_foundry.engine.sequence import Sequence as EngineSequence
from torch_foundry.generation.drafting import accepted
from torch_foundry.sampling import Sampler


class Constraint(Protocol):
    """What limits an answer to a language, such as a grammar; one for each request."""

    def allowed(self, tokens: Sequence[int]) -> Tensor:
        """uint8 [V] on the CPU: 1 for each token that may follow `tokens`, all new ones so far; an end token where the
        answer may end. An exception ends the request with an error, a ValueError as it is."""


class TokenLogprobs(NamedTuple):
    """Of a new token: its log-probability, and the likeliest tokens with theirs, before bias, penalties, constraint and
    temperature."""

    logprob: float
    top: list[tuple[int, float]]


def sample(sampler: Sampler, batch: Parts, logits: Tensor) -> None:
    """Choose the tokens behind those that `logits` [n, V] were wanted of, and wait for them."""
    ends = list(itertools.accumulate(each.wanted for each in batch))
    if not ends[-1]:
        return
    first = [end - each.wanted for end, each in zip(ends, batch, strict=True)]
    single = [(each, at) for each, at in zip(batch, first, strict=True) if each.wanted == 1]
    drafted = [(each, at) for each, at in zip(batch, first, strict=True) if each.wanted > 1]
    for each, _ in single:
        _constrain(sampler, each)
    raw, logits = logits, _biased(batch, logits)
    if single:
        sampler.step(some_rows(logits, [at for _, at in single]), [row_of(each) for each, _ in single])
    parts = [sampler.token[:, 0], sampler.errors]
    if drafted:
        each_row = [(each, i) for each, _ in drafted for i in range(each.wanted)]
        places = [at + i for each, at in drafted for i in range(each.wanted)]
        lengths = [len(each.sequence.tokens) + i for each, i in each_row]
        parts += sampler.peek(some_rows(logits, places), [row_of(each) for each, _ in each_row], lengths)
    values = iter(torch.cat(parts).tolist())  # one wait for all
    newest, errors, *peeked = [list(itertools.islice(values, len(part))) for part in parts]
    for each, at in single:
        each.error_bits = errors[row_of(each)]
        each.new_tokens = [] if each.error_bits or each.sequence.fault else [newest[row_of(each)]]
        if each.new_tokens and each.sequence.top_logprobs is not None:
            each.sequence.logprobs.append(_logprobs(raw[at], each.new_tokens[0], each.sequence.top_logprobs))
    at = 0
    for each, _ in drafted:
        chosen, bits = (found[at : at + each.wanted] for found in peeked)
        at += each.wanted
        # a draft token without scores may have cost the tokens before it theirs (0 times infinity is NaN in
        # attention): once more, without any
        each.num_accepted = -1 if any(bits) else accepted(each.drafts, chosen)
        each.new_tokens = chosen[: each.num_accepted + 1]
    if drafted:
        lengths = [len(each.sequence.tokens) + len(each.new_tokens) for each, _ in drafted]
        sampler.seek(lengths, rows=[row_of(each) for each, _ in drafted])


class TokensAhead:
    """Tokens of `steps` steps of `batch` that are with the device, and on their way to the host."""

    def __init__(self, sampler: Sampler, batch: Parts, rows: Sequence[int], found: Sequence[Tensor], newest: Tensor):
        self.batch, self.steps, self.newest = batch, len(found), newest
        self._rows, self._errors = rows, len(sampler.token)
        self._host, self._wait = devices.of(newest.device).read(torch.stack([*found]))

    def read(self) -> None:
        """Wait for them, and give each of the batch its own."""
        self._wait()
        for step in self._host.tolist():
            for each, row in zip(self.batch, self._rows, strict=True):
                each.error_bits = each.error_bits or step[self._errors + row]
                if not each.error_bits:
                    each.new_tokens.append(step[row])


def sample_ahead(
    sampler: Sampler,
    batch: Parts,
    logits: Tensor,
    steps: int,
    go_on: Callable[[Tensor, Parts, int], Tensor | None],
) -> TokensAhead:
    """Up to `steps` tokens for each, all handed to the device without waiting for one. go_on: of `Forward`."""
    rows, found = [row_of(each) for each in batch], []
    newest = sampler.token[:, 0]
    place = None if rows == list(range(len(rows))) else torch.tensor(rows).to(logits.device, non_blocking=True)
    following: Tensor | None = logits
    while following is not None:
        sampler.step(_biased(batch, following), rows)
        found.append(torch.cat([newest, sampler.errors]))
        chosen = newest[: len(rows)] if place is None else newest[place]
        following = go_on(chosen, batch, len(found)) if len(found) < steps else None
    return TokensAhead(sampler, batch, rows, found, chosen)


def fill_rows(sampler: Sampler, running: Sequence[EngineSequence], sequences: Sequence[EngineSequence]) -> None:
    """Give each of `sequences` a row of the sampler that none of the `running` ones has, if it has none."""
    taken = {sequence.row for sequence in running}
    free = iter([row for row in range(len(sampler.token)) if row not in taken])
    for sequence in sequences:
        if sequence.row is None:
            sequence.row = row = next(free)
            told = {"seed": sequence.seed, "prompt": sequence.prompt}
            sampler.fill(row, sequence.sampling, sequence.tokens, **told)


def free_rows(sampler: Sampler, sequences: Sequence[EngineSequence]) -> None:
    """Take the rows of `sequences`, if they have any."""
    rows = [sequence.row for sequence in sequences if sequence.row is not None]
    for sequence in sequences:
        sequence.row = None
    for row in rows:
        sampler.clear(row)


def row_of(each: ScheduledSequence) -> int:
    """The sampler's row of a sequence that has one."""
    assert each.sequence.row is not None
    return each.sequence.row


def _constrain(sampler: Sampler, each: ScheduledSequence) -> None:
    """Ban what the request's constraint doesn't allow next."""
    sequence = each.sequence
    if sequence.constraint is not None:
        try:
            sampler.allow(row_of(each), sequence.constraint.allowed(sequence.tokens[sequence.prompt :]))
        except ValueError as error:
            sequence.fault = error
        except Exception as error:
            sequence.fault = RuntimeError(f"constraint: it failed: {type(error).__name__}: {error}")


def _biased(batch: Parts, logits: Tensor) -> Tensor:
    """A copy with what requests add to the logits of single tokens; the same if none does."""
    if all(each.sequence.bias is None for each in batch):
        return logits
    logits, at = logits.to(torch.float32, copy=True), 0
    for each in batch:
        if each.sequence.bias is not None:
            tokens, values = each.sequence.bias
            logits[at : at + each.wanted].index_add_(1, tokens, values.expand(each.wanted, -1))
        at += each.wanted
    return logits


def _logprobs(logits: Tensor, token: int, top: int) -> TokenLogprobs:
    found = logits.float().log_softmax(-1)
    values, tokens = found.topk(top)
    return TokenLogprobs(float(found[token]), list(zip(tokens.tolist(), values.tolist(), strict=True)))


def some_rows(logits: Tensor, rows: list[int]) -> Tensor:
    """These rows of logits [n, V], without waiting for the device."""
    if rows == list(range(len(logits))):
        return logits
    return logits[torch.tensor(rows, dtype=torch.int32).to(logits.device, non_blocking=True)]
