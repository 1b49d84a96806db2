"""The next token of each row, written where the next step finds it; `torch_foundry.sampling` holds the state.

The reference is `testing.sampler_reference`. State, on the device of the logits, contiguous, kept by kernels alone:
    length, finished, errors: int32 [B] · ids: int64 [B, capacity] · newest: int64 [B, 1]
    params: int32 [18] and rules: uint8 [V], as `torch_foundry.sampling` makes them from settings
"""

from __future__ import annotations

import torch
from torch import Tensor

from torch_foundry.ops.fake import fake

_ops = torch.ops.torch_foundry


def sample(
    logits: Tensor,
    params: Tensor,
    rules: Tensor,
    *,
    start: Tensor,
    streams: Tensor,
    length: Tensor,
    finished: Tensor,
    errors: Tensor,
    ids: Tensor,
    newest: Tensor,
    sequences: Tensor | None = None,
    counts: Tensor | None = None,
    banned: Tensor | None = None,
    probs: Tensor | None = None,
    use_rules: bool = False,
    draw: bool = False,
    truncate: bool = False,
) -> None:
    """Processors, then the largest score or a draw; writes ids at each row's length, newest, and the rest of the state.

    logits: [B, V], rows may be strided; V up to 2^20. start: int32 [B], prompt lengths. streams: int64 [B].
    sequences, banned: int32 [n] and [B, V] for n-grams and bad words of several tokens. counts: int32 [B, V] of tokens
    seen, for penalties. probs: float32 [B, V], gets the probabilities that are drawn from (for tests).
    use_rules: rules ban or force tokens. truncate: top-k, top-p or min-p. The parameters are in `params`.
    """
    _ops.sample.default(
        logits, params, rules, sequences, counts, banned, start, streams, length, finished, errors, ids, newest, probs,
        use_rules, draw, truncate,
    )  # fmt: skip


@fake("sample")
def _() -> None:
    return None


def sample_count_prompt(ids: Tensor, first: Tensor, prompt: int, counts: Tensor) -> None:
    """Notes the tokens ids[row, first[row] : prompt] in counts.

    ids: int64 [B, capacity]. first: int32 [B]. counts: int32 [B, V], 2 * (times generated) + (whether in the prompt).
    """
    _ops.sample_count_prompt.default(ids, first, prompt, counts)


@fake("sample_count_prompt")
def _() -> None:
    return None
