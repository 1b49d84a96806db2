"""A growing buffer of keys or values."""

from __future__ import annotations

import math
from copy import copy

import torch

from torch_foundry.core import memory
from torch_foundry.kvcache.formats import decoded, encoded, row_width
from torch_foundry.kvcache.room import capacity, round_up

Shape = tuple[int, int, int, int]


def _empty(shape: Shape, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    memory.check(device, math.prod(shape) * dtype.itemsize, f"keys or values of {shape[2]} tokens in one layer")
    return torch.empty(shape, dtype=dtype, device=device)


class GrowingBuffer:
    """Tokens `[first, first + length)` of a `[B, H, capacity, D]` tensor.

    Appending writes in place and moves the window on; capacity doubles when it is used up, so each token is copied a
    bounded number of times. What somebody was shown never changes under them: memory that would have to is left to
    them and copied. With a `format` (`kvcache.formats`) the memory is of another dtype, or packed; then `view`
    and what comes from outside are copies of that, in the dtype that `reserve`, `append` or `set` saw last.
    """

    __slots__ = ("before", "data", "dtype", "first", "format", "length", "limit", "shown", "spare", "tight")

    def __init__(self, format: str | None = None) -> None:
        self.format = format
        self.dtype: torch.dtype | None = None  # of what is stored, to the outside; only with a format
        self.data: torch.Tensor | None = None
        self.first = 0
        self.length = 0
        self.before = 0  # tokens that came before the first of `data`, ever
        self.spare = 0  # tokens that are likely to come after those that room is made for
        self.tight = False  # whether there is too little memory to make room for more than is needed
        self.limit: int | None = None  # tokens that there may ever be
        # tokens of `data`, from its first, that somebody outside may have a view of; all, if they assigned it
        self.shown = 0

    @property
    def capacity(self) -> int:
        return 0 if self.data is None else self.data.shape[2]

    def view(self) -> torch.Tensor | None:
        """The tokens that are stored: [B, H, length, D]. None before the first use."""
        return None if self.data is None else self.outside(self.data.narrow(2, self.first, self.length))

    def outside(self, data: torch.Tensor) -> torch.Tensor:
        """What this part of the stored tokens' memory says to those who don't know the format."""
        said = data if self.format is None or self.dtype is None else decoded(data, self.format, self.dtype)
        if said is data:
            self.shown = max(self.shown, self.first + self.length)
        return said

    def last(self, tokens: int) -> torch.Tensor:
        """The memory of the last `tokens` tokens (all, if fewer are stored)."""
        assert self.data is not None
        tokens = min(tokens, self.length)
        return self.data.narrow(2, self.first + self.length - tokens, tokens)

    def set(self, tensor: torch.Tensor | None) -> None:
        """Store exactly `tensor`.

        A slice of what is stored (transformers crops that way) only moves the window. Anything else is kept as it is
        and never written to: it has no spare capacity, so the next append copies it.
        """
        if tensor is None or tensor.numel() == 0:
            self.data, self.first, self.length = None, 0, 0
        elif self.format is not None:
            self.dtype, self.length = tensor.dtype, tensor.shape[2]
            self._own(encoded(tensor, self.format))
        elif (first := self._offset_of(tensor)) is not None:
            self.first, self.length = first, tensor.shape[2]
        else:
            before, length = self.before + self.first, tensor.shape[2]
            self.data, self.before, self.first, self.length, self.shown = tensor, before, 0, length, length

    def _offset_of(self, tensor: torch.Tensor) -> int | None:
        """Where `tensor` starts within the stored tokens' buffer if it is a slice of it along the tokens."""
        data = self.data
        if (
            data is None
            or tensor.stride() != data.stride()
            or tensor.shape[:2] != data.shape[:2]
            or tensor.shape[3] != data.shape[3]
            or tensor.dtype != data.dtype
            or tensor.untyped_storage().data_ptr() != data.untyped_storage().data_ptr()
        ):
            return None
        first, rest = divmod(int(tensor.storage_offset() - data.storage_offset()), data.stride(2))
        inside = rest == 0 and self.first <= first and first + tensor.shape[2] <= self.first + self.length
        return first if inside else None

    def reserve(self, shape: tuple[int, int, int], tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        """Make room for `tokens` more. `shape` is (batch, heads, head_dim), for the first allocation."""
        larger = self._larger(shape, tokens, dtype)
        if self.data is None and larger is not None:
            self.dtype, self.length = dtype, 0
            self._own(_empty(*larger, device))
        elif larger is not None:
            self.move(larger[0][2])

    def _larger(self, shape: tuple[int, int, int], tokens: int, dtype: torch.dtype) -> tuple[Shape, torch.dtype] | None:
        """The memory that `reserve` needs; None if it has enough."""
        data = self.data
        if data is None:
            batch, heads, head_dim = shape
            width, kind = row_width(head_dim, self.format, dtype)
            wanted = tokens if self.tight else tokens + self.spare
            return (batch, heads, capacity(tokens, wanted, batch * heads * width, self.limit), width), kind
        end = self.first + self.length
        if end + tokens <= data.shape[2] and self._writable(end):
            return None
        needed, (batch, heads, _, width) = self.length + tokens, data.shape
        wanted = needed if self.tight else max(needed + self.spare, 2 * self.length)
        return (batch, heads, capacity(needed, wanted, batch * heads * width, self.limit), width), data.dtype

    def growth(self, shape: tuple[int, int, int], tokens: int, dtype: torch.dtype) -> int:
        """Bytes that `reserve` would allocate."""
        larger = self._larger(shape, tokens, dtype)
        return 0 if larger is None else math.prod(larger[0]) * larger[1].itemsize

    def shrink(self, tokens: int) -> None:
        """Have room for about `tokens` if there is more than twice that. Not for fewer than are stored."""
        data = self.data
        if data is not None and data.shape[2] > 2 * round_up(tokens) and self.length:
            self.move(round_up(tokens))
            self.spare = 0

    def restore(self, data: torch.Tensor, dtype: torch.dtype, place: tuple[int, int] | None = None) -> None:
        """Store a copy of `data`, memory as of `last`, of what was `dtype`. place: the token of new memory at which it
        begins, and how many that has room for; None: for no more."""
        tokens = data.shape[2]
        first, capacity = place or (0, tokens)
        memory = data.new_empty(*data.shape[:2], capacity, data.shape[3])
        memory.narrow(2, first, tokens).copy_(data)
        self._own(memory)
        self.first, self.length, self.dtype = first, tokens, dtype

    def use_buffer(self, data: torch.Tensor) -> None:
        """Use `data` [B, H, capacity, D], of which nobody else has a view. Only while nothing is stored."""
        assert not self.length
        self._own(data)

    def _own(self, data: torch.Tensor) -> None:
        """Go on with `data`, of which nobody else has a view; what is stored begins at its front."""
        before = self.before + self.first
        self.data, self.before, self.first, self.shown = data, before, 0, 0

    def move(self, capacity: int) -> None:
        """Take what is stored to the front of new memory."""
        data = self.data
        assert data is not None
        moved = _empty((*data.shape[:2], capacity, data.shape[3]), data.dtype, data.device)
        moved.narrow(2, 0, self.length).copy_(data.narrow(2, self.first, self.length))
        self._own(moved)

    def room(self, tokens: int) -> None:
        """Make room for `tokens` more behind what is stored, keeping the memory where it is if that is possible: what
        is stored moves to the front if half of the buffer is unused by then. Not before the first use."""
        data = self.data
        assert data is not None
        end = self.first + self.length
        if end + tokens <= self.capacity and self._writable(end):
            return
        if self.first and max(self.length + tokens, 2 * self.length) <= self.capacity:
            self.to_front()
        else:
            self.reserve((0, 0, 0), tokens, data.dtype, data.device)

    def to_front(self) -> None:
        """Let the first token that is stored be the first one of the buffer."""
        data = self.data
        if data is not None and self.first:
            stored = data.narrow(2, self.first, self.length)
            if self._writable(0):
                data.narrow(2, 0, self.length).copy_(stored if self.first >= self.length else stored.clone())
                self.before, self.first = self.before + self.first, 0
            else:
                self.move(data.shape[2])

    def _writable(self, token: int) -> bool:
        """Whether the memory may be written to from `token` on."""
        if self.data is None or token < self.shown:
            return False
        # an inference tensor may be read, but not written, outside of inference mode
        return not self.data.is_inference() or torch.is_inference_mode_enabled()

    def append(self, states: torch.Tensor) -> None:
        """Store `states` [B, H, n, D] behind what is there."""
        differentiable = any(x is not None and x.requires_grad for x in (states, self.data))
        recorded = torch.is_grad_enabled() and differentiable
        if self.format is not None:
            self._check_stored(states, recorded)
        elif self.data is not None and (
            recorded
            or states.dtype != self.data.dtype
            or states.device != self.data.device
            or states.shape[:2] != self.data.shape[:2]
        ):
            # what torch.cat does is what transformers' layers do: it differentiates, promotes and raises
            before = self.view()
            assert before is not None
            self.set(torch.cat([before, states], dim=2))
            return
        elif recorded:
            self.set(states)
            return
        batch, heads, tokens, head_dim = states.shape
        self.reserve((batch, heads, head_dim), tokens, states.dtype, states.device)
        assert self.data is not None
        new = states if self.format is None else encoded(states, self.format)
        self.data.narrow(2, self.first + self.length, tokens).copy_(new)
        self.dtype = states.dtype
        self.extend(tokens)

    def _check_stored(self, states: torch.Tensor, recorded: bool) -> None:
        if recorded:
            raise RuntimeError(
                f"KV cache: there are no gradients through what is stored as {self.format}; call the model under "
                "torch.no_grad()"
            )
        if self.data is not None and (self.dtype, self.data.device) != (states.dtype, states.device):
            was, now = (self.dtype, self.data.device), (states.dtype, states.device)
            raise RuntimeError(f"KV cache: expected {was[0]} on {was[1]} as before, got {now[0]} on {now[1]}")

    def extend(self, tokens: int) -> None:
        """Count `tokens` that were written behind what is there."""
        self.length += tokens

    def checkpoint(self) -> tuple[int, int]:
        """What `rollback` needs: how many tokens there were, ever, and how many are stored."""
        return self.before + self.first + self.length, self.length

    def rollback(self, to: tuple[int, int]) -> None:
        """Return to what was stored at `checkpoint()`; valid while nothing else was assigned.

        Appending never writes over what is stored, and forgetting only moves the window: the tokens are still there.
        Whatever changes the window is one assignment, so an interrupt may come at any line before.
        """
        end, length = to
        if length == 0:
            self.set(None)
        elif self.data is not None:
            self.first, self.length = end - length - self.before, length

    def keep_last(self, tokens: int) -> None:
        """Forget all but the last `tokens`."""
        if self.length > tokens:
            self.first, self.length = self.first + self.length - tokens, tokens

    def drop_last(self, tokens: int) -> None:
        """Forget the last `tokens`."""
        self.length = max(self.length - tokens, 0)
        if not self.length:
            self.set(None)

    def select(self, indices: torch.Tensor) -> None:
        """Rows `indices` of the batch, in that order; as many rows as before stay in the same memory."""
        data = self.data
        if data is None:
            return
        if not isinstance(indices, torch.Tensor) or indices.dtype == torch.bool:
            indices = torch.arange(data.shape[0], device=data.device)[indices]
        indices = indices.to(data.device)
        if indices.shape[0] == data.shape[0] and self._writable(self.first):
            stored = data.narrow(2, self.first, self.length)
            stored.copy_(stored[indices])
        else:
            self._instead(data[indices])

    def repeat(self, repeats: int) -> None:
        """Each row of the batch `repeats` times."""
        if self.data is not None:
            self._instead(self.data.repeat_interleave(repeats, dim=0))

    def to(self, device: torch.device | str) -> None:
        """Move to `device`."""
        if self.data is not None and self.data.device != torch.device(device):
            self._instead(self.data.to(device, non_blocking=True))

    def _instead(self, data: torch.Tensor) -> None:
        """Go on with a changed copy of the whole memory."""
        self.data, self.shown = data, 0

    def shared(self) -> GrowingBuffer:
        """The same again, in the same memory: whichever is written to first leaves it."""
        self.shown = self.capacity
        return copy(self)
