"""The gated short convolution (LFM2) as a mixer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torch_foundry import ops
from torch_foundry.core import limits
from torch_foundry.kvcache.base import RecurrentSpec
from torch_foundry.kvcache.recurrent import CONV
from torch_foundry.kvcache.view import Rope, StateView
from torch_foundry.models.checks import check_children, check_linear, require
from torch_foundry.models.family import Family
from torch_foundry.models.layer import mixes
from torch_foundry.models.recurrent import RecurrentMixer, check_taps
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Residual


@dataclass(frozen=True)
class ConvSpec:
    """Facts about one layer's convolution."""

    channels: int
    taps: int


def read(module: Any, family: Family) -> ConvSpec:
    """The facts of `module`. Raises Fallback."""
    check_children("conv", module, {"conv", "in_proj", "out_proj"})
    hidden, taps, conv = int(module.config.hidden_size), int(module.conv_kernel_size), module.conv
    check_linear("in_proj", module.in_proj, hidden, 3 * hidden)
    check_linear("out_proj", module.out_proj, hidden, hidden)
    require(type(conv) is nn.Conv1d, f"conv is a {type(conv).__name__}")
    shapes = {name: tuple(parameter.shape) for name, parameter in conv.named_parameters()}
    wanted = {"weight": (hidden, 1, taps), "bias": (hidden,)}
    require("weight" in shapes and shapes.items() <= wanted.items(), f"conv has {shapes}, expected {wanted}")
    check_taps(taps, limits.SHORT_CONV_TAPS)
    return ConvSpec(hidden, taps)


@mixes("ShortConv")
class ShortConv(RecurrentMixer):
    """Three projections of x, B, C and x', and C * conv(B * x'); its state is the convolution's last inputs."""

    __slots__ = ("conv", "groups", "out", "residual", "state", "width")
    read = staticmethod(read)

    def __init__(self, module: Any, facts: ConvSpec, residual: Residual) -> None:
        self.residual, self.conv = residual, module.conv._parameters
        self.groups = (LinearGroup([Linear(module.in_proj)]),)
        self.out = Linear(module.out_proj)
        self.state = RecurrentSpec(((CONV, (facts.channels, facts.taps), None),))
        self.width = 4 * facts.channels

    def __call__(self, x: Tensor, state: StateView, rope: Rope, gemm: Gemm, mask: Tensor | None) -> Tensor:
        h, norm = self.without_padding(x, mask)
        (bcx,) = self.groups[0].behind(norm, h, [3 * x.shape[-1]], gemm)
        weight, bias = self.conv["weight"].squeeze(1), self.conv["bias"]
        y = ops.short_conv(bcx.flatten(0, 1), weight, bias, state.pools[CONV], state.runs, state.table, state.count)
        return self.residual.add(x, self.out, y.view(x.shape), gemm)
