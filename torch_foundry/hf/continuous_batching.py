"""Attention over the pages of transformers' continuous batching (`generate_batch`).

The tokens of all requests come as one row. transformers says where a request's tokens are stored by one index per
token; our kernels need a table of pages, which is derived from these. Layers with full attention are read in place.
Layers with a sliding window (rings in memory), and page sizes that kernels don't take, are gathered first by
transformers' own `update`, and attended to with its mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core import devices, limits
from torch_foundry.core.errors import Fallback
from torch_foundry.kvcache.room import LARGEST
from torch_foundry.kvcache.view import Heads, KVView, Rope
from torch_foundry.models.attention_spec import AttentionSpec
from torch_foundry.models.guards import mask_reason

# what transformers hands down with its cache; a table of blocks comes with flash attention alone
ARGUMENTS = frozenset(
    {
        "cache", "cu_seq_lens_k", "cu_seq_lens_q", "is_causal", "logits_indices", "logits_processor_args",
        "max_length_k", "max_length_q", "read_index", "write_index",
    }
)  # fmt: skip
ATTENTION = frozenset({"sdpa", "eager", "paged|sdpa", "paged|eager"})
FULL = "full_attention"


@dataclass
class Step:
    """Where the tokens of a forward pass go and what they see: the same for all layers that share a page table."""

    of: Any  # the argument that it was made from, kept so that no other can be taken for it
    layer: int  # the last one that asked
    pages: Tensor  # int32 [T, 1]: the page that a token is written to
    offsets: Tensor  # int32 [T, 2]: where in it, and 1
    table: Tensor  # int32 [S, W]: pages of each sequence
    rows: Tensor  # int32 [S, 2]: tokens before the new ones, and how many those are
    runs: list[tuple[int, int, int, int]]  # first token, first sequence, how many sequences, tokens of each
    bound: int  # tokens of the longest sequence


def attention_reason(config: Any) -> str | None:
    """Why this layer's attention may differ from causal attention within each request; None if it doesn't."""
    implementation = config._attn_implementation
    return None if implementation in ATTENTION else f"attention implementation {implementation}"


class Continuous:
    """What a layer attends to, and writes to, during one forward pass of continuous batching."""

    _seen: tuple[Tensor, Tensor]  # keys and values that queries attend to, from `write` on

    def __init__(self, index: int, spec: AttentionSpec, arguments: dict[str, Any]) -> None:
        self.index, self.spec, self.arguments = index, spec, arguments
        cache = arguments["cache"]
        try:  # nothing of this is public
            allocator = cache.layer_to_allocator[index]
            self.group, self.page = allocator.index, allocator.tokens_per_page
            self.stride, self.full = allocator.block_physical_stride, cache.cache_allocators.get(FULL) is allocator
            self.memory: tuple[Tensor, Tensor] = allocator._kv_token_views[index]
        except (AttributeError, KeyError):
            raise Fallback(f"cache is {type(cache).__name__}") from None

    def check(self, x: Tensor, mask: Any) -> None:
        """Raise Fallback if stock code has to run."""
        spec, (keys, _) = self.spec, self.memory
        if spec.value_dim != spec.head_dim:
            raise Fallback("continuous batching of values of another width than keys")
        if (keys.dtype, keys.device, *keys.shape[1:]) != (x.dtype, x.device, spec.n_kv_heads, spec.head_dim):
            raise Fallback("cache holds another shape, dtype or device")
        if devices.of(x.device).capturing():
            raise Fallback("continuous batching in a CUDA graph")  # the host has to know the lengths
        self.in_place = (
            self.full
            and not spec.window
            and self.page >= limits.LEAST_PAGE
            and not self.page & (self.page - 1)
            and self.stride * keys.stride(0) <= LARGEST
        )
        if not self.in_place:
            if mask is None:
                raise Fallback("continuous batching without a mask")
            if reason := mask_reason(mask, x.dtype, 1, spec.n_heads, x.shape[1], mask.shape[-1]):
                raise Fallback(reason)

    def write(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, *, head_dim: int, **norms: Any) -> Tensor:
        """See `KVStep`; of [1, T, heads * head_dim]."""
        if not self.in_place:
            return self._gather(q, k, v, rope, head_dim=head_dim, **norms)
        step = self._step()
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))  # each token a sequence of its own, as it has its own page
        cos, sin = rope
        each = rope if cos is None or sin is None else (cos.transpose(0, 1), sin.transpose(0, 1))
        self._seen = keys, values = self._pages(self.memory[0]), self._pages(self.memory[1])
        to = KVView(keys, values, 0, rows=step.offsets, block_table=step.pages)
        return to.write(q, k, v, each, head_dim=head_dim, **norms)

    def attend(
        self,
        q: Tensor,
        mask: Tensor | None = None,
        *,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `KVStep`."""
        keys, values = self._seen
        options: dict[str, Any] = {"scale": scale, "softcap": softcap, "sinks": sinks}
        if not self.in_place:
            return KVView(keys, values, keys.shape[2]).attend(q, mask, **options)
        step, parts = self._step(), []
        for token, sequence, sequences, length in step.runs:
            ours = slice(sequence, sequence + sequences)
            seen = KVView(keys, values, step.bound, rows=step.rows[ours], block_table=step.table[ours])
            new = q[token : token + sequences * length, :, 0]  # [tokens, heads, head_dim]
            new = new.unflatten(0, (sequences, length)).transpose(1, 2)
            parts.append(seen.attend(new, **options).flatten(0, 1))
        done = sum(map(len, parts))
        if done < len(q):  # padding, for transformers' own graphs
            parts.append(q.new_zeros(len(q) - done, q.shape[1] * q.shape[3]))
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[None]

    def attend_new(
        self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, mask: Tensor | None = None, *, heads: Heads, **options: Any
    ) -> Tensor:
        """See `KVStep`."""
        return self.attend(self.write(q, k, v, rope, **heads), mask, **options)

    def _gather(self, q: Tensor, k: Tensor, v: Tensor, rope: Rope, *, head_dim: int, **norms: Any) -> Tensor:
        """The queries; what they see is gathered by transformers."""
        keys = q.new_empty(1, k.shape[2] // head_dim, q.shape[1], head_dim)
        values = torch.empty_like(keys)
        q = KVView(keys, values, q.shape[1]).write(q, k, v, rope, head_dim=head_dim, **norms)
        self._seen = self.arguments["cache"].update(keys, values, self.index, dict(self.arguments))
        return q

    def _pages(self, memory: Tensor) -> Tensor:
        """The pages of this layer in memory [tokens, heads, head_dim]: [blocks, heads, page, head_dim]."""
        count = (len(memory) - self.page) // self.stride + 1
        token, head, element = memory.stride()
        shape = (count, memory.shape[1], self.page, memory.shape[2])
        return memory.as_strided(shape, (self.stride * token, head, token, element))

    def _step(self) -> Step:
        steps: dict[int, Step] = self.arguments["cache"].__dict__.setdefault("_foundry_steps", {})
        step, of = steps.get(self.group), self.arguments["cu_seq_lens_q"]
        if step is None or step.of is not of or self.index <= step.layer:
            step = steps[self.group] = self._make_step(of)
        step.layer = self.index
        return step

    def _make_step(self, of: Tensor) -> Step:
        given, page, stride = self.arguments, self.page, self.stride
        write = given["write_index"][self.group].long()
        read = given["read_index"][self.group].long()
        longest, bound = given["max_length_q"], int(given["max_length_k"][FULL])
        ends_q, ends_k = of.long(), given["cu_seq_lens_k"][FULL].long()
        if not read.numel():  # every request begins: what is written is all there is
            read, ends_k = write, ends_q
        # a sequence's places are those of its tokens in their order, so each page's first says where that is
        firsts = torch.arange(0, bound, page, device=read.device)
        table = read[(ends_k[:-1, None] + firsts).clamp(max=len(read) - 1)] // stride
        new = ends_q.diff()
        rows = torch.stack([ends_k.diff() - new, new], 1)
        runs = [(0, 0, len(write), 1)] if longest == 1 and len(new) == len(write) else _runs(ends_q.tolist())
        offsets = torch.stack([write % stride, torch.ones_like(write)], 1)
        return Step(
            of, self.index, (write // stride)[:, None].int(), offsets.int(), table.int(), rows.int(), runs, bound
        )


def _runs(ends: list[int]) -> list[tuple[int, int, int, int]]:
    """Groups of sequences for one launch: neighbours that have one new token each, and every other one alone."""
    runs: list[tuple[int, int, int, int]] = []
    for sequence, (first, end) in enumerate(pairwise(ends)):
        length = end - first
        if length == 1 and runs and runs[-1][3] == 1:
            runs[-1] = (*runs[-1][:2], runs[-1][2] + 1, 1)
        elif length:
            runs.append((first, sequence, 1, length))
    return runs
