"""MLPs: how classes call their layers, what has to be known of one, and its forward pass."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torch_foundry import ops
from torch_foundry.core.errors import Fallback
from torch_foundry.models.checks import check_children, check_linear, inert_in, is_linear, require
from torch_foundry.models.family import Family
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Residual
from torch_foundry.nn.activations import activation_of
from torch_foundry.nn.linear import linear_sizes


@dataclass(frozen=True)
class MLPNames:
    """How a class calls the layers of an MLP. "": its activation is no layer, but torch's silu."""

    first: tuple[str, ...]  # gate and up; or one layer that makes both; or, without a gate, up alone
    down: str
    activation: str
    gated: bool = True

    @property
    def joined(self) -> bool:
        """Whether one layer makes both gate and up."""
        return self.gated and len(self.first) == 1

    def children(self) -> set[str]:
        """All names."""
        return {*self.first, self.down, self.activation} - {""}


UNGATED = MLPNames(("up_proj",), "down_proj", "act_fn", gated=False)
MLPS = (
    MLPNames(("gate_proj", "up_proj"), "down_proj", "act_fn"),
    MLPNames(("gate_up_proj",), "down_proj", "activation_fn"),
    UNGATED,
    MLPNames(("c_fc",), "c_proj", "act", gated=False),
    MLPNames(("fc1",), "fc2", "activation_fn", gated=False),
    MLPNames(("dense_h_to_4h",), "dense_4h_to_h", "act", gated=False),
    MLPNames(("w1", "w3"), "w2", ""),
    MLPNames(("input_linear",), "output_linear", "activation"),
)


@dataclass(frozen=True)
class MLPSpec:
    """Facts about one MLP."""

    name: str
    layers: MLPNames
    activation: str
    inner: int  # outputs of gate and of up
    gate_scale: float  # of gates, before the activation
    down_scale: float  # of the result
    cut: float | None  # standard deviations above their mean, below which gates are cut off


def read_mlp(name: str, mlp: Any, hidden: int, family: Family, beside: Collection[str] = ()) -> MLPSpec:
    """The facts of `mlp`, which is called `name`. beside: children that are none of its layers. Raises Fallback."""
    rest = {*beside, *inert_in(mlp, family)}
    layers = next((known for known in MLPS if known.children() == mlp._modules.keys() - rest), MLPS[0])
    check_children(name, mlp, layers.children() | rest)
    down = mlp._modules[layers.down]
    require(is_linear(down), f"{layers.down} is a {type(down).__name__}")
    inner, _ = linear_sizes(down)
    for first in layers.first:
        check_linear(first, mlp._modules[first], hidden, 2 * inner if layers.joined else inner)
    check_linear(layers.down, down, inner, hidden)
    scales = (float(mlp.gate_multiplier), float(mlp.down_multiplier)) if family.multipliers else (1.0, 1.0)
    require(layers.gated or not family.multipliers, "multipliers of a block without a gate")
    share = torch.tensor(float(getattr(mlp, "activation_sparsity", 0.0)), device="cpu")  # of a normal distribution
    cut = float(torch.special.ndtri(share)) if share > 0 else None
    return MLPSpec(name, layers, _activation(mlp, layers), inner, *scales, cut)


def _activation(mlp: Any, layers: MLPNames) -> str:
    if not layers.activation:
        return "silu"
    module = mlp._modules[layers.activation]
    name = activation_of(module)
    if name is None:
        raise Fallback(f"activation {type(module).__name__}")
    if name == "xielu":
        require(not layers.gated, "xIELU of a gate")
        require(module.beta.dtype == module.eps.dtype == module.alpha_p.dtype, "xIELU has numbers of several dtypes")
    return name


class MLP:
    """down(activation(up(x)))."""

    __slots__ = ("curve", "down", "first", "groups", "residual", "spec")

    def __init__(self, mlp: Any, spec: MLPSpec, residual: Residual) -> None:
        self.spec, self.residual = spec, replace(residual, scale=residual.scale * spec.down_scale)
        self.first = LinearGroup.of(mlp, *spec.layers.first)
        self.groups, self.down = (self.first,), Linear(mlp._modules[spec.layers.down])
        self.curve = mlp._modules.get(spec.layers.activation)

    def __call__(self, x: Tensor, gemm: Gemm, onto: Tensor | None = None) -> Tensor:
        """onto: what the result is added to, in place of x."""
        return self.residual.add(x if onto is None else onto, self.down, self.inner(x, gemm), gemm)

    def inner(self, x: Tensor, gemm: Gemm) -> Tensor:
        """What `down` is given."""
        norm, (up,) = self.residual.pre, self.first
        h = x if norm is None else norm(x)
        if self.spec.activation != "xielu":
            return gemm.product(up, h, activation=self.spec.activation)
        own, fixed = self.curve._parameters, self.curve._buffers
        return ops.xielu(gemm.product(up, h), own["alpha_p"], own["alpha_n"], fixed["beta"], fixed["eps"])


class GatedMLP(MLP):
    """down(activation(gate(x)) * up(x))."""

    __slots__ = ()

    def inner(self, x: Tensor, gemm: Gemm) -> Tensor:
        """See `MLP`."""
        norm, spec, widths = self.residual.pre, self.spec, (self.spec.inner, self.spec.inner)
        if spec.cut is not None:
            gate, up = self.first.behind(norm, x, widths, gemm)
            return ops.sparse_glu(gate, up, spec.cut, spec.activation)
        alike = len({linear.format for linear in self.first}) == 1
        if alike and (given := self.first.together(norm, x, gemm)) is not None:
            (gate, up), (format, _), biases = self.first.projections(widths)
            return ops.norm_glu(
                *given[:3], gate, up, kind=given.kind, format=format,
                biases=biases, activation=spec.activation, gate_scale=spec.gate_scale,
            )  # fmt: skip
        made = self.first.products(x if norm is None else norm(x), gemm.product)
        gate, up = made if len(made) == 2 else made[0].chunk(2, dim=-1)
        return ops.glu(gate, up, spec.activation, gate_scale=spec.gate_scale)
