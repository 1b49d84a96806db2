"""What our cache layers have in common: keys and values in growing buffers."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer

from torch_foundry.kvcache.base import CapturedStep, KVLayer, KVSpec, StateSpec
from torch_foundry.kvcache.buffer import GrowingBuffer
from torch_foundry.kvcache.formats import PLAIN, Formats, packed, row_width
from torch_foundry.kvcache.view import KVView


def removed(tokens_to_remove: int) -> int:
    """How many tokens `crop(tokens_to_remove)` means. Raises transformers' own error for a number above 0."""
    if tokens_to_remove > 0:
        DynamicLayer().crop(tokens_to_remove)
    return -int(tokens_to_remove)  # a tensor will do


class Buffered(KVLayer, DynamicLayer):
    """What both layers share: `keys` and `values` are views of growing buffers.

    transformers (and code on top of it) reads and assigns `keys` and `values` freely, one after the other; each has
    its own buffer with its own length so that no order of assignments matters. With formats (`kvcache.formats`), what
    they read is unpacked for them, and what they assign is packed.
    """

    capturable = True

    def __init__(self, *args: Any, formats: Formats = PLAIN, **kwargs: Any) -> None:
        self._keys = GrowingBuffer(formats[0])
        self._values = GrowingBuffer(formats[1])
        super().__init__(*args, **kwargs)

    def __copy__(self) -> Buffered:
        """A layer that goes its own way from here, as a copy of transformers' layer does."""
        new = object.__new__(type(self))
        vars(new).update(vars(self), _keys=self._keys.shared(), _values=self._values.shared())
        return new

    @property
    def kv_cache(self) -> Formats:
        """How keys and values are stored, as in `patch`."""
        return self._keys.format, self._values.format

    @property
    def formats(self) -> Formats:
        """What ops have to be told of the buffers: the formats of packed ones."""
        return packed(self._keys.format), packed(self._values.format)

    def stored_tensors(self, tokens: int | None = None) -> dict[str, torch.Tensor]:
        """The memory of the last `tokens` tokens (default: all), [B, H, tokens, D or bytes]. Not before the first."""
        count = self._keys.length if tokens is None else tokens
        return {"keys": self._keys.last(count), "values": self._values.last(count)}

    def restore(self, stored: dict[str, torch.Tensor], tokens: int, place: tuple[int, int] | None = None) -> None:
        """Have copies of `stored`, as of `stored_tensors`, as the last of `tokens` tokens; dtype and device are noted.
        place: as of `GrowingBuffer.restore`."""
        self._keys.restore(stored["keys"], self.dtype, place)
        self._values.restore(stored["values"], self.dtype, place)

    @property
    def stored(self) -> tuple[int, int]:
        """Rows and tokens that are stored."""
        return (0 if self._keys.data is None else self._keys.data.shape[0]), self._keys.length

    @property
    def keys(self) -> torch.Tensor | None:
        """Stored keys, [B, H, length, D]; None while there are none."""
        return self._keys.view()

    @keys.setter
    def keys(self, tensor: torch.Tensor | None) -> None:
        self._keys.set(tensor)

    @property
    def values(self) -> torch.Tensor | None:
        """Stored values, [B, H, length, D]; None while there are none."""
        return self._values.view()

    @values.setter
    def values(self, tensor: torch.Tensor | None) -> None:
        self._values.set(tensor)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Note dtype and device; buffers are allocated when there is something to store."""
        self._initialize(key_states.dtype, key_states.device)

    def _initialize(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.is_initialized = True

    def _take(self, layer: DynamicLayer) -> None:
        """Copy the contents of `layer`."""
        keys, values = layer.keys, layer.values
        if layer.is_initialized and keys is not None and values is not None:
            self._initialize(layer.dtype, layer.device)
            if keys.numel():
                self._keys.append(keys)
                self._values.append(values)

    def fits(self, batch: int, spec: StateSpec, dtype: torch.dtype, device: torch.device) -> bool:
        """See `CacheLayer`."""
        if not isinstance(spec, KVSpec):
            return False
        for buffer, head_dim in zip((self._keys, self._values), spec.head_dims, strict=True):
            data = buffer.data
            if data is not None:
                shape = data.shape
                width, kind = row_width(head_dim, buffer.format, dtype)
                if (
                    shape[0] != batch
                    or shape[1] != spec.heads
                    or shape[3] != width
                    or data.dtype is not kind
                    or (buffer.format is not None and buffer.dtype not in (None, dtype))
                    or data.device != device
                    or (data.requires_grad and torch.is_grad_enabled())
                ):
                    return False
        return True

    def reserve(self, batch: int, spec: KVSpec, tokens: int, dtype: torch.dtype, device: torch.device) -> KVView:
        """See `CacheLayer`."""
        if not self.is_initialized:
            self._initialize(dtype, device)
        keys, values = self._keys, self._values
        keys.dtype = values.dtype = dtype
        for buffer, head_dim in zip((keys, values), spec.head_dims, strict=True):
            buffer.reserve((batch, spec.heads, head_dim), tokens, dtype, device)
        if values.first != keys.first or values.length != keys.length:  # only after assignments from outside
            self._align()
            return self.reserve(batch, spec, tokens, dtype, device)
        assert keys.data is not None and values.data is not None
        seen = self.visible(tokens)
        k, v = (data.narrow(2, keys.first + keys.length + tokens - seen, seen) for data in (keys.data, values.data))
        return KVView(k, v, seen, formats=self.formats)

    def _align(self) -> None:
        if self._keys.length != self._values.length:
            raise RuntimeError(f"KV cache holds {self._keys.length} keys but {self._values.length} values")
        for buffer in (self._keys, self._values):
            if buffer.data is not None:
                buffer.move(buffer.length)

    def growth(self, batch: int, spec: StateSpec, tokens: int, dtype: torch.dtype) -> int:
        """See `CacheLayer`."""
        if not isinstance(spec, KVSpec):
            return 0
        pairs = zip((self._keys, self._values), spec.head_dims, strict=True)
        return sum(buffer.growth((batch, spec.heads, head_dim), tokens, dtype) for buffer, head_dim in pairs)

    @property
    def tight(self) -> bool:
        """See `CacheLayer`."""
        return self._keys.tight

    @tight.setter
    def tight(self, tight: bool) -> None:
        self._keys.tight = self._values.tight = tight

    def reserve_hint(self, tokens: int) -> None:
        """See `CacheLayer`."""
        self._keys.spare = self._values.spare = tokens

    def place(self, tokens: int) -> tuple[int, int]:
        """Make room for `tokens` more behind what is stored, for code that writes there without asking; nothing that
        is stored moves until the next call. Not for an empty layer.

        Returns where in the buffers the next token goes, and how many tokens were seen before the buffers' first.
        """
        keys, values = self._keys, self._values
        if values.first != keys.first or values.length != keys.length:  # only after assignments from outside
            self._align()
        keys.room(tokens)
        values.room(tokens)
        if keys.first and keys.length < self._reach():  # what lies before the first token must not be seen
            keys.to_front()
            values.to_front()
        end = keys.first + keys.length
        return end, self.get_seq_length() - end

    def _reach(self) -> int:
        """How many of the tokens before it a token sees; more than are stored if it sees all."""
        return self._keys.length + 1

    def commit(self, tokens: int) -> None:
        """Make `tokens` that were written after `reserve` or `place` part of the cache."""
        self._keys.extend(tokens)
        self._values.extend(tokens)

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -`tokens_to_remove` tokens."""
        tokens = removed(tokens_to_remove)
        if tokens and self.is_initialized:
            self._keys.drop_last(tokens)
            self._values.drop_last(tokens)

    @property
    def memory(self) -> tuple[torch.Tensor, ...]:
        """See `CacheLayer`: keys and values, [B, H, capacity, D]."""
        keys, values = self._keys.data, self._values.data
        return () if keys is None or values is None else (keys, values)

    @property
    def seen(self) -> int:
        """See `CacheLayer`."""
        return self.get_seq_length()

    position = seen

    @property
    def capacity(self) -> int:
        """See `CacheLayer`."""
        return min(self._keys.capacity, self._values.capacity)

    def use_buffer(self, memory: tuple[torch.Tensor, ...]) -> None:
        """See `CacheLayer`."""
        for buffer, data in zip((self._keys, self._values), memory, strict=True):
            buffer.use_buffer(data)

    def captured_view(self, batch: int, length: int, step: CapturedStep) -> KVView:
        """See `CacheLayer`."""
        k, v = self.memory
        where: dict[str, Any] = {"positions": step.positions, "step": step.start, "padding": step.padding}
        return KVView(k, v, k.shape[2], formats=self.formats, **where)

    def checkpoint(self) -> tuple[int, ...]:
        """See `CacheLayer`."""
        return self.is_initialized, *self._keys.checkpoint(), *self._values.checkpoint()

    def rollback(self, to: tuple[int, ...]) -> None:
        """See `CacheLayer`."""
        self.is_initialized = bool(to[0])
        self._keys.rollback(to[1:3])  # type: ignore[arg-type]
        self._values.rollback(to[3:5])  # type: ignore[arg-type]

    def get_seq_length(self) -> int:
        """Number of tokens seen."""
        return self._keys.length

    def reset(self) -> None:
        """Forget everything."""
        self._keys.set(None)
        self._values.set(None)
        self.is_initialized = False

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch, before beam search."""
        self._keys.repeat(repeats)
        self._values.repeat(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep rows `indices` of the batch."""
        self._keys.select(indices)
        self._values.select(indices)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the batch, in beam search."""
        self.batch_select_indices(beam_idx)

    def offload(self) -> None:
        """Move to the CPU."""
        self._keys.to("cpu")
        self._values.to("cpu")

    def prefetch(self) -> None:
        """Move back to the device of the model."""
        if self.is_initialized:
            self._keys.to(self.device)
            self._values.to(self.device)
