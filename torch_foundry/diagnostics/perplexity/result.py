"""What was measured, and the statistics of it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor


def mean_and_error(values: Tensor) -> tuple[float, float]:
    """Mean and its standard error, as if tokens were independent; a single one says nothing of its error: NaN."""
    n = values.numel()
    return float(values.mean()), float(values.std()) / n**0.5 if n > 1 else math.nan


def with_error(value: float, error: float, digits: int) -> str:
    """`1.2 ± 0.1`; the value alone where nothing is known of its error."""
    return f"{value:.{digits}f}" if math.isnan(error) else f"{value:.{digits}f} ± {error:.{digits}f}"


@dataclass(frozen=True)
class Divergence:
    """A model compared with a reference on the same tokens. Errors are standard errors.

    perplexity: of the reference. ratio: model's perplexity to reference's; its error is much smaller than those of the
    two, because both see the same text. kl_mean, kl_99, kl_max: Kullback-Leibler divergence from the reference's
    distribution of the next token to the model's, in nats: mean, 99th percentile and maximum over all tokens. top1:
    fraction of tokens for which both give the same token the highest score.
    """

    perplexity: float
    perplexity_error: float
    ratio: float
    ratio_error: float
    kl_mean: float
    kl_error: float
    kl_99: float
    kl_max: float
    top1: float
    top1_error: float


@dataclass(frozen=True)
class Quality:
    """Perplexity of a model: exp of the mean negative log-likelihood of `tokens` predicted tokens."""

    tokens: int
    context: int
    perplexity: float
    perplexity_error: float
    against: Divergence | None = None

    @classmethod
    def of(cls, context: int, nll: Tensor) -> Quality:
        """From the negative log-likelihoods [tokens], float64."""
        return cls(nll.numel(), context, *_perplexity(nll))

    @classmethod
    def against_reference(cls, context: int, nll: Tensor, reference: Tensor, kl: Tensor, same: Tensor) -> Quality:
        """From the likelihoods of both, the divergences and whether the highest scores agree: [tokens], float64."""
        log_ratio, log_ratio_error = mean_and_error(nll - reference)
        ratio = _exp(log_ratio)
        kl_mean, kl_error = mean_and_error(kl)
        top1, top1_error = mean_and_error(same)
        ranked = kl.sort().values
        divergence = Divergence(
            *_perplexity(reference),
            ratio,
            ratio * log_ratio_error,
            kl_mean,
            kl_error,
            float(ranked[round(0.99 * (kl.numel() - 1))]),
            float(ranked[-1]),
            top1,
            top1_error,
        )
        return cls(nll.numel(), context, *_perplexity(nll), divergence)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain numbers; None for an unknown error, as JSON has no NaN."""
        return _without_nan(asdict(self))

    def __str__(self) -> str:
        text = f"perplexity {with_error(self.perplexity, self.perplexity_error, 5)} ({self.tokens} tokens)"
        if self.against is None:
            return text
        d = self.against
        return (
            f"{text}, reference {d.perplexity:.5f}, ratio {with_error(d.ratio, d.ratio_error, 5)}, KL "
            f"{with_error(d.kl_mean, d.kl_error, 6)} (99 %: {d.kl_99:.6f}), same top-1 "
            f"{with_error(100 * d.top1, 100 * d.top1_error, 2)} %"
        )


def _without_nan(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nan(value) if isinstance(value, dict) else None if value != value else value
        for name, value in figures.items()
    }


def _exp(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float64).exp())  # inf where math.exp raises


def _perplexity(nll: Tensor) -> tuple[float, float]:
    mean, error = mean_and_error(nll)
    return _exp(mean), _exp(mean) * error
