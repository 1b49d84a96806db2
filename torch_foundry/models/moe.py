"""A block of routed experts, with the norms around it and the residual behind it."""

from __future__ import annotations

from typing import Any

import torch

from torch_foundry import ops
from torch_foundry.models.family import Experts
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Projections, Residual
from torch_foundry.nn import FoundryExperts
from torch_foundry.nn.experts import MANY_EACH, Weights, biases_of, lay_out, matrices_of


class ExpertBlock:
    """Access to a block's weights, which are looked up at each call."""

    __slots__ = (
        "activation", "block", "down", "experts", "gate_up", "groups", "norm", "normalized", "post", "router",
        "scale", "shared_gate",
    )  # fmt: skip

    def __init__(self, block: Any, kind: Experts, activation: str, residual: Residual) -> None:
        self.norm, self.post, self.scale = residual.pre, residual.post, residual.scale
        self.groups: tuple[LinearGroup, ...] = ()
        self.block, self.activation, self.normalized = block, activation, kind.normalized
        self.router, self.experts = getattr(block, kind.router), block.experts
        self.lay_out()
        self.shared_gate: Linear | None = None
        if kind.shared:
            shared = block.shared_expert
            self.gate_up = (Linear(shared.gate_proj), Linear(shared.up_proj))
            self.down, self.shared_gate = Linear(shared.down_proj), Linear(block.shared_expert_gate)

    def lay_out(self) -> None:
        """Store dense matrices as kernels read them; nothing if they are."""
        if not isinstance(self.experts, FoundryExperts):
            lay_out(self.experts)

    def facts(self) -> tuple[int, bool]:
        """How many experts a token goes to, and whether their weights add up to 1."""
        normalize = self.router.norm_topk_prob if self.normalized is None else self.normalized
        return self.router.top_k, bool(normalize)

    def __call__(self, x: torch.Tensor, gemm: Gemm, onto: torch.Tensor | None = None) -> torch.Tensor:
        """x + scale * block(norm(x)), or x + post(block(norm(x))), for x [B, L, hidden]. onto: as in `MLP`."""
        rows = x.view(-1, x.shape[-1])
        base = rows if onto is None else onto.view(rows.shape)
        if self.post is None:
            return self._block(rows, base, gemm).view(x.shape)
        return self.post(self._block(rows, None, gemm), base).view(x.shape)

    def _block(self, x: torch.Tensor, residual: torch.Tensor | None, gemm: Gemm) -> torch.Tensor:
        """residual + scale * block(norm(x)) for x [T, hidden]."""
        weights = self._weights()
        if len(x) <= gemm.expert_tokens:
            return self._few(x, residual, weights)
        h = x if self.norm is None else self.norm(x)
        k, _ = self.facts()
        if not isinstance(self.experts, FoundryExperts) or len(x) * k >= MANY_EACH * self.experts.num_experts:
            made = self.block(h[None])  # dense, or worth unpacking: torch's own products
            y: torch.Tensor = (made[0] if isinstance(made, tuple) else made)[0]
            return y if residual is None else torch.add(residual, y, alpha=self.scale)
        ids, routing = self._choice(h)
        if self.shared_gate is not None:
            gate, up = (linear.gemm(h) for linear in self.gate_up)
            y, share = self.down.gemm(ops.glu(gate, up, self.activation)), routing[:, k:].to(h.dtype)
            residual = y * share if residual is None else torch.addcmul(residual, y, share, value=self.scale)
        return weights.gemm(h, ids[:, :k], routing[:, :k], residual, self.scale)

    def _few(self, x: torch.Tensor, residual: torch.Tensor | None, weights: Weights) -> torch.Tensor:
        (k, normalize), gate, norm, scale = self.facts(), self.shared_gate, self.norm, self.scale
        normed: dict[str, Any] = {}
        if norm is not None:
            normed = {"norm_weight": norm.weight, "eps": norm.eps, "kind": norm.kind}
        router, bias = self.router._parameters["weight"], self.router._parameters.get("bias")
        shared: torch.Tensor | None = None if gate is None else gate.weights["weight"]
        if norm is not None and (shared is None or shared.dtype == router.dtype):
            options: dict[str, Any] = {"k": k, "normalize": normalize, "shared": shared, "bias": bias}
            ids, routing = ops.moe_route(x, weight=router, **options, **normed)
        else:
            ids, routing = self._choice(x if norm is None else norm(x), batch_invariant=True)
        if gate is not None:
            pair = Projections(self.gate_up, (0, 0))
            if norm is not None and pair.formats[0] == pair.formats[1]:
                inner = ops.norm_glu(
                    x, norm.weight, norm.eps, *pair.weights,
                    kind=norm.kind, format=pair.formats[0], activation=self.activation,
                )  # fmt: skip
            else:
                h = x if norm is None else norm(x)
                gates, up = (linear(h, batch_invariant=True) for linear in self.gate_up)
                inner = ops.glu(gates, up, self.activation)
            down, format = self.down.weights["weight"][None], self.down.format
            how: dict[str, Any] = {"format": format, "residual": residual, "scale": scale}
            residual = ops.moe_down(inner[:, None], ids[:, k:], routing[:, k:], down, **how)
        routed = ids[:, :k], routing[:, :k], residual, scale
        if weights.together:
            return weights.gemv(x, *routed, **normed)
        return weights.gemm(x if norm is None else norm(x), *routed)

    def _choice(self, h: torch.Tensor, *, batch_invariant: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        k, normalize = self.facts()
        router = self.router._parameters
        logits = ops.linear(h, router["weight"], bias=router.get("bias"), batch_invariant=batch_invariant)
        shared = None if self.shared_gate is None else self.shared_gate(h, batch_invariant=batch_invariant)
        return ops.moe_choose(logits, k, normalize=normalize, shared=shared)

    def _weights(self) -> Weights:
        experts = self.experts
        if isinstance(experts, FoundryExperts):
            return experts.weights(self.activation)
        self.lay_out()
        return Weights(*matrices_of(experts), (None, None, None), biases_of(experts), self.activation)
