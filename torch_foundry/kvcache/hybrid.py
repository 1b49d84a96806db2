"""Cache layers of mixers side by side: keys and values, and a recurrent state, of the same tokens."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionAndFullAttentionLayer

from torch_foundry.kvcache.base import CacheLayer, StateSpec, specs_of
from torch_foundry.kvcache.formats import PLAIN, Formats
from torch_foundry.kvcache.layer import FoundryLayer
from torch_foundry.kvcache.recurrent import RecurrentLayer


def _of(part: str, name: str) -> Any:
    """The attribute `name` of one of the parts."""
    return property(
        lambda layer: getattr(getattr(layer, part), name),
        lambda layer, value: setattr(getattr(layer, part), name, value),
    )


class HybridLayer(CacheLayer, LinearAttentionAndFullAttentionLayer):
    """A layer of keys and values, and one of states, in place of transformers' layer of both."""

    is_compileable = False

    def __init__(self, kv: FoundryLayer, states: RecurrentLayer) -> None:  # in place of the base class's
        self._kv, self._states = kv, states

    @classmethod
    def replace_layers(
        cls, layer: LinearAttentionAndFullAttentionLayer, formats: Formats = PLAIN
    ) -> HybridLayer | None:
        """A layer with the contents of `layer`; None if `RecurrentLayer` can't have its state."""
        states = RecurrentLayer.replace_layers(layer)
        return None if states is None else cls(FoundryLayer.replace_layers(layer, formats), states)

    def __copy__(self) -> HybridLayer:
        """A layer that goes its own way from here."""
        return HybridLayer(copy.copy(self._kv), copy.copy(self._states))

    # -------------------------------------------------------------------------------------------------------- contract

    @property
    def parts(self) -> tuple[CacheLayer, ...]:
        """See `CacheLayer`."""
        return self._kv, self._states

    in_flight = _of("_states", "in_flight")

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        """See `CacheLayer`."""
        return all(part.capturable for part in self.parts)

    def fits(self, batch: int, spec: StateSpec, dtype: torch.dtype, device: torch.device) -> bool:
        """See `CacheLayer`."""
        specs = specs_of(spec)
        fits = (part.fits(batch, own, dtype, device) for part, own in zip(self.parts, specs, strict=False))
        return len(specs) == len(self.parts) and all(fits)

    def reserve(
        self, batch: int, spec: StateSpec, tokens: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[Any, ...]:
        """See `CacheLayer`: a view for each mixer."""
        pairs = zip(self.parts, specs_of(spec), strict=True)
        return tuple(part.reserve(batch, own, tokens, dtype, device) for part, own in pairs)

    def commit(self, tokens: int) -> None:
        """See `CacheLayer`."""
        for part in self.parts:
            part.commit(tokens)

    def checkpoint(self) -> tuple[Any, ...]:
        """See `CacheLayer`."""
        return tuple(part.checkpoint() for part in self.parts)

    def rollback(self, to: tuple[Any, ...]) -> None:
        """See `CacheLayer`."""
        for part, mark in zip(self.parts, to, strict=True):
            part.rollback(mark)

    def reserve_hint(self, tokens: int) -> None:
        """See `CacheLayer`."""
        for part in self.parts:
            part.reserve_hint(tokens)

    def reset(self) -> None:
        """Forget everything."""
        for part in self.parts:
            part.reset()

    # ---------------------------------------------------------------------------------------- transformers' own code

    keys, values, dtype, device = (_of("_kv", name) for name in ("keys", "values", "dtype", "device"))
    is_initialized, stored = _of("_kv", "is_initialized"), _of("_kv", "stored")
    conv_states, recurrent_states = _of("_states", "conv_states"), _of("_states", "recurrent_states")
    has_previous_state = _of("_states", "has_previous_state")
    is_conv_states_initialized = _of("_states", "is_conv_states_initialized")
    is_recurrent_states_initialized = _of("_states", "is_recurrent_states_initialized")
    record_past, number_of_states = _of("_states", "record_past"), _of("_states", "number_of_states")
    is_croppable = False  # a state of any token is not kept

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values; returns all."""
        return self._kv.update(key_states, value_states, *args, **kwargs)

    def update_conv_state(self, conv_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """See `RecurrentLayer`."""
        return self._states.update_conv_state(conv_states, *args, **kwargs)

    def update_recurrent_state(self, recurrent_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """See `RecurrentLayer`."""
        return self._states.update_recurrent_state(recurrent_states, *args, **kwargs)

    def get_seq_length(self) -> int:
        """Number of tokens seen."""
        return self._kv.get_seq_length()

    def get_mask_sizes(self, *args: Any) -> tuple[int, int]:
        """Of a step: number of keys, and the place of the first."""
        sizes: tuple[int, int] = self._kv.get_mask_sizes(*args)
        return sizes

    def get_max_length(self) -> int:
        """See `FoundryLayer`."""
        return self._kv.get_max_length()

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -`tokens_to_remove` tokens. RuntimeError: there is no state from before them."""
        self._states.crop(tokens_to_remove)
        self._kv.crop(tokens_to_remove)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch, before beam search."""
        for part in (self._kv, self._states):
            part.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep rows `indices` of the batch."""
        for part in (self._kv, self._states):
            part.batch_select_indices(indices)

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the batch, in beam search."""
        self.batch_select_indices(beam_idx)

    def offload(self) -> None:
        """Move keys and values to the CPU."""
        self._kv.offload()

    def prefetch(self) -> None:
        """Move back to the device of the model."""
        self._kv.prefetch()
