"""Cache layers of mixers that keep a state of fixed size instead of keys and values.

States are numbered: 0 is zeros, which nobody stores, and state n lies in slot n % slots of a sequence. A step writes
the state behind each of its tokens, or only the last if there are as many tokens as slots, and never to the slot of the
state that it starts from. So committing tokens is counting, without copies or waiting; what isn't leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import LinearAttentionLayer

from torch_foundry.core import limits
from torch_foundry.core.constants import kept
from torch_foundry.kvcache.base import CacheLayer, CapturedStep, RecurrentSpec, StateSpec
from torch_foundry.kvcache.formats import PLAIN, Formats
from torch_foundry.kvcache.view import StateView

CONV, RECURRENT = "conv", "recurrent"  # the states that transformers' own code reads and writes, in its layout
SLOTS = limits.ROWS_TOGETHER + 1  # for captured steps: the newest state, and one behind each token of a step


@kept
def _numbers(slots: int, device: torch.device) -> Tensor:
    return torch.tensor(range(slots + 1), dtype=torch.int32, device=device)


@kept
def _table(slots: int, batch: int, device: torch.device) -> Tensor:
    return torch.tensor([range(i, slots * batch, batch) for i in range(batch)], dtype=torch.int32, device=device)


@kept
def _runs(batch: int, tokens: int, device: torch.device) -> Tensor:
    return torch.tensor([[i * tokens, tokens] for i in range(batch)], dtype=torch.int32, device=device)


class RecurrentLayer(CacheLayer, LinearAttentionLayer):
    """States of a batch, in place of transformers' layer, whose methods read and write the newest state."""

    capturable = True
    in_flight = SLOTS - 1
    is_compileable = False

    def __init__(self) -> None:  # in place of the base class's, whose attributes are properties here
        self.number_of_states, self.record_past = 1, False
        self._slots = 2
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._data: dict[str, Tensor] = {}  # [slots, B, ...]
        self._lent: tuple[Tensor, ...] = ()  # memory to use instead of new one
        self._past: Tensor | None = None  # while the past is recorded: all inputs of the convolution, [B, channels, n]
        self._count = 0  # number of the newest state
        self.back = 0  # tokens that can be taken back: each one left a state that is there yet
        self._each = True  # whether each token of the step that is under way leaves a state
        self._captured = False  # whether captured steps take it, which may have written more than is committed
        self._needed = 0  # number of the state that a checkpoint may return to

    @classmethod
    def replace_layers(cls, layer: LinearAttentionLayer, formats: Formats = PLAIN) -> RecurrentLayer | None:
        """A layer with the contents of `layer`; None if it has several states of a kind, or records the past."""
        if layer.number_of_states != 1 or layer.record_past:
            return None
        adopted = cls()
        if any(layer.has_previous_state.values()):
            states = {CONV: layer.conv_states[0], RECURRENT: layer.recurrent_states[0]}
            adopted.restore({name: state for name, state in states.items() if state is not None})
        return adopted

    def __copy__(self) -> RecurrentLayer:
        """A layer that goes its own way from here."""
        new = object.__new__(type(self))
        vars(new).update(vars(self), _data={name: data.clone() for name, data in self._data.items()})
        return new

    # -------------------------------------------------------------------------------------------------------- contract

    def fits(self, batch: int, spec: StateSpec, dtype: torch.dtype, device: torch.device) -> bool:
        """See `CacheLayer`."""
        if not isinstance(spec, RecurrentSpec) or self.record_past:
            return False
        wanted = {name: ((batch, *shape), kind, device) for name, shape, kind in spec.of(dtype)}
        return not self._data or wanted == {n: (d.shape[1:], d.dtype, d.device) for n, d in self._data.items()}

    def growth(self, batch: int, spec: StateSpec, tokens: int, dtype: torch.dtype) -> int:
        """See `CacheLayer`: the newest state and the next one."""
        return 2 * batch * spec.nbytes(dtype) if isinstance(spec, RecurrentSpec) and not self.memory else 0

    def reserve(
        self, batch: int, spec: RecurrentSpec, tokens: int, dtype: torch.dtype, device: torch.device
    ) -> StateView:
        """See `CacheLayer`."""
        if not self._data:
            known, lent, self._lent = spec.of(dtype), self._lent, ()
            self._data = dict(zip([name for name, _, _ in known], lent, strict=False))
            if lent and self.fits(batch, spec, dtype, device):
                self._slots = len(lent[0])
            else:
                self._data = {}
                for name, shape, kind in known:
                    self._add(name, (batch, *shape), kind, device)
        self._each, self._captured = tokens < self._slots, False
        number = self._count and 1 + (self._count - 1) % self._slots  # of the same slot
        prompt = tokens > 1 or not self._count  # as stock code has it
        return self._view(batch, tokens, _numbers(self._slots, device)[number : number + 1], prompt)

    def commit(self, tokens: int) -> None:
        """See `CacheLayer`."""
        back = min(self.back + tokens, self._slots - 1) if self._each and not self._captured else 0
        self._count, self.back = self._count + (tokens if self._each else min(tokens, 1)), back

    def checkpoint(self) -> tuple[int, int, bool]:
        """See `CacheLayer`."""
        self._needed = self._count
        return self._count, self.back, bool(self._data)

    def rollback(self, to: tuple[int, int, bool]) -> None:
        """See `CacheLayer`."""
        self._count, self.back, stored = to
        if not stored:
            self._data = {}

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """See `CacheLayer`: [slots, B, ...]."""
        return tuple(self._data.values()) or self._lent

    @property
    def position(self) -> int:
        """See `CacheLayer`: the number of the newest state."""
        return self._count

    def place(self, tokens: int) -> tuple[int, int]:
        """See `CacheLayer`. The number of the newest state, and 0."""
        if (slots := SLOTS if tokens > 1 else 2) > self._slots:
            numbers = range(max(self._count + 1 - self._slots, 0), self._count + 1)
            for name, old in self._data.items():
                new = old.new_zeros(slots, *old.shape[1:])
                for number in numbers:
                    new[number % slots].copy_(old[number % self._slots])
                self._data[name] = new
            self._slots = slots
        self._each = self._captured = True
        return self._count, 0

    def use_buffer(self, memory: tuple[Tensor, ...]) -> None:
        """See `CacheLayer`."""
        self._lent = memory

    def captured_view(self, batch: int, length: int, step: CapturedStep) -> StateView:
        """See `CacheLayer`."""
        return self._view(batch, length, step.start[:1])

    def _view(self, batch: int, tokens: int, count: Tensor, prompt: bool = False) -> StateView:
        table, runs = _table(self._slots, batch, count.device), _runs(batch, tokens, count.device)
        pools = {name: data.flatten(0, 1) for name, data in self._data.items()}
        return StateView(pools, runs, table, count.expand(batch), tokens, runs[:, 1] if prompt else None)

    def _add(self, name: str, shape: Any, dtype: torch.dtype, device: torch.device) -> None:
        with torch.inference_mode(False):  # inference tensors could only be written to in inference mode
            self._data[name] = torch.zeros(self._slots, *shape, dtype=dtype, device=device)

    def stored_tensors(self) -> dict[str, Tensor]:
        """The newest state, [B, ...] by name, in place."""
        return {name: self._newest(name) for name in self._data}

    def restore(self, stored: dict[str, Tensor], tokens: int = 0) -> None:
        """Let the newest state be a copy of `stored`; `tokens` that it has seen are counted by others."""
        self._state()
        for name, state in stored.items():
            if name not in self._data:
                self._add(name, state.shape, state.dtype, state.device)
            self._newest(name).copy_(state)

    # ---------------------------------------------------------------------------------------- transformers' own code

    def _newest(self, name: str) -> Tensor:
        """The newest state, [B, ...], in place."""
        return self._data[name][self._count % self._slots]

    def _state(self) -> None:
        """Let the newest state be one that may be changed in place: no checkpoint returns to it."""
        self.back = 0
        if self._count and self._count != self._needed:
            return
        self._count += 1
        for data in self._data.values():
            old, new = data[(self._count - 1) % self._slots], data[self._count % self._slots]
            new.copy_(old) if self._count > 1 else new.zero_()

    def _states(self, name: str) -> dict[int, Tensor | None]:
        if not self._count or name not in self._data:
            return {0: None}
        self._state()  # whoever asks may write
        return {0: self._newest(name)}

    conv_states = property(lambda layer: layer._states(CONV))  # [B, channels, width of the convolution]; None: none yet
    recurrent_states = property(lambda layer: layer._states(RECURRENT))  # [B, ...]; None: none yet
    has_previous_state = property(lambda layer: {0: layer._count > 0})
    is_conv_states_initialized = property(lambda layer: {0: CONV in layer._data})
    is_recurrent_states_initialized = property(lambda layer: {0: RECURRENT in layer._data})

    @property
    def stored(self) -> tuple[int, int]:
        """Rows, and tokens that are stored: none."""
        return (self.memory[0].shape[1] if self._data else 0), 0

    @property
    def is_initialized(self) -> bool:
        """Whether there is memory."""
        return bool(self._data)

    def update_conv_state(
        self, conv_states: Tensor, state_idx: int = 0, conv_kernel_size: int | None = None, **kwargs: Any
    ) -> Tensor:
        """Append inputs of the convolution [B, channels, n]; returns them behind those of the state."""
        before = self._count > 0 and CONV in self._data
        width = conv_kernel_size or (self._data[CONV].shape[-1] if CONV in self._data else conv_states.shape[-1])
        self._state()
        if CONV not in self._data:
            self._add(CONV, (*conv_states.shape[:-1], width), conv_states.dtype, conv_states.device)
        state = self._newest(CONV)
        full = torch.cat([state, conv_states], dim=-1) if before else conv_states
        if self.record_past:
            self._past = full
        padded = functional.pad(full, (max(width - full.shape[-1], 0), 0))
        state.copy_(padded[..., -width:])
        return full if self.record_past else padded

    def update_recurrent_state(self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any) -> Tensor:
        """Replace the state; returns it."""
        self.restore({RECURRENT: recurrent_states})
        return self._newest(RECURRENT)

    @property
    def is_croppable(self) -> bool:
        """Whether stock code may count on `crop`: for convolutions alone."""
        return self.is_initialized and self._data.keys() == {CONV}

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last -`tokens_to_remove` tokens. RuntimeError: there is no state from before them."""
        tokens, past, self._past = -tokens_to_remove, self._past, None
        if tokens < 0:
            raise RuntimeError("crop: expected how many tokens to remove, as a number from 0 down")
        if past is not None and self.is_croppable:
            state = self._newest(CONV)
            left = functional.pad(past[..., : past.shape[-1] - tokens], (state.shape[-1], 0))
            state.copy_(left[..., -state.shape[-1] :])
        elif tokens <= self.back:
            self._count, self.back = self._count - tokens, self.back - tokens
        else:
            raise RuntimeError(f"crop: of the states before the last {tokens} tokens, the last {self.back} are kept")

    def _rows(self, change: Callable[[Tensor], Tensor]) -> None:
        """Change the rows [B, ...] of the newest state; as many as before stay in the same memory."""
        for name, data in self._data.items():
            new = change(self._newest(name))
            if new.shape != data.shape[1:]:
                self._add(name, new.shape, new.dtype, new.device)
            self._newest(name).copy_(new)
        self.back = 0

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the batch, before beam search."""
        self._rows(lambda state: state.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep rows `indices` of the batch."""
        self._rows(lambda state: state[indices.to(state.device) if isinstance(indices, Tensor) else indices])

    reorder_cache = batch_select_indices  # type: ignore[assignment]

    def offload(self) -> None:
        """As stock, which leaves a state where it is."""

    prefetch = offload
