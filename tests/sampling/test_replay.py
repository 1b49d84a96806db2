"""A million draws, each repeated in float64: sees what no test of a distribution does. And a test of distributions."""

from __future__ import annotations

from typing import Any

import kit
import numpy as np
import pytest
import torch
from kit import F32, generator, normal
from torch import Tensor

from tests.sampling.draws import CASES, MIXED, Replay, check, drawing, sampler_of
from torch_foundry import ops
from torch_foundry.sampling import Sampler, Settings
from torch_foundry.testing import sampler_reference


@pytest.mark.cpu_only
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_draw_is_the_oracles(case: Replay) -> None:
    check(case)


VOCABULARY = 151_936


def _step(rows: int, dtype: torch.dtype) -> dict[str, Any]:
    prompt = torch.arange(3 * rows).view(rows, 3)
    sampler = sampler_of(drawing(top_k=40, temperature=0.8), prompt, VOCABULARY, 64, rows)
    return {"sampler": sampler, "logits": normal(generator(rows), rows, VOCABULARY, dtype=dtype, scale=3.0)}


def _by_torch(sampler: Sampler, logits: Tensor) -> Tensor:
    best = (logits.float() / 0.8).topk(40)
    return best.indices.gather(1, torch.multinomial(best.values.softmax(-1), 1))


def _prompt(length: int, _: torch.dtype) -> dict[str, Any]:
    ids = torch.randint(0, VOCABULARY, (4, length), generator=generator(length))
    counts = torch.zeros(4, VOCABULARY, dtype=torch.int32)
    return {"ids": ids, "first": torch.zeros(4, dtype=torch.int32), "prompt": length, "counts": counts}


def _marks(ids: Tensor, first: Tensor, prompt: int, counts: Tensor) -> None:
    counts.scatter_(1, ids, 1)


def _check_prompt(given: dict[str, Any]) -> None:
    expected = given["counts"].clone()
    _marks(**{**given, "counts": expected})
    ops.sample_count_prompt(**given)
    assert torch.equal(given["counts"], expected)


BENCHES = [
    kit.Bench(
        "sample", [1, 8], _step, lambda sampler, logits: sampler.step(logits), _by_torch,
        lambda given: check(Replay("bench", drawing(top_k=40), VOCABULARY, rows=8, dtype=given["logits"].dtype)),
        lambda rows, dtype: (3 * rows * VOCABULARY, rows * VOCABULARY * dtype.itemsize),
    ),
    kit.Bench(
        "sample_count_prompt", [(512, torch.int64)], _prompt, ops.sample_count_prompt, _marks, _check_prompt,
        lambda length, _: (0, 4 * length * 12),
    ),
]  # fmt: skip


def test_there_are_enough() -> None:
    assert sum(case.draws for case in CASES) >= 1_000_000
    assert len({case.settings for case in CASES}) >= 24


@pytest.mark.parametrize("settings", [drawing(), drawing(top_k=20), drawing(**MIXED)], ids=["plain", "top-k", "mixed"])
def test_draws_are_distributed_as_they_should(settings: Settings) -> None:
    """Chi-square over 40,000 draws from one row, p > 1e-4; tokens with an expectation below 10 count as one."""
    n, logits = 40_000, normal(generator("chi-square"), 1, 90, dtype=F32, scale=2.0)
    sampler = sampler_of(settings, torch.zeros(n, 1, dtype=torch.int64), 90, 1, "chi-square", settings)
    tokens = sampler.step(logits.expand(n, 90))[:, 0].numpy()
    scores = sampler_reference.processed(logits.numpy(), np.zeros((1, 1), dtype=np.int64), 1, settings)
    expected = n * sampler_reference.probabilities(scores, settings)[0]
    seen = np.bincount(tokens, minlength=90)
    assert not seen[expected == 0].any()
    rare = expected < 10
    seen = np.append(seen[~rare], seen[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    statistic = float(((seen[keep] - expected[keep]) ** 2 / expected[keep]).sum())
    chi2 = torch.distributions.Chi2(torch.tensor(float(keep.sum() - 1)))
    samples = chi2.sample((200_000,))
    assert float((samples >= statistic).float().mean()) > 1e-4, statistic
