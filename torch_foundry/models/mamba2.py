"""Mamba2's selective state space as a mixer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from torch_foundry import ops
from torch_foundry.core import limits
from torch_foundry.kvcache.base import RecurrentSpec
from torch_foundry.kvcache.recurrent import CONV, RECURRENT
from torch_foundry.kvcache.view import Rope, StateView
from torch_foundry.models.checks import check_children, check_linear, require
from torch_foundry.models.family import Family, class_key
from torch_foundry.models.layer import mixes
from torch_foundry.models.recurrent import RecurrentMixer, check_state, check_taps, states
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Residual

UNBOUNDED = (0.0, math.inf)  # which step sizes are as they come


@dataclass(frozen=True)
class Mamba2Spec:
    """Facts about one layer's state space. heads of a group share what goes into the state and what reads it."""

    heads: int
    groups: int
    head_dim: int
    state_dim: int
    taps: int  # of the convolution
    eps: float
    bounds: tuple[float, float]  # of step sizes in prompts
    normed: bool = True  # whether outputs pass a norm ...
    norm_before_gate: bool = False  # ... before the gate
    factors: tuple[float, ...] = (1.0,) * 5  # of what is projected: gates, values, keys, queries, step sizes

    @property
    def inner(self) -> int:
        """Of all heads."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """That go through the convolution."""
        return self.inner + 2 * self.groups * self.state_dim


def read(module: Any, family: Family) -> Mamba2Spec:
    """The facts of `module`. Raises Fallback."""
    check_children("the state space", module, {"act", "conv1d", "in_proj", "norm", "out_proj"})
    conv, norm, hidden = module.conv1d, module.norm, int(module.hidden_size)
    normed = type(norm) is not nn.Identity
    spec = Mamba2Spec(
        heads=int(module.num_heads),
        groups=int(module.n_groups),
        head_dim=int(module.head_dim),
        state_dim=int(module.ssm_state_size),
        taps=int(module.conv_kernel_size),
        eps=float(getattr(norm, "variance_epsilon", 0.0)),
        bounds=(max(float(module.time_step_limit[0]), 0.0), float(module.time_step_limit[1])),
        normed=normed,
        norm_before_gate=bool(getattr(norm, "norm_before_gate", False)),
    )
    require(spec.heads % spec.groups == 0, f"{spec.heads} heads are not of {spec.groups} groups")
    check_linear("in_proj", module.in_proj, hidden, spec.inner + spec.channels + spec.heads)
    check_linear("out_proj", module.out_proj, spec.inner, hidden)
    require(type(conv) is nn.Conv1d, f"conv1d is a {type(conv).__name__}")
    require(module.activation in ("silu", "swish"), f"the convolution's activation is {module.activation}")
    known = class_key(type(norm)) == family.key("RMSNormGated")
    groups = getattr(norm, "n_groups", 1)  # of Falcon-H1, whose norms have no group_size
    group_size = getattr(norm, "group_size", spec.inner // groups)  # before transformers 5.23: of all numbers
    fits = known and group_size * spec.groups == spec.inner
    require(fits or not normed, f"norm is a {type(norm).__name__}")
    require(spec.bounds[0] <= spec.bounds[1], f"time_step_limit is {module.time_step_limit}")
    found = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    wanted: dict[str, tuple[int, ...]] = {
        "conv1d.weight": (spec.channels, 1, spec.taps),
        **({"norm.weight": (spec.inner,)} if normed else {}),
        **dict.fromkeys(("A_log", "dt_bias", "D"), (spec.heads,)),
    }
    for name, shape in wanted.items():
        require(found.get(name) == shape, f"{name} is {found.get(name)}, expected {shape}")
    check_state(spec.head_dim, spec.state_dim, limits.MAMBA2_DIM, limits.MAMBA2_STATE)
    check_taps(spec.taps, limits.MAMBA2_TAPS)
    return spec


@mixes("MambaLayer")
@mixes("Mamba2Mixer")
@mixes("Mixer")
class Mamba2(RecurrentMixer):
    """A causal convolution, a state space and a gated norm; its state is the convolution's last inputs, and a matrix
    for each head."""

    __slots__ = ("groups", "module", "out", "prompts_differ", "residual", "spec", "state", "width")
    read = staticmethod(read)
    spec: Mamba2Spec
    state: RecurrentSpec

    def __init__(self, module: Any, facts: Mamba2Spec, residual: Residual) -> None:
        spec = self.spec = facts
        self.module, self.residual = module, residual
        self.groups, self.out = (LinearGroup([Linear(module.in_proj)]),), Linear(module.out_proj)
        self.state = states(spec.channels, spec.taps, spec.heads, spec.head_dim, spec.state_dim)
        self.width = spec.channels + 4 * spec.inner + spec.heads
        self.prompts_differ = spec.bounds != UNBOUNDED

    def __call__(
        self, x: Tensor, state: StateView, rope: Rope, gemm: Gemm, mask: Tensor | None, *, onto: Tensor | None = None
    ) -> Tensor:
        """See `Mixer`. onto: what the result is added to, in place of x."""
        spec, own = self.spec, self.module._parameters
        h, norm = self.without_padding(x, mask)
        keep = None if mask is None else mask.to(x.dtype).flatten()
        widths = (spec.inner, spec.channels, spec.heads)
        z, channels, dt = (y.flatten(0, 1) for y in self.groups[0].behind(norm, h, widths, gemm))
        conv, weight = self.module.conv1d._parameters, self.module.norm._parameters.get("weight")
        y = ops.mamba2(
            channels, dt, z, conv["weight"].squeeze(1), conv["bias"], own["A_log"], own["dt_bias"], own["D"],
            weight, spec.eps, state.pools[CONV], state.pools[RECURRENT], state.runs,
            state.table, state.count, keep=keep, bounds=spec.bounds,
            prompt=state.prompt if self.prompts_differ else None, prompts=state.longest >= state.table.shape[1],
            norm_before_gate=spec.norm_before_gate, factors=spec.factors,
        )  # fmt: skip
        return self.residual.add(x if onto is None else onto, self.out, y.view(*x.shape[:2], -1), gemm)
