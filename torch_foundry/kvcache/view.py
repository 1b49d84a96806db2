"""What a mixer is given of a cache for one step: where keys and values, or recurrent states, lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right

from torch_foundry import ops
from torch_foundry.core import devices, limits
from torch_foundry.kvcache.formats import PLAIN, Formats, decoded

# cos, sin: of each token, or tables by position; None: no rotation. Mixers may be given more
Rope = tuple[Tensor | None, ...]

Heads = Mapping[str, Any]  # head_dim, and what becomes of heads, as in `ops.rope_kv`

MASK_COST = 4  # torch's attention with a mask is faster than ours from so many times as many keys on
WIDEST = 256  # head_dim: for wider ones torch stores all scores
MASKED = 1 << 26  # elements of the mask that a window needs: what is larger costs more than our kernel does
PLANNED = 8192  # tokens of a text from which on it is worth the 50 ms that cuDNN takes to plan for a new length


class KVStep(Protocol):
    """Keys and values of one step, of one layer."""

    @property
    def positions(self) -> Tensor | None:
        """int32: the new tokens' rows of the rope tables; None: one row a token."""

    def write(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, *, head_dim: int, **norms: Any) -> Any:
        """Norm and rotate heads, store keys and values; returns the queries, for `attend`.

        q, k, v: [B, L, heads * head_dim]. norms: of heads, as in `ops.rope_kv`.
        """

    def attend(
        self,
        q: Any,
        mask: Tensor | None = None,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        value_queries: Tensor | None = None,
    ) -> Tensor:
        """Attention of the queries from `write` to the keys so far: [B, L, heads * head_dim].

        mask: in place of causal attention; mask and sinks as in `ops.attention`. value_queries: as there, but
        [B, L, heads, head_dim of the values].
        """

    def attend_new(
        self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, mask: Tensor | None = None, *, heads: Heads, **options: Any
    ) -> Tensor:
        """`write`, given heads, then `attend`, given mask and options."""
        return self.attend(self.write(q, k, v, rope, **heads), mask, **options)

    def exchanged(self) -> KVStep:
        """The same with values for keys and keys for values."""


@dataclass(frozen=True, slots=True)
class KVView:
    """Where one step's keys and values lie, and which of them its queries see.

    They lie in one piece a row, or in pages, which `block_table` names. How many there are the host knows, or, in steps
    that are replayed or of rows with different lengths, only the device: then `step` or `rows` says so.
    """

    k: Tensor  # [B, Hkv, capacity, D], or pages [P, Hkv, page, D]; packed rows if there is a format
    v: Tensor
    kv_len: int  # keys that are attended to, the last of them new; a bound where `step` or `rows` says more
    positions: Tensor | None = None  # int32 [B, L]: the new tokens' rows of the rope tables; None: one row a token
    step: Tensor | None = None  # int32 [2]: where in k the first new token goes, and how many tokens came before k
    rows: Tensor | None = None  # int32 [B, 2]: where the first new token of a row goes, and number of new ones
    block_table: Tensor | None = None  # int32 [B, pages]
    padding: Tensor | None = None  # bool [B, tokens]: False for tokens that no query sees
    formats: Formats = PLAIN  # of packed keys and values

    def start(self, tokens: int) -> int:
        """Where the first of `tokens` new tokens goes; 0 if the device says so."""
        return self.kv_len - tokens if self.step is self.rows is None else 0

    def write(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, *, head_dim: int, **norms: Any) -> Any:
        """See `KVStep`."""
        cos, sin = rope
        return ops.rope_kv(
            q, k, v, cos, sin, self.k, self.v, self.start(q.shape[1]), head_dim=head_dim, positions=self.positions,
            step=self.step, rows=self.rows, block_table=self.block_table,
            k_format=self.formats[0], v_format=self.formats[1], **norms,
        )  # fmt: skip

    def attend(
        self,
        q: Any,
        mask: Tensor | None = None,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
        value_queries: Tensor | None = None,
    ) -> Tensor:
        """See `KVStep`. Prompts go to torch's own kernels, on devices where those are faster."""
        seen, k, v = self._seen(mask, window), self.k, self.v
        window = seen["window"]
        plain = not softcap and sinks is value_queries is self.step is self.rows is None
        plain = plain and (self.block_table is None or (len(self.block_table) == 1 and not 0 < window < self.kv_len))
        plain = plain and (self.formats != PLAIN or k.shape[3] == v.shape[3])  # else torch stores all scores
        if plain and _torch_is_faster(q, self.kv_len, mask, window):
            dense = [decoded(self._in_order(x), f, q.dtype) for x, f in zip((k, v), self.formats, strict=True)]
            return torch_attention(q, dense[0], dense[1], mask, scale=scale, window=window)
        return ops.attention(
            q, **seen, scale=scale, softcap=softcap, sinks=sinks,
            value_queries=None if value_queries is None else value_queries.transpose(1, 2),
        )  # fmt: skip

    def attend_new(
        self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, mask: Tensor | None = None, *, heads: Heads, **options: Any
    ) -> Tensor:
        """See `KVStep`."""
        if q.shape[1] > limits.FEW_ROWS:
            return self.attend(self.write(q, k, v, rope, **heads), mask, **options)
        seen = self._seen(mask, options.pop("window", 0))
        cos, sin = rope
        return ops.rope_attention(q, k, v, cos, sin, **seen, positions=self.positions, **heads, **options)

    def _seen(self, mask: Tensor | None, window: int) -> dict[str, Any]:
        """Arguments of `ops.attention`: the caches, and what queries see of them."""
        return {
            "k_cache": self.k, "v_cache": self.v, "kv_len": self.kv_len, "causal": mask is None,
            "mask": mask if self.padding is None else self.padding[:, None, None],
            "window": window if mask is None else 0, "step": self.step, "rows": self.rows,
            "block_table": self.block_table, "k_format": self.formats[0], "v_format": self.formats[1],
        }  # fmt: skip

    def _in_order(self, stored: Tensor) -> Tensor:
        """Keys or values that queries attend to, [B, Hkv, kv_len, D]; of one row, if they lie in pages."""
        if self.block_table is not None:
            pages = self.block_table[0, : -(-self.kv_len // stored.shape[2])]
            stored = stored[pages].transpose(0, 1).flatten(1, 2)[None]
        return stored[:, :, : self.kv_len]

    def exchanged(self) -> KVView:
        """See `KVStep`."""
        return replace(self, k=self.v, v=self.k, formats=self.formats[::-1])

    def is_dense(self, dtype: torch.dtype) -> bool:
        """Whether keys and values lie in one piece a row, in `dtype`, as `ops.norm_qkv` writes them."""
        return self.block_table is None and self.k.dtype == self.v.dtype == dtype


def _torch_is_faster(q: Tensor, keys: int, mask: Tensor | None, window: int) -> bool:
    least, cut = devices.of(q.device).prompt_keys, 0 < window < keys
    if not 0 < least * (MASK_COST if cut or mask is not None else 1) <= keys or q.shape[2] <= limits.FEW_ROWS:
        return False
    return q.dtype != torch.float32 and q.shape[3] <= WIDEST and (not cut or q.shape[2] * keys <= MASKED)


def torch_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, window: int) -> Tensor:
    """Attention of the last tokens' queries, q [B, H, L, D], to k and v [B, Hkv, T, D] of q's dtype: [B, L, H * D].

    mask: [B or 1, H or 1, L, T], in place of causal attention to the last `window` keys (0: to all).
    """
    queries, keys = q.shape[2], k.shape[2]
    if mask is None and 0 < window < keys:
        mask = q.new_ones(queries, keys, dtype=torch.bool).tril(keys - queries).triu(keys - queries - window + 1)
    if mask is None:
        y = _causal(q, k, v, scale)
    else:  # torch's kernel for masks wants as many heads of keys as of queries
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return y.transpose(1, 2).flatten(2)


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    queries, keys, head_dim = q.shape[2], k.shape[2], q.shape[3]
    by_cudnn = queries == keys and head_dim % 8 == 0  # if torch chooses; if there are more keys, it takes this:
    if by_cudnn and queries < PLANNED and can_use_flash_attention(SDPAParams(q, k, v, None, 0, True, True)):
        return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=scale)[0]
    return F.scaled_dot_product_attention(q, k, v, causal_lower_right(queries, keys), scale=scale, enable_gqa=True)


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Keys and values of another layer, [B, Hkv, tokens, D], for a layer that keeps none of its own."""

    k: Tensor
    v: Tensor

    def visible(self, tokens: int) -> int:
        """How many keys a step attends to."""
        return self.k.shape[2]

    def reserve(self, *_: Any) -> KVView:
        """The view of a step, whose queries are the last tokens."""
        return KVView(self.k, self.v, self.k.shape[2])


@dataclass(frozen=True, slots=True)
class StateView:
    """Where one step's recurrent states lie. Its tokens are x [T, ...], those of a sequence side by side.

    A mixer reads state `count` of each sequence and writes the ones behind it. State number n of sequence i is
    `pools[name][table[i, n % slots]]`; state 0 is zeros and is not read. If a sequence has fewer tokens than slots,
    token t leaves state count + 1 + t; else the last token leaves state count + 1.
    First dimensions of int32 tensors may have any stride. `longest`, which the host knows, decides how, not what.
    """

    pools: Mapping[str, Tensor]  # [slots of all sequences, ...]
    runs: Tensor  # int32 [N, 2]: the first of a sequence's tokens and their number, which may be 0
    table: Tensor  # int32 [N, slots]
    count: Tensor  # int32 [N]
    longest: int  # tokens of a sequence, about: many mean a prompt
    prompt: Tensor | None = None  # int32 [N]: how many of its tokens, from the first on, are a prompt's; None: 0
