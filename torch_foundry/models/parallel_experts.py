"""A dense MLP and routed experts side by side (Gemma 4 26B-A4B)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.core import limits
from torch_foundry.models.checks import check_children, check_linear, check_norm, require
from torch_foundry.models.family import Family, class_key
from torch_foundry.models.mlp import GatedMLP
from torch_foundry.models.swap import base_class
from torch_foundry.models.watch import version_of
from torch_foundry.models.weights import EXPERT_TOKENS, Gemm, Norm, Residual
from torch_foundry.nn import FoundryExperts
from torch_foundry.nn.activations import activation_of_experts
from torch_foundry.nn.experts import Weights, matrices_of
from torch_foundry.nn.linear import dense_linear


class Router:
    """The experts of each token: a softmax over all, whose chosen weights add up to 1, times a factor of each expert.

    What its norm is multiplied by is one vector, which is made again when its values have changed.
    """

    __slots__ = ("_gain", "_ones", "_state", "eps", "kind", "module")

    def __init__(self, router: Any, family: Family, hidden: int, experts: int) -> None:
        check_children("router", router, {"norm", "proj"})
        check_norm("router.norm", router.norm, family, 0)
        require(base_class(type(router.proj)) is torch.nn.Linear, "the router is packed")
        check_linear("router.proj", router.proj, hidden, experts)
        require(router.proj.bias is None, "the router has a bias")
        shapes = tuple(router.scale.shape), tuple(router.per_expert_scale.shape)
        require(shapes == ((hidden,), (experts,)), f"the router's factors have the shapes {shapes}")
        self.module, self.eps, self.kind = router, float(router.norm.eps), family.norm_kind
        self._state: Any = None
        self._gain = self._ones = torch.empty(0)

    @property
    def k(self) -> int:
        """Experts of a token."""
        return int(self.module.config.top_k_experts)

    def state(self) -> tuple[Any, ...]:
        """Changes whenever what `prepare` makes does."""
        scale = self.module.scale
        return self.k, id(scale), scale.data_ptr(), scale.dtype, version_of(scale)

    def prepare(self) -> None:
        """Make what a call reads, unless it is as it was. Not while a step is captured."""
        state = self.state()
        if state != self._state:
            require(self.k <= limits.MAX_CHOSEN, f"{self.k} experts of a token")
            scale = self.module.scale.detach()
            with torch.inference_mode(False), torch.no_grad():
                self._gain = scale * float(self.module.scalar_root_size)
                self._ones = torch.ones(EXPERT_TOKENS * self.k, 1, 1, device=scale.device)
            self._state = state

    def __call__(self, x: Tensor, gemm: Gemm) -> tuple[Tensor, Tensor]:
        """ids int32 and weights float32, both [T, k], of x [T, hidden]."""
        proj, factors, k = self.module.proj.weight, self.module.per_expert_scale, self.k
        if len(x) <= gemm.expert_tokens:
            ids, weights = ops.moe_route(x, self._gain, self.eps, proj, k, kind=self.kind, normalize=True)
        else:
            h = ops.rms_norm(x, self._gain, self.eps, kind=self.kind)
            ids, weights = ops.moe_choose(dense_linear(h, proj), k, normalize=True)
        if len(x) > EXPERT_TOKENS:
            return ids, weights * factors[ids.long()]
        # each choice as a token of its own, whose expert is one number
        ones = self._ones[: ids.numel()]
        scaled = ops.moe_down(ones, ids.view(-1, 1), weights.view(-1, 1), factors.view(-1, 1, 1))
        return ids, scaled.view(weights.shape)


class ParallelExperts:
    """x + post(post_1(mlp(x)) + post_2(experts(pre_2(x))))."""

    __slots__ = ("experts", "groups", "mlp", "posts", "pre", "residual", "router")
    norms = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    children = frozenset({"experts", "router", *norms})

    def __init__(self, layer: Any, family: Family, mlp: GatedMLP, residual: Residual) -> None:
        experts = layer.experts
        stock = family.experts is not None and class_key(type(experts)) == family.key(family.experts.suffix)
        require(stock or isinstance(experts, FoundryExperts), f"experts is a {type(experts).__name__}")
        require(residual.post is not None, "no norm behind the blocks")
        count, hidden = len(matrices_of(experts)[0]), int(layer.hidden_size)
        require(count <= limits.MAX_EXPERTS, f"{count} experts")
        require(activation_of_experts(experts) == mlp.spec.activation, "two activations")
        for name in self.norms:
            check_norm(name, getattr(layer, name), family, hidden)
        first, second, self.pre = (Norm(getattr(layer, name)) for name in self.norms)
        self.posts, self.mlp, self.residual, self.experts = (first, second), mlp, residual, experts
        self.groups = mlp.groups
        self.router = Router(layer.router, family, hidden, count)

    def facts(self) -> tuple[Any, ...]:
        """What a captured step was made from."""
        return self.router.state()

    def choosing(self) -> tuple[Any, dict[str, Any]]:
        """As `ExpertBlock.choosing`."""
        return self.router.module.proj, {"k": self.router.k}

    def lay_out(self) -> None:
        """Make what a captured step reads."""
        self.router.prepare()

    def __call__(self, x: Tensor, gemm: Gemm, onto: Tensor | None = None) -> Tensor:
        """x [B, L, hidden]. onto: what the result is added to, in place of x."""
        first, second = self.posts
        dense = first(gemm.product(self.mlp.down, self.mlp.inner(x, gemm)))
        both = second(self._routed(x.view(-1, x.shape[-1]), gemm).view(x.shape), dense)
        assert self.residual.post is not None
        return self.residual.post(both, x if onto is None else onto, self.residual.scalar)

    def _routed(self, x: Tensor, gemm: Gemm) -> Tensor:
        self.router.prepare()
        ids, routing = self.router(x, gemm)
        weights, pre = Weights.of(self.experts, self.mlp.spec.activation), self.pre
        if len(x) <= gemm.expert_tokens and weights.together:
            return weights.gemv(x, ids, routing, norm_weight=pre.weight, eps=pre.eps, kind=pre.kind)
        h, experts = pre(x), self.experts
        if len(x) > gemm.expert_tokens and not (
            isinstance(experts, FoundryExperts) and not experts.unpacks(ids.numel())
        ):
            made: Tensor = self.experts(h, ids.long(), routing)  # dense, or worth unpacking: torch's own products
            return made
        return weights.gemm(h, ids, routing)
