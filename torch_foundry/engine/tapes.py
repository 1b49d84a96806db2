"""Steps of an engine on tapes: recorded when they first run, those with prompts when they come again, then replayed."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_foundry.core.errors import Fallback
from torch_foundry.decode.state import power_of_two
from torch_foundry.engine.groups import Inputs, Part, Sizes
from torch_foundry.engine.script import Script
from torch_foundry.nn.linear import AT_ONCE, FEW
from torch_foundry.patch.calls import LONGEST_STEP
from torch_foundry.tape import GraphInvalid, NotCapturable

if TYPE_CHECKING:
    from torch_foundry.engine.forward import Forward

EXPERTS = 64  # tokens of a step that experts take one by one, which is what can be recorded of them
MEMORY = {"cuda": 4 << 30}  # bytes that tapes may keep of what is computed on the way, one of them half of it
MEMORY_ELSEWHERE = 1 << 30
TEXT = 256  # tokens of the longest text that there is room for in block tables at first; doubled as needed
PIECE = 32  # tokens of a prompt in a row
PROMPTS = {"cuda": 1024}  # tokens of a step with prompts, from which on the device takes longer than Python does
PROMPTS_ELSEWHERE = 128
OFTEN = 4  # times that a step with prompts comes before it is recorded, which takes as long as some five without a tape


class Tapes:
    """Tapes by the number of requests, rounded up, and of tokens of each, and by the number of pieces that prompts are
    cut into. Padding is no request and writes nowhere.

    requests: at most.
    """

    def __init__(self, forward: Forward, requests: int) -> None:
        self.forward, self.plan, self.cache, self.requests = forward, forward.plan, forward.cache, requests
        self._tapes: OrderedDict[Sizes, StepTape] = OrderedDict()
        self._met: Counter[Sizes] = Counter()  # steps with prompts
        self._width = TEXT // self.cache.manager.block_size or 1  # blocks of a table
        self._memory = MEMORY.get(self.plan.device.type, MEMORY_ELSEWHERE)
        self._prompts = PROMPTS.get(self.plan.device.type, PROMPTS_ELSEWHERE)
        self._piece = FEW if forward.exact else PIECE
        self._refused: Any = None  # the model as it was when a step could not be recorded
        self._last: StepTape | None = None  # what the last step was on

    def run(self, parts: Sequence[Part]) -> Tensor | None:
        """The last norm's result [n, hidden] of the tokens that are wanted, in the order of the parts.

        None if this step is not for tapes. The next run may overwrite it. `plan.check` comes before.
        """
        self._last = None
        few = [part for part in parts if _few(part)]
        pieces = [piece for part in parts if not _few(part) for piece in part.cut(self._piece)]
        sizes = self._sizes(few, pieces)
        if self._refused is self.plan.snapshot or not self._worth(sizes, parts):
            return None
        tape = self._tapes.pop(sizes, None)
        if tape is None or not tape.fits():
            tape = StepTape(self, sizes, self._width)
        try:
            hidden = tape.run([group for group in (few, pieces) if group])
        except Fallback as fallback:
            self._refused = self.plan.snapshot
            self.plan.eager[f"step of an engine: {fallback}"] += 1
            return None
        self._tapes[sizes] = tape
        while sum(map(self._bytes, self._tapes)) > self._memory:
            oldest = next(filter(_of_prompts, self._tapes), next(iter(self._tapes)))
            del self._tapes[oldest], self._met[oldest]
        self._last = tape if [length for _, length in sizes] == [1] else None
        return tape.inputs.wanted(hidden, parts)

    def go_on(self, tokens: Tensor) -> Tensor | None:
        """The step behind the last one, if that was on a tape and of one token a request: their next tokens are
        `tokens`, int64 [n], which only the device knows, and for which there is room. As `run`."""
        return None if self._last is None else self._last.go_on(tokens)

    def _sizes(self, few: Sequence[Part], pieces: Sequence[Part]) -> Sizes:
        sizes: Sizes = ()
        if few:
            length, rows = power_of_two(max(len(part.ids) for part in few)), len(few)
            if pieces:  # beside which some rows more cost little
                rows = max(rows, min(FEW // length, self.requests))
            sizes += ((rows_for(rows, self.requests), length),)
        if pieces:
            sizes += ((power_of_two(len(pieces)), self._piece),)
        return sizes

    def _worth(self, sizes: Sizes, parts: Sequence[Part]) -> bool:
        """Whether a step is for a tape."""
        tokens = sum(batch * length for batch, length in sizes)
        if tokens > EXPERTS and any(plan.layer.experts is not None for plan in self.plan.layers):
            return False
        longest = max(len(self.cache.manager.table(part.name)) for part in parts)
        if longest > self._width:
            self._width = min(power_of_two(longest), self.cache.manager.blocks)
            self._tapes.clear()
        room = self._memory - self._bytes(sizes)
        if room < self._memory // 2:
            return False
        if not _of_prompts(sizes):
            return True
        padded = 2 * sum(len(part.ids) for part in parts) < tokens > self._prompts // 2
        if tokens > self._prompts or padded or room < sum(self._bytes(s) for s in self._tapes if not _of_prompts(s)):
            return False
        self._met[sizes] += 1
        return self._met[sizes] >= OFTEN

    def clear(self) -> None:
        """Let go of all tapes, and of the weights that they read."""
        self._tapes.clear()
        self._refused = self._last = None

    def _bytes(self, sizes: Sizes) -> int:
        """About what a tape keeps: results of each layer's ops, of attention of few queries to each 128 keys, and a
        CUDA graph's own memory, to unpack a matrix to."""
        plan, itemsize = self.plan.layers[0], self.plan.dtype.itemsize
        spec, hidden = plan.spec, self.plan.config.hidden_size
        queries, keys = spec.n_heads * spec.head_dim, spec.n_kv_heads * spec.head_dim
        parts = self._width * self.cache.manager.block_size // 128
        wide = (6 * hidden + 4 * queries + 2 * keys + 3 * spec.inner) * itemsize
        each = [batch * length * (wide + (4 * parts * queries if length <= FEW else 0)) for batch, length in sizes]
        own = (
            0
            if plan.layer.mixer.o.format is None or self.plan.device.type != "cuda"
            else min(AT_ONCE, hidden * spec.inner)
        )
        return len(self.plan.layers) * sum(each) + own * itemsize


def _few(part: Part) -> bool:
    return part.wanted == len(part.ids) <= LONGEST_STEP


def _of_prompts(sizes: Sizes) -> bool:
    return sizes[-1][1] > LONGEST_STEP


def rows_for(requests: int, most: int) -> int:
    """The number of rows of a step for so many requests."""
    rows = power_of_two(requests) if requests <= FEW else -(-requests // FEW) * FEW
    return min(rows, max(most, requests))


class StepTape:
    """The step of groups of these sizes, with block tables of `width` blocks."""

    def __init__(self, tapes: Tapes, sizes: Sizes, width: int) -> None:
        self.forward, self.plan, self.cache = tapes.forward, tapes.plan, tapes.cache
        self._snapshot = self.plan.snapshot
        self._pools = self._memory()
        self._rope = self.plan.rotary.version()
        self.inputs = Inputs(sizes, width, self.cache.manager.block_size, self.plan.device)
        self._script: Script | None = None
        self._hidden: Tensor | None = None

    def _memory(self) -> list[Any]:
        return [pool.data for slot in self.cache.slots for pool in slot.pools]

    def fits(self) -> bool:
        """Whether nothing that it was recorded from has changed."""
        same = all(map(is_, self._pools, self._memory()))
        return same and self._snapshot is self.plan.snapshot and self._rope == self.plan.rotary.version()

    def run(self, groups: Sequence[Sequence[Part]]) -> Tensor:
        """[T, hidden] of the groups' parts, those of one tape in the same memory each time."""
        self.inputs.fill(groups, self.cache.manager)
        return self._run()

    def go_on(self, tokens: Tensor) -> Tensor:
        """The next step of the same requests, of one token each: [n, hidden]."""
        (group,), n = self.inputs.groups, len(tokens)
        self.inputs.ids[:n].copy_(tokens)
        group.rows[:n, 0].add_(1)
        group.positions[:n].add_(1)
        return self._run()[:n]

    def _run(self) -> Tensor:
        self.plan.steps += 1
        if self._script is not None:
            try:
                self._script.replay()
            except GraphInvalid:
                self._script = None  # memory or shaders were exchanged
        if self._script is None:
            self._record()
        assert self._hidden is not None
        return self._hidden

    def _record(self) -> None:
        self.forward.rope(self.inputs.bound)  # made by torch's ops
        script = Script(self.plan.device)
        try:
            with torch.inference_mode(False), torch.no_grad(), script.record():
                self._hidden = self.forward.decoder(self.inputs, script)
        except NotCapturable as error:
            raise Fallback(error.reason) from None
        self._script = script
        self.plan.recorded += 1
