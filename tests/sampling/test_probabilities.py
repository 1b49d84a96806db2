"""What is drawn from, against Hugging Face's processors and softmax: within 1e-5, each alone and all together."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kit import BF16, F16, F32, dtypes, generator, normal
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process as hf

from tests.sampling.draws import probabilities, sampler_of
from torch_foundry.sampling import Settings
from torch_foundry.testing import sampler_reference

V, LENGTH = 400, 9

try:  # a length for each row: not in the oldest transformers that is supported
    PADDED = {"repetition-ignores-padding": [hf.RepetitionPenaltyLogitsProcessor(1.7, torch.tensor([0, 3, 9, 1]))]}
except ValueError:
    PADDED = {}

# Any list of processors that Hugging Face's generate() could make; LENGTH tokens stand in each row.
PROCESSORS: dict[str, list[Any]] = {
    "none": [],
    "repetition": [hf.RepetitionPenaltyLogitsProcessor(1.7)],
    "repetition-below-1": [hf.RepetitionPenaltyLogitsProcessor(0.6)],
    "repetition-ignores-some": [hf.RepetitionPenaltyLogitsProcessor(1.7, prompt_ignore_length=4)],
    **PADDED,
    "ngram-1": [hf.NoRepeatNGramLogitsProcessor(1)],
    "ngram-2": [hf.NoRepeatNGramLogitsProcessor(2)],
    "ngram-3": [hf.NoRepeatNGramLogitsProcessor(3)],
    "ngram-longer-than-the-row": [hf.NoRepeatNGramLogitsProcessor(20)],
    "bad-words": [hf.NoBadWordsLogitsProcessor([[3], [7], [1, 5], [1, 1, 2], [1] * 15 + [6], [2, 9]], eos_token_id=7)],
    "min-length": [hf.MinLengthLogitsProcessor(LENGTH + 1, [4, 6])],
    "min-length-reached": [hf.MinLengthLogitsProcessor(LENGTH, [4, 6])],
    "min-new-tokens": [hf.MinNewTokensLengthLogitsProcessor(5, LENGTH - 4, 4)],
    "min-new-tokens-reached": [hf.MinNewTokensLengthLogitsProcessor(5, LENGTH - 5, 4)],
    "forced-bos-elsewhere": [hf.ForcedBOSTokenLogitsProcessor(4)],
    "forced-eos": [hf.ForcedEOSTokenLogitsProcessor(LENGTH + 1, [5, 8])],
    "forced-eos-elsewhere": [hf.ForcedEOSTokenLogitsProcessor(LENGTH + 2, [5, 8])],
    "suppress-one-of-the-forced": [
        hf.ForcedEOSTokenLogitsProcessor(LENGTH + 1, [5, 8]),
        hf.SuppressTokensLogitsProcessor([5]),
    ],
    "suppress": [hf.SuppressTokensLogitsProcessor([0, 2, 399])],
    "begin-suppress": [hf.SuppressTokensAtBeginLogitsProcessor([0, 2], LENGTH)],
    "begin-suppress-elsewhere": [hf.SuppressTokensAtBeginLogitsProcessor([0, 2], LENGTH - 1)],
    "temperature-0.01": [hf.TemperatureLogitsWarper(0.01)],
    "temperature-1e-4": [hf.TemperatureLogitsWarper(1e-4)],
    "temperature-100": [hf.TemperatureLogitsWarper(100.0)],
    "temperature-1e6": [hf.TemperatureLogitsWarper(1e6)],
    **{f"top-k-{k}": [hf.TopKLogitsWarper(k)] for k in (1, 2, 50, V - 1, V, V + 100)},
    **{f"top-p-{p}": [hf.TopPLogitsWarper(p)] for p in (0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0)},
    **{f"top-p-0.3-keep-{k}": [hf.TopPLogitsWarper(0.3, min_tokens_to_keep=k)] for k in (5, 100, V, V + 1)},
    **{f"min-p-{p}": [hf.MinPLogitsWarper(p)] for p in (0.0, 1e-6, 0.05, 0.5, 1.0)},
    **{f"min-p-0.5-keep-{k}": [hf.MinPLogitsWarper(0.5, min_tokens_to_keep=k)] for k in (4, 50, V + 1)},
    "top-k-top-p": [hf.TopKLogitsWarper(20), hf.TopPLogitsWarper(0.7)],
    "top-k-min-p": [hf.TopKLogitsWarper(20), hf.MinPLogitsWarper(0.2)],
    "top-p-min-p": [hf.TopPLogitsWarper(0.9), hf.MinPLogitsWarper(0.02)],
    "all-warpers": [
        hf.TemperatureLogitsWarper(1.6),
        hf.TopKLogitsWarper(60),
        hf.TopPLogitsWarper(0.85, min_tokens_to_keep=3),
        hf.MinPLogitsWarper(0.05, min_tokens_to_keep=2),
    ],
    "everything": [
        hf.RepetitionPenaltyLogitsProcessor(1.2),
        hf.NoRepeatNGramLogitsProcessor(2),
        hf.NoBadWordsLogitsProcessor([[3], [1, 5]]),
        hf.MinLengthLogitsProcessor(LENGTH + 3, [4]),
        hf.MinNewTokensLengthLogitsProcessor(LENGTH, 2, [6]),
        hf.ForcedBOSTokenLogitsProcessor(4),
        hf.ForcedEOSTokenLogitsProcessor(LENGTH + 5, [5]),
        hf.SuppressTokensLogitsProcessor([9]),
        hf.SuppressTokensAtBeginLogitsProcessor([10], LENGTH),
        hf.TemperatureLogitsWarper(0.8),
        hf.TopKLogitsWarper(50),
        hf.TopPLogitsWarper(0.9),
        hf.MinPLogitsWarper(0.01),
    ],
}


@pytest.fixture(autouse=True)
def _stable_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ones of equal scores top-p cuts depends on torch.sort, whose order of equals is arbitrary unless stable."""
    monkeypatch.setattr(torch, "sort", functools.partial(torch.sort, stable=True))


def settings_of(processors: list[Any]) -> Settings:
    settings, reason = Settings.from_generation_config(SimpleNamespace(do_sample=True), processors)
    assert settings is not None, reason
    return settings


def check(name: str, logits: Tensor, ids: Tensor) -> None:
    """The sampler's probabilities, Hugging Face's and the oracle's are equal within 1e-5."""
    settings = settings_of(PROCESSORS[name])
    expected = LogitsProcessorList(PROCESSORS[name])(ids, logits.float()).softmax(-1)
    sampler = sampler_of(settings, ids, logits.shape[1], 1, name)
    got = probabilities(sampler, logits)
    scores = sampler_reference.processed(logits.float().numpy(), ids.numpy(), ids.shape[1], settings)
    truth, more, less = (
        torch.from_numpy(sampler_reference.probabilities(scores, settings, slack))
        for slack in (0.0, sampler_reference.TOLERANCE, -sampler_reference.TOLERANCE)
    )
    clear = (more == less).all(-1)  # no threshold lies between two roundings of one number
    worst = (got - expected)[clear].abs().max() if clear.any() else 0.0
    assert worst <= 1e-5, f"{name}: differs from Hugging Face by {worst:.2e}"
    worst = torch.stack([(got - one).abs().amax(-1) for one in (truth, more, less)]).amin(0).max()
    assert worst <= 1e-6, f"{name}: differs from float64 by {worst:.2e}"
    assert (got.gather(1, sampler.token) > 0).all()
    sampler.check()


def ids_of(vocabulary: int = 12) -> Tensor:
    """Rows in which tokens and pairs of them repeat."""
    ids = torch.randint(0, vocabulary, (4, LENGTH), generator=generator("ids", vocabulary))
    ids[1] = torch.tensor([1, 5, 2, 9, 1, 1, 2, 1, 1])
    ids[2] = torch.tensor([1, 5, 1, 5, 1, 5, 2, 5, 1])
    return ids


@pytest.mark.parametrize("name", PROCESSORS, ids=str)
def test_processors(name: str) -> None:
    check_processors(name)


def check_processors(name: str) -> None:
    check(name, normal(generator(name), 4, V, dtype=F32, scale=3.0), ids_of())


@pytest.mark.parametrize("name", ["none", "top-k-50", "top-p-0.9", "min-p-0.05", "all-warpers", "everything"], ids=str)
@dtypes(F16, BF16)
def test_half_logits(name: str, dtype: torch.dtype) -> None:
    """The logits of bfloat16 have many ties."""
    check(name, normal(generator(name), 4, V, dtype=dtype, scale=3.0), ids_of())


@pytest.mark.parametrize("name", [n for n in PROCESSORS if n.startswith(("top", "all"))], ids=str)
def test_ties(name: str) -> None:
    check_ties(name)


def check_ties(name: str) -> None:
    """Ties everywhere: top-k keeps all of its last one's, top-p those that stable sorting puts last."""
    logits = (normal(generator(name, "ties"), 4, V, dtype=F32, scale=2.0) * 2).round() / 2
    check(name, logits, ids_of())
    check(name, torch.zeros(4, V), ids_of())


def check_exact_ties(vocabulary: int, top_p: float) -> None:
    """Where the tokens above one have exactly top_p together, that one is out: all numbers here are exact."""
    logits = torch.zeros(2, vocabulary)
    expected = hf.TopPLogitsWarper(top_p)(None, logits.clone()).softmax(-1)
    assert ((expected > 0).sum(-1) == int(vocabulary * top_p)).all()
    ids = torch.zeros(2, 1, dtype=torch.int64)
    got = probabilities(sampler_of(Settings(do_sample=True, top_p=top_p), ids, vocabulary, 1, "exact"), logits)
    assert torch.equal(got > 0, expected > 0)


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("vocabulary", [4, 256, 1024, 4096], ids=str)
def test_top_p_at_an_exact_tie(vocabulary: int, top_p: float) -> None:
    """Candidates that fit into threadgroup memory, and the slow path."""
    check_exact_ties(vocabulary, top_p)


@pytest.mark.parametrize("name", ["top-k-50", "top-p-0.9", "min-p-0.05", "top-p-min-p", "all-warpers"], ids=str)
@pytest.mark.parametrize("vocabulary", [1, 2, 31, 32, 33, 255, 256, 257, 1024, 1025, 2049, 9000], ids=str)
def test_sizes(name: str, vocabulary: int) -> None:
    """Around simdgroups, tiles, and what fits into threadgroup memory."""
    ids = torch.zeros(4, 1, dtype=torch.int64)
    check(name, normal(generator(name, vocabulary), 4, vocabulary, dtype=F32, scale=3.0), ids)


@pytest.mark.parametrize("name", ["top-k-50", "top-p-0.9", "top-p-0.3-keep-100", "min-p-1e-06", "top-p-min-p"], ids=str)
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 30.0], ids=str)
def test_shapes_of_distributions(name: str, scale: float) -> None:
    check_shapes(name, scale)


def check_shapes(name: str, scale: float) -> None:
    """Equal, flat and peaked distributions over many tiles, so that the slow path has its turn; with banned tokens."""
    logits = normal(generator(name, scale), 4, 5000, dtype=F32, scale=scale)
    logits[1, 100:] = -math.inf
    logits[2, 256:4500] = -math.inf
    logits[3] -= 300.0
    check(name, logits, ids_of())


def check_many_tiles() -> None:
    """What can be said from the tiles alone must leave every token in that matters."""
    logits = normal(generator("many tiles"), 4, 60_000, dtype=F32, scale=3.0)
    for name in ("top-k-50", "top-p-0.1", "min-p-0.05", "all-warpers"):
        check(name, logits, ids_of())
    crowded = torch.full((4, 60_000), -40.0)  # most of the mass lies in one tile, close below its largest score
    crowded[:, 512:768] = normal(generator("crowded"), 4, 256, dtype=F32, scale=0.1) - 1.0
    crowded[:, 600] = 0.0
    for name in ("top-p-0.5", "top-p-0.9", "top-p-min-p"):
        check(name, crowded, ids_of())


def test_many_tiles() -> None:
    check_many_tiles()


def test_outliers() -> None:
    """One tile far below or above the others must not spoil the bounds."""
    logits = normal(generator("outliers"), 4, 6000, dtype=F32, scale=2.0)
    logits[0, 256:512] = -1e30
    logits[1, 5] = 80.0
    logits[2, 300] = 3e38
    logits[3, :5900] = -1e35
    for name in ("top-k-50", "top-p-0.9", "min-p-0.05", "all-warpers"):
        check(name, logits, ids_of())
