"""Attention and a state space side by side: both see the layer's input behind one norm, and their results are added."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from torch_foundry.kvcache.base import KVSpec, RecurrentSpec
from torch_foundry.kvcache.view import KVStep, Rope, StateView
from torch_foundry.models.attention import Attention
from torch_foundry.models.attention_spec import AttentionSpec, read_attention
from torch_foundry.models.checks import require
from torch_foundry.models.family import PARALLEL, Family
from torch_foundry.models.layer import Mixer, mixes
from torch_foundry.models.mamba2 import Mamba2, Mamba2Spec
from torch_foundry.models.mamba2 import read as read_mamba2
from torch_foundry.models.watch import version_of
from torch_foundry.models.weights import Gemm, Linear, LinearGroup, Norm, Residual

Masks = tuple[Tensor | None, Tensor | None]  # of keys, and of tokens that are no padding


@dataclass(frozen=True)
class ParallelSpec:
    """Facts about both mixers of a layer, and the factors on what attention sees and on their results."""

    attention: AttentionSpec
    state_space: Mamba2Spec
    attention_input: float
    attention_scale: float
    state_space_scale: float


def read(module: Any, family: Family) -> ParallelSpec:
    """The facts of the layer `module`. Raises Fallback."""
    attention, mamba, config = module.self_attn, module.mamba, module.self_attn.config
    before, behind = float(mamba.ssm_in_multiplier), [float(factor) for factor in config.ssm_multipliers]
    require(attention.key_multiplier == config.key_multiplier, f"key_multiplier is {attention.key_multiplier}")
    require(before == 1.0 or mamba.in_proj.bias is None, "in_proj has a bias behind a multiplier")
    require(len(behind) == 5, f"ssm_multipliers are {behind}")
    state_space = replace(read_mamba2(mamba, family), factors=tuple(before * factor for factor in behind))
    require(family.norm_kind == "llama", f"a factor on the result of a {family.norm_kind} norm")
    scales = (float(getattr(module, f"{name}_multiplier")) for name in ("attention_in", "attn_out", "ssm_out"))
    return ParallelSpec(read_attention(attention, family), state_space, *scales)


class ScaledNorm(Norm):
    """A norm whose results are multiplied by `factor`: its weight is, once for each weight that it has."""

    __slots__ = ("_made", "_of", "factor")

    def __init__(self, norm: Norm, factor: float) -> None:
        self.eps, self.kind, self.parameters, self.factor = norm.eps, norm.kind, norm.parameters, factor
        self._made: Tensor | None = None
        self._of: tuple[int, ...] = ()

    def facts(self) -> tuple[int, ...]:
        """Of which weight it is."""
        weight = self.weight
        return id(weight), weight.data_ptr(), version_of(weight)

    def gain(self, x: Tensor, size: int | None = None) -> Tensor:
        """See `Norm`."""
        if self._made is None or self._of != self.facts():
            with torch.inference_mode(False), torch.no_grad():
                self._made, self._of = self.weight * self.factor, self.facts()
        return self._made


@mixes(PARALLEL)
class ParallelMixers(Mixer):
    """Attention and Mamba2; its state is that of either."""

    __slots__ = (
        "attention", "groups", "out", "prompts_differ", "queries", "residual", "rope", "state", "state_space", "width",
    )  # fmt: skip
    children: ClassVar[tuple[str, ...]] = ("self_attn", "mamba")
    read = staticmethod(read)
    state: tuple[KVSpec, RecurrentSpec]

    def __init__(self, module: Any, facts: ParallelSpec, residual: Residual) -> None:
        around = replace(residual, scale=facts.attention_scale)
        if facts.attention_input != 1.0:
            assert residual.pre is not None
            around = replace(around, pre=ScaledNorm(residual.pre, facts.attention_input))
        self.attention = Attention(module.self_attn, facts.attention, around)
        self.state_space = Mamba2(module.mamba, facts.state_space, replace(residual, scale=facts.state_space_scale))
        both = self.attention, self.state_space
        self.groups: tuple[LinearGroup, ...] = tuple(group for each in both for group in each.groups)
        self.out: Linear = self.attention.out
        self.state = self.attention.state, self.state_space.state
        self.width, self.queries = max(each.width for each in both), self.attention.queries
        self.rope, self.prompts_differ = self.attention.rope, self.state_space.prompts_differ

    @property
    def norm(self) -> ScaledNorm | None:
        """Attention's, if it is another one than the state space's."""
        norm = self.attention.residual.pre
        return norm if isinstance(norm, ScaledNorm) else None

    def prepare(self, device: torch.device) -> None:
        """See `Mixer`."""
        self.attention.prepare(device)
        if (norm := self.norm) is not None:
            norm.gain(norm.weight)

    def facts(self) -> tuple[int, ...] | None:
        """See `Mixer`."""
        norm = self.norm
        return None if norm is None else norm.facts()

    def without_cache(self, x: Tensor) -> tuple[Any, Any]:
        """See `Mixer`."""
        return self.attention.without_cache(x), self.state_space.without_cache(x)

    def config_reason(self, config: Any) -> str | None:
        """See `Mixer`."""
        return self.attention.config_reason(config)

    def mask_reason(self, mask: Masks, x: Tensor, layer: Any) -> str | None:
        """See `Mixer`. mask: of either."""
        keys, padding = mask
        parts = (None, None) if layer is None else layer.parts
        reason = None if keys is None else self.attention.mask_reason(keys, x, parts[0])
        return reason or (None if padding is None else self.state_space.mask_reason(padding, x, parts[1]))

    def __call__(self, x: Tensor, state: tuple[KVStep, StateView], rope: Rope, gemm: Gemm, mask: Any) -> Tensor:
        """See `Mixer`. mask: `Masks`, or None."""
        keys, padding = (None, None) if mask is None else mask
        y = self.attention(x, state[0], rope, gemm, keys)
        return self.state_space(x, state[1], rope, gemm, padding, onto=y)
