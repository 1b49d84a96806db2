"""Steps in which all of an engine's requests have a few tokens: recorded when they first run, replayed from then on."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_foundry.decode.state import LONGEST_STEP, power_of_two
from torch_foundry.engine.groups import Group, Part
from torch_foundry.engine.script import Script
from torch_foundry.nn.linear import FEW
from torch_foundry.patch.state import Blocked

if TYPE_CHECKING:
    from torch_foundry.engine.forward import Forward

EXPERTS = 64  # tokens of a step that experts take one by one, which is what can be recorded of them
MEMORY = {"cuda": 4 << 30}  # bytes that tapes may keep of what is computed on the way, one of them half of it
MEMORY_ELSEWHERE = 1 << 30
TEXT = 256  # tokens of the longest text that there is room for in block tables at first; doubled as needed


class Tapes:
    """Tapes by the number of requests, rounded up, and of tokens of each; padding is no request and writes nowhere.

    requests: at most.
    """

    def __init__(self, forward: Forward, requests: int) -> None:
        self.forward, self.plan, self.cache, self.requests = forward, forward.plan, forward.cache, requests
        self._tapes: OrderedDict[tuple[int, int], StepTape] = OrderedDict()
        self._width = TEXT // self.cache.manager.block_size or 1  # blocks of a table
        self._memory = MEMORY.get(self.plan.device.type, MEMORY_ELSEWHERE)
        self._refused: Any = None  # the model as it was when a step could not be recorded
        self._last: StepTape | None = None  # what the last step was on

    def run(self, parts: Sequence[Part]) -> Tensor | None:
        """The last norm's result [B, L, hidden] for the requests, whose tokens come first in their rows.

        None if this step is not for tapes. The next run overwrites it. `plan.check` comes before.
        """
        self._last = None
        length = max(len(part.ids) for part in parts)
        if length > LONGEST_STEP or any(part.wanted < len(part.ids) for part in parts):
            return None  # a prompt
        length = power_of_two(length)
        batch = rows_for(len(parts), self.requests)
        if self._refused is self.plan.snapshot:
            return None
        if batch * length > EXPERTS and any(layer.experts is not None for layer in self.plan.layers):
            return None
        tables = [self.cache.manager.table(part.name) for part in parts]
        if (longest := max(map(len, tables))) > self._width:
            self._width = min(power_of_two(longest), self.cache.manager.blocks)
            self._tapes.clear()
        each = self._bytes()
        if batch * length * each > self._memory // 2:
            return None
        tape = self._tapes.pop((batch, length), None)
        if tape is None or not tape.fits():
            tape = StepTape(self, batch, length, self._width)
        try:
            hidden = tape.run(parts, tables)
        except Blocked as blocked:
            self._refused = self.plan.snapshot
            self.plan.eager[f"step of an engine: {blocked}"] += 1
            return None
        self._tapes[batch, length] = tape
        while sum(batch * length for batch, length in self._tapes) * each > self._memory:
            self._tapes.popitem(last=False)
        self._last = tape
        return hidden[: len(parts)]

    def clear(self) -> None:
        """Let go of all tapes, and of the weights that they read."""
        self._tapes.clear()
        self._refused = self._last = None

    def _bytes(self) -> int:
        """About what a tape keeps for each token: results of each layer's ops, and of attention to each 128 keys."""
        spec, hidden = self.plan.layers[0].spec, self.plan.config.hidden_size
        queries, keys = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
        parts = self._width * self.cache.manager.block_size // 128
        wide = 6 * hidden + 3 * queries + 2 * keys + 3 * spec.inner
        return len(self.plan.layers) * (wide * self.plan.dtype.itemsize + 4 * parts * queries)

    def go_on(self, tokens: Tensor) -> Tensor | None:
        """The step behind the last one, if that was on a tape and of one token a request: their next tokens are
        `tokens`, int64 [n], which only the device knows, and for which there is room. As `run`."""
        tape = self._last
        return None if tape is None or tape.length > 1 else tape.go_on(tokens)[: len(tokens)]


def rows_for(requests: int, most: int) -> int:
    """The number of rows of a step for so many requests."""
    rows = power_of_two(requests) if requests <= FEW else -(-requests // FEW) * FEW
    return min(rows, max(most, requests))


class StepTape:
    """The step of `batch` rows of `length` tokens each, with block tables of `width` blocks."""

    def __init__(self, tapes: Tapes, batch: int, length: int, width: int) -> None:
        self.forward, self.plan, self.length = tapes.forward, tapes.plan, length
        self._slots = tapes.cache.slots
        self._snapshot = self.plan.snapshot
        self._pools = self._places()
        self._rope = self.plan.rotary.version()
        tokens = batch * length
        sizes = (tokens, 2 * batch, tokens, batch * width)  # ids, rows, positions, table
        # one tensor on the device, which one copy of the host's fills
        self._host = array("i", bytes(4 * sum(sizes)))
        self._staged = torch.frombuffer(self._host, dtype=torch.int32)
        with torch.inference_mode(False):
            self._control = torch.zeros(sum(sizes), dtype=torch.int32, device=self.plan.device)
        ids, rows, positions, table = self._control.split(sizes)
        self._ids, self._shape = ids, (batch, length)
        rows, table = rows.view(batch, 2), table.view(batch, width)
        self._group = Group(0, batch, length, rows, table, positions.view(batch, length), [(0, length, rows)])
        self._at = tokens, 2 * batch + tokens, 2 * batch + 2 * tokens  # where rows, positions and table begin
        self._width = width
        self._known: list[list[int]] = [[] for _ in range(batch)]  # tables that the host's copy has
        self._used = 0  # rows that the step before had
        self._script: Script | None = None
        self._hidden: Tensor | None = None

    def _places(self) -> list[Any]:
        return [pool.data for slot in self._slots for pool in slot.pools]

    def fits(self) -> bool:
        """Whether nothing that it was recorded from has changed."""
        same = all(map(is_, self._pools, self._places()))
        return same and self._snapshot is self.plan.snapshot and self._rope == self.plan.rotary.version()

    def run(self, parts: Sequence[Part], tables: Sequence[list[int]]) -> Tensor:
        """[batch, length, hidden]; `tables` are the parts' blocks."""
        self._fill(parts, tables)
        # CUDA reads pageable memory before it returns, and need not wait for what is under way
        self._control.copy_(self._staged, non_blocking=self._control.is_cuda)
        return self._run()

    def go_on(self, tokens: Tensor) -> Tensor:
        """The next step of the same requests."""
        self._ids[: self._used].copy_(tokens)
        self._group.rows[: self._used, 0].add_(1)
        self._group.positions[: self._used].add_(1)
        return self._run()

    def _run(self) -> Tensor:
        self.plan.steps += 1
        if self._script is not None:
            try:
                self._script.replay()
            except RuntimeError as error:
                if "record" not in str(error):
                    raise
                self._script = None  # memory or shaders were exchanged
        if self._script is None:
            self._record()
        assert self._hidden is not None
        return self._hidden

    def _fill(self, parts: Sequence[Part], tables: Sequence[list[int]]) -> None:
        host, length, width = self._host, self.length, self._width
        rows, positions, table = self._at
        for i, (part, blocks) in enumerate(zip(parts, tables, strict=True)):
            start, count, at = part.start, len(part.ids), i * length
            host[at : at + count] = array("i", part.ids)
            host[rows + 2 * i], host[rows + 2 * i + 1] = start, count
            host[positions + at : positions + at + count] = array("i", range(start, start + count))
            if blocks != self._known[i]:
                self._known[i] = blocks
                first = table + i * width
                host[first : first + len(blocks)] = array("i", blocks)
        for i in range(rows + 2 * len(parts), rows + 2 * self._used):
            host[i] = 0
        self._used = len(parts)

    def _record(self) -> None:
        self.forward.rope(self._width * self.forward.cache.manager.block_size)  # made by torch's ops
        script = Script(self.plan.device)
        try:
            with torch.inference_mode(False), torch.no_grad(), script.record():
                hidden = self.forward.decoder(self._ids, [self._group], script.product)
        except RuntimeError as error:
            if "can't be recorded" in str(error):
                raise Blocked(str(error).split(": ")[0]) from None
            raise
        self._script, self._hidden = script, hidden.view(*self._shape, -1)
        self.plan.recorded += 1
