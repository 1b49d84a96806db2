"""Perplexity of a model, and its divergence from a reference, over windows of a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.utils.logging import tqdm

from torch_foundry.core import devices
from torch_foundry.diagnostics.perplexity.result import Quality

CONTEXT = 512
LOGITS = 1 << 24  # scores that a forward pass may return: 64 MiB of f32
WIDE = 1 << 21  # of which so many at once become float64


@dataclass
class _Tokens:
    """What is known of each predicted token, in the order of the text."""

    nll: list[Tensor]
    reference: list[Tensor]
    kl: list[Tensor]
    same: list[Tensor]


@torch.inference_mode()
def perplexity(
    model: Any,
    tokens: Tensor | Sequence[Tensor],
    *,
    against: Any = None,
    context: int | None = None,
) -> Quality:
    """Perplexity of a causal language model on `tokens`: int64 [n], or several such texts, each starting anew.

    A text is cut into windows of `context` tokens (default: 512, or the model's limit). Neighbouring windows share one
    token, so every token but a text's first is predicted once, from the tokens before it in its window. Keys and values
    go through each model's own cache, so `patch(kv_cache=...)` counts. against: a reference model, on any device; then
    the result has `against`. Both models run in their own dtype; statistics are float64 (float32 on MPS). Memory beside
    the models: their KV caches, LOGITS scores of each, and four numbers per token.

    ValueError: no text has two tokens, ids outside the vocabulary, a vocabulary other than the reference's, a context
    that a model can't take, or scores that are NaN.
    """
    models = [model] if against is None else [model, against]
    texts = [tokens] if isinstance(tokens, Tensor) else list(tokens)
    vocabulary = _check(models, texts)
    context = _context(models, context)
    windows = [text[i : i + context] for text in texts for i in range(0, len(text) - 1, context - 1)]
    found = _Tokens([], [], [], [])
    was_training = [each.training for each in models]
    for each in models:
        each.eval()
    try:
        for window in tqdm(windows, desc="Perplexity", unit="window", delay=2, disable=None):
            rows = max(1, LOGITS // vocabulary)
            for start, scores in zip(
                range(0, len(window) - 1, rows),
                zip(*(_scores(each, window[:-1], rows) for each in models), strict=True),
                strict=True,
            ):
                _add(found, scores, window[start + 1 : start + 1 + rows])
    finally:
        for each, training in zip(models, was_training, strict=True):
            each.train(training)
    nll = torch.cat(found.nll)
    if against is None:
        return Quality.of(context, nll)
    return Quality.against_reference(
        context, nll, torch.cat(found.reference), torch.cat(found.kl), torch.cat(found.same)
    )


def _check(models: Sequence[Any], texts: Sequence[Tensor]) -> int:
    sizes = [each.get_output_embeddings().weight.shape[0] for each in models]
    if len(set(sizes)) > 1:
        raise ValueError(f"against: expected the model's vocabulary of {sizes[0]} tokens, got one of {sizes[1]}")
    for text in texts:
        if text.dim() != 1 or text.is_floating_point():
            raise ValueError(f"tokens: expected whole numbers [n], got {text.dtype} {list(text.shape)}")
        if text.numel() and not 0 <= int(text.min()) <= int(text.max()) < sizes[0]:
            raise ValueError(f"tokens: expected ids below {sizes[0]}, got {int(text.min())} to {int(text.max())}")
    if not any(text.numel() > 1 for text in texts):
        raise ValueError(f"tokens: expected a text of at least 2, got {sum(text.numel() for text in texts)} in all")
    return int(sizes[0])


def _context(models: Sequence[Any], context: int | None) -> int:
    limits = [getattr(each.config, "max_position_embeddings", None) or CONTEXT for each in models]
    if context is None:
        return min(CONTEXT, *limits)
    if not 2 <= context <= min(limits):
        raise ValueError(f"context: expected 2 to {min(limits)} tokens, got {context}")
    return context


def _scores(model: Any, ids: Tensor, rows: int) -> Iterator[Tensor]:
    """Scores [up to rows, vocabulary] of the tokens after each of `ids`, through the model's own KV cache, which may be
    packed. Long windows take several forward passes, because all scores at once would be gigabytes for a large
    vocabulary.
    """
    cache = None
    for piece in ids.to(model.device)[None].split(rows, dim=1):
        out = model(input_ids=piece, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        yield out.logits[0]


def _add(found: _Tokens, scores: tuple[Tensor, ...], targets: Tensor) -> None:
    """Add what scores [rows, vocabulary] of the model, and of the reference if there is one, say of `targets`."""
    device = scores[0].device
    targets = targets.to(device)
    wide = torch.float64 if devices.of(device).float64 else torch.float32
    step = max(1, WIDE // scores[0].shape[-1])
    for i in range(0, len(targets), step):
        target = targets[i : i + step, None]
        parts = [each[i : i + step].to(device, wide) for each in scores]
        if not all(bool(torch.isfinite(part.logsumexp(-1)).all()) for part in parts):
            raise ValueError("model: expected finite scores, got NaN or infinity")
        logs = [part.log_softmax(-1) for part in parts]
        found.nll.append(-logs[0].gather(-1, target)[:, 0].cpu().double())
        if len(scores) == 1:
            continue
        found.reference.append(-logs[1].gather(-1, target)[:, 0].cpu().double())
        share = logs[1].exp()
        kl = torch.where(share > 0, share * (logs[1] - logs[0]), 0.0).sum(-1)  # a token that can't come adds nothing
        found.kl.append(kl.clamp(min=0.0).cpu().double())  # what rounding makes of zero
        found.same.append((parts[0].argmax(-1) == parts[1].argmax(-1)).cpu().double())
