"""A block of routed experts: what has to be known of one, and its forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from torch_foundry import ops
from torch_foundry.core.errors import Fallback
from torch_foundry.models.checks import check_children, check_linear, is_linear, require
from torch_foundry.models.family import Experts, Family, class_key
from torch_foundry.models.mlp import MLPS, UNGATED, GatedMLP, MLPSpec, read_mlp
from torch_foundry.models.weights import ROW_BY_ROW, Gemm, Linear, LinearGroup, Residual
from torch_foundry.nn import FoundryExperts
from torch_foundry.nn.activations import BY_TORCH, activation_of_experts
from torch_foundry.nn.experts import NAMES, Weights, lay_out, matrices_of, names_of
from torch_foundry.nn.linear import dense_linear

COMBINATIONS = ("average", "sum")  # of routed experts and the shared one
SCORES = ("in_turn", "sigmoid", "softmax")
LEAST_SUM = 1e-12  # of a token's weights: where theirs is less, experts were chosen that all scores say are wrong


@dataclass(frozen=True)
class ExpertsSpec:
    """Facts about one block of experts."""

    name: str
    kind: Experts
    activation: str
    inner: int  # outputs of gate and of up, of all that a token goes through together
    outer: MLPSpec | None  # of an MLP of the layer's whose result is added


def read_experts(name: str, block: Any, hidden: int, family: Family, outer: MLPSpec | None) -> ExpertsSpec:
    """The facts of `block`, which is called `name`. outer: as of `ExpertsSpec`. Raises Fallback."""
    assert family.experts is not None
    kind = family.experts
    shared = block._modules.get(kind.shared)
    beside = {kind.shared, kind.shared_gate} if shared else set()
    check_children(name, block, {"experts", kind.router, *beside, *kind.latent} - {""})
    experts, correction, rule = block.experts, kind.correction_of(block), kind.rule(block)
    seen = hidden
    if latent := kind.latent_of(block):
        into, back = kind.latent
        seen = getattr(latent[0], "out_features", 0)
        check_linear(into, latent[0], hidden, seen)
        check_linear(back, latent[-1], seen, hidden)
        require(getattr(experts, "group", None) is None, "experts that see a projection are shared between processes")
    count, chosen = int(experts.num_experts), rule["k"]
    require(tuple(kind.matrix_of(block).weight.shape) == (count, hidden), f"the router is not one of {count} experts")
    require(rule["score"] in SCORES, f"scores of {rule['score']}")
    require(kind.combination(block) in COMBINATIONS, f"results of experts are combined by {kind.combination(block)}")
    alone = kind.share(block) == 1 or (getattr(experts, "group", None) is None and family.norms.post_ffn is None)
    require(alone, "an average of results that are shared between processes, or normed")
    require(kind.fits(rule, count), f"{chosen} of {count} experts in {rule.get('groups', 1)} groups")
    method = getattr(getattr(block, kind.router), "topk_method", None)  # of DeepSeek V2
    require(method in (None, "greedy", "group_limited_greedy"), f"routing by {method}")
    least = attrgetter(kind.least)(block) if kind.least else 0.0
    require(least <= LEAST_SUM, f"weights whose sum is less than {least} are divided by that")
    require(correction is None or tuple(correction.shape) == (count,), f"corrections are not of {count} experts")
    if not isinstance(experts, FoundryExperts):
        require(class_key(type(experts)) == family.key(kind.suffix), f"experts is a {type(experts).__name__}")
        shapes = [tuple(matrix.shape) for matrix in matrices_of(experts)]
        inner = shapes[0][1]
        expected = [(count, inner, seen)] * (len(shapes) - 1) + [(count, seen, inner)]
        require(shapes == expected, f"experts have the shapes {shapes}")
        require(not getattr(experts, "_is_expert_parallel", False), "experts are spread over several processes")
    activation = activation_of_experts(experts)
    if activation is None:
        raise Fallback(f"activation of {type(experts).__name__}")
    inner, gated = matrices_of(experts)[0].shape[1], names_of(experts) == NAMES
    require(gated or activation in BY_TORCH, f"experts with {activation} and without a gate")
    width = chosen * inner
    if outer is not None:
        require(outer.layers.gated and outer.activation == activation, f"{outer.name} is not an MLP as the experts are")
        width += outer.inner
    if shared is not None:
        one = read_mlp(kind.shared, shared, hidden, family)
        alike = one.activation == activation and one.layers == (MLPS[0] if gated else UNGATED)
        require(alike, f"the shared expert is one of {one.activation}, {one.layers}")
        if kind.shared_gate:
            check_linear(kind.shared_gate, getattr(block, kind.shared_gate), hidden, 1)
        parts = (shared, block._modules.get(kind.shared_gate))
        for linear in (m for part in parts if part is not None for m in part.modules() if is_linear(m)):
            require(linear.bias is None, "the shared expert has biases")
            require(getattr(linear, "order", None) is None, "columns of the shared expert are in an order of their own")
        width += one.inner
    return ExpertsSpec(name, kind, activation, width, outer)


class ExpertBlock:
    """Access to a block's weights, which are looked up at each call.

    group: processes, each of which has a part of every expert (`tensor_parallel`); None: this one has all.
    """

    __slots__ = (
        "activation", "back", "block", "down", "experts", "gate_up", "group", "groups", "into", "kind", "norm", "outer",
        "residual", "router", "scale", "shared_gate", "shares",
    )  # fmt: skip

    def __init__(self, block: Any, spec: ExpertsSpec, residual: Residual, outer: GatedMLP | None) -> None:
        kind = spec.kind
        self.residual, self.norm, self.scale = residual, residual.pre, residual.scale
        self.outer = outer  # an MLP with the same norm, whose result is added too
        self.groups: tuple[LinearGroup, ...] = () if outer is None else outer.groups
        self.block, self.kind, self.activation = getattr(block, "whole", block), kind, spec.activation
        self.experts, self.group = block.experts, getattr(block.experts, "group", None)
        latent = [Linear(module) for module in kind.latent_of(self.block)]
        self.into = LinearGroup(latent[:1])  # what experts see, where that is not what the router sees ...
        self.back = latent[-1] if latent else None  # ... and back
        self.router: dict[str, Any] = kind.matrix_of(block)._parameters
        self.lay_out()
        self.down: Linear | None = None  # of an expert that all tokens go to
        self.shared_gate: Linear | None = None
        if (shared := block._modules.get(kind.shared)) is not None:
            self.gate_up = LinearGroup.of(shared, "gate_proj", "up_proj")  # or up alone
            self.down = Linear(shared.down_proj)
        # whether this process adds it: if all have it whole, the first does
        split = self.down is not None and self.down.group is not None
        self.shares = self.down is not None and (self.group is None or split or self.group.rank() == 0)
        if kind.shared_gate in block._modules:
            self.shared_gate = Linear(getattr(block, kind.shared_gate))

    @property
    def free(self) -> list[dict[str, Any]]:
        """Parameters by name whose dtype may differ from that of x."""
        corrections = self.block.get_submodule(self.kind.correction.rpartition(".")[0])._parameters
        return [corrections, *([self.router] if self.router.get("bias") is None else [])]

    def lay_out(self) -> None:
        """Store dense matrices as kernels read them; nothing if they are."""
        if not isinstance(self.experts, FoundryExperts):
            lay_out(self.experts)

    def facts(self) -> dict[str, Any]:
        """How experts are chosen, as far as numbers say it."""
        return self.kind.rule(self.block)

    def choosing(self) -> tuple[Any, dict[str, Any]]:
        """The stock module whose products are the router's logits, and options of `ops.moe_choose`."""
        return self.kind.matrix_of(self.block), self.facts() | {"correction": self.kind.correction_of(self.block)}

    def __call__(self, x: torch.Tensor, gemm: Gemm, onto: torch.Tensor | None = None) -> torch.Tensor:
        """x + scale * block(norm(x)), or x + post(block(norm(x))), for x [B, L, hidden]. onto: as in `MLP`."""
        if self.outer is not None:
            onto = self.outer(x, gemm, onto)
        rows = x.view(-1, x.shape[-1])
        base = rows if onto is None else onto.view(rows.shape)
        if self.residual.post is None and self.group is None:
            return self._block(rows, base, gemm).view(x.shape)
        return self.residual.onto(base, self._block(rows, None, gemm), gemm).view(x.shape)

    def _block(self, x: torch.Tensor, residual: torch.Tensor | None, gemm: Gemm) -> torch.Tensor:
        """residual + scale * block(norm(x)) for x [T, hidden]."""
        weights = self._weights()
        if len(x) <= gemm.expert_tokens:
            return gemm.reduced(self._few(x, residual, weights), self.group)
        h = x if self.norm is None else self.norm(x)
        k = self.facts()["k"]
        if not isinstance(self.experts, FoundryExperts) or self.experts.unpacks(len(x) * k):
            made = self.block(h[None])  # dense, or worth unpacking: torch's own products
            y: torch.Tensor = (made[0] if isinstance(made, tuple) else made)[0]
            return y if residual is None else torch.add(residual, y, alpha=self.scale)
        ids, routing = self._choice(h, self.facts())
        if self.down is not None:
            inner = self._inner(h, Linear.gemm)
            if self.shared_gate is None:
                residual = self.down.gemm(inner, residual, self.scale * self.kind.share(self.block))
            else:
                y, share = self.down.gemm(inner), routing[:, k:].to(h.dtype)
                residual = y * share if residual is None else torch.addcmul(residual, y, share, value=self.scale)
        routed = ids[:, :k], routing[:, :k]
        if self.back is not None:
            return self.back.gemm(weights.gemm(self.into[0].gemm(h), *routed), residual, self.scale)
        return weights.gemm(h, *routed, residual, self.scale)

    def _few(self, x: torch.Tensor, residual: torch.Tensor | None, weights: Weights) -> torch.Tensor:
        rule, gate, norm = self.facts(), self.shared_gate, self.norm
        scale = 1.0 if residual is None else self.scale  # of what is added to a residual
        k, share = rule["k"], self.kind.share(self.block)
        normed: dict[str, Any] = {}
        if norm is not None and not norm.fuses:
            x, norm = norm(x), None
        if norm is not None:
            normed = {"norm_weight": norm.weight, "eps": norm.eps, "kind": norm.kind}
        router = self.router["weight"]
        beside = self._beside(weights)
        rule |= {"shared_weight": share} if beside and gate is None else {}
        shared: torch.Tensor | None = None if gate is None else gate.weight
        if norm is not None and (shared is None or shared.dtype == router.dtype):
            rule |= {
                "shared": shared,
                "bias": self.router.get("bias"),
                "correction": self.kind.correction_of(self.block),
            }
            ids, routing = ops.moe_route(x, weight=router, **rule, **normed)
        else:
            ids, routing = self._choice(x if norm is None else norm(x), rule, batch_invariant=True)
        if beside:
            return weights.gemv(x, ids, routing, residual, scale, beside, **normed)
        if self.shares and self.down is not None:
            formats = {linear.format for linear in self.gate_up}
            if len(self.gate_up) == 2 and len(formats) == 1:
                gain, eps, kind = (None, 0.0, "llama") if norm is None else (norm.weight, norm.eps, norm.kind)
                inner = ops.norm_glu(
                    x, gain, eps, *(linear.weight for linear in self.gate_up),
                    kind=kind, format=formats.pop(), activation=self.activation,
                )  # fmt: skip
            else:
                inner = self._inner(x if norm is None else norm(x), partial(Linear.__call__, batch_invariant=True))
            if gate is None:
                residual = self.down(inner, residual, scale * share, batch_invariant=True)
            else:
                down, format = self.down.weight[None], self.down.format
                how: dict[str, Any] = {"format": format, "residual": residual, "scale": scale}
                residual = ops.moe_down(inner[:, None], ids[:, k:], routing[:, k:], down, **how)
        routed = ids[:, :k], routing[:, :k]
        onto = (residual, scale) if self.back is None else ()
        if self.into:
            (x,) = self.into.behind(norm, x, [len(self.into[0].weight)], ROW_BY_ROW)
            norm, normed = None, {}
        if weights.together:
            y = weights.gemv(x, *routed, *onto, **normed)
        else:
            y = weights.gemm(x if norm is None else norm(x), *routed, *onto)
        return y if self.back is None else self.back(y, residual, scale, batch_invariant=True)

    def _beside(self, weights: Weights) -> list[torch.Tensor]:
        """Matrices of the shared expert, if that can be one more of the others; else empty."""
        linears = [*self.gate_up, self.down] if self.down is not None else []
        others = [matrix for matrix in (weights.gate, weights.up, weights.down) if matrix is not None]
        formats = weights.formats[-len(others) :]
        plain = self.group is None and self.back is None and all(bias is None for bias in weights.biases)
        alike = weights.together and plain and len(linears) == len(others)
        if not alike or not all(map(_is_one_of, linears, others, formats)):
            return []
        return [linear.weight for linear in linears]

    def _inner(self, h: torch.Tensor, product: Callable[..., torch.Tensor]) -> torch.Tensor:
        """What `down` is given."""
        if len(self.gate_up) == 1:
            return product(self.gate_up[0], h, activation=self.activation)
        gate, up = (product(linear, h) for linear in self.gate_up)
        return ops.glu(gate, up, self.activation)

    def _choice(
        self, x: torch.Tensor, rule: dict[str, Any], *, batch_invariant: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        router, bias, gate, kind = self.router["weight"], self.router.get("bias"), self.shared_gate, self.kind
        in_float = rule["score"] != "softmax" or kind.correction or router.dtype == torch.float32
        h = x.float() if in_float else x  # as these families do, lest scores be equal
        if batch_invariant:
            logits = ops.linear(h, router, bias=bias, batch_invariant=True)
            shared = None if gate is None else gate(h, batch_invariant=True)
        else:
            logits = dense_linear(h, router, bias)
            shared = None if gate is None else gate.gemm(x).to(h.dtype)
        correction = self.kind.correction_of(self.block)
        return ops.moe_choose(logits, **rule, shared=shared, correction=correction)

    def _weights(self) -> Weights:
        self.lay_out()
        return Weights.of(self.experts, self.activation)


def _is_one_of(linear: Linear, others: torch.Tensor, format: str | None) -> bool:
    """Whether a shared expert's layer has the shape and format of the experts' matrices [experts, N, K] alone."""
    weight = linear.weight
    plain = linear.parameters["bias"] is None and linear.order is None and linear.group is None
    same = weight.shape == others.shape[1:] and weight.dtype == others.dtype and weight.stride() == others.stride()[1:]
    return plain and same and linear.format == format
