"""Perplexity, the same way at training time and in the tests."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch


def fingerprint(texts: list[str]) -> str:
    """SHA-256 of the texts, to tell a changed corpus from a changed model."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


@torch.inference_mode()
def perplexity(model: Any, tokenizer: Any, texts: list[str]) -> float:
    """exp of the mean negative log-likelihood per token (the first token of each text is given)."""
    nll, count = 0.0, 0
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids.to(model.device)
        logits = model(ids).logits[0, :-1].float()
        nll += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    return math.exp(nll / count)
