"""Multi-head latent attention of DeepSeek V2, V3 and their kin.

A token's keys and values of all heads are products of one latent vector c with matrices U and W of each head, which
are kv_b_proj's; besides, all heads share a part of the key that rotates. The cache holds c and that part alone. Few
tokens attend to latents as they are: q . U c = (U^T q) . c, and a weighted sum of W c is W times that of c. A
prompt takes less work with keys and values of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.kvcache.base import KVSpec
from torch_foundry.kvcache.view import KVStep, KVView, Rope
from torch_foundry.models.attention import SoftmaxMixer, head_elements, spread
from torch_foundry.models.checks import check_children, check_heads, check_linear, check_norm, require
from torch_foundry.models.family import LATENT, Family
from torch_foundry.models.layer import mixes
from torch_foundry.models.watch import version_of
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Norm, Residual


@dataclass(frozen=True)
class LatentSpec:
    """Facts about one layer's attention. A head's query has `plain_dim` elements that don't rotate, then `rope_dim`."""

    n_heads: int
    plain_dim: int
    rope_dim: int
    value_dim: int
    rank: int  # of a latent
    scale: float  # of q·k
    scaled: bool  # whether queries are multiplied by numbers of their positions
    interleaved: bool  # as in ops.rope_kv
    deinterleave: bool
    rope: bool  # whether any of it rotates
    gate: str  # the projection to gates of heads; "": there is none

    @property
    def query_dim(self) -> int:
        """Of a head's query, and of its key."""
        return self.plain_dim + self.rope_dim


def read(module: Any, family: Family) -> LatentSpec:
    """The facts of `module`. Raises Fallback."""
    config, hidden = module.config, int(module.config.hidden_size)
    # pairs are put apart, unless they are numbers of a plane
    deinterleave = bool(getattr(config, "rope_interleave", family.interleaved and family.tables != "complex"))
    spec = LatentSpec(
        n_heads=int(module.num_heads),
        plain_dim=int(module.qk_nope_head_dim),
        rope_dim=int(module.qk_rope_head_dim),
        value_dim=int(module.v_head_dim),
        rank=int(module.kv_lora_rank),
        scale=float(module.scaling),
        scaled=family.scaled_queries,
        interleaved=family.interleaved or deinterleave,
        deinterleave=deinterleave,
        rope=bool(family.decoder.rotary),
        gate=family.gate,
    )
    check_heads(**{name: getattr(spec, name) for name in ("rope_dim", "rank", "query_dim", "value_dim")})
    require(spec.plain_dim % spec.rope_dim == 0, f"of {spec.query_dim} elements of a head {spec.rope_dim} rotate")
    require(module.is_causal is True, "attention is not causal")

    heads, low = spec.n_heads, "q_a_proj" in module._modules
    first = {"q_a_proj", "q_a_layernorm", "q_b_proj"} if low else {"q_proj"}
    rest = {"kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj", spec.gate} - {""}
    check_children("self_attn", module, first | rest)
    if spec.gate:
        check_linear(spec.gate, module._modules[spec.gate], hidden, heads)
    if low:
        rank = module.q_a_proj.out_features
        check_linear("q_a_proj", module.q_a_proj, hidden, rank)
        check_norm("q_a_layernorm", module.q_a_layernorm, family, rank)
        check_linear("q_b_proj", module.q_b_proj, rank, heads * spec.query_dim)
    else:
        check_linear("q_proj", module.q_proj, hidden, heads * spec.query_dim)
    check_linear("kv_a_proj_with_mqa", module.kv_a_proj_with_mqa, hidden, spec.rank + spec.rope_dim)
    check_norm("kv_a_layernorm", module.kv_a_layernorm, family, spec.rank)
    check_linear("kv_b_proj", module.kv_b_proj, spec.rank, heads * (spec.plain_dim + spec.value_dim))
    require(module.kv_b_proj.bias is None, "kv_b_proj has a bias")
    last = module.q_b_proj if low else module.q_proj
    require(not spec.scaled or last.bias is None, "queries that grow with their positions have a bias")
    check_linear("o_proj", module.o_proj, heads * spec.value_dim, hidden)
    return spec


@mixes(LATENT)
class LatentAttention(SoftmaxMixer):
    """Its state is what stock code caches: latents in place of keys, the shared rotated parts in place of values."""

    __slots__ = (
        "_dense", "_dense_of", "groups", "kv", "kv_b", "kv_norm", "out", "q", "q_b", "q_norm", "queries",
        "residual", "rope", "spec", "state", "width",
    )  # fmt: skip
    read = staticmethod(read)
    by_heads = True
    spec: LatentSpec

    def __init__(self, module: Any, facts: LatentSpec, residual: Residual) -> None:
        spec = self.spec = facts
        self.residual, self.rope = residual, spec.rope
        self.q = LinearGroup.of(module, "q_proj", "q_a_proj")  # one of them
        self.q_b = LinearGroup.of(module, "q_b_proj")  # none or one
        self.q_norm = Norm(module.q_a_layernorm) if self.q_b else None
        self.kv, self.kv_norm = LinearGroup.of(module, "kv_a_proj_with_mqa", spec.gate), Norm(module.kv_a_layernorm)
        self.kv_b, self.out = Linear(module.kv_b_proj), Linear(module.o_proj)
        self.groups = (self.q, self.kv, *([self.q_b] if self.q_b else []))
        self.state = KVSpec(1, spec.rank, spec.rope_dim)
        self.queries = spec.n_heads * spec.rank
        self.width = spec.n_heads * (2 * spec.query_dim + 2 * spec.rank + spec.value_dim)
        self._dense: Tensor | None = None
        self._dense_of: Any = None

    def __call__(self, x: Tensor, state: KVStep, rope: Rope, gemm: Gemm, mask: Tensor | None) -> Tensor:
        spec, (batch, length, _) = self.spec, x.shape
        few = batch * length <= gemm.expert_tokens
        q, kv, *gates = self._projected(x, gemm, self._factors(x, state, rope, few))
        latents = self.kv_norm(kv[..., : spec.rank])
        state = state.exchanged()  # what rotates is keys to ops, and latents, of which sums are wanted, are values
        how: dict[str, Any] = {"interleaved": spec.interleaved, "deinterleave": spec.deinterleave}
        heads: Any = state.write(q, kv[..., spec.rank :], latents, rope[:2], head_dim=spec.rope_dim, **how)
        # parts of queries as wide as what rotates went along, which is less work than to copy their ends
        every = spec.query_dim // spec.rope_dim
        ends = slice(every - 1, None, every)
        rotated: Any = [own[:, ends] for own in heads] if isinstance(heads, list) else heads[:, ends]
        plain = q.unflatten(-1, (spec.n_heads, spec.query_dim))[..., : spec.plain_dim]
        if not few and isinstance(state, KVView) and state.is_dense(x.dtype):
            h = self._of_prompt(state, plain, rotated, mask)
        else:
            product = ops.head_linear if few else _head_gemm
            keys, values = self._matrices(x.dtype)
            of_latents = product(plain.flatten(0, 1), keys.transpose(1, 2)).unflatten(0, (batch, length))
            h = state.attend(rotated, mask, scale=spec.scale, value_queries=of_latents)
            h = product(h.view(-1, spec.n_heads, spec.rank), values).reshape(batch, length, -1)
        if spec.gate:
            h = ops.glu(spread(gates[0], spec.value_dim), h, "sigmoid")
        return self.residual.add(x, self.out, h, gemm)

    def _factors(self, x: Tensor, state: KVStep, rope: Rope, few: bool) -> Tensor | None:
        """What queries are multiplied by, float32 [T, 1] for x [B, L, hidden]; None: nothing."""
        if not self.spec.scaled:
            return None
        table = rope[2]
        assert table is not None
        if state.positions is None:
            return table.expand(*x.shape[:2], 1).reshape(-1, 1)
        rows = state.positions.reshape(-1)
        return ops.embedding(rows, table, dtype=torch.float32) if few else table[rows.long()]

    def _grown(self, linear: Linear, x: Tensor, factors: Tensor, gemm: Gemm) -> Tensor:
        """`linear` of x [B, L, K], times `factors`: few tokens as those of one expert, which are weighed by them."""
        tokens = len(factors)
        if tokens > gemm.expert_tokens:
            return gemm.product(linear, x) * factors.view(*x.shape[:2], 1).to(x.dtype)
        rows, weight = linear.ordered(x).view(tokens, 1, -1), linear.weight[None]
        ids = _first(x.device).expand(tokens, 1)
        return ops.moe_down(rows, ids, factors, weight, format=linear.format).view(*x.shape[:2], -1)

    def _projected(self, x: Tensor, gemm: Gemm, factors: Tensor | None) -> tuple[Tensor, ...]:
        """Queries of all heads, before they rotate; a latent before its norm, with the part of the key; and gates, if
        there are any. factors: of the queries, [T, 1]."""
        spec, norm = self.spec, self.residual.pre
        if norm is not None and not gemm.fuses(norm, x):
            x, norm = norm(x), None
        width = spec.n_heads * spec.query_dim
        kv = self.kv.behind(norm, x, [spec.rank + spec.rope_dim, spec.n_heads][: len(self.kv)], gemm)
        if not self.q_b and factors is not None:
            q = self._grown(self.q[0], x if norm is None else norm(x), factors, gemm)
        elif not self.q_b:
            (q,) = self.q.behind(norm, x, [width], gemm)
        else:
            assert self.q_norm is not None
            (low,) = self.q.behind(norm, x, [self.q_norm.weight.shape[0]], gemm)
            if factors is None:
                (q,) = self.q_b.behind(self.q_norm, low, [width], gemm)
            else:
                q = self._grown(self.q_b[0], self.q_norm(low), factors, gemm)
        return q, *kv

    def _of_prompt(self, state: KVView, plain: Tensor, rotated: Tensor, mask: Tensor | None) -> Tensor:
        """Attention by keys and values of each head, made from all latents that are seen."""
        spec = self.spec
        ends, latents = (part.narrow(2, 0, state.kv_len) for part in (state.k, state.v))
        made = self.kv_b.gemm(latents[:, 0]).unflatten(-1, (spec.n_heads, -1)).transpose(1, 2)
        keys = torch.cat((made[..., : spec.plain_dim], ends.expand(-1, spec.n_heads, -1, -1)), -1)
        queries = torch.cat((plain.transpose(1, 2), rotated), -1)
        seen = KVView(keys, made[..., spec.plain_dim :], state.kv_len, padding=state.padding)
        return seen.attend(queries, mask, scale=spec.scale)

    def facts(self) -> list[tuple[int, int]]:
        """Of what the matrices were unpacked; empty if they are dense."""
        linear = self.kv_b
        of = [] if linear.format is None else [t for t in (linear.weight, linear.order) if t is not None]
        return [(id(t), version_of(t)) for t in of]

    def prepare(self, device: torch.device) -> None:
        """See `Mixer`: unpacked matrices."""
        self._matrices(self.kv_norm.weight.dtype)
        if self.spec.gate:
            head_elements(self.spec.n_heads, self.spec.value_dim, device)
        if self.spec.scaled:
            _first(device)

    def _matrices(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Of each head: what makes the plain part of its keys of latents, [heads, plain_dim, rank], and its values,
        [heads, value_dim, rank]. Those of a packed layer are unpacked once."""
        linear, spec = self.kv_b, self.spec
        dense: Tensor | None = linear.weight
        if linear.format is not None:
            of = dtype, self.facts()
            if self._dense is None or self._dense_of != of:
                self._dense, self._dense_of = _unpacked(linear, dtype), of
            dense = self._dense
        assert dense is not None
        heads = dense.view(spec.n_heads, -1, spec.rank)
        return heads[:, : spec.plain_dim], heads[:, spec.plain_dim :]


@cache
def _first(device: torch.device) -> Tensor:
    """The id of the first expert, int32 [1, 1]. Not first while a step is captured."""
    with torch.inference_mode(False):
        return torch.zeros(1, 1, dtype=torch.int32, device=device)


def _head_gemm(x: Tensor, weight: Tensor) -> Tensor:
    """`ops.head_linear` by torch, for many tokens."""
    return torch.einsum("thk,hnk->thn", x, weight)


def _unpacked(linear: Linear, dtype: torch.dtype) -> Tensor:
    weight, order = linear.weight, linear.order
    with torch.inference_mode(False), torch.no_grad():
        rows = torch.arange(len(weight), dtype=torch.int32, device=weight.device)
        dense = ops.embedding(rows, weight, format=linear.format, dtype=dtype)
        return dense if order is None else dense[:, order.long().argsort()].contiguous()
