"""Draws that the oracle repeats: the cases of the replay test, and one such test on given logits."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from unittest import mock

import torch
from kit import F16, F32, generator, normal
from torch import Tensor

from torch_foundry import ops
from torch_foundry.sampling import Sampler, Settings
from torch_foundry.testing import sampler_reference


def drawing(**changes: object) -> Settings:
    """Settings that draw."""
    return Settings(do_sample=True).replace(**changes)


@dataclass(frozen=True)
class Replay:
    """`rows` rows of `vocabulary` normal logits, `steps` tokens from each."""

    name: str
    settings: Settings
    vocabulary: int = 100
    rows: int = 10_000
    steps: int = 4
    scale: float = 3.0  # of the logits: 3 is what models have, 0.01 nearly flat
    peak: float = 0.0  # added to the first of them
    ties: int = 0  # logits are rounded to multiples of 1/ties
    dtype: torch.dtype = field(default=F32)

    def __str__(self) -> str:
        return self.name

    @property
    def draws(self) -> int:
        return self.rows * self.steps


def sampler_of(settings: Settings, prompt: Tensor, vocabulary: int, steps: int, *key: object) -> Sampler:
    """With random seed and streams that depend on `key`."""
    g = generator("sampler", *key)
    streams = torch.randint(-(2**63), 2**63 - 1, (len(prompt),), generator=g)
    seed = int(torch.randint(-(2**63), 2**63 - 1, (), generator=g))
    capacity = prompt.shape[1] + steps
    return Sampler(settings, prompt, vocab_size=vocabulary, capacity=capacity, seed=seed, streams=streams)


def inputs(case: Replay) -> tuple[Tensor, Tensor]:
    """Logits [rows, vocabulary] and prompts [rows, 3]."""
    g = generator(case.name)
    logits = normal(g, case.rows, case.vocabulary, dtype=case.dtype, scale=case.scale)
    logits[:, 0] += case.peak
    if case.ties:
        logits = (logits * case.ties).round() / case.ties
    return logits, torch.randint(0, case.vocabulary, (case.rows, 3), generator=g)


def probabilities(sampler: Sampler, logits: Tensor) -> Tensor:
    """A step of a sampler that draws, which also returns what it drew from: float32 [B, V]."""
    probs = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    with mock.patch.object(ops, "sample", functools.partial(ops.sample, probs=probs)):
        sampler.step(logits)
    return probs


def check(case: Replay) -> None:
    """Every token is the one that the oracle draws."""
    logits, prompt = inputs(case)
    sampler = sampler_of(case.settings, prompt, case.vocabulary, case.steps, case.name)
    for step in range(case.steps):
        ids = sampler.ids[:, : prompt.shape[1] + step].numpy()
        scores = sampler_reference.processed(logits.float().numpy(), ids, prompt.shape[1], case.settings)
        u = sampler_reference.uniforms(sampler.seed, sampler.streams.numpy(), step)
        tokens = sampler.step(logits)[:, 0].numpy()
        wrong = sampler_reference.wrong_draws(tokens, scores, case.settings, u)
        assert not len(wrong), f"step {step}: {len(wrong)} of {case.rows} tokens differ, the first in row {wrong[0]}"
    sampler.check()


MIXED = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02}
CASES = [
    Replay("plain", drawing()),
    Replay("plain-many-tiles", drawing(), vocabulary=3000, rows=1000),
    Replay("plain-heavy-tail", drawing(), vocabulary=40_000, rows=200, scale=0.5, peak=14.0),
    Replay("plain-flat", drawing(), scale=0.01, rows=20_000),
    Replay("plain-half", drawing(temperature=1.3), dtype=F16),
    Replay("temperature-low", drawing(temperature=0.05)),
    Replay("temperature-high", drawing(temperature=50.0), rows=20_000),
    Replay("temperature-1.001", drawing(temperature=1.001), rows=20_000),
    Replay("top-k-1", drawing(top_k=1)),
    Replay("top-k", drawing(top_k=10), rows=20_000),
    Replay("top-k-ties", drawing(top_k=10), ties=2),
    Replay("top-k-beyond-the-vocabulary", drawing(top_k=1000)),
    Replay("top-p", drawing(top_p=0.9), rows=20_000),
    Replay("top-p-flat", drawing(top_p=0.5), scale=0.01, rows=20_000),
    Replay("top-p-ties", drawing(top_p=0.8), ties=2, rows=20_000),
    Replay("top-p-tiny", drawing(top_p=1e-6)),
    Replay("top-p-0-keep-3", drawing(top_p=0.0, top_p_keep=3)),
    Replay("top-p-1", drawing(top_p=1.0)),
    Replay("min-p", drawing(min_p=0.05), rows=20_000),
    Replay("min-p-keep-5", drawing(min_p=0.9, min_p_keep=5)),
    Replay("top-k-top-p", drawing(top_k=30, top_p=0.8, temperature=1.7), rows=20_000),
    Replay("mixed", drawing(**MIXED), rows=20_000),
    Replay("mixed-half-ties", drawing(**MIXED), dtype=F16, ties=4),
    Replay("mixed-larger", drawing(**MIXED), vocabulary=2000, rows=500),
    Replay("repetition", drawing(repetition_penalty=1.3, temperature=0.9), rows=5000),
    Replay("presence-frequency", drawing(presence_penalty=0.7, frequency_penalty=0.4, top_p=0.95), rows=5000),
    Replay("bans", drawing(no_repeat_ngram=2, bad_words=((3,), (5, 7)), suppress=(9, 11), top_k=20), rows=3000),
    Replay("candidates-do-not-fit", drawing(top_p=0.9), vocabulary=3001, rows=400, scale=0.3),
    Replay("candidates-do-not-fit-ties", drawing(top_p=0.9, min_p=0.001), vocabulary=3001, rows=400, ties=4, scale=0.5),
    Replay("candidates-do-not-fit-top-k", drawing(top_k=1500, top_p=0.7), vocabulary=4096, rows=200),
    Replay("candidates-fit-later", drawing(top_p=0.7), vocabulary=30_000, rows=60, scale=2.5, peak=14.0),
    Replay("full-size", drawing(), vocabulary=151_936, rows=8),
    Replay("full-size-mixed", drawing(**MIXED), vocabulary=151_936, rows=8),
    Replay("full-size-top-p", drawing(top_p=0.9), vocabulary=151_936, rows=8, scale=8.0),
    Replay("full-size-slow", drawing(top_p=0.6), vocabulary=262_144, rows=2, scale=0.5),
    Replay("full-size-half", drawing(top_k=50), vocabulary=262_208, rows=8, dtype=F16),
]
