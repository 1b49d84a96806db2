"""The memory of a paged cache."""

from __future__ import annotations

from typing import Any

import torch

from torch_foundry.core import memory
from torch_foundry.kvcache.formats import decoded, encoded, row_width
from torch_foundry.kvcache.room import check_blocks


class Pool:
    """The blocks of a layer's keys or values, of `size` tokens each: [blocks, heads, size, head_dim or bytes]."""

    def __init__(self, format: str | None, blocks: int, size: int) -> None:
        self.format, self.blocks, self.size = format, blocks, size
        self.dtype: torch.dtype | None = None  # of what comes in
        self.data: torch.Tensor | None = None

    def growth(self, heads: int, head_dim: int, dtype: torch.dtype) -> int:
        """Bytes that `allocate` takes."""
        width, kind = row_width(head_dim, self.format, dtype)
        return 0 if self.data is not None else self.blocks * heads * self.size * width * kind.itemsize

    def allocate(self, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The memory; allocated when it is asked for first."""
        if self.data is None:
            width, kind = row_width(head_dim, self.format, dtype)
            check_blocks(self.blocks, self.size, heads * width)
            what = f"a layer's keys or values in {self.blocks} blocks of {self.size} tokens"
            memory.check(device, self.growth(heads, head_dim, dtype), what)
            self.data = torch.empty(self.blocks, heads, self.size, width, dtype=kind, device=device)
            self.dtype = dtype
        return self.data

    def fits(self, heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether the memory, if there is any, is for these."""
        data = self.data
        if data is None:
            return True
        width, kind = row_width(head_dim, self.format, dtype)
        have = (data.shape[1], data.shape[3], data.dtype, self.dtype, data.device)
        return have == (heads, width, kind, dtype, device)

    def write(self, x: torch.Tensor, table: torch.Tensor, start: int) -> None:
        """x [B, H, n, D] behind the first `start` tokens."""
        assert self.data is not None
        at = torch.arange(start, start + x.shape[2], device=table.device)
        rows = x if self.format is None else encoded(x, self.format)
        self.data[table[:, at // self.size].long(), :, at % self.size] = rows.transpose(1, 2).to(self.data.dtype)

    def read(self, table: torch.Tensor, length: int) -> torch.Tensor:
        """The first `length` tokens of each row: [B, H, length, D]."""
        assert self.data is not None and self.dtype is not None
        blocks = table[:, : -(-length // self.size)].long()
        rows = self.data[blocks].transpose(1, 2).flatten(2, 3)[:, :, :length]
        return rows if self.format is None else decoded(rows, self.format, self.dtype)


def stored_property(part: int) -> Any:
    """Stored keys (0) or values (1) of a layer of pages, [B, H, length, D], a copy; None while there are none."""

    def read(layer: Any) -> torch.Tensor | None:
        return layer.pools[part].read(layer._cache.block_table(), layer.length) if layer.length else None

    def refuse(layer: Any, tensor: torch.Tensor | None) -> None:
        if tensor is not None:
            raise TypeError("keys and values of a paged cache can't be assigned")

    return property(read, refuse)
