"""`ops.rope_attention` in plain torch, of the two ops that it is made of."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torch_foundry.testing.reference import attention, rope_kv

_OF_ATTENTION = ("scale", "causal", "window", "softcap", "sinks")
_OF_BOTH = ("rows", "block_table", "k_format", "v_format")


def rope_attention(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor | None, sin: Tensor | None, k_cache: Tensor, v_cache: Tensor,
    kv_len: int, *, step: Tensor | None = None, mask: Tensor | None = None, **given: Any,
) -> Tensor:  # fmt: skip
    tokens = q.shape[1]
    if step is not None:
        kv_len, gone = int(step[0]) + tokens, int(step[1])
        mask = None if mask is None else mask[..., gone:]
    scores = {name: given.pop(name) for name in _OF_ATTENTION if name in given}
    where = {name: given[name] for name in _OF_BOTH if name in given}
    q = rope_kv(q, k, v, cos, sin, k_cache, v_cache, kv_len - tokens, **given)
    return attention(q, k_cache, v_cache, kv_len, mask=mask, **scores, **where)
