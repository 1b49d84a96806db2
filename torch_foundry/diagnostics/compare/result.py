"""What `compare` found, and when a stage is out of line."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# Error of one stage on stock's own input beyond which it is out of line whatever its neighbours do: a few times what
# rounding alone makes of a decoder layer in that dtype.
LIMIT = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
OUTLIER = 8.0  # times the median of the layers: out of line as well, if at least LIMIT / OUTLIER
PROMPT, TOKEN, STEP, REPLAY = "prompt", "one token", "decode step", "replayed step"


@dataclass(frozen=True)
class Stage:
    """One swapped module in the order of execution. Errors are ‖patched - stock‖ / ‖stock‖ of its output."""

    name: str
    drift: float  # of the patched model as a whole, up to and with this stage
    growth: float | None  # drift over that of the stage before; None where that is zero
    alone: float  # of this stage on the stock model's input to it
    is_layer: bool


@dataclass(frozen=True)
class Path:
    """The stages by one way through the kernels.

    "prompt": the text at once, layer by layer. "one token": its last token alone, layer by layer, as whatever is no
    graph runs. "decode step": a token behind the text in a KV cache, by the fused kernels that graphs are made of.
    "replayed step": the graph, whose stages are steps: the first records, the others replay; `alone` is the difference
    from the same kernels launched one by one.
    """

    name: str
    stages: list[Stage]
    logits: float  # error of the logits
    limit: float
    kernels: list[str] = field(default_factory=list)  # of the first bad stage: those that differ from plain torch

    @property
    def first_bad(self) -> str | None:
        """The first stage that is out of line."""
        typical = statistics.median([stage.alone for stage in self.stages if stage.is_layer] or [0.0])
        for stage in self.stages:
            outlier = stage.is_layer and stage.alone > max(OUTLIER * typical, self.limit / OUTLIER)
            if stage.alone > self.limit or outlier:
                return stage.name
        return None


@dataclass(frozen=True)
class Drift:
    """What `compare` found. Print it."""

    paths: list[Path]
    dtype: torch.dtype
    top1: float  # share of the prompt's positions at which both models rank the same token first
    left_out: str | None = None  # why decode steps were not compared

    @property
    def bad_path(self) -> Path | None:
        """The first one with a stage that is out of line."""
        return next((path for path in self.paths if path.first_bad is not None), None)

    @property
    def first_bad(self) -> str | None:
        """The first stage that is out of line, in `bad_path`."""
        path = self.bad_path
        return None if path is None else path.first_bad

    @property
    def stages(self) -> list[Stage]:
        """Of the prompt."""
        return self.paths[0].stages

    @property
    def logits(self) -> float:
        """The largest error of the logits by any path."""
        return max(path.logits for path in self.paths)

    def __str__(self) -> str:
        layered = [path for path in self.paths if path.name != REPLAY]
        width = max((len(stage.name) for stage in self.stages), default=5)
        bad = self.bad_path
        heads = ["", f"{'stage':{width}}"]
        for path in layered:
            heads[0] += f"  {path.name:>28}"
            heads[1] += f"  {'drift':>9} {'growth':>8} {'alone':>9}"
        lines = [f"{'':{width}}{heads[0]}", heads[1]]
        for stage in self.stages:
            cells = "".join(_cells(path.stages, stage.name) for path in layered)
            is_bad = bad in layered and bad is not None and bad.first_bad == stage.name
            lines.append(f"{stage.name:{width}}{cells}{'  <-- out of line' if is_bad else ''}")
        for path in self.paths:
            steps = ", ".join(f"{s.name} {s.drift:.1e} ({s.alone:.1e} from its kernels)" for s in path.stages)
            errors = steps if path.name == REPLAY else f"{path.logits:.1e}"
            lines.append(f"logits of the {path.name}: error {errors}")
        lines.append(f"same first token at {self.top1:.1%} of the prompt's positions")
        if self.left_out is not None:
            lines.append(f"decode steps were not compared: {self.left_out}")
        return "\n".join([*lines, f"{self._verdict(bad)} ({str(self.dtype).removeprefix('torch.')})"])

    @staticmethod
    def _verdict(bad: Path | None) -> str:
        if bad is None:
            return "no stage is out of line"
        text = f"first out of line: {bad.first_bad} of the {bad.name}"
        if bad.kernels:
            return f"{text}, by {', '.join(bad.kernels)}"
        if bad.name == REPLAY:
            return f"{text}: its kernels are right when they are launched one by one"
        return f"{text}: its kernels agree with plain torch on what they are given"


def _cells(stages: Sequence[Stage], name: str) -> str:
    stage = next((stage for stage in stages if stage.name == name), None)
    if stage is None:  # learned positions are part of a step's first one
        return " " * 30
    text = "-" if stage.growth is None else f"{stage.growth:.2f}"
    return f"  {stage.drift:9.1e} {text:>8} {stage.alone:9.1e}"


def stages_of(names: Sequence[str], drifts: Sequence[float], alone: Sequence[float], layers: set[str]) -> list[Stage]:
    """Stages in order, from their errors; layers: the names of those that are decoder layers."""
    return [
        Stage(name, drifts[i], drifts[i] / drifts[i - 1] if i and drifts[i - 1] else None, alone[i], name in layers)
        for i, name in enumerate(names)
    ]


def hidden_of(output: Any) -> torch.Tensor:
    """The hidden states among what a layer returns: some return attention's weights too."""
    hidden: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


def error(ours: torch.Tensor, stock: torch.Tensor) -> float:
    """‖ours - stock‖ / ‖stock‖; infinite if a NaN is among them."""
    truth = stock.cpu().double()  # on the CPU: mps has no float64
    difference, norm = (ours.cpu().double() - truth).norm().item(), truth.norm().item()
    found = difference / norm if norm else difference
    return math.inf if math.isnan(found) else found
