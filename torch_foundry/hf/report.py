"""What a patched model consists of and what it did."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from torch_foundry.hf.layer import LayerMixin
from torch_foundry.hf.pretrained import ModelMixin
from torch_foundry.hf.training import TrainedMixin
from torch_foundry.models.decoder import DecoderModel
from torch_foundry.models.state import ModelPlan
from torch_foundry.models.swap import base_class, is_swapped
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear

WHOLE, LAYERS_ONLY, REFUSED, UNKNOWN = range(4)


@dataclass(frozen=True)
class Report:
    """See `torch_foundry.report`."""

    swapped: dict[str, str] = field(default_factory=dict)  # module name -> stock class
    not_replaced: dict[str, str] = field(default_factory=dict)  # name of a module left alone -> why
    fallbacks: Counter[str] = field(default_factory=Counter)  # reason -> calls of a module that ran stock code
    fused: int = 0  # calls of decoder layers that ran fused
    fused_leaf_modules: int = 0  # calls of embeddings, norms and linear layers that ran fused
    trained: int = 0  # calls of norms, MLPs and attention in layers that ran stock code, by ops with a backward
    packed: dict[str, str] = field(default_factory=dict)  # module name -> weight format
    layers: int = 0  # fused decoder layers
    steps: int = 0  # forward passes of a few tokens that were one graph
    captured: int = 0  # of these, the ones in which the graph was captured
    graph_bytes: int = 0  # that captured steps keep at this moment, and caches whose memory they wait in
    prompts: int = 0  # forward passes that were no step: many tokens, or no cache that holds any
    eager: Counter[str] = field(default_factory=Counter)  # why other steps, or generations, were not -> how often
    tokens: int = 0  # that our own loop generated, per row
    reads: int = 0  # how often it waited for the device to read them
    speculation: Any = None  # generation.drafting.SpeculationStats: what came of prompt lookup and draft models

    def __str__(self) -> str:
        if not self.swapped:
            return "not patched"
        classes = Counter(self.swapped.values())
        lines = ["swapped:  " + ", ".join(f"{n} {name}" for name, n in sorted(classes.items()))]
        for why, names in _by_value(self.not_replaced).items():
            lines.append(f"left:     {_some(names)}: {why}")
        for fmt, names in _by_value(self.packed).items():
            lines.append(f"packed:   {len(names)} weights as {fmt}")
        lines.append(f"fused:    {self.fused} decoder layer calls, {self.fused_leaf_modules} other calls")
        if self.trained:
            lines.append(f"trained:  {self.trained} calls of norms, MLPs and rotations in layers that ran stock code")
        if self.steps:
            lines.append(f"graphs:    {self.steps} forward passes, {self.captured} of them captured")
        if self.graph_bytes:
            lines.append(f"memory:   {self.graph_bytes / 2**20:.1f} MiB kept by captured steps")
        if self.prompts:
            lines.append(f"prompts:  {self.prompts} forward passes of many tokens, or without a filled cache")
        if self.reads:
            lines.append(f"loop:     {self.tokens} tokens, read {self.reads} times")
        if self.speculation:
            lines.append(f"drafts:  {self.speculation}")
        lines += [f"no graph:  {calls} times: {reason}" for reason, calls in self.eager.most_common()]
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
    not_replaced: dict[str, str] = {}
    fallbacks: Counter[str] = Counter()
    captured: list[ModelPlan] = []
    fused = leaf_modules = layers = trained = 0
    for name, module in model.named_modules():
        if isinstance(module, FoundryLinear | FoundryEmbedding):
            packed[name] = module.format
        elif isinstance(module, FoundryExperts):
            packed |= {f"{name}.{own}": fmt for own, fmt in zip(module.names, module.packed_as, strict=True) if fmt}
        if not is_swapped(module):
            continue
        plan = module._foundry
        if isinstance(module, TrainedMixin):  # it has its class for training alone
            trained += plan.fused
            fallbacks.update(plan.fallbacks)
            continue
        swapped[name] = base_class(type(module)).__name__
        not_replaced = not_replaced or plan.state.not_replaced
        if isinstance(module, ModelMixin):
            if isinstance(plan, ModelPlan):
                captured.append(plan)
            continue
        fallbacks.update(plan.fallbacks)
        if isinstance(module, LayerMixin):
            layers += 1
            fused += plan.fused
        else:
            leaf_modules += plan.fused
    fused += sum(plan.steps * len(plan.layers) for plan in captured)
    leaf_modules += sum(plan.leaf_modules for plan in captured)
    return Report(
        swapped,
        dict(not_replaced),
        fallbacks,
        fused,
        leaf_modules,
        trained,
        packed,
        layers,
        steps=sum(plan.steps for plan in captured),
        captured=sum(plan.captured for plan in captured),
        graph_bytes=sum(plan.graphs.nbytes for plan in captured if isinstance(plan, DecoderModel)),
        prompts=sum(plan.prompts for plan in captured),
        eager=sum((plan.eager for plan in captured), Counter()),
        tokens=sum(plan.tokens for plan in captured),
        reads=sum(plan.reads for plan in captured),
        speculation=next(
            (plan.speculation for plan in captured if plan.speculation is not None and plan.speculation.steps), None
        ),
    )


@dataclass(frozen=True)
class Outcome:
    """What `patch` does with a model.

    kind: WHOLE: layers are fused and steps captured; LAYERS_ONLY: layers are fused, all or some; else leaf modules
    alone are replaced, in a known family whose settings aren't covered (REFUSED), or in another model (UNKNOWN).
    why: the reasons that `report` gives, in one line; empty where there is nothing to give a reason for.
    """

    kind: int
    why: str = ""


def outcome(seen: Report) -> Outcome:
    """What came of patching, by the report of a model, which may be on the meta device."""
    if not seen.not_replaced:
        return Outcome(WHOLE)
    reasons = sorted(set(map(short, seen.not_replaced.values())))
    if seen.layers:
        return Outcome(LAYERS_ONLY, "; ".join(reasons))
    own = [why for why in reasons if " is not a known " not in why]
    return Outcome(REFUSED, "; ".join(own)) if own else Outcome(UNKNOWN)


def short(why: str) -> str:
    """A reason for a table: without the names of modules, at most 160 characters."""
    return textwrap.shorten(re.sub(r" of (transformers|torch)\.[\w.]+", "", why).replace("|", "/"), 160)
