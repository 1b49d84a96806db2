"""`torch_foundry.compare(model, ids)`: where, layer by layer, a patched model drifts from the stock one.

Imported without transformers and without the kernels; both are loaded by the first call.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

# Error of one stage on stock's own input beyond which it is out of line whatever its neighbours do: a few times what
# rounding alone makes of a decoder layer in that dtype.
LIMIT = {torch.float32: 2e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
OUTLIER = 8.0  # times the median of the layers: out of line as well, if at least LIMIT / OUTLIER


@dataclass(frozen=True)
class Stage:
    """One swapped module in the order of execution. Errors are ‖patched - stock‖ / ‖stock‖ of its output."""

    name: str
    drift: float  # of the patched model as a whole, up to and with this stage
    growth: float | None  # drift over that of the stage before; None where that is zero
    alone: float  # of this stage on the stock model's input to it
    is_layer: bool


@dataclass(frozen=True)
class Drift:
    """What `compare` found. Print it."""

    stages: list[Stage]
    first_bad: str | None  # the first stage whose error is out of line
    dtype: torch.dtype
    logits: float  # error of the logits
    top1: float  # share of positions at which both models rank the same token first

    def __str__(self) -> str:
        width = max((len(stage.name) for stage in self.stages), default=5)
        lines = [f"{'stage':{width}}  {'drift':>8}  {'growth':>7}  {'alone':>8}"]
        for stage in self.stages:
            growth = "-" if stage.growth is None else f"{stage.growth:.2f}"
            mark = "  <-- out of line" if stage.name == self.first_bad else ""
            lines.append(f"{stage.name:{width}}  {stage.drift:8.1e}  {growth:>7}  {stage.alone:8.1e}{mark}")
        lines.append(f"logits: error {self.logits:.1e}, same first token at {self.top1:.1%} of positions")
        verdict = f"first out of line: {self.first_bad}" if self.first_bad else "no stage is out of line"
        return "\n".join([*lines, f"{verdict} ({str(self.dtype).removeprefix('torch.')})"])


@torch.no_grad()
def compare(model: nn.Module, ids: torch.Tensor, **inputs: Any) -> Drift:
    """Run `model` stock and patched on `ids` [B, L], and compare the outputs of every replaced module.

    A stage is out of line if, given the stock model's input, its output differs by more than rounding explains. Packed
    weights are used on both sides. inputs: further arguments of the model (attention_mask ...). A model that is not
    patched is patched for the duration of the call. ValueError: nothing in the model can be patched.
    """
    from torch_foundry.patch.api import patched

    was_training = model.training
    model.eval()
    try:
        with patched(model):
            return _compare(model, ids, inputs)
    finally:
        model.train(was_training)


def _compare(model: nn.Module, ids: torch.Tensor, inputs: dict[str, Any]) -> Drift:
    from torch_foundry.patch.layer import LayerMixin
    from torch_foundry.patch.model import ModelMixin
    from torch_foundry.patch.swap import is_swapped

    swapped = {n: m for n, m in model.named_modules() if is_swapped(m) and not isinstance(m, ModelMixin)}
    if not swapped:
        raise ValueError(f"nothing in {type(model).__name__} could be patched; see torch_foundry.report")
    states = {id(m._foundry.state): m._foundry.state for m in swapped.values()}

    @contextlib.contextmanager
    def fused(enabled: bool) -> Iterator[None]:
        before = [state.enabled for state in states.values()]
        for state in states.values():
            state.enabled = enabled
        try:
            yield
        finally:
            for state, value in zip(states.values(), before, strict=True):
                state.enabled = value

    outputs: list[tuple[str, torch.Tensor]] = []
    alone: list[float] = []

    def keep_stock(name: str, module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        outputs.append((name, output))
        with fused(True):
            alone.append(_error(module.forward(*args, **kwargs), output))

    drifts: list[float] = []

    def measure(name: str, module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        drifts.append(_error(output, outputs[len(drifts)][1]))

    with fused(False), _hooked(swapped, keep_stock):
        stock = model(ids, use_cache=False, **inputs).logits
    with fused(True), _hooked(swapped, measure):
        ours = model(ids, use_cache=False, **inputs).logits

    stages = []
    for i, (name, _) in enumerate(outputs):
        growth = drifts[i] / drifts[i - 1] if i and drifts[i - 1] else None
        stages.append(Stage(name, drifts[i], growth, alone[i], isinstance(swapped[name], LayerMixin)))
    same = (stock.argmax(-1) == ours.argmax(-1)).float().mean().item()
    return Drift(stages, _first_bad(stages, stock.dtype), stock.dtype, _error(ours, stock), same)


def _first_bad(stages: list[Stage], dtype: torch.dtype) -> str | None:
    limit = LIMIT.get(dtype, LIMIT[torch.float32])
    typical = statistics.median([stage.alone for stage in stages if stage.is_layer] or [0.0])
    for stage in stages:
        outlier = stage.is_layer and stage.alone > OUTLIER * typical and stage.alone > limit / OUTLIER
        if stage.alone > limit or outlier:
            return stage.name
    return None


@contextlib.contextmanager
def _hooked(modules: dict[str, nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Call hook(name, module, args, kwargs, output) after each forward of `modules`."""

    def named(name: str) -> Callable[..., None]:
        return lambda *call: hook(name, *call)

    handles = [m.register_forward_hook(named(n), with_kwargs=True) for n, m in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _error(ours: torch.Tensor, stock: torch.Tensor) -> float:
    truth = stock.cpu().double()  # on the CPU: mps has no float64
    difference, norm = (ours.cpu().double() - truth).norm().item(), truth.norm().item()
    error = difference / norm if norm else difference
    return math.inf if math.isnan(error) else error


class _Callable(types.ModuleType):
    """`torch_foundry.compare` is a function to users; importing this module binds the name to the module."""

    def __call__(self, *args: Any, **kwargs: Any) -> Drift:
        return compare(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
