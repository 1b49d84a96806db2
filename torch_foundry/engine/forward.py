"""A forward pass over tokens of many sequences, whose keys and values lie in pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_foundry.core.errors import Fallback
from torch_foundry.decode.models import head_of, logits_of
from torch_foundry.decode.state import horizon_for
from torch_foundry.engine.groups import Inputs, Part
from torch_foundry.engine.script import Script
from torch_foundry.engine.tapes import EXPERTS, Tapes
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.nn.linear import FEW, FEW_DENSE
from torch_foundry.patch.forward import forward
from torch_foundry.patch.weights import ROW_BY_ROW, Gemm, Linear
from torch_foundry.tape import abandon


class Forward:
    """The forward pass of a patched model with a `PagedCache`. Raises Fallback for a model that it can't be taken of.

    exact: every token's results are the same bits whatever else is in the step, by kernels whose rows don't depend on
    each other: those for few rows, or few rows at a time.
    """

    def __init__(self, model: Any, cache: PagedCache, *, requests: int, exact: bool) -> None:
        head = head_of(model)
        if head is None or not hasattr(model.model, "decoder_plan"):
            raise Fallback(f"{type(model).__name__} is not a patched model of a known family")
        self.model, self.cache, self.exact, self.head = model, cache, exact, head
        self.plan = model.model.decoder_plan()
        with torch.no_grad():
            self.plan.check()
        if not self.plan.rotary.constant:
            raise Fallback("rope depends on the length of the text")
        for plan, layer in zip(self.plan.layers, self.cache.slots, strict=True):
            spec = plan.spec
            shape = (spec.n_kv_heads, spec.head_dim, self.plan.dtype, self.plan.device)
            for pool in layer.pools:
                pool.allocate(cache.manager.blocks, cache.manager.block_size, *shape)
        self._tapes = Tapes(self, requests)
        self._snapshot = self.plan.snapshot

    @torch.no_grad()
    def __call__(self, parts: Sequence[Part]) -> Tensor:
        """Logits [n, V] that are wanted, in the order of the parts and their tokens.

        Keys and values of all tokens are in the cache afterwards. Nothing is waited for. Raises Fallback if the model
        has changed into one that this can't be done for.
        """
        self.plan.check()
        if self._snapshot is not self.plan.snapshot:
            self._change()
        x = self._tapes.run(parts)
        return self._logits(self._eager(parts) if x is None else x)

    def reset(self) -> None:
        """Let go of what is kept between steps, or recorded at this moment: an interrupt may have torn it."""
        abandon()
        self._tapes.clear()

    def _change(self) -> None:
        """The model has changed: nothing may keep what it was."""
        self._tapes.clear()
        for plan, layer in zip(self.plan.layers, self.cache.slots, strict=True):
            shape = (plan.spec.n_kv_heads, plan.spec.head_dim, self.plan.dtype, self.plan.device)
            if not all(pool.fits(*shape) for pool in layer.pools):
                raise Fallback("the model has another shape, dtype or device than its cache")
        self._snapshot = self.plan.snapshot

    @torch.no_grad()
    def go_on(self, tokens: Tensor) -> Tensor | None:
        """Logits [n, V] of the step behind the last one, in which each part goes on with its token of `tokens`, int64
        [n] on the device; the block manager has room for them.

        None, and nothing has happened, if the last step was not on a tape or had other parts than single tokens.
        """
        x = self._tapes.go_on(tokens)
        return None if x is None else self._logits(x)

    def _eager(self, parts: Sequence[Part]) -> Tensor:
        """As `Tapes.run`, without a tape."""
        alike: defaultdict[int, list[Part]] = defaultdict(list)
        for part in parts:
            for piece in part.cut(FEW) if self.exact else [part]:
                alike[len(piece.ids)].append(piece)
        sizes = tuple((len(found), length) for length, found in alike.items())
        manager = self.cache.manager
        width = max(len(manager.table(part.name)) for part in parts)
        inputs = Inputs(sizes, width, manager.block_size, self.plan.device)
        inputs.fill(list(alike.values()), manager)
        return inputs.wanted(self.decoder(inputs), parts)

    def rope(self, positions: int) -> Any:
        """cos and sin of at least so many positions, by layer type: the same tensors until the model changes."""
        like = torch.empty(0, dtype=self.plan.dtype, device=self.plan.device)
        return self.plan.rope_tables(horizon_for(positions), like).tables

    def decoder(self, inputs: Inputs, script: Script | None = None) -> Tensor:
        """The last norm's result [T, hidden] of a step. script: what records it."""
        ids = inputs.ids[None]
        product, join = (Linear.of_many, torch.cat) if script is None else (script.product, script.join)
        alone = self.exact or ids.numel() <= self.plan.layers[0].layer.mixer.o.few
        gemm = ROW_BY_ROW if alone else Gemm(product, expert_tokens=EXPERTS)
        tables = self.rope(inputs.bound)
        x = self.plan.embed(ids)
        for plan, slot in zip(self.plan.layers, self.cache.slots, strict=True):
            x = forward(plan.layer, x, inputs.view(slot, join), plan.layer.rope(tables), gemm)
        return self.plan.norm(x)[0]

    def _logits(self, x: Tensor) -> Tensor:
        if not len(x):
            return x.new_empty(0, self.plan.vocabulary)
        if not self.exact or len(x) <= FEW_DENSE:
            return logits_of(self.model, self.head, x)
        few = x.split(FEW_DENSE)
        return torch.cat([logits_of(self.model, self.head, rows) for rows in few])
