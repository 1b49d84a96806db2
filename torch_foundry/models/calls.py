"""Calls of whole models, each counted once: a step on a graph, a step without one and why, or no step at all.

Models lie inside each other. A forward pass is the innermost one's, which has the layers; a generation is counted by
whichever loop took it, or, if none of ours did, by the outermost model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer

from torch_foundry.core import limits
from torch_foundry.models.state import ModelPlan

LONGEST_STEP = limits.ROWS_TOGETHER  # tokens of a row in a captured step
CACHES = ("past_key_values", "cache_params", "cache", "state")  # what forward() calls it
TOKENS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds")


class Call:
    """A call that is under way. counted: whether one inside of it was; step: as a step."""

    __slots__ = ("counted", "step")

    def __init__(self) -> None:
        self.counted = self.step = False

    def count(self, step: bool) -> None:
        """One inside was counted."""
        self.counted, self.step = True, self.step or step


_forward: ContextVar[Call | None] = ContextVar("forward", default=None)
_generation: ContextVar[Call | None] = ContextVar("generation", default=None)
_collected: ContextVar[list[Tensor] | None] = ContextVar("collected", default=None)


@contextlib.contextmanager
def _call(variable: ContextVar[Call | None]) -> Iterator[Call]:
    around, call = variable.get(), Call()
    token = variable.set(call)
    try:
        yield call
    finally:
        variable.reset(token)
        if around is not None:
            around.count(call.step)


@contextlib.contextmanager
def forward_pass(plan: ModelPlan, why: str | None) -> Iterator[None]:
    """A forward pass without a graph: a step and `why` (None: no step), unless that of a model inside is counted."""
    with _call(_forward) as call:
        yield
        if why is None and not call.counted:
            plan.prompts += 1
        elif why is not None and not call.step:
            plan.eager[why] += 1
            call.step = True


def replayed() -> None:
    """A forward pass was a graph."""
    if (around := _forward.get()) is not None:
        around.count(step=True)


@contextlib.contextmanager
def generation(plan: ModelPlan, why: str) -> Iterator[None]:
    """A call of generate(): `why` our own loop didn't take it is counted, unless `generated` is called inside."""
    with _call(_generation) as call:
        yield
    if not call.counted:
        plan.eager[why] += 1


def generated() -> None:
    """Our own loop took the generation, or why it didn't has been counted."""
    if (around := _generation.get()) is not None:
        around.count(step=False)


@contextlib.contextmanager
def collect_hidden(into: list[Tensor] | None) -> Iterator[None]:
    """Add to `into` what the last norm of a decoder gives, [B, L, hidden], in each forward pass; None: don't."""
    token = _collected.set(into)
    try:
        yield
    finally:
        _collected.reset(token)


def computed(hidden: Tensor) -> None:
    """A decoder's forward pass has given this."""
    if (into := _collected.get()) is not None:
        into.append(hidden)


def is_step(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a forward pass is one of a few tokens behind what a cache holds. Waits for no device."""
    cache = next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)
    if cache is None or not _filled(cache):
        return False
    given = next((kwargs[name] for name in TOKENS if kwargs.get(name) is not None), args[0] if args else None)
    shape: tuple[int, ...] = tuple(getattr(given, "shape", ()))
    return len(shape) < 2 or 0 < shape[1] <= LONGEST_STEP


def _filled(cache: Any) -> bool:
    layers = getattr(cache, "layers", None)
    if not isinstance(layers, list):  # of a kind that nobody knows
        return True
    return any(
        layer.get_seq_length() > 0
        if isinstance(layer, DynamicLayer)
        else getattr(layer, "is_initialized", False) or any(getattr(layer, "has_previous_state", {}).values())
        for layer in layers
    )
