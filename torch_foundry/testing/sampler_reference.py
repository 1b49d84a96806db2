"""The sampler again, in numpy and float64, by sorting: the kernels' draws are compared with it one by one.

Shares no code and no method with the kernels. Scores up to the temperature are float32 because Hugging Face rounds
there; masses, thresholds and sums are float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torch_foundry.sampling.params import Settings

Array = NDArray[Any]
TOLERANCE = 1e-6  # how far from a boundary of the distribution a draw may fall on the other side


def philox(counter: Array, key: Array) -> Array:
    """Philox4x32-10. counter: [..., 4], key: [..., 2], both of 32 bits; returns uint32 [..., 4]."""
    c = [counter[..., i].astype(np.uint64) for i in range(4)]
    k = [key[..., i].astype(np.uint64) for i in range(2)]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [b >> np.uint64(32) ^ c[1] ^ k[0], b & low, a >> np.uint64(32) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return np.stack(c, -1).astype(np.uint32)


def uniforms(seed: int, streams: Array, n: Array | int) -> Array:
    """The random number of each row's n-th new token, float64 in [0, 1). streams: int64 [B]."""
    word = streams.astype(np.int64).view(np.uint64)
    n = np.broadcast_to(np.asarray(n, np.uint64), word.shape)
    counter = np.stack([n, word & np.uint64(0xFFFFFFFF), word >> np.uint64(32), np.zeros_like(word)], -1)
    key = np.broadcast_to(np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint64), (len(word), 2))
    return philox(counter, key)[..., 0] / 2.0**32


def processed(logits: Array, ids: Array, prompt: int, settings: Settings) -> Array:
    """What is chosen from: float32 [B, V], after the temperature if there is a draw.

    logits: float32 [B, V]. ids: int64 [B, length], all tokens so far, of which the first `prompt` were given.
    """
    s, scores, length = settings, logits.astype(np.float32).copy(), ids.shape[1]
    batch, vocabulary = scores.shape
    if s.counts_tokens:
        first = np.broadcast_to(np.asarray(s.repetition_ignore or 0), (batch,))
        for b in range(batch):
            seen = np.unique(ids[b, first[b] :])
            seen = seen[(seen >= 0) & (seen < vocabulary)]
            old, penalty = scores[b, seen], np.float32(s.repetition_penalty)
            scores[b, seen] = np.where(old < 0, old * penalty, old / penalty)
            generated = np.bincount(ids[b, prompt:], minlength=vocabulary)[:vocabulary].astype(np.float32)
            scores[b] -= np.float32(s.frequency_penalty) * generated
            scores[b] -= np.where(generated > 0, np.float32(s.presence_penalty), np.float32(0))
    for b in range(batch if s.bans_sequences else 0):
        row = [int(token) for token in ids[b]]
        scores[b, list(_banned(row, s, vocabulary))] = -np.inf
    _ban(scores, [word[0] for word in s.bad_words if len(word) == 1], True)
    _ban(scores, s.min_length_tokens, length < s.min_length)
    _ban(scores, s.min_new_tokens, length < s.min_new_length)
    for tokens, applies in (
        ((s.forced_bos,), s.forced_bos is not None and length == 1),
        (s.forced_eos, s.forced_eos and length == s.forced_eos_length),
    ):
        if applies:
            scores[:] = -np.inf
            scores[:, list(tokens)] = 0
    _ban(scores, s.suppress, True)
    _ban(scores, s.begin_suppress, length == s.begin_index)
    return scores / np.float32(s.temperature) if s.do_sample else scores


def _ban(scores: Array, tokens: Any, applies: bool) -> None:
    if applies:
        scores[:, [token for token in tokens if token < scores.shape[1]]] = -np.inf


def _banned(row: list[int], settings: Settings, vocabulary: int) -> set[int]:
    n, found = settings.no_repeat_ngram, set()
    grams = {tuple(row[i : i + n]) for i in range(len(row) - n + 1)} if n else set()
    for token in {gram[-1] for gram in grams}:
        if (*row[len(row) - n + 1 :], token) in grams and token < vocabulary:
            found.add(token)
    for word in settings.bad_words:
        if len(word) > 1 and len(row) >= len(word) - 1 and tuple(row[len(row) - len(word) + 1 :]) == word[:-1]:
            found.add(word[-1])
    return found


def kept(scores: Array, settings: Settings, slack: float = 0.0) -> Array:
    """Which tokens top-k, top-p and min-p leave: bool [B, V]. slack: added to p, and relatively to min-p."""
    s, keep = settings, np.isfinite(scores)
    width = scores.shape[1]
    if s.top_k is not None and s.top_k < width:
        keep &= scores >= np.partition(scores, width - s.top_k)[:, width - s.top_k, None]
    if s.top_p is not None:
        masked = np.where(keep, scores, -np.inf)
        order = np.argsort(masked, axis=-1, kind="stable")  # of equal scores, lower indices are cut first
        weights = np.take_along_axis(weights_of(masked), order, -1)
        below = np.cumsum(weights, -1)
        cut = below <= (1 - s.top_p - slack) * below[:, -1:]
        cut[:, max(width - s.top_p_keep, 0) :] = False
        np.put_along_axis(keep, order, ~cut & np.take_along_axis(keep, order, -1), -1)
    if s.min_p is not None:
        masked = np.where(keep, scores, -np.inf)
        enough = weights_of(masked) >= min(s.min_p * (1 - slack), 1.0)
        if s.min_p_keep > 1:
            order = np.argsort(masked, axis=-1, kind="stable")
            np.put_along_axis(enough, order[:, max(width - s.min_p_keep, 0) :], True, -1)
        keep &= enough
    return keep


def weights_of(scores: Array) -> Array:
    """exp(score - largest) in float64; rows without any finite score give zeros."""
    wide = scores.astype(np.float64)
    largest = wide.max(-1, keepdims=True)
    return np.exp(wide - np.where(np.isfinite(largest), largest, 0))


def probabilities(scores: Array, settings: Settings, slack: float = 0.0) -> Array:
    """What is drawn from: float64 [B, V]."""
    weights = np.where(kept(scores, settings, slack), weights_of(scores), 0)
    return weights / weights.sum(-1, keepdims=True)


def draw(probs: Array, u: Array) -> Array:
    """Inverse CDF in order of index: int64 [B]. u: [B]."""
    sums = np.cumsum(probs, -1)
    found: Array = (sums <= u[:, None] * sums[:, -1:]).sum(-1)
    return found


def wrong_draws(tokens: Array, scores: Array, settings: Settings, u: Array) -> Array:
    """Rows whose token is not the oracle's, unless u, p or min-p lie within TOLERANCE of a boundary: int64 [n]."""
    rows = np.flatnonzero(draw(probabilities(scores, settings), u) != tokens)
    unknown = (tokens[rows] < 0) | (tokens[rows] >= scores.shape[1])
    tokens = np.where((tokens < 0) | (tokens >= scores.shape[1]), 0, tokens)
    wrong = np.ones(len(rows), dtype=bool)
    for slack in (0.0, TOLERANCE, -TOLERANCE):
        probs = probabilities(scores[rows], settings, slack)
        own = np.take_along_axis(probs, tokens[rows, None], -1)[:, 0]
        end = np.take_along_axis(np.cumsum(probs, -1), tokens[rows, None], -1)[:, 0]
        wrong &= (own == 0) | (u[rows] < end - own - TOLERANCE) | (u[rows] > end + TOLERANCE)
    return rows[wrong | unknown]
