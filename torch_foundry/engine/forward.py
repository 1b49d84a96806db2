"""A forward pass over tokens of many sequences, whose keys and values lie in pages."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.decode.models import head_of, logits_of
from torch_foundry.decode.state import horizon_for
from torch_foundry.engine.groups import Group, Part
from torch_foundry.engine.tapes import EXPERTS, Tapes
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.nn.linear import FEW, FEW_DENSE
from torch_foundry.patch.layer import LayerPlan, project
from torch_foundry.patch.state import Blocked
from torch_foundry.patch.step import Product, gated, projections, stored
from torch_foundry.patch.weights import Linear
from torch_foundry.tape import abandon


class Way(NamedTuple):
    """How matrix products are taken: with the norm before them or not, and by which function."""

    fused: bool
    product: Product


class Forward:
    """The forward pass of a patched model with a `PagedCache`. Raises Blocked for a model that it can't be taken of.

    exact: every token's results are the same bits whatever else is in the step, by kernels whose rows don't depend on
    each other: those for few rows, or few rows at a time.
    """

    def __init__(self, model: Any, cache: PagedCache, *, requests: int, exact: bool) -> None:
        head = head_of(model)
        if head is None or not hasattr(model.model, "decoder_plan"):
            raise Blocked(f"{type(model).__name__} is not a patched model of a known family")
        self.model, self.cache, self.exact, self.head = model, cache, exact, head
        self._layers: list[Any] = list(cache.layers)
        self.plan = model.model.decoder_plan()
        with torch.no_grad():
            self.plan.check()
        if not self.plan.rotary.constant:
            raise Blocked("rope depends on the length of the text")
        for plan, layer in zip(self.plan.layers, self._layers, strict=True):
            spec = plan.spec
            shape = (spec.n_kv_heads, spec.head_dim, self.plan.dtype, self.plan.device)
            for pool in layer.pools:
                pool.allocate(cache.manager.blocks, cache.manager.block_size, *shape)
        self._tapes = Tapes(self, requests)
        self._snapshot = self.plan.snapshot

    @torch.no_grad()
    def __call__(self, parts: Sequence[Part]) -> Tensor:
        """Logits [n, V] that are wanted, in the order of the parts and their tokens.

        Keys and values of all tokens are in the cache afterwards. Nothing is waited for. Raises Blocked if the model
        has changed into one that this can't be done for.
        """
        self.plan.check()
        if self._snapshot is not self.plan.snapshot:
            self._change()
        hidden = self._tapes.run(parts)
        if hidden is not None:
            x = hidden.flatten(0, 1)
            if any(len(part.ids) < hidden.shape[1] for part in parts):
                x = x[self._put([i * hidden.shape[1] + j for i, part in enumerate(parts) for j in range(part.wanted)])]
            return self._logits(x)
        return self._eager(parts)

    def reset(self) -> None:
        """Let go of what is kept between steps, or recorded at this moment: an interrupt may have torn it."""
        abandon()
        self._tapes.clear()

    def _change(self) -> None:
        """The model has changed: nothing may keep what it was."""
        self._tapes.clear()
        for plan, layer in zip(self.plan.layers, self._layers, strict=True):
            shape = (plan.spec.n_kv_heads, plan.spec.head_dim, self.plan.dtype, self.plan.device)
            if not all(pool.fits(*shape) for pool in layer.pools):
                raise Blocked("the model has another shape, dtype or device than its cache")
        self._snapshot = self.plan.snapshot

    @torch.no_grad()
    def go_on(self, tokens: Tensor) -> Tensor | None:
        """Logits [n, V] of the step behind the last one, in which each part goes on with its token of `tokens`, int64
        [n] on the device; the block manager has room for them.

        None, and nothing has happened, if the last step was not on a tape or had other parts than single tokens.
        """
        hidden = self._tapes.go_on(tokens)
        return None if hidden is None else self._logits(hidden.flatten(0, 1))

    def _eager(self, parts: Sequence[Part]) -> Tensor:
        alike: defaultdict[int, list[int]] = defaultdict(list)
        for i, part in enumerate(parts):
            alike[len(part.ids)].append(i)
        order = [i for found in alike.values() for i in found]
        ends = list(itertools.accumulate(len(parts[i].ids) for i in order))
        end_of = dict(zip(order, ends, strict=True))
        last = [t for i, part in enumerate(parts) for t in range(end_of[i] - part.wanted, end_of[i])]
        groups, first = [], 0
        for length, found in alike.items():
            groups.append(self._group([parts[i] for i in found], length, first))
            first += len(found) * length
        x = self.decoder(self._put([t for i in order for t in parts[i].ids]), groups)
        if len(last) < len(x) or last != list(range(len(x))):
            x = x[self._put(last)]
        return self._logits(x)

    def _group(self, parts: Sequence[Part], length: int, first: int) -> Group:
        starts = [part.start for part in parts]
        step = FEW if self.exact else length
        pieces = [
            (at, count, self._put([[start + at, count] for start in starts]))
            for at in range(0, length, step)
            if (count := min(step, length - at))
        ]
        positions = self._put([[*range(start, start + length)] for start in starts])
        rows = pieces[0][2] if len(pieces) == 1 else self._put([[start, length] for start in starts])
        table = self.cache.tables([part.name for part in parts], self.plan.device)
        return Group(first, len(parts), length, rows, table, positions, pieces)

    def _put(self, values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(self.plan.device, non_blocking=True)

    def rope(self, positions: int) -> Any:
        """cos and sin of at least so many positions, by layer type: the same tensors until the model changes."""
        like = torch.empty(0, dtype=self.plan.dtype, device=self.plan.device)
        return self.plan.rope_tables(horizon_for(positions), like).tables

    def decoder(self, ids: Tensor, groups: Sequence[Group], product: Product = Linear.of_many) -> Tensor:
        """The last norm's result [T, hidden] of the step's `ids`, int32 [T]; more than a few rows by `product`."""
        fused = self.exact or len(ids) <= self.plan.layers[0].o.few
        way = Way(fused, _apart if fused else product)
        tables = self.rope(max(int(group.table.shape[1]) for group in groups) * self.cache.manager.block_size)
        x = self.plan.embed(ids)
        for plan, layer in zip(self.plan.layers, self._layers, strict=True):
            x = self._layer(plan, x, groups, layer, tables, way)
        return self.plan.norm(x)

    def _layer(self, plan: LayerPlan, x: Tensor, groups: Sequence[Group], layer: Any, tables: Any, way: Way) -> Tensor:
        scale = plan.spec.residual_scale
        qkv = projections(plan, x, way.fused, way.product)
        parts = [self._attend(plan, qkv, group, layer, tables) for group in groups]
        h = parts[0] if len(parts) == 1 else torch.cat(parts)
        x = project(partial(way.product, plan.o), h, x, plan.post_attn, scale)
        if plan.experts is not None:
            assert plan.pre_ffn is not None
            few = len(x) if self.exact else EXPERTS
            return plan.experts(x[None], plan.pre_ffn, scale, few=few)[0]  # stock code wants rows of a batch
        h = gated(plan, x, way.fused, way.product)
        return project(partial(way.product, plan.down), h, x, plan.post_ffn, scale)

    def _attend(self, plan: LayerPlan, qkv: Sequence[Tensor], group: Group, layer: Any, tables: Any) -> Tensor:
        """Attention of a group's tokens, [B * L, heads * head_dim]."""
        spec, (keys, values) = plan.spec, (pool.data for pool in layer.pools)
        formats = dict(zip(("k_format", "v_format"), layer.formats, strict=True))
        where: dict[str, Any] = {"rows": group.rows, "block_table": group.table, **formats}
        own = [each[group.tokens].unflatten(0, (group.batch, group.length)) for each in qkv]
        heads = stored(plan, own, tables, keys, values, positions=group.positions, **where)
        bound = group.table.shape[1] * self.cache.manager.block_size
        options: dict[str, Any] = {"scale": spec.scale, "window": spec.window, "softcap": spec.softcap}
        parts = []
        for start, count, rows in group.pieces:
            where["rows"] = rows
            parts.append(ops.attention(heads[:, :, start : start + count], keys, values, bound, **options, **where))
        h = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return h.flatten(0, 1)

    def _logits(self, x: Tensor) -> Tensor:
        if not self.exact or len(x) <= FEW_DENSE:
            return logits_of(self.model, self.head, x)
        few = x.split(FEW_DENSE)
        return torch.cat([logits_of(self.model, self.head, rows) for rows in few])


def _apart(linear: Linear, x: Tensor, residual: Tensor | None = None, scale: float = 1.0) -> Tensor:
    return linear(x, residual, scale, apart=True)
