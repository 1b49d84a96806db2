"""Cache layers with preallocated buffers, as drop-in subclasses of transformers' dynamic ones."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from torch_foundry.kvcache.base import KVSpec
from torch_foundry.kvcache.buffered import Buffered, removed
from torch_foundry.kvcache.formats import PLAIN, Formats
from torch_foundry.kvcache.view import KVView


class FoundryLayer(Buffered):
    """All tokens, in place of `DynamicLayer`."""

    @classmethod
    def replace_layers(cls, layer: DynamicLayer, formats: Formats = PLAIN) -> FoundryLayer:
        """A layer with the contents of `layer`."""
        adopted = cls(formats=formats)
        adopted._take(layer)
        return adopted

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append; returns all keys and values. This is how stock attention uses the layer."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._keys.append(key_states)
        self._values.append(value_states)
        keys, values = self.keys, self.values
        assert keys is not None and values is not None
        return keys, values

    def visible(self, tokens: int) -> int:
        """How many keys a step of `tokens` queries attends to."""
        return self._keys.length + tokens

    def limit(self, tokens: int | None) -> None:
        """Have no more than `tokens` tokens, ever; None: as many as there is memory for."""
        self._keys.limit = self._values.limit = tokens

    def get_max_length(self) -> int:
        """Tokens that there may ever be; -1: as many as there is memory for."""
        return -1 if self._keys.limit is None else self._keys.limit


class FoundrySlidingLayer(Buffered, DynamicSlidingWindowLayer):
    """The last `sliding_window - 1` tokens, in place of `DynamicSlidingWindowLayer`.

    The window moves through a buffer of about twice its size and is copied to the front when it reaches the end.
    """

    @classmethod
    def replace_layers(cls, layer: DynamicSlidingWindowLayer, formats: Formats = PLAIN) -> FoundrySlidingLayer | None:
        """A layer with the contents of `layer`; None if its window is empty."""
        if layer.sliding_window <= 1:
            return None
        adopted = cls(sliding_window=layer.sliding_window, formats=formats)
        adopted.record_past = layer.record_past
        adopted._take(layer)
        adopted.cumulative_length = layer.cumulative_length
        return adopted

    def _initialize(self, dtype: torch.dtype, device: torch.device) -> None:
        super()._initialize(dtype, device)
        self._sliding_window_tensor = self._sliding_window_tensor.to(device)

    def restore(self, stored: dict[str, torch.Tensor], tokens: int, place: tuple[int, int] | None = None) -> None:
        """See the base class."""
        super().restore(stored, tokens, place)
        self.cumulative_length = tokens

    def window_place(self) -> tuple[int, int]:
        """Where the window begins in its memory, and for how many tokens there is room, for `restore`. How sums of keys
        are split depends on their place, so a window that lies elsewhere would have results that round otherwise."""
        self._shrink()
        return self._keys.first, self.capacity

    def _shrink(self) -> None:
        """Give up the memory that a prompt needed and a window doesn't."""
        for buffer in (self._keys, self._values):
            buffer.shrink(2 * max(buffer.length, self.sliding_window))

    def reserve(self, batch: int, spec: KVSpec, tokens: int, dtype: torch.dtype, device: torch.device) -> KVView:
        """See the base class."""
        self._shrink()
        return super().reserve(batch, spec, tokens, dtype, device)

    def place(self, tokens: int) -> tuple[int, int]:
        """See the base class."""
        self._shrink()
        return super().place(tokens)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append; returns the keys and values that the new tokens may attend to."""
        self._shrink()
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self._keys.append(key_states)
        self._values.append(value_states)
        tokens = key_states.shape[2]
        visible = self.sliding_window - 1 + tokens
        keys, values = self._keys.last(visible), self._values.last(visible)
        self._forget(tokens)
        return self._keys.outside(keys), self._values.outside(values)

    def _forget(self, tokens: int) -> None:
        """Count `tokens` just appended; what no further token sees is given up."""
        self.cumulative_length += tokens
        if not self.record_past:  # else `crop` restricts, once it is known how many tokens stay
            self._keys.keep_last(self.sliding_window - 1)
            self._values.keep_last(self.sliding_window - 1)

    def commit(self, tokens: int) -> None:
        """See the base class."""
        super().commit(tokens)
        self._forget(tokens)

    def crop(self, tokens_to_remove: int) -> None:
        """See the base class; behind the window only what `activate_past_recording` has kept can be brought back."""
        window, seen = self.sliding_window - 1, self.cumulative_length
        behind = seen > window
        if behind and not self.record_past:
            raise RuntimeError(
                "crop: the layer does not track past states, and the sliding window was full already; "
                "call activate_past_recording first"
            )
        tokens = removed(tokens_to_remove)
        if behind and self._keys.length - tokens < min(seen - tokens, window):
            raise RuntimeError(
                f"crop: of {seen} tokens the last {self._keys.length} are stored; {tokens} less would leave "
                f"fewer than the {window} that the next one sees"
            )
        super().crop(-tokens)
        if behind:
            self.cumulative_length -= tokens
            self._keys.keep_last(window)
            self._values.keep_last(window)
        else:
            self.cumulative_length = self._keys.length

    def _reach(self) -> int:
        return int(self.sliding_window) - 1

    def checkpoint(self) -> tuple[int, ...]:
        """See the base class."""
        return (*super().checkpoint(), self.cumulative_length)

    def rollback(self, to: tuple[int, ...]) -> None:
        """See the base class."""
        *stored, self.cumulative_length = to
        super().rollback(tuple(stored))

    def visible(self, tokens: int) -> int:
        """How many keys a step of `tokens` queries attends to."""
        return min(self._keys.length, self.sliding_window - 1) + tokens

    def get_seq_length(self) -> int:
        """Number of tokens seen, whether they are still stored or not."""
        return self.cumulative_length

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.cumulative_length = 0
