"""Access to the weights of a layer's submodules. Tensors are looked up at each call, so nothing has to be told about
`.to()`, `load_state_dict(assign=True)` or a merged adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from torch_foundry import ops
from torch_foundry.models.families import norm_kind
from torch_foundry.models.guards import epsilon
from torch_foundry.models.watch import version_of
from torch_foundry.nn.activations import BY_TORCH
from torch_foundry.nn.linear import MAX_GEMV_ROWS, FoundryLinear, by_kernel, linear_gemm, linear_routes, turned

OFFSETS = {"layer": 0.0, "layer1p": 1.0}  # kinds of LayerNorm -> what is added to the weight


@cache
def ones(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[size]: the weight of norms that have none."""
    with torch.inference_mode(False):
        return torch.ones(size, dtype=dtype, device=device)


class Norm:
    """An RMS norm or a LayerNorm."""

    __slots__ = ("eps", "kind", "parameters")

    def __init__(self, module: Any) -> None:
        kind = norm_kind(module)
        assert kind is not None
        self.kind = "llama" if kind == "plain" else kind
        self.eps = epsilon(module)
        self.parameters: dict[str, Any] = module._parameters

    @property
    def fuses(self) -> bool:
        """Whether kernels of products can make it part of them."""
        return self.kind not in OFFSETS

    @property
    def weight(self) -> torch.Tensor:
        """[features], of a norm that has one."""
        weight: torch.Tensor = self.parameters["weight"]
        return weight

    def gain(self, x: torch.Tensor, size: int | None = None) -> torch.Tensor:
        """The weight [features of x, or size]; ones of x's dtype if there is none."""
        weight: torch.Tensor | None = self.parameters.get("weight")
        return ones(size or x.shape[-1], x.dtype, x.device) if weight is None else weight

    def __call__(
        self, x: torch.Tensor, residual: torch.Tensor | None = None, scale: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self.fuses:
            return ops.rms_norm(x, self.gain(x), self.eps, kind=self.kind, residual=residual, scale=scale)
        assert residual is None and scale is None, "no family has a LayerNorm behind a block"
        weight, bias = map(self.parameters.get, ("weight", "bias"))
        return ops.layer_norm(x, weight, bias, self.eps, offset=OFFSETS[self.kind])


class Linear:
    """A dense or packed linear layer, whose columns may be stored in another order.

    group: the processes whose results add up to the layer's (`tensor_parallel`); None: this one has all of it.
    """

    __slots__ = ("_bare", "_orders", "_turned", "_weights", "format", "group", "parameters")

    def __init__(self, module: nn.Module, ordered: bool = True) -> None:
        self.parameters: dict[str, Any] = module._parameters
        self._weights: dict[str, Any] = self.parameters
        self._turned = isinstance(module, Conv1D)
        self.format: str | None = None
        self.group: Any = getattr(module, "group", None)
        if isinstance(module, FoundryLinear):
            self._weights, self.format = module._buffers, module.format
        self._orders: dict[str, Any] = self._weights if ordered else {}
        self._bare = Linear(module, ordered=False) if ordered else None

    @property
    def weight(self) -> torch.Tensor:
        """[out_features, in_features]; rows of blocks if packed."""
        weight: Any = self._weights["weight"]
        return turned(weight) if self._turned else weight

    @property
    def bare(self) -> Linear:
        """The same layer for an x that is in that order already."""
        return self._bare or self

    @property
    def order(self) -> torch.Tensor | None:
        """int32 [in_features]: the element of x that each stored column multiplies; None: as they come."""
        order: torch.Tensor | None = self._orders.get("order")
        return order

    @property
    def few(self) -> int:
        """Up to how many rows fused kernels are faster than torch's products."""
        return linear_routes(self.weight, self.format).rows

    def by_kernel(self, x: torch.Tensor) -> bool:
        """Whether our own kernel is faster than torch for the rows of x."""
        return by_kernel(x, self.weight, self.format)

    def ordered(self, x: torch.Tensor) -> torch.Tensor:
        """x in the order of the columns."""
        order = self.order
        return x if order is None else ops.permute_columns(x.contiguous(), order)

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
        scale: float = 1.0,
        activation: str | None = None,
        batch_invariant: bool = False,
    ) -> torch.Tensor:
        return ops.linear(
            self.ordered(x), self.weight, format=self.format, bias=self.parameters["bias"], residual=residual,
            scale=scale, activation=activation, batch_invariant=batch_invariant,
        )  # fmt: skip

    def gemm(
        self, x: torch.Tensor, residual: torch.Tensor | None = None, scale: float = 1.0, activation: str | None = None
    ) -> torch.Tensor:
        """The same, where rows that are too many for our kernel go through torch's own product. Not for graphs."""
        if self.by_kernel(x):
            return self(x, residual, scale, activation)
        y = linear_gemm(self.ordered(x), self.weight, self.format, self.parameters["bias"])
        y = y if activation is None else BY_TORCH[activation](y)
        return y if residual is None else torch.add(residual, y, alpha=scale)


class Normed(NamedTuple):
    """x [..., K] for a kernel of several products, and the RMS norm that it passes first: gain [K]; None: none."""

    x: torch.Tensor
    gain: torch.Tensor | None = None
    eps: float = 0.0
    kind: str = "llama"


class Projections(NamedTuple):
    """Of one x, for a kernel of several products: [width, K] each, rows of blocks if packed; and their [width]."""

    weights: list[torch.Tensor]
    formats: tuple[str | None, ...]
    biases: list[torch.Tensor | None]


class LinearGroup(tuple[Linear, ...]):
    """Linear layers with the same input."""

    _compared: list[tuple[torch.Tensor, int]]
    _equal = False

    @classmethod
    def of(cls, parent: nn.Module, *names: str) -> LinearGroup:
        """Those of `names` that `parent` has."""
        return cls(Linear(getattr(parent, name)) for name in names if name in parent._modules)

    @property
    def same_perm(self) -> bool:
        """Whether the columns of all are stored in the same order. Compared again only after one has changed, because
        reading them makes a GPU wait.
        """
        orders = [order for linear in self if (order := linear.order) is not None]
        if not orders:
            return True
        if len(orders) < len(self):
            return False
        now = [(order, version_of(order)) for order in orders]
        before = getattr(self, "_compared", [])
        if len(before) != len(now) or any(a is not b or m != n for (a, m), (b, n) in zip(before, now, strict=True)):
            self._compared, self._equal = now, all(torch.equal(order, orders[0]) for order in orders[1:])
        return self._equal

    def projections(self, widths: Sequence[int]) -> Projections:
        """All layers, or the parts of one that holds them all, cut into `widths` outputs."""
        weights, biases = [linear.weight for linear in self], [linear.parameters["bias"] for linear in self]
        formats = tuple(linear.format for linear in self) * (len(widths) // len(self))
        if len(self) == 1:
            weights = list(weights[0].split(widths))
            biases = [None] * len(widths) if biases[0] is None else list(biases[0].split(widths))
        return Projections(weights, formats, biases)

    def products(self, x: torch.Tensor, product: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        """`product` of each layer and x. If all have the same column order, x is reordered once."""
        if self[0].order is None or not self.same_perm:
            return [product(linear, x) for linear in self]
        x = self[0].ordered(x)
        return [product(linear.bare, x) for linear in self]

    def together(self, norm: Norm | None, x: torch.Tensor, gemm: Gemm) -> Normed | None:
        """What a kernel of all products is given, for an x [..., K] that passes `norm` first. None: none makes all, for
        x has many rows or the columns' orders differ."""
        if not gemm.few(x) or not self.same_perm:
            return None
        if norm is None or not norm.fuses:
            return Normed(self[0].ordered(x if norm is None else norm(x)))
        order, gain = self[0].order, norm.gain(x)
        if order is not None:
            x, gain = ops.permute_columns_and_norm(x, order, gain)
        return Normed(x, gain, norm.eps, norm.kind)

    def behind(self, norm: Norm | None, x: torch.Tensor, widths: Sequence[int], gemm: Gemm) -> list[torch.Tensor]:
        """Outputs, cut into `widths`, for an x that passes `norm` first: in one launch, if x has few rows."""
        alone = len(self) == 1 and not gemm.fuses(norm, x)  # a kernel of its own has more variants
        if not alone and (given := self.together(norm, x, gemm)) is not None:
            weights, formats, biases = self.projections(widths)
            y = ops.norm_linear(*given[:3], weights, kind=given.kind, formats=formats, biases=biases)
            return list(y.split(widths, dim=-1))
        found = self.products(x if norm is None else norm(x), gemm.product)
        return found if len(found) == len(widths) else list(found[0].split(widths, dim=-1))


@dataclass(frozen=True, slots=True)
class Gemm:
    """How layers take matrix products.

    product: of a `Linear`, x, and the residual, its scale and an activation if they are given. fused_rows: up to so
    many rows products of one x, and an RMS norm before them, are one launch. fused_heads: norms of heads are part of
    the rotation (single heads' are summed in another order). expert_tokens: up to so many, routed experts run on the
    GEMV kernels, one by one. call: runs what is not ours, on memory that stays: now, or at each replay as well."""

    product: Callable[..., torch.Tensor]
    fused_rows: int = 0
    fused_heads: bool = True
    expert_tokens: int = MAX_GEMV_ROWS
    call: Callable[[Callable[[], object]], object] = lambda function: function()

    def reduced(self, y: torch.Tensor, group: Any) -> torch.Tensor:
        """The sum of y over the processes of `group`, in its memory; None: y is whole."""
        if group is not None:
            self.call(partial(torch.distributed.all_reduce, y, group=group))
        return y

    def few(self, x: torch.Tensor) -> bool:
        """Whether products of x [..., K] are one launch."""
        return x.numel() <= self.fused_rows * x.shape[-1]

    def fuses(self, norm: Norm | None, x: torch.Tensor) -> TypeGuard[Norm]:
        """Whether `norm` of x [..., K] is part of the products behind it."""
        return norm is not None and norm.fuses and self.few(x)


ALL_ROWS = 2**31
EXPERT_TOKENS = 64  # of a captured step with routed experts, or products by heads, at most
AUTO = Gemm(Linear.gemm, fused_heads=False)  # GEMV kernels for few rows, torch beyond; norms on their own
GEMV = Gemm(Linear.__call__, fused_rows=MAX_GEMV_ROWS)  # our kernels alone, as a captured step needs
# GEMV kernels in which a row's bits don't depend on other rows
ROW_BY_ROW = Gemm(partial(Linear.__call__, batch_invariant=True), fused_rows=ALL_ROWS, expert_tokens=ALL_ROWS)


@dataclass(frozen=True, slots=True)
class Residual:
    """What surrounds a block: x + scale * block(pre(x)), or (x + post(block(pre(x)))) * scalar."""

    pre: Norm | None
    post: Norm | None
    scale: float
    buffers: dict[str, Any] | None = None  # of a layer whose `layer_scalar` that is; None: there is none

    @property
    def scalar(self) -> torch.Tensor | None:
        """[1]."""
        return None if self.buffers is None else self.buffers["layer_scalar"]

    def add(self, x: torch.Tensor, linear: Linear, h: torch.Tensor, gemm: Gemm) -> torch.Tensor:
        """x and what the block's last layer makes of `h`."""
        if self.post is None and linear.group is None:
            return gemm.product(linear, h, x, self.scale)
        return self.onto(x, gemm.reduced(gemm.product(linear, h), linear.group), gemm)

    def onto(self, x: torch.Tensor, y: torch.Tensor, gemm: Gemm) -> torch.Tensor:
        """x and the block's result y, which is whole."""
        if self.post is not None:
            return self.post(y, x, self.scalar)
        result = torch.empty_like(x)
        gemm.call(partial(torch.add, x, y, alpha=self.scale, out=result))
        return result
