"""A KV cache in pages of a pool, whose rows share blocks: a `Cache` for transformers, a table of blocks for kernels."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from torch_foundry.kvcache.base import CacheLayer, KVCache, KVLayer, KVSpec, RecurrentSpec, StateSpec, specs_of
from torch_foundry.kvcache.block_manager import BlockManager, Copy, OutOfBlocks
from torch_foundry.kvcache.buffered import removed
from torch_foundry.kvcache.formats import Formats, packed, parse
from torch_foundry.kvcache.pool import Pool, stored_property
from torch_foundry.kvcache.pooled_states import PooledStates
from torch_foundry.kvcache.room import check_pools
from torch_foundry.kvcache.state_tables import NoStates, StateTables
from torch_foundry.kvcache.view import KVView


class PagedLayer(KVLayer, DynamicLayer):
    """A layer of a `PagedCache`. Rows are the cache's to select and reorder."""

    _cache: PagedCache  # a weak proxy: pages are freed with the cache, at once

    def __init__(self, formats: Formats, blocks: int, block_size: int) -> None:
        self.pools = Pool(formats[0], blocks, block_size), Pool(formats[1], blocks, block_size)
        self.length = 0
        super().__init__()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_cache"}

    @property
    def formats(self) -> Formats:
        """What ops have to be told of the pools."""
        return packed(self.pools[0].format), packed(self.pools[1].format)

    @property
    def memory(self) -> tuple[torch.Tensor, ...]:
        """See `CacheLayer`: pages of keys and of values."""
        return tuple(pool.data for pool in self.pools if pool.data is not None)

    keys, values = stored_property(0), stored_property(1)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Note dtype and device."""
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def fits(self, batch: int, spec: StateSpec, dtype: torch.dtype, device: torch.device) -> bool:
        """See `CacheLayer`."""
        return (
            isinstance(spec, KVSpec)
            and (not self._cache.rows or self._cache.rows == batch)
            and all(p.fits(spec.heads, n, dtype, device) for p, n in zip(self.pools, spec.head_dims, strict=True))
        )

    def reserve(self, batch: int, spec: KVSpec, tokens: int, dtype: torch.dtype, device: torch.device) -> KVView:
        """See `CacheLayer`. Raises OutOfBlocks."""
        self.dtype, self.device, self.is_initialized = dtype, device, True
        k, v = self.allocate(spec, dtype, device)
        self._cache.room(batch, self.length + tokens, device)
        table = self._cache.block_table()
        return KVView(k, v, self.length + tokens, block_table=table, formats=self.formats)

    def growth(self, batch: int, spec: KVSpec, tokens: int, dtype: torch.dtype) -> int:
        """See `CacheLayer`: pages are allocated once."""
        return sum(p.growth(spec.heads, n, dtype) for p, n in zip(self.pools, spec.head_dims, strict=True))

    def allocate(self, spec: KVSpec, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, ...]:
        """The pages of keys and of values, as of `Pool`."""
        pairs = zip(self.pools, spec.head_dims, strict=True)
        return tuple(pool.allocate(spec.heads, head_dim, dtype, device) for pool, head_dim in pairs)

    def commit(self, tokens: int) -> None:
        """See `CacheLayer`."""
        self.length += tokens

    def visible(self, tokens: int) -> int:
        """How many keys a step of `tokens` queries attends to."""
        return self.length + tokens

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append; returns all keys and values. This is how stock attention uses the layer."""
        batch, heads, tokens, head_dim = key_states.shape
        spec = KVSpec(heads, head_dim, value_states.shape[3])
        if torch.is_grad_enabled() and (key_states.requires_grad or value_states.requires_grad):
            raise RuntimeError("KV cache: there are no gradients through pages; call the model under torch.no_grad()")
        dtype, device = key_states.dtype, key_states.device
        if not self.fits(batch, spec, dtype, device):
            raise RuntimeError(f"KV cache: it holds another shape, dtype or device than {list(key_states.shape)}")
        self.reserve(batch, spec, tokens, dtype, device)
        for pool, new in zip(self.pools, (key_states, value_states), strict=True):
            pool.write(new, self._cache.block_table(), self.length)
        self.length += tokens
        return self.keys, self.values

    def get_seq_length(self) -> int:
        """Number of tokens seen."""
        return self.length

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -`tokens_to_remove` tokens."""
        self.length = max(self.length - removed(tokens_to_remove), 0)
        self._cache.trim()

    def checkpoint(self) -> tuple[int, ...]:
        """See `CacheLayer`."""
        return self.length, self.is_initialized

    def rollback(self, to: tuple[int, ...]) -> None:
        """See `CacheLayer`."""
        self.length, self.is_initialized = to[0], bool(to[1])
        self._cache.trim()

    def reset(self) -> None:
        """Forget everything."""
        self.length, self.is_initialized = 0, False
        self._cache.trim()

    def batch_repeat_interleave(self, *_: Any) -> None:
        """Rows are the same in all layers: see `PagedCache`."""
        raise TypeError("rows of a paged cache are those of all layers; call its own methods")

    batch_select_indices = reorder_cache = batch_repeat_interleave  # type: ignore[assignment]

    def offload(self) -> None:
        """Move to the CPU."""
        for pool in self.pools:
            pool.data = None if pool.data is None else pool.data.to("cpu")

    def prefetch(self) -> None:
        """Move back to the device of the model."""
        for pool in self.pools:
            pool.data = None if pool.data is None else pool.data.to(self.device)


class PagedCache(KVCache, Cache):
    """Keys and values of all layers in `blocks` blocks of `block_size` tokens; its memory never grows.

    config: of the model. block_size: a power of two from 16. kv_cache: as in `patch`. salt: as in `BlockManager`. As a
    transformers cache it has the rows of one batch; beams share blocks instead of copying them. Callers with sequences
    of their own, by name, use `manager`, `pools` and `tables`.
    """

    layers: list[PagedLayer | PooledStates]  # type: ignore[assignment]

    def __init__(
        self,
        config: Any,
        blocks: int,
        *,
        block_size: int = 16,
        kv_cache: str | Mapping[str, str | None] | None = None,
        salt: bytes = b"",
        states: StateTables | None = None,
    ) -> None:
        if block_size < 16 or block_size & (block_size - 1):
            raise ValueError(f"block_size={block_size}: expected a power of two of at least 16")
        self.manager = BlockManager(blocks, block_size, salt=salt, states=states)
        formats = parse(kv_cache)
        text = config.get_text_config(decoder=True)
        count = text.num_hidden_layers - (getattr(text, "num_kv_shared_layers", 0) or 0)
        self._rows: list[object] = []  # the batch's sequences
        self._table: torch.Tensor | None = None
        self._tables: list[list[int]] = []  # what `_table` was made of
        super().__init__(layers=[PagedLayer(formats, blocks, block_size) for _ in range(count)])
        self.parts = self.layers  # those that keep anything; of layers with parts, each part
        self._adopt()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._adopt()

    def _adopt(self) -> None:
        for layer in self.layers:
            if isinstance(layer, PagedLayer):
                layer._cache = weakref.proxy(self)

    def prepare(self, specs: Mapping[int, StateSpec], dtype: torch.dtype, device: torch.device) -> None:
        """Have memory for what the layers of a model keep, by their numbers. For recurrent ones there are `states`."""
        manager, states, found = self.manager, self.manager.states, list[tuple[PagedLayer | PooledStates, Any]]()
        for i, spec in specs.items():
            for own in specs_of(spec):
                part = self.layers[i]
                if isinstance(own, RecurrentSpec):
                    part = PooledStates(states)
                    if own is spec:  # beside keys and values, it is in `parts` alone
                        self.layers[i] = part
                found.append((part, own))
        if not any(isinstance(part, PooledStates) for part, _ in found):
            manager.states = NoStates()
        check_pools(found, manager.blocks, manager.block_size, dtype, device)
        for part, own in found:
            part.allocate(own, dtype, device)
        self.parts = [part for part, _ in found]

    def cache_layer(self, index: int) -> CacheLayer:
        """See `KVCache`."""
        if index >= len(self.layers):
            raise RuntimeError(f"KV cache: it was made for {len(self.layers)} layers, and the model has more")
        return self.layers[index]

    @property
    def rows(self) -> int:
        """Rows of the batch; 0 while nothing is stored."""
        return len(self._rows)

    def room(self, batch: int, length: int, device: torch.device) -> None:
        """Let each of `batch` rows have room for `length` tokens. Raises OutOfBlocks, and then nothing has changed."""
        manager = self.manager
        if not self._rows:
            self._rows = [object() for _ in range(batch)]
            for row in self._rows:
                manager.add(row)
        more = [max(length - manager.length(row), 0) for row in self._rows]
        needed = sum(manager.needs(row, n) for row, n in zip(self._rows, more, strict=True))
        if needed > manager.available:
            self.trim()
            raise OutOfBlocks(
                f"KV cache: {batch} rows of {length} tokens need {needed} more blocks, of {manager.blocks} "
                f"{manager.available} are free"
            )
        copies: list[Copy] = []
        for row, n in zip(self._rows, more, strict=True):
            copies += manager.reserve(row, n)
            manager.commit(row, n)
        self.copy(copies)
        self._refresh(device)

    def _refresh(self, device: torch.device) -> None:
        tables = [self.manager.table(row) for row in self._rows]
        if self._table is None or tables != self._tables or self._table.device != device:
            self._tables, self._table = tables, self.tables(self._rows, device)

    def block_table(self) -> torch.Tensor:
        """Of the batch's rows: int32 [B, blocks]."""
        assert self._table is not None
        return self._table

    def tables(self, names: Sequence[Hashable], device: torch.device) -> torch.Tensor:
        """Of any sequences of the manager: int32 [sequences, blocks of the longest one]; ends are filled with 0."""
        tables = [self.manager.table(name) for name in names]
        width = max(1, max(map(len, tables), default=1))
        flat = [table + [0] * (width - len(table)) for table in tables]
        return torch.tensor(flat, dtype=torch.int32).view(len(flat), width).to(device, non_blocking=True)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy blocks in all layers, as `BlockManager.reserve` asks for, before anything is written to them."""
        if not copies:
            return
        for layer in self.layers:
            for pool in layer.pools:
                if pool.data is not None:
                    old, new = torch.tensor(copies, device=pool.data.device).unbind(1)
                    pool.data[new] = pool.data[old]

    def trim(self) -> None:
        """Give up what no layer has stored."""
        length = max(layer.length for layer in self.layers if isinstance(layer, PagedLayer))
        for row in self._rows:
            if not length:
                self.manager.free(row)
            elif self.manager.length(row) > length:
                self.manager.crop(row, length)
        if not length:
            self._rows, self._table = [], None
        elif self._table is not None:
            self._refresh(self._table.device)

    def _select(self, indices: list[int]) -> None:
        if not self._rows:
            return
        rows: list[object] = [object() for _ in indices]
        for row, index in zip(rows, indices, strict=True):
            self.manager.fork(self._rows[index], row)
        for row in self._rows:
            self.manager.free(row)
        self._rows = rows
        if self._table is not None:
            self._refresh(self._table.device)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the batch, in beam search: no key or value moves."""
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep rows `indices` of the batch."""
        if isinstance(indices, torch.Tensor):
            indices = indices.cpu()
        self._select(torch.arange(self.rows)[indices].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row of the batch `repeats` times."""
        self._select([row for row in range(self.rows) for _ in range(repeats)])
