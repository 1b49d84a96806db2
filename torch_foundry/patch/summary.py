"""What a patched model consists of and what it did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear
from torch_foundry.nn.experts import NAMES as EXPERT_WEIGHTS
from torch_foundry.patch.layer import LayerMixin
from torch_foundry.patch.model import ModelMixin
from torch_foundry.patch.state import ModelPlan
from torch_foundry.patch.swap import base_class, is_swapped


@dataclass(frozen=True)
class Report:
    """See `torch_foundry.report`."""

    swapped: dict[str, str] = field(default_factory=dict)  # module name -> stock class
    left: dict[str, str] = field(default_factory=dict)  # name of a module left alone -> why
    fallbacks: Counter[str] = field(default_factory=Counter)  # reason -> calls of a module that ran stock code
    fused: int = 0  # calls of decoder layers that ran fused
    fused_leaves: int = 0  # calls of embeddings, norms and linear layers that ran fused
    packed: dict[str, str] = field(default_factory=dict)  # module name -> weight format
    layers: int = 0  # fused decoder layers
    steps: int = 0  # forward passes of a few tokens that were one tape
    recorded: int = 0  # of these, the ones in which the tape was recorded
    prompts: int = 0  # forward passes that were no step: many tokens, or no cache that holds any
    eager: Counter[str] = field(default_factory=Counter)  # why other steps, or generations, were not -> how often
    tokens: int = 0  # that our own loop generated, per row
    reads: int = 0  # how often it waited for the device to read them
    guesses: Any = None  # decode.pace.Guesses: what came of prompt lookup and draft models

    def __str__(self) -> str:
        if not self.swapped:
            return "not patched"
        classes = Counter(self.swapped.values())
        lines = ["swapped:  " + ", ".join(f"{n} {name}" for name, n in sorted(classes.items()))]
        for why, names in _by_value(self.left).items():
            lines.append(f"left:     {_some(names)}: {why}")
        for fmt, names in _by_value(self.packed).items():
            lines.append(f"packed:   {len(names)} weights as {fmt}")
        lines.append(f"fused:    {self.fused} decoder layer calls, {self.fused_leaves} other calls")
        if self.steps:
            lines.append(f"tapes:    {self.steps} forward passes, {self.recorded} of them recorded")
        if self.prompts:
            lines.append(f"prompts:  {self.prompts} forward passes of many tokens, or without a filled cache")
        if self.reads:
            lines.append(f"loop:     {self.tokens} tokens, read {self.reads} times")
        if self.guesses:
            lines.append(f"guesses:  {self.guesses}")
        lines += [f"no tape:  {calls} times: {reason}" for reason, calls in self.eager.most_common()]
        if self.fallbacks:
            lines += [f"fallback: {calls} calls: {reason}" for reason, calls in self.fallbacks.most_common()]
        elif not self.eager:
            lines.append("fallback: none")
        return "\n".join(lines)


def _by_value(names: dict[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, value in names.items():
        grouped.setdefault(value, []).append(name)
    return grouped


def _some(names: list[str]) -> str:
    names = [name or "the model" for name in names]
    return ", ".join(names) if len(names) <= 3 else f"{names[0]} ... {names[-1]} ({len(names)} modules)"


def build_report(model: nn.Module) -> Report:
    """Collect the report of `model` from its modules."""
    swapped: dict[str, str] = {}
    packed: dict[str, str] = {}
    left: dict[str, str] = {}
    fallbacks: Counter[str] = Counter()
    taped: list[ModelPlan] = []
    fused = leaves = layers = 0
    for name, module in model.named_modules():
        if isinstance(module, FoundryLinear | FoundryEmbedding):
            packed[name] = module.format
        elif isinstance(module, FoundryExperts):
            formats = module.weights("").formats
            packed |= {f"{name}.{own}": fmt for own, fmt in zip(EXPERT_WEIGHTS, formats, strict=True) if fmt}
        if not is_swapped(module):
            continue
        plan = module._foundry
        swapped[name] = base_class(type(module)).__name__
        left = left or plan.state.left
        if isinstance(module, ModelMixin):
            if isinstance(plan, ModelPlan):
                taped.append(plan)
            continue
        fallbacks.update(plan.fallbacks)
        if isinstance(module, LayerMixin):
            layers += 1
            fused += plan.fused
        else:
            leaves += plan.fused
    fused += sum(plan.steps * len(plan.layers) for plan in taped)
    leaves += sum(plan.leaves for plan in taped)
    return Report(
        swapped,
        dict(left),
        fallbacks,
        fused,
        leaves,
        packed,
        layers,
        steps=sum(plan.steps for plan in taped),
        recorded=sum(plan.recorded for plan in taped),
        prompts=sum(plan.prompts for plan in taped),
        eager=sum((plan.eager for plan in taped), Counter()),
        tokens=sum(plan.tokens for plan in taped),
        reads=sum(plan.reads for plan in taped),
        guesses=next((plan.guesses for plan in taped if plan.guesses is not None and plan.guesses.steps), None),
    )
