"""`torch_foundry.compare(model, ids)`: where, layer by layer, a patched model drifts from the stock one.

It looks at every way that generation takes through the kernels: a prompt, a single token, a decode step's fused kernels
on a filled cache, and the graph that replays them. Imported without transformers and without the kernels; both are
loaded by the first call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from torch_foundry.diagnostics.compare.result import (
    LIMIT,
    PROMPT,
    TOKEN,
    Drift,
    Path,
    Stage,
    error,
    hidden_of,
    stages_of,
)

__all__ = ["LIMIT", "Drift", "Path", "Stage", "compare"]


@torch.no_grad()
def compare(model: nn.Module, ids: torch.Tensor, **inputs: Any) -> Drift:
    """Compare the outputs of every replaced module of `model`, stock and patched, on `ids` [B, L].

    They run for the prompt, a single token, and the decode steps that follow, fused and replayed (`Drift.left_out` says
    why not).

    A stage is out of line if, given the stock model's input, its output differs by more than rounding explains, but for
    tokens whose experts rounding may choose, of which the kernels alone are judged; its kernels are then held against
    plain torch, and `Path.kernels` names those that are wrong. Packed weights, and packed keys and values in steps, are
    used on both sides. inputs: further arguments of the model (attention_mask ...). A model that is not patched is
    patched for the duration of the call. ValueError: nothing in the model can be patched.
    """
    from torch_foundry.hf.api import patched

    was_training = model.training
    model.eval()
    try:
        with patched(model):
            return _compare(model, ids, inputs)
    finally:
        model.train(was_training)


def _compare(model: nn.Module, ids: torch.Tensor, inputs: dict[str, Any]) -> Drift:
    from torch_foundry.core.errors import Fallback
    from torch_foundry.diagnostics.compare.steps import KNOWN, compare_steps, why_not
    from torch_foundry.hf.pretrained import ModelMixin
    from torch_foundry.hf.training import TrainedMixin
    from torch_foundry.models.swap import is_swapped

    others = (ModelMixin, TrainedMixin)  # of which the latter are of no use in inference
    swapped = {n: m for n, m in model.named_modules() if is_swapped(m) and not isinstance(m, others)}
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

    prompt, stock, ours = _layer_by_layer(PROMPT, model, swapped, fused, ids, inputs)
    paths = [prompt]
    if inputs.keys() <= KNOWN:
        paths.append(_layer_by_layer(TOKEN, model, swapped, fused, ids[:, -1:], {})[0])
    if (left_out := why_not(model, inputs)) is None:
        try:
            paths += compare_steps(model, ids, inputs, {id(m): name for name, m in swapped.items()}, fused)
        except Fallback as fallback:
            left_out = str(fallback)
    same = (stock.argmax(-1) == ours.argmax(-1)).float().mean().item()
    return Drift(paths, stock.dtype, same, left_out)


def _layer_by_layer(
    name: str, model: nn.Module, swapped: dict[str, Any], fused: Any, ids: torch.Tensor, inputs: dict[str, Any]
) -> tuple[Path, torch.Tensor, torch.Tensor]:
    """The path without a cache, and both models' logits."""
    from torch_foundry.diagnostics.compare.kernels import wrong_kernels
    from torch_foundry.diagnostics.compare.ties import error_alone, undecided
    from torch_foundry.hf.layer import LayerMixin

    outputs: list[tuple[str, torch.Tensor]] = []
    alone: list[float] = []
    drifts: list[float] = []

    def keep_stock(name: str, module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        outputs.append((name, output.clone()))  # some models write to it
        with fused(True):
            alone.append(error_alone(lambda: hidden_of(module.forward(*args, **kwargs)), output, ties.get(name)))

    def measure(name: str, module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> None:
        drifts.append(error(output, outputs[len(drifts)][1]))

    with fused(False):
        decoders = {name: module for name, module in swapped.items() if isinstance(module, LayerMixin)}
        ties = undecided(decoders, lambda: model(ids, use_cache=False, **inputs))
    with fused(False), _hooked(swapped, keep_stock):
        stock = model(ids, use_cache=False, **inputs).logits
    with fused(True), _hooked(swapped, measure):
        ours = model(ids, use_cache=False, **inputs).logits

    layers = {name for name, _ in outputs if isinstance(swapped[name], LayerMixin)}
    stages = stages_of([name for name, _ in outputs], drifts, alone, layers)
    path = Path(name, stages, error(ours, stock), LIMIT.get(stock.dtype, LIMIT[torch.float32]))
    if (bad := path.first_bad) is not None:

        def look(name: str, module: nn.Module, args: Any, kwargs: Any, output: torch.Tensor) -> None:
            with fused(True):
                path.kernels.extend(wrong_kernels(lambda: module.forward(*args, **kwargs)))

        with fused(False), _hooked({bad: swapped[bad]}, look):
            model(ids, use_cache=False, **inputs)
    return path, stock, ours


@contextlib.contextmanager
def _hooked(modules: dict[str, nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Call hook(name, module, args, kwargs, output) after each forward of `modules`."""

    def named(name: str) -> Callable[..., None]:
        return lambda *call: hook(name, *call[:-1], hidden_of(call[-1]))

    handles = [m.register_forward_hook(named(n), with_kwargs=True) for n, m in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
