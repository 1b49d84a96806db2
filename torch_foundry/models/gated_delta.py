"""The gated delta rule, and Kimi's, as a mixer: how families name and order its parts, and a step of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from torch_foundry import ops
from torch_foundry.core import limits
from torch_foundry.kvcache.recurrent import CONV, RECURRENT
from torch_foundry.kvcache.view import Rope, StateView
from torch_foundry.models.checks import check_children, check_linear, require
from torch_foundry.models.family import Family, class_key
from torch_foundry.models.layer import mixes
from torch_foundry.models.recurrent import RecurrentMixer, check_state, check_taps, states
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Residual


@dataclass(frozen=True)
class Layout:
    """How a class names its linear layers, and what is in their outputs: letters of q, k, v, z, b and a.

    by_head: an output has all of its letters for the first key head, then for the second; else all heads of a letter,
    then of the next. low: of outputs that are no letters themselves, but as many numbers as a head has keys: the layer
    that makes a letter of them. gate: the child that has a_log and dt_bias, one for each column of the keys.
    """

    projections: dict[str, str]
    norm: str
    out: str
    by_head: bool = False
    low: dict[str, tuple[str, str]] = field(default_factory=dict)
    gate: str = ""

    def children(self, gate: bool = False) -> set[str]:
        """Names of all modules; gate: of the gate's own."""
        prefix, paths = f"{self.gate}." if gate else "", [*self.projections, *(path for path, _ in self.low.values())]
        names = {path.removeprefix(prefix).split(".")[0] for path in paths if path.startswith(prefix)}
        return names if gate else {"conv1d", self.norm, self.out, *names}


QKV = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "b_proj": "b"}
LAYOUTS = (
    Layout({"in_proj_qkvz": "qkvz", "in_proj_ba": "ba"}, "norm", "out_proj", by_head=True),
    Layout({"in_proj_qkv": "qkv", "in_proj_z": "z", "in_proj_b": "b", "in_proj_a": "a"}, "norm", "out_proj"),
    Layout(
        {"q_proj": "q", "k_proj": "k", "v_proj": "v", "g_proj": "z", "b_proj": "b", "a_proj": "a"}, "o_norm", "o_proj"
    ),
    Layout(
        {**QKV, "forget_gate.f_a_proj": "f", "g_a_proj": "g"},
        "o_norm",
        "o_proj",
        low={"f": ("forget_gate.f_b_proj", "a"), "g": ("g_b_proj", "z")},
        gate="forget_gate",
    ),
    Layout({**QKV, "g_proj": "z", "forget_gate.f_proj": "a"}, "o_norm", "o_proj", gate="forget_gate"),
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
    log_bound: float  # as in ops.gated_delta
    sigmoid_gate: bool

    @property
    def channels(self) -> int:
        """That go through the convolution: all of q, k and v."""
        return self.key_heads * (2 * self.key_dim + self.per_key * self.value_dim)

    def widths(self, letters: str) -> list[int]:
        """How much of each letter a key head has."""
        values = self.per_key * self.value_dim
        of = {"q": self.key_dim, "k": self.key_dim, "v": values, "z": values, "b": self.per_key}
        of["a"] = self.key_dim if self.layout.gate else self.per_key
        return [of[letter] for letter in letters]

    def outputs(self, letters: str) -> int:
        """Of a projection to `letters`."""
        return self.key_dim if letters in self.layout.low else self.key_heads * sum(self.widths(letters))


def read(module: Any, family: Family) -> DeltaSpec:
    """The facts of `module`. Raises Fallback."""
    layout = next((known for known in LAYOUTS if _is_of(known, module)), LAYOUTS[0])
    check_children("linear attention", module, layout.children())
    gate = module.get_submodule(layout.gate)
    if layout.gate:
        keys = values = int(module.num_heads)
        key_dim = value_dim = int(module.head_dim)
    else:
        keys, values = int(module.num_k_heads), int(module.num_v_heads)
        key_dim, value_dim = int(module.head_k_dim), int(module.head_v_dim)
    require(keys > 0 and values % keys == 0, f"{values} value heads are not shared by {keys} key heads")
    conv, norm = module.conv1d, module._modules[layout.norm]
    spec = DeltaSpec(
        layout,
        hidden=int(module.hidden_size),
        key_heads=keys,
        per_key=values // keys,
        key_dim=key_dim,
        value_dim=value_dim,
        taps=int(module.conv_kernel_size),
        eps=float(norm.variance_epsilon),
        beta_scale=2.0 if getattr(module, "allow_neg_eigval", False) else 1.0,
        log_bound=float(gate.lower_bound) if getattr(gate, "safe_gate", False) else 0.0,
        sigmoid_gate=norm.activation == "sigmoid",
    )
    for name, letters in layout.projections.items():
        check_linear(name, module.get_submodule(name), spec.hidden, spec.outputs(letters))
    for name, letters in layout.low.values():
        check_linear(name, module.get_submodule(name), spec.key_dim, spec.outputs(letters))
    check_linear(layout.out, module._modules[layout.out], values * spec.value_dim, spec.hidden)
    require(type(conv) is nn.Conv1d and conv.bias is None, f"conv1d is a {type(conv).__name__} with a bias or another")
    known = class_key(type(norm)) == family.key("RMSNormGated")
    require(known and norm.activation in ("silu", "sigmoid"), f"{layout.norm} is a {type(norm).__name__}")
    require(module.activation in ("silu", "swish"), f"the convolution's activation is {module.activation}")
    require(not getattr(gate, "safe_gate", False) or spec.log_bound < 0, f"decays are bounded by {spec.log_bound}")
    found = {name: parameter.numel() for name, parameter in module.named_parameters()}
    wanted = {
        "conv1d.weight": spec.channels * spec.taps,
        f"{layout.norm}.weight": spec.value_dim,
        f"{layout.gate}.A_log".lstrip("."): values,
        f"{layout.gate}.dt_bias".lstrip("."): spec.outputs("a"),
    }
    for name, count in wanted.items():
        require(found.get(name) == count, f"{name} has {found.get(name)} numbers, expected {count}")
    check_state(spec.key_dim, spec.value_dim, limits.DELTA_DIM, limits.DELTA_STATE)
    check_taps(spec.taps, limits.DELTA_TAPS)
    return spec


def _is_of(layout: Layout, module: Any) -> bool:
    gate = module._modules.get(layout.gate)
    own = gate is None or layout.children(gate=True) == gate._modules.keys()
    return own and layout.children() == module._modules.keys()


def _groups(module: Any, projections: dict[str, str]) -> Iterator[tuple[list[str], LinearGroup]]:
    """Those that are computed together, with the letters of each: as many as a kernel has room for, and, of weights
    whose columns may be stored in another order, those that are or those that aren't."""
    linears = [(letters, Linear(module.get_submodule(name))) for name, letters in projections.items()]
    for _, alike in itertools.groupby(linears, lambda each: each[1].order is None):
        rest = list(alike)
        while rest:
            some, rest = rest[: limits.NORM_LINEAR_MATRICES], rest[limits.NORM_LINEAR_MATRICES :]
            yield [letters for letters, _ in some], LinearGroup(linear for _, linear in some)


@mixes("DeltaAttention")
@mixes("GatedDeltaNet")
class GatedDelta(RecurrentMixer):
    """A causal convolution, the gated delta rule and a gated norm; its state is the convolution's last inputs, and a
    matrix for each value head."""

    __slots__ = ("groups", "letters", "low", "out", "parameters", "residual", "spec", "state", "width")
    read = staticmethod(read)
    spec: DeltaSpec
    groups: tuple[LinearGroup, ...]
    letters: tuple[list[str], ...]  # of each group, what its layers make
    parameters: tuple[dict[str, Any], ...]  # of the convolution, of gates and of the norm

    def __init__(self, module: Any, facts: DeltaSpec, residual: Residual) -> None:
        spec = self.spec = facts
        owners = ("conv1d", spec.layout.gate, spec.layout.norm)
        self.parameters, self.residual = tuple(module.get_submodule(name)._parameters for name in owners), residual
        self.letters, self.groups = zip(*_groups(module, spec.layout.projections), strict=True)
        of_low = spec.layout.low.items()
        self.low = {low: (Linear(module.get_submodule(path)), letters) for low, (path, letters) in of_low}
        self.out = Linear(module._modules[spec.layout.out])
        heads = spec.key_heads * spec.per_key
        self.state = states(spec.channels, spec.taps, heads, spec.key_dim, spec.value_dim)
        self.width = spec.channels + 2 * spec.outputs("z") + 2 * spec.outputs("a")

    def __call__(self, x: Tensor, state: StateView, rope: Rope, gemm: Gemm, mask: Tensor | None) -> Tensor:
        parts, spec, (conv, gates, norm) = self._parts(x, gemm, mask), self.spec, self.parameters
        q, k, v, z, b, a = (parts[letter] for letter in "qkvzba")
        v, z = (values.unflatten(-1, (spec.per_key, spec.value_dim)) for values in (v, z))
        y = ops.gated_delta(
            q, k, v, z, b, a.unsqueeze(2) if spec.layout.gate else a, conv["weight"].squeeze(1),
            gates["A_log"].flatten(), gates["dt_bias"], norm["weight"], spec.eps,
            state.pools[CONV], state.pools[RECURRENT], state.runs, state.table, state.count,
            beta_scale=spec.beta_scale, log_bound=spec.log_bound, sigmoid_gate=spec.sigmoid_gate,
            prompts=state.longest >= state.table.shape[1],
        )  # fmt: skip
        return self.residual.add(x, self.out, y.view(*x.shape[:2], -1), gemm)

    def _parts(self, x: Tensor, gemm: Gemm, mask: Tensor | None) -> dict[str, Tensor]:
        """Norm and projections: by letter [B * L, key heads, n]."""
        spec, parts = self.spec, dict[str, Tensor]()
        x, norm = self.without_padding(x, mask)
        if norm is not None and not gemm.fuses(norm, x):  # one norm for all groups
            x, norm = norm(x), None
        for of_each, group in zip(self.letters, self.groups, strict=True):
            widths = [spec.outputs(letters) for letters in of_each]
            for letters, y in zip(of_each, group.behind(norm, x, widths, gemm), strict=True):
                if letters in self.low:
                    linear, letters = self.low[letters]
                    y = gemm.product(linear, y)
                rows, own = y.flatten(0, 1), spec.widths(letters)
                if spec.layout.by_head:
                    found = rows.unflatten(-1, (spec.key_heads, -1)).split(own, dim=-1)
                else:
                    letter_by_letter = rows.split([spec.key_heads * n for n in own], dim=-1)
                    found = tuple(part.unflatten(-1, (spec.key_heads, -1)) for part in letter_by_letter)
                parts |= zip(letters, found, strict=True)
        return parts
