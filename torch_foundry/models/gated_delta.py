"""The gated delta rule as a mixer: how families name and order its parts, and a step of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torch_foundry import ops
from torch_foundry.core import limits
from torch_foundry.kvcache.base import RecurrentSpec
from torch_foundry.kvcache.recurrent import CONV, RECURRENT
from torch_foundry.kvcache.view import Rope, StateView
from torch_foundry.models.family import Family, class_key
from torch_foundry.models.layer import mixes
from torch_foundry.models.recurrent import RecurrentMixer
from torch_foundry.models.spec import check_children, check_linear, require
from torch_foundry.models.swap import base_class
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Residual


@dataclass(frozen=True)
class Layout:
    """How a class names its linear layers, and what is in their outputs: letters of q, k, v, z, b and a.

    by_head: an output has all of its letters for the first key head, then for the second; else all heads of a letter,
    then of the next.
    """

    projections: dict[str, str]
    norm: str
    out: str
    by_head: bool = False

    def children(self) -> set[str]:
        """Names of all modules."""
        return {"conv1d", self.norm, self.out, *self.projections}


LAYOUTS = (
    Layout({"in_proj_qkvz": "qkvz", "in_proj_ba": "ba"}, "norm", "out_proj", by_head=True),
    Layout({"in_proj_qkv": "qkv", "in_proj_z": "z", "in_proj_b": "b", "in_proj_a": "a"}, "norm", "out_proj"),
    Layout(
        {"q_proj": "q", "k_proj": "k", "v_proj": "v", "g_proj": "z", "b_proj": "b", "a_proj": "a"}, "o_norm", "o_proj"
    ),
)


@dataclass(frozen=True)
class DeltaSpec:
    """Facts about one layer's gated delta rule. key_heads query and key heads; per_key value heads share each."""

    layout: Layout
    hidden: int
    key_heads: int
    per_key: int
    key_dim: int
    value_dim: int
    taps: int  # of the convolution
    eps: float
    beta_scale: float  # 2: eigenvalues of a step may be negative

    @property
    def channels(self) -> int:
        """That go through the convolution: all of q, k and v."""
        return self.key_heads * (2 * self.key_dim + self.per_key * self.value_dim)

    def widths(self, letters: str) -> list[int]:
        """How much of each letter a key head has."""
        values = self.per_key * self.value_dim
        of = {"q": self.key_dim, "k": self.key_dim, "v": values, "z": values, "b": self.per_key, "a": self.per_key}
        return [of[letter] for letter in letters]


def read(module: Any, family: Family) -> DeltaSpec:
    """The facts of `module`. Raises Fallback."""
    layout = next((known for known in LAYOUTS if known.children() == module._modules.keys()), LAYOUTS[0])
    check_children("linear attention", module, layout.children())
    keys, values = int(module.num_k_heads), int(module.num_v_heads)
    require(keys > 0 and values % keys == 0, f"{values} value heads are not shared by {keys} key heads")
    conv, norm = module.conv1d, module._modules[layout.norm]
    spec = DeltaSpec(
        layout,
        hidden=int(module.hidden_size),
        key_heads=keys,
        per_key=values // keys,
        key_dim=int(module.head_k_dim),
        value_dim=int(module.head_v_dim),
        taps=int(module.conv_kernel_size),
        eps=float(norm.variance_epsilon),
        beta_scale=2.0 if getattr(module, "allow_neg_eigval", False) else 1.0,
    )
    for name, letters in layout.projections.items():
        check_linear(name, module._modules[name], spec.hidden, keys * sum(spec.widths(letters)))
    check_linear(layout.out, module._modules[layout.out], values * spec.value_dim, spec.hidden)
    require(type(conv) is nn.Conv1d and conv.bias is None, f"conv1d is a {type(conv).__name__} with a bias or another")
    known = class_key(base_class(type(norm))) == family.key("RMSNormGated")
    require(known and norm.activation == "silu", f"{layout.norm} is a {type(norm).__name__}")
    require(module.activation in ("silu", "swish"), f"the convolution's activation is {module.activation}")
    found = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    wanted: dict[str, tuple[int, ...]] = {
        "conv1d.weight": (spec.channels, 1, spec.taps),
        f"{layout.norm}.weight": (spec.value_dim,),
        "A_log": (values,),
        "dt_bias": (values,),
    }
    for name, shape in wanted.items():
        require(found.get(name) == shape, f"{name} is {found.get(name)}, expected {shape}")
    largest, most = max(spec.key_dim, spec.value_dim), limits.DELTA_DIM
    require(largest <= most, f"heads of {largest} numbers, expected at most {most}")
    size, room = spec.key_dim * spec.value_dim, limits.DELTA_STATE
    require(size <= room, f"a head's state of {size} numbers, expected at most {room}")
    require(spec.taps <= limits.DELTA_TAPS, f"a convolution of {spec.taps} tokens, expected {limits.DELTA_TAPS}")
    return spec


def _groups(module: Any, projections: dict[str, str]) -> Iterator[tuple[list[str], LinearGroup]]:
    """Those that are computed together, with the letters of each: as many as a kernel has room for, and, of weights
    whose columns may be stored in another order, those that are or those that aren't."""
    linears = [(letters, Linear(module._modules[name])) for name, letters in projections.items()]
    for _, alike in itertools.groupby(linears, lambda each: each[1].order is None):
        rest = list(alike)
        while rest:
            some, rest = rest[: limits.NORM_LINEAR_MATRICES], rest[limits.NORM_LINEAR_MATRICES :]
            yield [letters for letters, _ in some], LinearGroup(linear for _, linear in some)


@mixes("GatedDeltaNet")
class GatedDelta(RecurrentMixer):
    """A causal convolution, the gated delta rule and a gated norm; its state is the convolution's last inputs, and a
    matrix for each value head."""

    __slots__ = ("groups", "letters", "module", "norm", "out", "residual", "spec", "state", "width")
    read = staticmethod(read)
    spec: DeltaSpec
    groups: tuple[LinearGroup, ...]
    letters: tuple[list[str], ...]  # of each group, what its layers make

    def __init__(self, module: Any, facts: DeltaSpec, residual: Residual) -> None:
        spec = self.spec = facts
        self.module, self.residual = module, residual
        self.norm = module._modules[spec.layout.norm]
        self.letters, self.groups = zip(*_groups(module, spec.layout.projections), strict=True)
        self.out = Linear(module._modules[spec.layout.out])
        heads = spec.key_heads * spec.per_key
        self.state = RecurrentSpec(
            (
                (CONV, (spec.channels, spec.taps), None),
                (RECURRENT, (heads, spec.key_dim, spec.value_dim), torch.float32),
            )
        )
        self.width = spec.channels + 2 * heads * (spec.value_dim + 1)

    def __call__(self, x: Tensor, state: StateView, rope: Rope, gemm: Gemm, mask: Tensor | None) -> Tensor:
        parts, spec, module = self._parts(x, gemm, mask), self.spec, self.module
        q, k, v, z, b, a = (parts[letter] for letter in "qkvzba")
        v, z = (values.unflatten(-1, (spec.per_key, spec.value_dim)) for values in (v, z))
        conv, own, slots = module.conv1d._parameters["weight"], module._parameters, state.table.shape[1]
        y = ops.gated_delta(
            q, k, v, z, b, a, conv.squeeze(1), own["A_log"], own["dt_bias"], self.norm._parameters["weight"], spec.eps,
            state.pools[CONV], state.pools[RECURRENT], state.runs, state.table, state.count,
            beta_scale=spec.beta_scale, prompts=state.longest >= slots,
        )  # fmt: skip
        return self.residual.add(x, self.out, y.view(*x.shape[:2], -1), gemm)

    def _parts(self, x: Tensor, gemm: Gemm, mask: Tensor | None) -> dict[str, Tensor]:
        """Norm and projections: by letter [B * L, key heads, n]."""
        spec, parts = self.spec, dict[str, Tensor]()
        x, norm = self.without_padding(x, mask)
        if norm is not None and not gemm.fuses(norm, x):  # one norm for all groups
            x, norm = norm(x), None
        for of_each, group in zip(self.letters, self.groups, strict=True):
            widths = [spec.key_heads * sum(spec.widths(letters)) for letters in of_each]
            for letters, y in zip(of_each, group.behind(norm, x, widths, gemm), strict=True):
                rows, own = y.flatten(0, 1), spec.widths(letters)
                if spec.layout.by_head:
                    found = rows.unflatten(-1, (spec.key_heads, -1)).split(own, dim=-1)
                else:
                    letter_by_letter = rows.split([spec.key_heads * n for n in own], dim=-1)
                    found = tuple(part.unflatten(-1, (spec.key_heads, -1)) for part in letter_by_letter)
                parts |= zip(letters, found, strict=True)
        return parts
