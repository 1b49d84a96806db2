"""Measuring a token: its graph as a whole, each of its kernels apart, and generate() around it."""

from __future__ import annotations

import copy
import re
import time
from typing import Any

import torch

from torch_foundry.core import devices, runtime
from torch_foundry.core.graph import LaunchGraph, captures
from torch_foundry.diagnostics.doctor.measure import Scale, bandwidth
from torch_foundry.diagnostics.profiling.result import KernelTime, Profile
from torch_foundry.hf.api import report
from torch_foundry.hf.packing import packed_formats
from torch_foundry.hf.pretrained import forget
from torch_foundry.models.swap import is_swapped
from torch_foundry.testing.timing import seconds, synchronize

LAYER = re.compile(r"^layers\.\d+")


@torch.no_grad()
def profile(model: Any, *, context: int = 512, batch: int = 1, tokens: int = 64) -> Profile:
    """Time the launches of a greedy token of `model`, and what lies between and around them.

    model: patched, of a family whose decode steps are captured; it gets random ids. context: tokens in the cache of
    each of `batch` sequences. tokens: how many generate() is timed with. Each group of launches (the same kernel in the
    same scope, in all layers) is also replayed alone; the weights of a small model may then come from a cache.

    ValueError: sizes below 1, or beyond the model's positions. RuntimeError: a step can't be captured; the message says
    why.
    """
    config = model.config.get_text_config()
    if min(context, batch, tokens) < 1:
        raise ValueError(f"context, batch and tokens: expected at least 1, got {context}, {batch} and {tokens}")
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None and context + tokens > limit:
        raise ValueError(f"context: {context} tokens and {tokens} more are beyond the model's {limit} positions")
    device = model.device
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (batch, context), generator=generator).to(device)
    forget(model)  # a graph that an earlier generate() has left would be used again, and nothing captured
    with captures() as graphs:
        generate_s = _generate(model, ids, tokens)
    if not graphs:
        reasons = ", ".join(report(model).eager) if is_swapped(model) else "the model is not patched"
        raise RuntimeError(f"{type(model).__name__} can't be profiled, as no step of it was captured: {reasons}")
    graph, dtype = graphs[-1], str(model.dtype).removeprefix("torch.")
    submit_s = _submit(device, graph)
    replay_s, lines = _seconds(device, graph), _lines(device, graph)
    return Profile(
        model=type(model).__name__,
        device=str(device),
        executor=runtime.executor(device),
        dtype=dtype,
        weights=packed_formats(model) or dtype,
        batch=batch,
        context=context,
        read_gb_s=bandwidth(device, Scale.of(device, devices.of(device).emulated, quick=True))["read_gb_s"],
        generate_s=generate_s,
        submit_s=submit_s,
        replay_s=replay_s,
        replay_again_s=_seconds(device, graph),
        lines=lines,
    )


def _generate(model: Any, ids: torch.Tensor, tokens: int) -> float:
    """Seconds of a token: generate() of `tokens` + 1 tokens less generate() of one, the least of three each."""
    config = copy.deepcopy(model.generation_config)
    config.do_sample, config.sync_every = False, tokens
    # an id that no token has, so that nothing ends it: None would stand for the model's own
    config.eos_token_id, config.pad_token_id = model.config.get_text_config().vocab_size, 0
    mask = torch.ones_like(ids)

    def timed(count: int) -> float:
        config.max_new_tokens = count
        start = time.perf_counter()
        model.generate(ids, attention_mask=mask, generation_config=config)
        synchronize(ids.device)
        return time.perf_counter() - start

    timed(tokens + 1)
    # the least of each: a disturbance of the short call alone would make the difference too small, or negative
    whole, first = (min(timed(count) for _ in range(3)) for count in (tokens + 1, 1))
    return (whole - first) / tokens


def _submit(device: torch.device, graph: LaunchGraph) -> float:
    """Seconds until a replay has been handed over, without waiting for it."""
    times = []
    for _ in range(10):
        synchronize(device)
        start = time.perf_counter()
        graph.replay()
        times.append(time.perf_counter() - start)
    synchronize(device)
    return min(times)


def _seconds(device: torch.device, graph: LaunchGraph) -> float:
    """Of a replay: the least of several rounds, as of everything here, because others can only make it longer."""
    return seconds(device, graph.replay, of_rounds=min)


def _lines(device: torch.device, graph: LaunchGraph) -> list[KernelTime]:
    groups: dict[tuple[str, str], list[int]] = {}
    launches = graph.launches()
    for i, launch in enumerate(launches):
        groups.setdefault((LAYER.sub("layers.*", launch.scope), launch.kernel), []).append(i)
    return [
        KernelTime(scope, kernel, len(at), sum(launches[i].bytes for i in at), _seconds(device, graph.part(at)))
        for (scope, kernel), at in groups.items()
    ]
