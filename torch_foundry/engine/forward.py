"""A forward pass over tokens of many sequences, whose keys and values lie in pages."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.decode.models import head_of, logits_of
from torch_foundry.decode.state import horizon_for
from torch_foundry.kvcache.paged import PagedCache
from torch_foundry.nn.linear import FEW
from torch_foundry.patch.layer import LayerPlan
from torch_foundry.patch.state import Blocked


@dataclass(frozen=True)
class Part:
    """A sequence in a step: `ids`, the first of which is token number `start`, and logits of the last `wanted` of them.

    name: in the cache's block manager, which has room for them.
    """

    name: Hashable
    start: int
    ids: list[int]
    wanted: int


@dataclass
class Group:
    """Sequences with the same number of new tokens, side by side in a step.

    first: of its tokens among all of the step. rows: int32 [B, 2], where the first one lies and how many there are.
    table: int32 [B, blocks]. positions: int32 [B, L]. pieces: what attention is taken of at a time: the first token,
    how many, and their rows.
    """

    first: int
    batch: int
    length: int
    rows: Tensor
    table: Tensor
    positions: Tensor
    pieces: list[tuple[int, int, Tensor]]

    @property
    def tokens(self) -> slice:
        """Its tokens among all of the step."""
        return slice(self.first, self.first + self.batch * self.length)


class Forward:
    """The forward pass of a patched model with a `PagedCache`. Raises Blocked for a model that it can't be taken of.

    exact: every token's results are the same bits whatever else is in the step, by kernels whose rows don't depend on
    each other, few rows at a time.
    """

    def __init__(self, model: Any, cache: PagedCache, *, exact: bool) -> None:
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

    @torch.no_grad()
    def __call__(self, parts: Sequence[Part]) -> Tensor:
        """Logits [n, V] that are wanted, in the order of the parts and their tokens.

        Keys and values of all tokens are in the cache afterwards. Nothing is waited for. Raises Blocked if the model
        has changed into one that this can't be done for.
        """
        self.plan.check()
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
        x = self._decoder(self._put([t for i in order for t in parts[i].ids]), groups)
        if len(last) < len(x) or last != list(range(len(x))):
            x = x[self._put(last)]
        return self._pieces(lambda rows: logits_of(self.model, self.head, rows), x)

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

    def _decoder(self, ids: Tensor, groups: Sequence[Group]) -> Tensor:
        """The last norm's result [T, hidden] of the step's `ids`, int32 [T]."""
        horizon = horizon_for(max(int(group.table.shape[1]) for group in groups) * self.cache.manager.block_size)
        like = torch.empty(0, dtype=self.plan.dtype, device=ids.device)
        tables = self.plan.rope_tables(horizon, like).tables
        x = self.plan.embed(ids)
        for plan, layer in zip(self.plan.layers, self._layers, strict=True):
            x = self._layer(plan, x, groups, layer, tables)
        return self.plan.norm(x)

    def _layer(self, plan: LayerPlan, x: Tensor, groups: Sequence[Group], layer: Any, tables: Any) -> Tensor:
        spec = plan.spec
        h = x if plan.pre_attn is None else plan.pre_attn(x)
        qkv = [self._linear(linear, h) for linear in plan.qkv]
        q, k, v = qkv if len(qkv) == 3 else qkv[0].split(plan.widths, dim=-1)
        norms: dict[str, Any] = {}
        if plan.qk_norm is not None:
            q_norm, k_norm = plan.qk_norm
            if spec.family.qk_norm == "head":
                norms = {"q_norm": q_norm.weight, "k_norm": k_norm.weight, "eps": q_norm.eps, "kind": q_norm.kind}
            else:
                q, k = q_norm(q), k_norm(k)
        types = getattr(plan.config, "layer_types", None)
        own = types[spec.layer_idx] if types else None
        cos, sin = tables[own if own in tables else None] if spec.rope else (None, None)
        parts = [self._attend(plan, q, k, v, cos, sin, group, layer, norms) for group in groups]
        h = parts[0] if len(parts) == 1 else torch.cat(parts)
        x = self._project(plan.o, h, x, plan.post_attn, spec.residual_scale)
        if plan.experts is not None:
            experts, norm = plan.experts, plan.pre_ffn
            assert norm is not None
            return self._pieces(lambda rows: experts(rows[None], norm, spec.residual_scale)[0], x)
        h = x if plan.pre_ffn is None else plan.pre_ffn(x)
        gate_up = [self._linear(linear, h) for linear in plan.gate_up]
        gate, up = gate_up if len(gate_up) == 2 else gate_up[0].chunk(2, dim=-1)
        return self._project(plan.down, ops.glu(gate, up, spec.activation), x, plan.post_ffn, spec.residual_scale)

    def _attend(
        self, plan: LayerPlan, q: Tensor, k: Tensor, v: Tensor, cos: Any, sin: Any, group: Group, layer: Any, norms: Any
    ) -> Tensor:
        """Attention of a group's tokens, [B * L, heads * head_dim]."""
        spec, (keys, values) = plan.spec, (pool.data for pool in layer.pools)
        formats = dict(zip(("k_format", "v_format"), layer.formats, strict=True))
        q, k, v = (each[group.tokens].unflatten(0, (group.batch, group.length)) for each in (q, k, v))
        where: dict[str, Any] = {"rows": group.rows, "block_table": group.table, **formats}
        heads = ops.rope_and_cache(
            q, k, v, cos, sin, keys, values, 0, head_dim=spec.head_dim, positions=group.positions, **norms, **where
        )
        bound = group.table.shape[1] * self.cache.manager.block_size
        options: dict[str, Any] = {"scale": spec.scale, "window": spec.window, "softcap": spec.softcap}
        parts = []
        for start, count, rows in group.pieces:
            where["rows"] = rows
            parts.append(ops.attention(heads[:, :, start : start + count], keys, values, bound, **options, **where))
        h = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return h.flatten(0, 1)

    def _linear(self, linear: Any, h: Tensor, residual: Tensor | None = None, scale: float = 1.0) -> Tensor:
        if not self.exact:
            return linear.of_many(h, residual, scale)
        return torch.cat(
            [
                linear(h[i : i + FEW], None if residual is None else residual[i : i + FEW], scale)
                for i in range(0, len(h), FEW)
            ]
        )

    def _project(self, linear: Any, h: Tensor, x: Tensor, post_norm: Any, scale: float) -> Tensor:
        """Back to the residual stream."""
        if post_norm is None:
            return self._linear(linear, h, x, scale)
        return post_norm(self._linear(linear, h), x)

    def _pieces(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """`function` of all rows, or of few at a time."""
        if not self.exact or len(x) <= FEW:
            return function(x)
        return torch.cat([function(x[i : i + FEW]) for i in range(0, len(x), FEW)])
