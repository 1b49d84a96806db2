"""A decode step of a model on one cache, recorded when it first runs and replayed afterwards."""

from __future__ import annotations

from collections.abc import Callable
from operator import is_
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core.errors import Fallback
from torch_foundry.decode.state import RopeRows, RopeTables, StepState, horizon_for
from torch_foundry.kvcache.adopt import adopt
from torch_foundry.kvcache.base import KVView
from torch_foundry.kvcache.buffered import Buffered
from torch_foundry.kvcache.formats import Formats
from torch_foundry.patch.forward import forward
from torch_foundry.patch.weights import GEMV
from torch_foundry.runtime import scope
from torch_foundry.tape import GraphInvalid, NotCapturable, Tape, record

if TYPE_CHECKING:
    from torch_foundry.decode.plan import DecoderPlan

Tail = Callable[[torch.Tensor], torch.Tensor]


class CacheLayers:
    """The layers of a cache, as memory at fixed addresses that a tape writes to."""

    def __init__(self, cache: DynamicCache, count: int, formats: Formats) -> None:
        slots = [adopt(cache, index, formats) for index in range(count)]
        for slot in slots:
            if not isinstance(slot, Buffered):
                raise Fallback(f"cache layer is {type(slot).__name__}")
        self.slots = cast("list[Buffered]", slots)
        self.buffers: list[torch.Tensor] = []  # keys and values of each layer in turn
        self._seen = 0  # tokens, when they were placed

    def belong_to(self, cache: DynamicCache) -> bool:
        """Whether `cache` still has these layers."""
        layers = cache.layers
        return len(layers) >= len(self.slots) and all(map(is_, self.slots, layers))

    def place(self, plan: DecoderPlan, batch: int, tokens: int) -> tuple[list[int], bool]:
        """Room for `tokens` more. Returns what `Step.start` has to hold, flat, and whether no memory was exchanged.

        Raises Fallback unless the layers hold the same number of tokens, of the model's shape, dtype and device.
        """
        starts: list[int] = []
        buffers: list[Any] = []
        seen = self.slots[0].get_seq_length()
        for slot in self.slots:
            if slot.get_seq_length() != seen or slot.buffers[0] is None:
                raise Fallback("layers of the cache hold different numbers of tokens")
            starts += slot.place(tokens)
            buffers += slot.buffers
        same = len(buffers) == len(self.buffers) and all(map(is_, buffers, self.buffers))
        if not same:
            for slot, layer in zip(self.slots, plan.layers, strict=True):
                spec = layer.spec
                if not slot.fits(batch, spec.n_kv_heads, spec.head_dim, plan.dtype, plan.device):
                    raise Fallback("cache holds another shape, dtype or device")
            self.buffers = buffers
        elif buffers[0].shape[0] != batch:
            raise Fallback("cache holds another shape, dtype or device")
        self._seen = seen
        return starts, same

    def views(self, state: StepState) -> list[KVView]:
        """Each layer's memory, in which the device says where a step writes."""
        found = []
        for i, slot in enumerate(self.slots):
            k, v = self.buffers[2 * i : 2 * i + 2]
            where: dict[str, Any] = {"positions": state.positions, "step": state.start[i], "padding": state.mask}
            found.append(KVView(k, v, k.shape[2], formats=slot.formats, **where))
        return found

    def untouched(self, counted: int) -> bool:
        """Whether nothing has happened to the layers since `place` but counting `counted` tokens."""
        length = self._seen + counted
        now = [b for slot in self.slots for b in slot.buffers]
        return all(slot.get_seq_length() == length for slot in self.slots) and all(map(is_, now, self.buffers))

    def count(self, tokens: int) -> None:
        """`tokens` were written."""
        for slot in self.slots:
            slot.commit(tokens)


class CacheTapes:
    """The tapes that write to one cache."""

    def __init__(self, cache: DynamicCache, count: int, formats: Formats) -> None:
        self.layers = CacheLayers(cache, count, formats)
        self.tapes: dict[Any, StepTape] = {}


class StepTape:
    """The step of `batch` rows of `length` tokens each. Its parts of the state are set before each `run`.

    ids: int64 [B, L], what the embedding reads. tail: what follows the last norm, of our ops only.
    masked: `state.mask` is read. given: rows of the rope tables are made for each step from the caller's positions.
    """

    def __init__(
        self,
        plan: DecoderPlan,
        layers: CacheLayers,
        ids: torch.Tensor,
        *,
        positions: int,
        masked: bool = False,
        given: bool = False,
        tail: Tail | None = None,
    ) -> None:
        batch, length = ids.shape
        self.plan, self.layers, self.ids, self.length = plan, layers, ids, length
        self.given, self.masked, self.tail = given, masked, tail
        self._snapshot = plan.snapshot
        like = torch.empty(0, dtype=plan.dtype, device=ids.device)
        capacity = max(buffer.shape[2] for buffer in layers.buffers)
        horizon = horizon_for(max(positions, capacity))
        self.rope: RopeTables | RopeRows = (
            RopeRows(plan.rotary, batch, length, like) if given else plan.rope_tables(horizon, like)
        )
        self.state = StepState(batch, length, len(layers.slots), horizon, masked=masked, fixed=given, device=ids.device)
        self.rows = list(range(batch * length)) if given else []
        self._buffers = layers.buffers
        self._result: torch.Tensor | None = None
        self._tape: Tape | None = None

    def fits(self, positions: int = 0) -> bool:
        """Whether it may run now, with positions below `positions`: nothing that it was recorded from has changed."""
        return (
            positions <= self.state.horizon
            and self._buffers is self.layers.buffers
            and self._snapshot is self.plan.snapshot
            and self.rope.hold()
        )

    @property
    def recorded(self) -> bool:
        """Whether it has run before."""
        return self._tape is not None

    def run(self) -> torch.Tensor:
        """One step: the last norm's result [B, L, hidden], or what `tail` makes of it. The next run overwrites it."""
        if self._tape is None:
            return self._record()
        try:
            self._tape.replay()
        except GraphInvalid:
            return self._record()  # memory or shaders were exchanged; nothing was launched
        self._counted()
        assert self._result is not None
        return self._result

    def _record(self) -> torch.Tensor:
        kind = (*self.ids.shape, self.masked, self.given, self.tail is None)
        proven = self.plan.proven
        try:
            with torch.no_grad(), record(checked=kind not in proven) as tape:
                with scope("embedding"):
                    x = self.plan.embed(self.ids)
                for plan, kv in zip(self.plan.layers, self.layers.views(self.state), strict=True):
                    layer = plan.layer
                    x = forward(layer, x, kv, layer.rope(self.rope.tables), GEMV, scoped=True)
                with scope("head"):
                    x = self.plan.norm(x)
                    self._result = x if self.tail is None else self.tail(x)
        except NotCapturable as error:
            raise Fallback(error.reason) from None
        self._tape = tape
        proven.add(kind)
        self.plan.recorded += 1
        self._counted()
        return self._result

    def _counted(self) -> None:
        self.plan.steps += 1
        self.plan.leaves += 2  # embedding and norm
