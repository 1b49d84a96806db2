"""A cache that the caller of generate() keeps: what it has read is noted, and compared with the next call's text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from torch_foundry.core.interrupts import uninterruptible
from torch_foundry.kvcache.snapshots import take_back

_NAME = "read_text"  # attribute of the cache
_COMPARED = frozenset({"attention_mask", "position_ids", "past_key_values", "tokenizer"})


@dataclass(frozen=True)
class ReadText:
    """ids: int64 [B, n], on the CPU. mask: bool [B, n]. length: of the cache; what is behind n of it is not known."""

    ids: Tensor
    mask: Tensor
    length: int = -1

    def common(self, other: ReadText) -> int:
        """How many first tokens are the same in all rows."""
        n = min(self.ids.shape[1], other.ids.shape[1])
        if len(self.ids) != len(other.ids):
            return 0
        same = (self.ids[:, :n] == other.ids[:, :n]) & (self.mask[:, :n] == other.mask[:, :n])
        return int(same.all(0).long().cumprod(0).sum())


def forget(cache: Any) -> Any:
    """Give up what was noted of `cache`, which something else is about to change; returns that, or None."""
    return getattr(cache, "__dict__", {}).pop(_NAME, None)


@uninterruptible()
def begin(ids: Tensor, config: Any, model_kwargs: dict[str, Any]) -> ReadText | None:
    """Take the cache back to what it and `ids`, as `_sample` gets them, have in common, if it is noted what it has
    read. Returns the text that it will have read with the prompt; None: not known, so nothing is to be noted.

    ids may be only what is new, with a mask of the whole text: then nothing is compared.
    """
    cache, mask = model_kwargs.get("past_key_values"), model_kwargs.get("attention_mask")
    before: ReadText | None = forget(cache)
    if type(cache) is not DynamicCache:
        return None
    length = cache.get_seq_length()
    if before is not None and before.length != length:
        before = None  # somebody else has used it
    if mask is None:  # generate() drops one of ones, and leaves its length here
        mask = torch.ones(len(ids), getattr(config, "_mask_length", ids.shape[1]), dtype=torch.bool)
    text, new = ReadText(ids.cpu(), mask.cpu().bool()), ids.shape[1]
    usual = _is_usual(text.mask, model_kwargs)
    if new and text.mask.shape[1] != new:
        known = before is not None and before.ids.shape[1] == length and text.mask.shape[1] == length + new
        if before is None or not known or not torch.equal(before.mask, text.mask[:, :length]):
            return None
        return ReadText(torch.cat([before.ids, text.ids], 1), text.mask) if usual else None
    if before is None:
        return None if length or not usual else text
    keep = max(min(before.common(text), new - 1), 0) if usual else 0  # the last token has to be read
    if keep < length and not take_back(cache, length - keep, keep):
        cache.reset()
    return text if usual else None


def end(cache: Any, text: ReadText | None, new: Tensor | list[list[int]]) -> None:
    """Note that `cache` has read `text`, and what was chosen behind it, `new` [B, n], as far as it has."""
    if text is None:
        return
    new, length = torch.as_tensor(new, dtype=torch.int64, device="cpu"), cache.get_seq_length()
    ids = torch.cat([text.ids, new], 1)[:, :length]
    mask = torch.cat([text.mask, torch.ones_like(new, dtype=torch.bool)], 1)[:, :length]
    vars(cache)[_NAME] = ReadText(ids, mask, length)


def noted(result: Any, given: Tensor, model_kwargs: dict[str, Any], text: ReadText | None) -> Any:
    """`result` of transformers' own loop behind the ids that it was `given`, noted as `end` does it."""
    if text is not None:
        ids = result if isinstance(result, Tensor) else result.sequences
        end(model_kwargs["past_key_values"], text, ids[:, given.shape[1] :])
    return result


def _is_usual(mask: Tensor, model_kwargs: dict[str, Any]) -> bool:
    """Whether all that the model is told of the text is its ids: no embeddings, no images, no positions of its own."""
    for name, value in model_kwargs.items():
        if name not in _COMPARED and not isinstance(value, bool | int | None):
            return False
    positions = model_kwargs.get("position_ids")
    if positions is None:
        return True
    usual = (mask.long().cumsum(-1) - 1).masked_fill(~mask, 0)
    return positions.dim() == 2 and positions.shape[1] == usual.shape[1] and bool((positions.cpu() == usual).all())
